"""The bridge: reads targets, merges them into the bootstrap config, and keeps the routes of the gateway up to date.

Theory of operation. The bridge repeats one step: read the targets, render the wanted config, look at the gateway,
decide, act, note. The bootstrap is kept unchanged. If one of its routes has the name or path of a target, the route
wins, and the target is shadowed. After any failure the current config stays in place, and ``health`` shows the failure
until it is over.

A running gateway loads a new config, and keeps its old one if the new one is invalid. But it cannot start with an
invalid config. So a config that it refuses, or stops answering with, is replaced by the last one that it ran.
``decide`` says which; it is pure. A config is known by its fingerprint, the name of an unused backend in it. The
gateway shows that name at ``/config_dump`` of its admin address once it runs the config (``/config`` shows the file on
disk).

What must never happen:

* A source that fails, or is empty by mistake, removes a route: the last targets stay.
* A config that fails open, or that the schema refuses, is written: ``merge`` checks it, and the last good one stays.
* A gateway that restarts finds only a config that it refuses. So the accepted config is kept in a file of its own, and
  survives the bridge too.
* Two bridges write in turns: a lock chooses one, and the other is on standby.

The targets come from an mcp.json on disk or at an HTTP endpoint, or from a running hub, which serves its registry at
``/api/targets`` with its control token. A document that came over HTTP is not trusted: no ``${…}`` in it is expanded
and no ``envFile`` of it is read, so that it learns nothing of this machine.

The file that the gateway reads (``GatewayConfigFile``) is replaced atomically, and only one bridge writes it. A write
that fails, for example on a full disk, leaves the old content.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import ValidationError

from holdfast.config import Config, Targets, parse_config, read_config, targets_of
from holdfast.control import TargetsView
from holdfast.core import classify_evidence, mask_url
from holdfast.errors import ConfigError, ServerFailure, UsageError
from holdfast.files import FileLock, replace_file
from holdfast.gateway.render import MARK, Document, Rendered, Rules, merge
from holdfast.wire import fetch

__all__ = [
    "AdminAddressWatch",
    "Bridge",
    "BridgeHealth",
    "BridgePlan",
    "ConfigHistory",
    "Decision",
    "FileSource",
    "GatewayConfigFile",
    "GatewayDown",
    "GatewayRunning",
    "GatewayState",
    "GatewayView",
    "HttpSource",
    "Role",
    "Status",
    "TargetSource",
    "decide",
    "seed",
    "serving",
]

POLL_SECONDS = 10.0
"""For one poll of an endpoint."""


class SourceFailed(Exception):
    """The targets could not be read, and the last ones stay valid. Only the bridge sees this error."""


class TargetSource(Protocol):
    """A source of targets."""

    @property
    def name(self) -> str:
        """Its location, without secrets."""

    async def read(self) -> Targets:
        """The current targets; ``SourceFailed`` if they cannot be read."""


@dataclass(frozen=True)
class FileSource:
    """An mcp.json on this machine."""

    file: Path

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.file)

    async def read(self) -> Targets:
        """Read the file."""
        try:
            text = await anyio.to_thread.run_sync(read_config, self.file)
            return _targets(text, parse_config(text, file=self.file))
        except ConfigError as exc:
            raise SourceFailed(exc.message) from exc


@dataclass(frozen=True, kw_only=True)
class HttpSource:
    """An endpoint that serves an mcp.json, or a hub's registry."""

    url: str = field(repr=False)
    token: Callable[[], str] | None = field(default=None, repr=False)
    """Returns the bearer token; called for each poll."""
    allow_plain_http: bool = False

    @property
    def name(self) -> str:
        """Its address, without secrets."""
        return mask_url(self.url)

    async def read(self) -> Targets:
        """Ask the endpoint."""
        token = self.token
        headers = (lambda: {"authorization": f"Bearer {token()}"}) if token is not None else None
        try:
            body = await fetch(self.url, headers=headers, allow_plain_http=self.allow_plain_http, within=POLL_SECONDS)
            return _registry(body) or _targets(body, parse_config(body, is_foreign=True))
        except ServerFailure as exc:
            raise SourceFailed(f"the endpoint returned no targets: {classify_evidence(exc.evidence).reason}") from exc
        except ConfigError as exc:
            # The message of the parser may quote the document, which is not trusted.
            raise SourceFailed("the answer of the endpoint is not an mcp.json") from exc


