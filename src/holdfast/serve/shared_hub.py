"""What makes a hub the one that the clients of its user share (DX-8): its place, its variables, its end.

Theory of operation. Each hub that serves a configuration file over HTTP offers itself to ``serve --stdio``, if no other
hub of that file does: it holds the lock of the address (``join_address``) and listens there. A hub that takes over
listens as soon as it is ready, and gets the lock when the one before it has ended.

- ``SharedPlace`` is the address. Where it cannot be had, the hub serves all the same, and says so.
- ``ClientVariables`` completes the environment of the hub. A hub that a desktop program started knows neither the PATH
  of a shell nor its keys; a client that was started there brings them. They fill gaps and never replace a value: a
  server must not change under the clients that use it. They are in memory alone. Two clients that disagree are told.
- ``end_when_idle`` is for a hub in the background: the last client that leaves must not leave it behind for ever.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from holdfast.config import PROJECT_FILES, read_config, summarize, user_folders
from holdfast.core import CommandFault, CommandUnusable, events as on
from holdfast.errors import ConfigError
from holdfast.serve.join_address import JoinAddress, JoinRefused, try_lock
from holdfast.serve.joiner import BACKGROUND_VARIABLE

if TYPE_CHECKING:  # slow to import, and a supervisor imports this module
    from holdfast.hub import Clock, Hub
    from holdfast.serve.options import Serving

__all__ = [
    "IDLE_SECONDS",
    "ClientVariables",
    "SharedPlace",
    "end_when_idle",
    "own_file",
    "runs_in_background",
    "shared_place",
]

log = logging.getLogger("holdfast.serve")

IDLE_SECONDS: Final = 600.0
"""How long a hub in the background stays without a client, a request or a call."""

LOOK_SECONDS: Final = 5.0
"""How often it looks."""

MOST_FILES: Final = 100
"""Of so many files it is known which variables they use. Each client has up to three of its own."""

LOCK_SECONDS: Final = 0.2
"""How often a hub that took over looks whether the one before it has ended."""


def runs_in_background(environ: Mapping[str, str]) -> bool:
    """Whether a client started this hub, for all clients of its user."""
    return BACKGROUND_VARIABLE in environ


def own_file(file: Path, environ: Mapping[str, str]) -> bool:
    """Whether this is the user's own configuration: it may be made later."""
    return file.absolute() in [folder / "mcp.json" for folder in user_folders(environ)]


class SharedPlace:
    """The address at which clients join, and the lock that says whose it is."""

    def __init__(
        self, address: JoinAddress, lock: int | None, given: int | None, *, is_supervised: bool = False
    ) -> None:
        """``is_supervised`` if another process holds the lock, and outlives this one."""
        self._address = address
        self._is_supervised = is_supervised
        self._lock = lock
        """The lock of the hub; None while the hub before this one has it."""
        self._given = given
        """The lock of one that takes over, which keeps others from doing the same."""
        self._inode = 0

    @classmethod
    def find(cls, config: Path, environ: MutableMapping[str, str], *, takes_over: bool) -> SharedPlace | None:
        """The place of the hub that serves this file; None if another hub has it, or there is none."""
        number, _, key = environ.get(BACKGROUND_VARIABLE, "").partition(" ")
        given = int(number) if number.isdigit() and int(number) > 2 else None
        try:
            address = JoinAddress.of(str(config), (), environ)
            address = address.with_key(key) if key else address
            if given is not None:
                environ[BACKGROUND_VARIABLE] = f"0 {key}"  # a successor of this hub has no such descriptor
                is_lock = os.fstat(given).st_ino == os.stat(address.lock).st_ino  # noqa: PTH116 - a text
                return cls(address, given if is_lock else None, None if is_lock else given)
            lock = try_lock(address.lock)
        except (JoinRefused, OSError) as exc:
            log.info("no client can join this hub: %s", exc)
            return None
        return cls(address, lock, None) if lock is not None or takes_over else None

    @classmethod
    def supervised(cls, config: Path, environ: Mapping[str, str]) -> SharedPlace | None:
        """The place of a worker, whose supervisor holds the lock; None if there is no such place."""
        try:
            return cls(JoinAddress.of(str(config), (), environ), None, None, is_supervised=True)
        except JoinRefused as exc:
            log.info("no client can join this hub: %s", exc)
            return None

    def listen(self) -> socket.socket | None:
        """Listen for clients from now on; None if that is not possible."""
        try:
            listener = self._address.listen()
            self._inode = os.stat(self._address.path).st_ino  # noqa: PTH116 - a text
        except OSError as exc:
            log.warning("no client can join this hub: %s", exc)
            return None
        return listener

    async def follow(self) -> None:
        """Get the lock when the hub before this one has ended."""
        while self._lock is None and not self._is_supervised:
            with suppress(OSError):
                self._lock = try_lock(self._address.lock)
            if self._lock is None:
                await anyio.sleep(LOCK_SECONDS)
        if self._given is not None:
            os.close(self._given)
            self._given = None

    def close(self) -> None:
        """Take the name away, unless a successor has it. The lock stays until this process ends."""
        with suppress(OSError):
            if os.stat(self._address.path).st_ino == self._inode:  # noqa: PTH116 - a text
                os.unlink(self._address.path)  # noqa: PTH108 - a text

    def __repr__(self) -> str:
        return f"<SharedPlace {self._address.key} {'locked' if self._lock is not None else 'waits for its lock'}>"


