"""The bridge: reads targets, merges them into the bootstrap config, and keeps the routes of the gateway up to date.

The bootstrap is kept unchanged. If one of its routes has the name or path of a target, the route wins, and the
target is shadowed. The config carries its fingerprint as the name of an unused backend, which the gateway shows at
its admin address once it runs the config. After any failure the current config stays in place, and ``health`` shows
the failure until it is over.

The file that the gateway reads (``GatewayConfigFile``) is replaced atomically, and only one bridge writes it.

A write that fails, for example on a full disk, leaves the old content.
"""

from __future__ import annotations

import copy
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import yaml

from holdfast.config import Targets
from holdfast.errors import ConfigError, HoldfastError, Problem
from holdfast.files import FileLock, replace_file
from holdfast.gateway.decide import (
    ConfigHistory,
    Decision,
    GatewayDown,
    GatewayState,
    GatewayView,
    GatewayWatch,
    decide,
)
from holdfast.gateway.health import BridgeHealth
from holdfast.gateway.model import CHECK_ROUTE, EXT_AUTH_TIMEOUT, ExtAuth, Family, Release, Target
from holdfast.gateway.render import (
    Document,
    Schema,
    blocks,
    check_config,
    complete,
    put,
    route,
    short_timeouts,
    to_yaml,
)
from holdfast.gateway.source import SourceFailed, TargetSource

__all__ = [
    "MARK",
    "Bridge",
    "BridgePlan",
    "GatewayConfigFile",
    "Rendered",
    "Rules",
    "merge",
    "read_bootstrap",
    "seed",
    "session_key",
    "with_session_key",
]

MODE = 0o640
"""The mode of a new file, because the URL of a target may hold a secret. An existing file keeps its mode."""


