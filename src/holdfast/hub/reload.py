"""Hot reload: what changes in the configuration file is applied to the running hub.

The file is looked at by its path, again and again, so that every way of changing it is seen: written in
place, replaced by an editor, or swapped behind symbolic links as Kubernetes does. A broken edit changes
nothing and is told; a server whose new definition cannot be used goes on with the one that it had.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.to_thread

from holdfast.config.load import read_file
from holdfast.config.spec import BadServer, Config, ServerSpec, Settings
from holdfast.errors import ConfigError, Problem
from holdfast.hub.clock import Clock, RealClock
from holdfast.hub.records import ConfigApplied, ConfigRefused, config_applied

if TYPE_CHECKING:
    from holdfast.hub.hub import Hub

__all__ = ["Kept", "OnReload", "Reloaded", "Reloader", "write_to_log"]

log = logging.getLogger("holdfast.reload")

PERIOD = 0.5
"""Seconds between two looks: an edit is in force about a second after it is saved, and a look costs microseconds."""

Stamp: TypeAlias = tuple[tuple[int, ...] | None, ...]
"""Tells one state of the watched files from another; None for a file that is not there."""


@dataclass(frozen=True, kw_only=True)
class Reloaded:
    """The file changed, and the hub goes by it now."""

    file: Path
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    kept: Mapping[str, tuple[Problem, ...]]
    """Servers whose new definition cannot be used, and why: each goes on with the one that it had."""
    settings: tuple[str, ...] = ()
    """Which of Holdfast's own settings changed: in force from now on."""
    at_restart: tuple[str, ...] = ()
    """What of them waits for the next start."""

    def __str__(self) -> str:
        parts = [(f"{word}: {', '.join(names)}") for word, names in self._changes() if names]
        return "; ".join(parts) or "no server's definition changed"

    @property
    def trouble(self) -> str:
        """What is wrong with the file, in words; empty if all of it is in force."""
        return "; ".join(
            f"{name} goes on with its old definition: {_told(problems)}" for name, problems in self.kept.items()
        )

    def _changes(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        yield "added", self.added
        yield "removed", self.removed
        yield "changed", self.changed
        yield "settings", self.settings
        yield "in force at the next start", self.at_restart


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The file cannot be used as it is now: the hub goes on with what it had."""

    file: Path
    problems: tuple[Problem, ...]

    @property
    def trouble(self) -> str:
        """What is wrong with the file, in words."""
        return _told(self.problems)


OnReload: TypeAlias = Callable[[Reloaded | Kept], None]


class Reloader:
    """Watches the file of one hub. ``await Reloader(hub, file).run()`` never returns; cancel it."""

    def __init__(
        self,
        hub: Hub,
        file: Path,
        *,
        on_reload: OnReload | None = None,
        clock: Clock | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._hub = hub
        self._file = file
        self._on_reload = on_reload or write_to_log
        self._clock = clock or RealClock()
        self._environ = os.environ if environ is None else environ
        self._watched: tuple[Path, ...] = (file, *_env_files(file, self._environ))
        self._applied = self._seen = _stamp(self._watched)
        self._in_trouble = False

    async def run(self) -> None:
        """Look, wait, and look again. The first time the file is read: it may have changed since the hub's was."""
        await self.reload()
        while True:
            await self.look()
            await self._clock.wait(anyio.Event(), self._clock.now() + PERIOD)

    async def reload(self) -> Reloaded | Kept | None:
        """Read the file now, whether it seems to have changed or not."""
        self._applied = self._seen = await anyio.to_thread.run_sync(_stamp, self._watched)
        return await self._take()

    async def look(self) -> Reloaded | Kept | None:
        """Look once. A change is taken when two looks in a row see the same, so that no half-written file is read."""
        stamp = await anyio.to_thread.run_sync(_stamp, self._watched)
        settled, self._seen = stamp == self._seen, stamp
        if stamp == self._applied or not settled:
            return None
        self._applied = stamp
        return await self._take()

    async def _take(self) -> Reloaded | Kept | None:
        result = await self._read()
        if result is not None:
            if (refused := _refused(result, self._clock.now())) is not None:
                self._hub.tell(refused)
            self._in_trouble = bool(result.trouble)
            self._on_reload(result)
        return result

    async def _read(self) -> Reloaded | Kept | None:
        try:
            reading = await anyio.to_thread.run_sync(lambda: read_file(self._file, environ=self._environ))
        except ConfigError as exc:
            return Kept(file=self._file, problems=exc.problems)
        self._watch(file.path for file in (d.env_file for d in reading.definitions) if file is not None)
        return await self._apply(reading.config)

    def _watch(self, others: Iterator[Path]) -> None:
        watched = (self._file, *dict.fromkeys(others))
        if watched != self._watched:
            self._watched = watched
            self._applied = self._seen = _stamp(watched)

    async def _apply(self, fresh: Config) -> Reloaded | None:
        before = self._hub.config
        unusable = dict(_unusable(before, fresh))
        servers = {name: before.servers[name] if name in unusable else server for name, server in fresh.servers.items()}
        config = replace(fresh, servers=servers)
        if config == before and not unusable and not self._in_trouble:
            return None
        await self._hub.apply(config)
        return _difference(self._file, before, config, unusable)


def _refused(result: Reloaded | Kept, at: float) -> ConfigRefused | None:
    """The record of what could not be used; None if all could. What could be is the hub's own record."""
    if isinstance(result, Kept):
        return ConfigRefused(problems=tuple(map(str, result.problems)), at=at)
    if not result.kept:
        return None
    problems = tuple(str(problem) for several in result.kept.values() for problem in several)
    return ConfigRefused(servers=tuple(result.kept), problems=problems, at=at)


def write_to_log(result: Reloaded | Kept) -> None:
    """One line for what was done, and one for each thing that is wrong; the hub's record goes with the last of them."""
    if isinstance(result, Kept):
        for problem in result.problems:
            log.error("the configuration was changed and cannot be used: %s%s", problem, _hint(problem))
        log.error("the running configuration stays in force", extra={"record": _refused(result, 0.0)})
        return
    applied = ConfigApplied(added=result.added, removed=result.removed, changed=result.changed, at=0.0)
    log.info("the configuration was changed: %s", result, extra={"record": applied})
    for name, problems in result.kept.items():
        for problem in problems:
            log.error("%s: the new definition cannot be used: %s%s", name, problem, _hint(problem))
        refused = ConfigRefused(servers=(name,), problems=tuple(map(str, problems)), at=0.0)
        log.error("%s: the running definition stays in force", name, extra={"record": refused})


def _told(problems: tuple[Problem, ...]) -> str:
    return "; ".join(f"{problem}{_hint(problem)}" for problem in problems)


def _hint(problem: Problem) -> str:
    return f" ({problem.hint})" if problem.hint else ""


def _env_files(file: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The other files that the configuration was made of; none if it cannot be read."""
    try:
        definitions = read_file(file, environ=environ).definitions
    except ConfigError:
        return ()
    return tuple(dict.fromkeys(d.env_file.path for d in definitions if d.env_file is not None))


def _stamp(files: tuple[Path, ...]) -> Stamp:
    """Links are followed: a swap behind any of them is another file, and so another stamp."""
    return tuple(map(_one_stamp, files))


def _one_stamp(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


def _unusable(before: Config, fresh: Config) -> Iterator[tuple[str, tuple[Problem, ...]]]:
    """The servers that have a definition which works, and were given one which does not."""
    for name, server in fresh.servers.items():
        if isinstance(server, BadServer) and server.enabled and isinstance(before.servers.get(name), ServerSpec):
            yield name, server.problems


def _difference(file: Path, before: Config, after: Config, unusable: dict[str, tuple[Problem, ...]]) -> Reloaded:
    applied = config_applied(before, after, at=0.0)
    return Reloaded(
        file=file,
        added=applied.added,
        removed=applied.removed,
        changed=applied.changed,
        kept=unusable,
        settings=tuple(_settings(before.settings, after.settings)),
        at_restart=tuple(_at_restart(before.settings, after.settings)),
    )


def _settings(before: Settings, after: Settings) -> Iterator[str]:
    for one in fields(Settings):
        if getattr(before, one.name) != getattr(after, one.name):
            yield f"holdfast.{one.name}"


def _at_restart(before: Settings, after: Settings) -> Iterator[str]:
    """What is built into the endpoint when it is opened."""
    if before.limits.message_bytes != after.limits.message_bytes:
        yield "holdfast.limits.messageBytes, for what clients send"