def _registry(body: bytes) -> Targets | None:
    """The registry of a hub; None if the body is something else."""
    try:
        registry = TargetsView.model_validate_json(body)
    except ValidationError:
        return None
    servers = {one.id: {"type": one.transport, "url": one.url} for one in registry.targets}
    targets = targets_of(parse_config(json.dumps({"mcpServers": servers}), is_foreign=True))
    return replace(targets, left_out={**registry.left_out, **targets.left_out})


def _targets(text: bytes, config: Config) -> Targets:
    """The targets of a config. An object without a server list is an error, because it would remove every route."""
    if not config.servers and not any(key in text for key in (b'"mcpServers"', b'"servers"')):
        raise SourceFailed('it has no "mcpServers"; an empty list is {"mcpServers": {}}')
    return targets_of(config)


MODE = 0o640
"""The mode of a new file, because the URL of a target may hold a secret. An existing file keeps its mode."""


@dataclass(frozen=True)
class GatewayConfigFile:
    """A file with a config: the one that the gateway reads, or the last one that it ran."""

    file: Path

    def read(self) -> bytes | None:
        """The current content; None if there is no file."""
        try:
            return self.file.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, data: bytes) -> None:
        """Replace the config. After an ``OSError`` nothing has changed."""
        replace_file(self.file, data, mode=MODE, keep_mode=True)


# The health of the bridge, and the endpoints that serve it. Nothing is healthy by default: each part must succeed once
# first.

Role: TypeAlias = Literal["starting", "active", "standby"]

Status: TypeAlias = Literal["ok", "applying", "degraded", "standby", "starting"]


class GatewayState(Enum):
    """Whether the gateway runs the config in place."""

    NOT_WATCHED = "not watched"
    TAKEN = "taken"
    WAITING = "waiting"
    REFUSED = "refused"
    DOWN = "down"


@dataclass
class BridgeHealth:
    """The last observations of the bridge. Times are seconds since 1970; 0 is never."""

    source: str = ""
    gateway_version: str = ""
    role: Role = "starting"
    """Only the ``active`` bridge writes."""
    source_error: str = ""
    source_success: float = 0.0
    source_empty: bool = False
    """Whether the source lists no targets. Without ``--allow-empty`` that is an error."""
    config_error: str = ""
    """Why the wanted config is not in place."""
    config_success: float = 0.0
    """When the wanted config was last in place."""
    written: float = 0.0
    mark: str = ""
    routes: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    shadowed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    take: GatewayState = GatewayState.NOT_WATCHED
    gateway_error: str = ""
    gateway_success: float = 0.0
    """When the gateway last ran the config in place."""
    writes: int = 0
    write_failures: int = 0
    source_failures: int = 0
    refusals: int = 0
    restores: int = 0

    @property
    def status(self) -> Status:
        """The overall status."""
        if self.role != "active":
            return self.role
        if self.source_error or self.config_error or self.take in (GatewayState.REFUSED, GatewayState.DOWN):
            return "degraded"
        if not self.source_success or not self.config_success:
            return "starting"
        if self.take is GatewayState.WAITING:
            return "applying" if self.gateway_success else "starting"
        return "ok"

    @property
    def healthy(self) -> bool:
        """Whether everything works. A bridge on standby is healthy."""
        return self.status in ("ok", "applying", "standby")

    def as_json(self) -> dict[str, Any]:
        """The full state."""
        return {
            "status": self.status,
            "role": self.role,
            "source": {
                "name": self.source,
                "state": _state(self.source_error, self.source_success, good="fresh", bad="stale"),
                "error": self.source_error or None,
                "last_success": _time(self.source_success),
                "empty": self.source_empty,
                "left_out": dict(self.left_out),
            },
            "config": {
                "state": _state(self.config_error, self.config_success, good="current", bad="last good kept"),
                "error": self.config_error or None,
                "last_success": _time(self.config_success),
                "last_written": _time(self.written),
                "mark": self.mark or None,
                "routes": self.routes,
                "shadowed": list(self.shadowed),
                "warnings": list(self.warnings),
            },
            "gateway": {
                "version": self.gateway_version,
                "state": self.take.value,
                "error": self.gateway_error or None,
                "last_success": _time(self.gateway_success),
            },
        }

    def as_metrics(self) -> str:
        """The state as Prometheus text."""
        return "".join(
            f"# HELP {_PREFIX}{name} {words}\n# TYPE {_PREFIX}{name} {kind}\n{_PREFIX}{name} {value}\n"
            for name, kind, value, words in self._metrics()
        )

    def _metrics(self) -> tuple[tuple[str, str, float, str], ...]:
        source_up = not self.source_error and bool(self.source_success)
        current = not self.config_error and bool(self.config_success)
        taken = self.take in (GatewayState.TAKEN, GatewayState.NOT_WATCHED)
        return (
            ("healthy", "gauge", int(self.healthy), "Whether everything works."),
            ("active", "gauge", int(self.role == "active"), "Whether this bridge writes; 0 is standby."),
            ("source_up", "gauge", int(source_up), "The last poll succeeded."),
            ("source_empty", "gauge", int(self.source_empty), "Whether the source lists no targets."),
            ("source_last_success_seconds", "gauge", self.source_success, "When the targets were last read."),
            ("source_failures_total", "counter", self.source_failures, "Polls that failed."),
            ("targets_left_out", "gauge", len(self.left_out), "Servers without a route."),
            ("routes", "gauge", self.routes, "Routes in the config, with those of the bootstrap."),
            ("config_current", "gauge", int(current), "It is in place."),
            ("config_last_success_seconds", "gauge", self.config_success, "When the wanted config was last in place."),
            ("config_writes_total", "counter", self.writes, "Writes of the config."),
            ("config_write_failures_total", "counter", self.write_failures, "Failed writes of the config."),
            ("gateway_taken", "gauge", int(taken), "The gateway runs the config, or is not watched."),
            ("gateway_last_success_seconds", "gauge", self.gateway_success, "When the gateway last ran the config."),
            ("gateway_refusals_total", "counter", self.refusals, "Configs that the gateway refused."),
            ("gateway_restores_total", "counter", self.restores, "Restores of the last good config."),
        )