class GatewayConfigFile:
    """A config file, and beside it the last config that the gateway ran."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._accepted = file.with_name(f"{file.name}.accepted")

    def read(self) -> bytes | None:
        """The current content; None if there is no file."""
        return _read(self.file)

    def write(self, data: bytes) -> None:
        """Replace the config. After an ``OSError`` nothing has changed."""
        replace_file(self.file, data, mode=MODE, keep_mode=True)

    def read_accepted(self) -> bytes | None:
        """The last config that the gateway ran, also from an earlier run of the bridge."""
        return _read(self._accepted)

    def keep_accepted(self, data: bytes) -> None:
        """Save a config that the gateway runs; ``OSError`` if it cannot be written."""
        replace_file(self._accepted, data, mode=MODE, keep_mode=True)


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


MARK = "holdfast-config-"
"""The prefix of a fingerprint."""

LARGEST = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How targets become routes, and how the result is checked."""

    release: Release
    ext_auth: ExtAuth | None = None
    listener: str = ""
    """The listener that gets the routes; the first HTTP listener if empty."""
    schema: Schema | None = None


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A checked config."""

    text: str = field(repr=False)
    mark: str
    routes: int
    shadowed: tuple[str, ...] = ()
    """Targets whose name or path is used by a route of the bootstrap."""
    warnings: tuple[str, ...] = ()

    @property
    def data(self) -> bytes:
        """The content of the file."""
        return self.text.encode()


def read_bootstrap(file: Path) -> Document:
    """The document in a YAML file, or a ``ConfigError`` with the reason."""
    try:
        with file.open("rb") as stream:
            text = stream.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ConfigError([Problem(message=f"the bootstrap config is larger than {LARGEST >> 20} MiB", file=file)])
        document = yaml.safe_load(text)
    except OSError as exc:
        message = f"cannot read the bootstrap config: {exc.strerror or type(exc).__name__}"
        raise ConfigError([Problem(message=message, file=file)]) from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ConfigError([_not_yaml(file, exc)]) from exc
    if not isinstance(document, dict):
        raise ConfigError([Problem(message="the bootstrap config is not a mapping", file=file)])
    return document


def session_key(file: Path) -> str:
    """The key in a file with which the gateway encrypts its session ids: 64 hex digits, as the gateway demands."""
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        why = getattr(exc, "strerror", None) or type(exc).__name__
        raise HoldfastError(f"cannot read the session key file {file}: {why}", hint="check the path") from exc
    if not re.fullmatch(r"[0-9a-fA-F]{64}", key):
        raise HoldfastError(f"the session key file {file} does not hold 64 hex digits", hint="openssl rand -hex 32")
    return key


def with_session_key(document: Mapping[str, Any], key: str) -> Document:
    """The config with that key. It comes from a file of its own, so that no config map holds it."""
    settings = document.get("config")
    return {**document, "config": {**(settings if isinstance(settings, Mapping) else {}), "session": {"key": key}}}


def merge(bootstrap: Mapping[str, Any], targets: Sequence[Target], rules: Rules, *, source: Path | None) -> Rendered:
    """The bootstrap with a route for each target, checked; ``ConfigError`` if it is not valid."""
    document: Document = copy.deepcopy(dict(bootstrap))
    shadowed = _add_routes(document, targets, rules, source) if targets else ()
    if rules.ext_auth is not None:
        _set_check_timeout(document, rules.ext_auth, rules.release.family)
    complete(document, rules.release.family, rules.ext_auth.timeout if rules.ext_auth else EXT_AUTH_TIMEOUT)
    mark = _mark(document)
    document["backends"] = [*(document.get("backends") or []), {"name": mark, "host": "127.0.0.1:1"}]
    check_config(document, rules.release, rules.schema, source=source)
    routes = sum(len(listener.get("routes") or ()) for listener in _listeners(document))
    warnings = tuple(short_timeouts(document, rules.release.family))
    return Rendered(text=to_yaml(document), mark=mark, routes=routes, shadowed=shadowed, warnings=warnings)


def _set_check_timeout(document: Document, ext_auth: ExtAuth, family: Family) -> None:
    """Give the check route the timeout of the other routes: one option decides all of them."""
    for listener in _listeners(document):
        for one in _dicts(listener.get("routes")):
            if one.get("name") == CHECK_ROUTE:
                for _, block in blocks(one):
                    put(block, family.timeout, ext_auth.timeout)


def _add_routes(document: Document, targets: Sequence[Target], rules: Rules, source: Path | None) -> tuple[str, ...]:
    """Add a route for each target. Returns the ids of the shadowed targets."""
    _same_protection(document, rules, source)
    routes = _routes_of(_listener(document, rules.listener, source))
    names, paths = _taken(routes)
    made = {target.id: route(target, rules.ext_auth, rules.release.family) for target in targets}
    shadowed = tuple(name for name, new in made.items() if name in names or _path(new) in paths)
    routes += [new for name, new in made.items() if name not in shadowed]
    return shadowed


def _same_protection(document: Document, rules: Rules, source: Path | None) -> None:
    """Refuse routes without authorization beside routes with it: they would bypass the authorization."""
    if rules.ext_auth is None and any(blocks(document)):
        message = "the bootstrap config uses authorization, and the routes of the targets have none"
        hint = "name the authorization service: --ext-auth-host HOST:PORT"
        raise ConfigError([Problem(message=message, hint=hint, file=source)])


def _listener(document: Document, name: str, source: Path | None) -> Document:
    listeners = [one for one in _listeners(document) if one.get("protocol", "HTTP") in ("HTTP", "HTTPS")]
    chosen = [listener for listener in listeners if not name or listener.get("name") == name]
    if chosen:
        return chosen[0]
    wanted = f"no HTTP listener named `{name}`" if name else "no HTTP listener"
    hint = "its listeners: " + (", ".join(str(one.get("name", "(unnamed)")) for one in listeners) or "none")
    raise ConfigError([Problem(message=f"the bootstrap config has {wanted}", hint=hint, file=source)])


def _listeners(document: Document) -> Iterator[Document]:
    for bind in _dicts(document.get("binds")):
        yield from _dicts(bind.get("listeners"))


def _routes_of(listener: Document) -> list[Any]:
    if not isinstance(listener.get("routes"), list):
        listener["routes"] = []
    routes: list[Any] = listener["routes"]
    return routes


def _taken(routes: Sequence[Any]) -> tuple[set[object], set[str]]:
    """The names and paths of existing routes."""
    there = list(_dicts(routes))
    return {one.get("name") for one in there}, {path for one in there for path in _paths(one)}


def _paths(one: Document) -> Iterator[str]:
    for match in _dicts(one.get("matches")):
        path = match.get("path")
        if isinstance(path, dict):
            yield from (value.rstrip("/") for value in path.values() if isinstance(value, str))


def _path(one: Document) -> str:
    return next(_paths(one))


def _dicts(value: object) -> Iterator[Document]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _mark(document: Document) -> str:
    return MARK + hashlib.sha256(to_yaml(document).encode()).hexdigest()[:16]


def _not_yaml(file: Path, exc: Exception) -> Problem:
    mark = getattr(exc, "problem_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
    return Problem(message="the bootstrap config is not YAML", file=file, line=line, column=column)


WAITING_PAUSE = 0.25
"""Seconds between two checks while the gateway loads a config. The gateway reads a changed file after about that."""

_SEEN = (GatewayState.TAKEN, GatewayState.REFUSED)
"""States of an earlier config. They say nothing about a config that was just written."""

_EMPTY = "the source lists no targets; if that is right, use --allow-empty"

_MARK = re.compile(MARK.encode() + rb"[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class BridgePlan:
    """The settings of a bridge."""

    output: Path
    """The file that the gateway reads."""
    rules: Rules
    bootstrap: Callable[[], Document]
    """Returns the config without the routes of the targets; called each time."""
    bootstrap_file: Path | None = None
    """The file of that config, for messages."""
    allow_empty: bool = False
    """Whether a source without targets may remove every route."""
    poll: float = 5.0
    patience: float = 10.0
    """How long the gateway may take to load a config."""

    def render(self, targets: Targets) -> Rendered:
        """The config for these targets; ``ConfigError`` if it is not valid."""
        return merge(self.bootstrap(), targets.found, self.rules, source=self.bootstrap_file)


def seed(plan: BridgePlan) -> bool:
    """Write the bootstrap if there is no config yet, so that the gateway can start. Returns whether it was written."""
    store = GatewayConfigFile(plan.output)
    if store.read() is not None:
        return False
    store.write(plan.render(Targets()).data)
    return True


class Bridge:
    """Keeps one config file up to date with its targets."""

    def __init__(
        self,
        plan: BridgePlan,
        *,
        source: TargetSource,
        watch: GatewayWatch,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._plan = plan
        self._source = source
        self._watch = watch
        self._report = report
        self._clock = clock
        self._file = GatewayConfigFile(plan.output)
        self._lock = FileLock(plan.output.with_name(f"{plan.output.name}.lock"))
        self._history = ConfigHistory()
        self._targets: Targets | None = None
        self._polled = float("-inf")
        self._in_place: bytes | None = None
        self._accepted: bytes | None = None
        self.health = BridgeHealth(source=source.name)

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                await self.step()
                await anyio.sleep(WAITING_PAUSE if self.health.take is GatewayState.WAITING else self._plan.poll)
        finally:
            self._lock.release()

    async def once(self) -> BridgeHealth:
        """Run until the gateway runs the config, or until that failed."""
        try:
            await self.step()
            while self.health.status in ("starting", "applying"):
                await anyio.sleep(WAITING_PAUSE)
                await self.step()
        finally:
            self._lock.release()
        return self.health

    async def step(self) -> None:
        """Read, decide, act and report, once."""
        if not self._can_write():
            return
        if anyio.current_time() - self._polled >= self._plan.poll:
            await self._poll()
        wanted = self._wanted()
        view = await self._watch.look()
        decision = decide(
            wanted.mark if wanted else None, self._history, view, now=anyio.current_time(), patience=self._plan.patience
        )
        wrote = await self._act(decision, wanted)
        self._note(GatewayState.WAITING if wrote and decision.take in _SEEN else decision.take, wanted, view)

    def _can_write(self) -> bool:
        """Whether this bridge may write the file, and can read it."""
        try:
            if self._lock.try_acquire():
                if self.health.role != "active":
                    self._begin()
                self._look_at_file()
                return True
        except OSError as exc:
            self._config_failed(f"cannot read the config or its lock: {_reason(exc)}")
            return False
        if self.health.role != "standby":
            self.health.role = "standby"
            self._report(f"another bridge writes {self._plan.output}: this one is on standby")
        return False

    def _begin(self) -> None:
        self.health.role = "active"
        self._report(f"writing {self._plan.output} from {self._source.name}")
        self._accepted = self._file.read_accepted()
        self._in_place = self._file.read()
        self._history = ConfigHistory(
            live=_mark_in(self._in_place), accepted=_mark_in(self._accepted), since=anyio.current_time()
        )

    async def _poll(self) -> None:
        self._polled = anyio.current_time()
        health = self.health
        try:
            targets = await self._source.read()
        except SourceFailed as exc:
            self._source_failed(f"cannot read the targets, so the last ones stay: {exc}", str(exc))
            return
        health.source_empty = not targets.found
        if targets.left_out != health.left_out:
            health.left_out = targets.left_out
            for line in (*(f"no route for `{name}`: {why}" for name, why in targets.left_out.items()), *targets.notes):
                self._report(line)
        if health.source_empty and not self._plan.allow_empty:
            self._source_failed("the source lists no targets, so the last ones stay", _EMPTY)
            return
        if health.source_error:
            self._report("the targets can be read again")
        self._targets = targets
        health.source_error, health.source_success = "", self._clock()

    def _source_failed(self, report: str, error: str) -> None:
        self.health.source_failures += 1
        if self.health.source_error != error:
            self._report(report)
        self.health.source_error = error

    def _look_at_file(self) -> None:
        """Check whether another program changed the file."""
        data = self._file.read()
        if data != self._in_place:
            self._report(f"another program changed {self._plan.output}")
            self._in_place, self._history.live = data, ""

    def _wanted(self) -> Rendered | None:
        """The wanted config; None to keep the current one."""
        if self._targets is None and self._in_place is not None:
            return None
        try:
            return self._plan.render(self._targets or Targets())
        except ConfigError as exc:
            self._config_failed(exc.message)
            return None

    async def _act(self, decision: Decision, wanted: Rendered | None) -> bool:
        """Perform the decision. Returns whether the wanted config was written."""
        if decision.newly_refused:
            self.health.refusals += 1
        if decision.accept and self._in_place is not None:
            await self._keep_accepted(self._in_place)
        if decision.restore and self._accepted is not None and await self._write(self._accepted):
            self.health.restores += 1
            self._report("restored the last config that the gateway ran")
        if not decision.write or wanted is None or not await self._write(wanted.data):
            return False
        self._report(f"wrote {wanted.mark}: {wanted.routes} routes")
        return True

    async def _write(self, data: bytes) -> bool:
        try:
            await anyio.to_thread.run_sync(self._file.write, data)
        except OSError as exc:
            self.health.write_failures += 1
            self._config_failed(f"cannot write the config: {_reason(exc)}")
            return False
        self._in_place = data
        self._history.live, self._history.since = _mark_in(data), anyio.current_time()
        self.health.writes += 1
        self.health.written = self._clock()
        return True

    async def _keep_accepted(self, data: bytes) -> None:
        self._accepted = data
        try:
            await anyio.to_thread.run_sync(self._file.keep_accepted, data)
        except OSError as exc:
            self._report(f"cannot save the accepted config for a restart: {_reason(exc)}")

    def _note(self, take: GatewayState, wanted: Rendered | None, view: GatewayView) -> None:
        health = self.health
        health.mark = self._history.live
        if wanted is not None and wanted.mark == self._history.live:
            health.routes, health.shadowed = wanted.routes, wanted.shadowed
            for warning in wanted.warnings if wanted.warnings != health.warnings else ():
                self._report(f"warning: {warning}")
            health.warnings = wanted.warnings
            if health.config_error:
                self._report("the config is in place again")
            health.config_error, health.config_success = "", self._clock()
        elif wanted is not None and not health.config_error:
            self._config_failed("the gateway does not run the wanted config")
        if take is not health.take:
            self._report(f"gateway: {take.value}")
        health.take, health.gateway_error = take, _gateway_error(take, view)
        if take is GatewayState.TAKEN:
            health.gateway_success = self._clock()

    def _config_failed(self, why: str) -> None:
        if why != self.health.config_error:
            self._report(f"the last good config stays in place: {why}")
        self.health.config_error = why


def _gateway_error(take: GatewayState, view: GatewayView) -> str:
    if take is GatewayState.REFUSED:
        return "the gateway did not load the wanted config: see its log for the reason"
    return view.reason if isinstance(view, GatewayDown) else ""


def _mark_in(data: bytes | None) -> str:
    found = _MARK.search(data) if data is not None else None
    return found.group().decode() if found else ""


def _reason(exc: OSError) -> str:
    return exc.strerror or type(exc).__name__