def shared_place(serving: Serving) -> SharedPlace | None:
    """Where clients of this user join this hub; None for one that serves a part of its file, or no file."""
    options, worker, config = serving.options, serving.worker, serving.config
    if config is None or config.source is None or serving.is_demo:
        return None
    if worker is not None:
        return SharedPlace.supervised(config.source, os.environ) if worker.task.joins else None
    if not runs_in_background(os.environ) and (options.only or options.listen_hubs is not None):
        return None
    return SharedPlace.find(config.source, os.environ, takes_over=serving.predecessor is not None)


class ClientVariables:
    """The variables that the configuration names, from the hub's own environment and from its clients."""

    def __init__(
        self,
        hub: Hub,
        file: Path,
        *,
        reload: Callable[[], Awaitable[object]],
        findings: MutableMapping[str, str],
        found: Callable[[str], None],
        environ: MutableMapping[str, str],
    ) -> None:
        """``reload`` reads the configuration again. ``findings`` are shown with the servers; ``found`` tells of one."""
        self._hub = hub
        self._file = file
        self._reload = reload
        self._findings = findings
        self._found = found
        self._environ = environ
        self._given_by: dict[str, str] = {}
        """The client that brought a variable."""
        self._read: dict[Path, tuple[tuple[int, int, int], dict[str, tuple[str, ...]]]] = {}
        """What files use, and the state of the file that it was read from: most clients come between two changes."""

    async def wanted(self, folder: str) -> set[str]:
        """The names that a client is asked for: those of the hub's file, and of the project file where it works."""
        files = [self._file, *(Path(folder) / name for name in PROJECT_FILES if folder)]
        used = [await self._used_by(file) for file in files]
        return {"PATH", *(name for one in used for names in one.values() for name in names)}

    async def offer(self, client: str, variables: Mapping[str, str]) -> None:
        """What a client has of them: it fills gaps, and replaces nothing."""
        used = await self._used_by(self._file)
        known = {name for names in used.values() for name in names}
        fresh = False
        for name, value in variables.items():
            if name == "PATH" or name not in known or "\0" in value:
                continue
            if name not in self._environ:
                self._environ[name] = value
                self._given_by[name] = client
                fresh = True
            elif self._environ[name] != value:
                self._report(name, client, [server for server, names in used.items() if name in names])
        if self._extend_path(str(variables.get("PATH", ""))):
            self._look_for_commands()
        if fresh:
            await self._reload()

    async def _used_by(self, file: Path) -> dict[str, tuple[str, ...]]:
        """By server, the variables that a file uses. It is read again when it has changed."""
        if (stamp := _stamp_of(file)) is None:
            return {}
        if (known := self._read.get(file)) is not None and known[0] == stamp:
            return known[1]
        used = await anyio.to_thread.run_sync(_variables_of, file)
        if len(self._read) >= MOST_FILES:
            self._read.clear()
        self._read[file] = stamp, used
        return used

    def _extend_path(self, offered: str) -> bool:
        """Add the folders that are missing, at the end: what a name means now, it means afterwards too."""
        own = [one for one in self._environ.get("PATH", "").split(os.pathsep) if one]
        more = [one for one in offered.split(os.pathsep) if one.startswith("/") and "\0" not in one]
        added = [one for one in dict.fromkeys(more) if one not in own]
        if added:
            self._environ["PATH"] = os.pathsep.join([*own, *added])
        return bool(added)

    def _look_for_commands(self) -> None:
        """Try the servers again whose command was not found."""
        for slot in self._hub.registry.slots.values():
            failed = slot.leases.failed_dial
            seen = failed.evidence if failed is not None and slot.lease is None else None
            if isinstance(seen, CommandUnusable) and seen.fault is CommandFault.NOT_FOUND:
                slot.handle(on.ReconnectRequested())

    def _report(self, name: str, client: str, servers: list[str]) -> None:
        first = self._given_by.get(name, "the hub itself")
        text = (
            f"`{name}` has another value in {client} than in {first}, which came first and is used. "
            "To use two values, give each client a configuration of its own"
        )
        for server in servers:
            if self._findings.get(server) != text:
                log.warning("%s: %s", server, text)
            self._findings[server] = text
            self._found(server)

    def __repr__(self) -> str:
        return f"<ClientVariables of {self._file}, from clients: {sorted(self._given_by)}>"


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    """What changes with the content of a file; None if there is no file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _variables_of(file: Path) -> dict[str, tuple[str, ...]]:
    """By server, the variables that its definition uses."""
    try:
        return {one.name: one.variables for one in summarize(read_config(file))}
    except ConfigError:
        return {}


async def end_when_idle(clock: Clock, uses: Callable[[], object], busy: Callable[[], bool]) -> None:
    """Return when nothing has used the hub for long.

    ``uses`` is something that changes with each use; ``busy`` says whether something goes on now.
    """
    seen, since = uses(), clock.now()
    while clock.now() - since < IDLE_SECONDS:
        await clock.wait(anyio.Event(), clock.now() + LOOK_SECONDS)
        if busy() or uses() != seen:
            seen, since = uses(), clock.now()