_PREFIX = "holdfast_gateway_bridge_"


def _state(error: str, success: float, *, good: str, bad: str) -> str:
    return bad if error else good if success else "not yet"


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None


ANSWER_SECONDS = 5.0
"""How long one request may take: then its connection ends, so that no client holds one open."""

LONGEST_HEAD = 16 * 1024

_LEFT = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.IncompleteRead, anyio.DelimiterNotFound)
"""The client left, or sent no request."""


@asynccontextmanager
async def serving(health: BridgeHealth, host: str, port: int) -> AsyncIterator[str]:
    """Serve the health while the block runs; yields the address.

    Three small answers need no framework and no server of a library: this process has nothing else to serve.
    """
    try:
        listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
    except OSError as exc:
        hint = "use another address: --listen HOST:PORT"
        raise UsageError(f"cannot listen at {host}:{port}: {exc.strerror}", hint=hint) from exc
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, partial(_serve, health))
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{listener.extra(SocketAttribute.local_port)}"  # noqa: S610 - no database is near
        tasks.cancel_scope.cancel()


async def _serve(health: BridgeHealth, client: SocketStream) -> None:
    """Answer one request, and close: a probe and Prometheus ask once in some seconds."""
    with anyio.move_on_after(ANSWER_SECONDS), suppress(*_LEFT):
        async with client:
            head = await BufferedByteReceiveStream(client).receive_until(b"\r\n\r\n", LONGEST_HEAD)
            method, _, rest = head.decode("latin-1").partition(" ")
            status, kind, body = _answer(health, re.split("[ ?]", rest, maxsplit=1)[0])
            fields = f"content-type: {kind}\r\ncontent-length: {len(body.encode())}\r\nconnection: close"
            shown = "" if method == "HEAD" else body
            await client.send(f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n{shown}".encode())


def _answer(health: BridgeHealth, path: str) -> tuple[str, str, str]:
    """The status, the type and the body for a path."""
    match path:
        case "/healthz":
            status = "200 OK" if health.healthy else "503 Service Unavailable"
            return status, "application/json", json.dumps(health.as_json())
        case "/livez":
            return "200 OK", "text/plain; charset=utf-8", "ok\n"
        case "/metrics":
            return "200 OK", "text/plain; version=0.0.4; charset=utf-8", health.as_metrics()
    return "404 Not Found", "text/plain; charset=utf-8", "there is /healthz, /livez and /metrics\n"


# What the gateway runs, and what follows from it.

TRY_AGAIN = 300.0
"""Seconds until a refused config is tried again. The gateway may have been slow, or was upgraded."""


@dataclass(frozen=True)
class GatewayDown:
    """The gateway did not answer."""

    reason: str


@dataclass(frozen=True)
class GatewayRunning:
    """The gateway answered. ``dump`` is its loaded config."""

    dump: bytes = field(repr=False)

    def runs(self, mark: str) -> bool:
        """Whether it runs the config with this fingerprint."""
        return bool(mark) and mark.encode() in self.dump


GatewayView: TypeAlias = GatewayDown | GatewayRunning | None
"""None if the bridge has no admin address, so that it cannot see the gateway."""


@dataclass
class ConfigHistory:
    """What the bridge remembers between decisions. Configs are named by fingerprint; empty for none."""

    live: str = ""
    """The config in place."""
    accepted: str = ""
    """The last config that the gateway ran."""
    since: float = 0.0
    """When the config in place was written."""
    refused: dict[str, float] = field(default_factory=dict)
    """The configs that the gateway refused, and when."""
    held: str = ""
    """A config that is held back because the gateway stopped answering with it."""


@dataclass(frozen=True)
class Decision:
    """What to do, and the state of the gateway."""

    take: GatewayState
    write: bool = False
    """Write the wanted config."""
    restore: bool = False
    """Restore the accepted config."""
    accept: bool = False
    """Remember the config in place as accepted."""
    newly_refused: bool = False


def decide(wanted: str | None, history: ConfigHistory, view: GatewayView, *, now: float, patience: float) -> Decision:
    """Decide what to do, and update the history.

    ``wanted`` is the fingerprint of the wanted config; None keeps the config in place.
    ``patience`` is how long the gateway may take to load a config.
    """
    take = _look(history, view, now=now, patience=patience)
    accept = take is GatewayState.TAKEN and history.accepted != history.live
    if take is GatewayState.TAKEN:
        history.accepted = history.live
        history.refused.pop(history.live, None)
    newly_refused = take is GatewayState.REFUSED and history.live not in history.refused
    if newly_refused:
        history.refused[history.live] = now
    if _must_be_replaced(history, take, now=now, patience=patience) and history.accepted:
        # A refused config is in `refused`, and is tried again later. One that silenced the gateway is held: to write it
        # again while the gateway is down would be the same outage again.
        history.held = history.live if take is GatewayState.DOWN else ""
        return Decision(take, restore=True, newly_refused=newly_refused)
    if take is not GatewayState.DOWN or wanted is None or wanted != history.held:
        history.held = ""
    # Nothing to write: it is in place, or it is held back.
    if wanted is None or wanted in (history.live, history.held):
        return Decision(take, accept=accept, newly_refused=newly_refused)
    if now - history.refused.get(wanted, -TRY_AGAIN) < TRY_AGAIN:
        return Decision(GatewayState.REFUSED, accept=accept, newly_refused=newly_refused)
    history.refused.pop(wanted, None)
    return Decision(take, accept=accept, write=True, newly_refused=newly_refused)


def _look(history: ConfigHistory, view: GatewayView, *, now: float, patience: float) -> GatewayState:
    match view:
        case None:
            return GatewayState.NOT_WATCHED
        case GatewayDown():
            return GatewayState.DOWN
        case GatewayRunning() if view.runs(history.live):
            return GatewayState.TAKEN
        case _:
            return GatewayState.REFUSED if history.live and now - history.since >= patience else GatewayState.WAITING


def _must_be_replaced(history: ConfigHistory, take: GatewayState, *, now: float, patience: float) -> bool:
    """Whether the gateway refuses the config in place, or stopped answering with it."""
    silent = take is GatewayState.DOWN and bool(history.live) and now - history.since >= patience
    return (take is GatewayState.REFUSED or silent) and history.live != history.accepted


DUMP_SECONDS = 5.0
LARGEST_DUMP = 64 << 20
"""A dump repeats each route with all its policies."""


class AdminAddressWatch:
    """The admin address of a gateway, such as ``http://127.0.0.1:15000``."""

    def __init__(self, address: str) -> None:
        self._url = f"{address.rstrip('/')}/config_dump"

    async def look(self) -> GatewayView:
        """Read the loaded config."""
        try:
            return GatewayRunning(await fetch(self._url, within=DUMP_SECONDS, largest=LARGEST_DUMP))
        except ServerFailure as exc:
            return GatewayDown(classify_evidence(exc.evidence).reason)


# The bridge itself.

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
        watch: AdminAddressWatch | None,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Without a ``watch`` the bridge does not see what the gateway runs."""
        self._plan = plan
        self._source = source
        self._watch = watch
        self._report = report
        self._clock = clock
        self._file = GatewayConfigFile(plan.output)
        self._accepted_file = GatewayConfigFile(plan.output.with_name(f"{plan.output.name}.accepted"))
        """Survives the bridge: the gateway may restart while none runs."""
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
        view = await self._watch.look() if self._watch is not None else None
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
        self._accepted = self._accepted_file.read()
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
        # Before the first good answer of the source, the config of the last run is better than one without targets.
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
            await anyio.to_thread.run_sync(self._accepted_file.write, data)
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
