"""The journal: every event of a hub is one frozen record, which all listeners get: the log, the sinks, the streams.

The records come first, then the log line of each, then the warnings about unavailable servers (MSG-1 … MSG-3), one for
each change of a classification, then the journal itself. The record goes with its log line, for logs that programs
read. The records of the lifecycle are defined beside its effects (``core/lifecycle/events.py``).
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

import anyio
import msgspec

from holdfast.config import Config, Settings
from holdfast.core import (
    AccessChanged,
    ApprovalKind,
    BreakerChanged,
    CloseFailed,
    Failure,
    FailureStatus,
    Health,
    Record,
    Redactor,
    RetryPlanned,
    State,
    Transition,
    Tripped,
    command_line,
    counted,
    for_model,
    for_user,
    to_milliseconds,
)
from holdfast.errors import UnknownServer
from holdfast.hub.hub_clock import Clock
from holdfast.wire import OnStderr

if TYPE_CHECKING:
    from holdfast.access import RefusalKind  # the checks of the door import a web framework

__all__ = [
    "ANSWERED",
    "RECORDS",
    "AccessChanged",
    "AccessRefused",
    "BreakerChanged",
    "CallEnded",
    "CallOutcome",
    "CallSink",
    "CloseFailed",
    "ConfigApplied",
    "ConfigRefused",
    "HubRecord",
    "Journal",
    "ListFailed",
    "Missed",
    "OnWarning",
    "OneClientRecord",
    "Published",
    "RetryPlanned",
    "Sink",
    "ToolApproved",
    "ToolChanged",
    "Transition",
    "WarningSink",
    "Warnings",
    "as_fields",
    "config_applied",
    "event_name",
    "server_text",
    "transition_text",
    "warnings_of",
    "write_to_log",
]


@dataclass(frozen=True, kw_only=True)
class Published:
    """A new version of the catalog was published."""

    server: str
    version: int
    kinds: tuple[str, ...]
    """What changed: tools, prompts, resources, templates."""
    own_kinds: tuple[str, ...] = ()
    """What of it changed at the endpoint of this server alone, which has its own names."""
    at: float


@dataclass(frozen=True, kw_only=True)
class ListFailed:
    """One kind could not be listed; the server is up, and that kind keeps its last good list."""

    server: str
    kind: str
    """tools, prompts, resources or templates."""
    reason: str
    at: float


@dataclass(frozen=True, kw_only=True)
class Missed:
    """A listener was too slow and did not get this many records."""

    count: int


CallOutcome: TypeAlias = Literal[
    "completed", "tool_error", "rpc_error", "failed", "timed_out", "denied", "cancelled", "refused"
]
"""How a call ended: three kinds of answer, three kinds of failure, cancelled by its caller, or never sent."""

ANSWERED: frozenset[CallOutcome] = frozenset({"completed", "tool_error", "rpc_error"})
"""The outcomes that are answers of the server."""


# A struct: every call makes one, and a frozen dataclass takes thirty times as long to make.
class CallEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A call ended: one record for each call, also for a call that was never sent."""

    server: str
    method: str
    outcome: CallOutcome
    waited: float
    """Seconds until it was sent: the wait for admission, for a place and for the connection."""
    seconds: float
    """Seconds in all, including the wait."""
    at: float
    error: str = ""
    """The class of the caller's error, by its name in ``holdfast.errors``; empty if there was an answer."""
    reason: str = ""
    """The message of the caller's error, masked."""
    principal: str = ""
    """Who called; empty where a program called in its own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRefused:
    """A client was refused before its request reached a server."""

    kind: RefusalKind
    source: str
    """Where it came from: an address, and the user if it is on this machine."""
    at: float
    principal: str = ""
    """Who asked, if that is known."""
    quota: str = ""
    """Which quota is used up."""
    reason: str = ""
    """Why a certificate does not verify, in the words of the TLS library."""


@dataclass(frozen=True, kw_only=True)
class ToolChanged:
    """A tool, a prompt or the instructions changed since they were first seen, or are new."""

    server: str
    tool: str
    """The name of the tool or the prompt; empty for the instructions."""
    kind: ApprovalKind = "tool"
    new: bool = False
    """Whether it appeared after the server was first listed."""
    held: bool
    """Whether it cannot be called until the change is approved."""
    at: float


@dataclass(frozen=True, kw_only=True)
class ToolApproved:
    """The change of a tool, a prompt or the instructions was approved."""

    server: str
    tool: str
    kind: ApprovalKind = "tool"
    at: float


@dataclass(frozen=True, kw_only=True)
class ConfigApplied:
    """A new configuration is in force."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Holdfast's own settings that changed."""
    at_restart: tuple[str, ...] = ()
    """Those that take effect at the next start only."""
    at: float

    def __str__(self) -> str:
        changes = {
            "added": self.added,
            "removed": self.removed,
            "changed": self.changed,
            "settings": self.settings,
            "in force at the next start": self.at_restart,
        }
        parts = [f"{word}: {', '.join(names)}" for word, names in changes.items() if names]
        return "; ".join(parts) or "no server's definition changed"


@dataclass(frozen=True, kw_only=True)
class ConfigRefused:
    """A changed configuration cannot be used: the running one stays in force."""

    servers: tuple[str, ...] = ()
    """The servers whose new definition cannot be used; empty if the whole file cannot be used."""
    problems: tuple[str, ...] = ()
    at: float

    def __str__(self) -> str:
        problems = "; ".join(self.problems)
        return (
            f"the running definition of {', '.join(self.servers)} stays in force: {problems}"
            if self.servers
            else problems
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneClientRecord:
    """A record of a connection that belongs to one client or one user; it says nothing about the server for others."""

    server: str
    record: Record | Published
    principal: str = ""
    """The user; empty for a client."""


HubRecord: TypeAlias = (
    Record
    | Published
    | ListFailed
    | Missed
    | CallEnded
    | AccessRefused
    | ToolChanged
    | ToolApproved
    | ConfigApplied
    | ConfigRefused
    | OneClientRecord
)
RECORDS: tuple[type[HubRecord], ...] = get_args(HubRecord)
Sink: TypeAlias = Callable[[HubRecord], None]
"""Called with every record at once; it must not wait."""

CallSink: TypeAlias = Callable[[CallEnded], None]
"""Called with the record of every call at once; it is on the path of the call."""


def config_applied(before: Config, after: Config, *, at: float) -> ConfigApplied:
    """The differences between two configurations."""
    both = [name for name in after.servers if name in before.servers]
    return ConfigApplied(
        added=tuple(name for name in after.servers if name not in before.servers),
        removed=tuple(name for name in before.servers if name not in after.servers),
        changed=tuple(name for name in both if after.servers[name] != before.servers[name]),
        settings=tuple(
            f"holdfast.{one.name}"
            for one in fields(Settings)
            if getattr(before.settings, one.name) != getattr(after.settings, one.name)
        ),
        at_restart=tuple(
            words for words, value in _AT_RESTART.items() if value(before.settings) != value(after.settings)
        ),
        at=at,
    )


_AT_RESTART: Mapping[str, Callable[[Settings], object]] = {
    "holdfast.limits.messageBytes, for what clients send": lambda settings: settings.limits.message_bytes,
    "holdfast.audit": lambda settings: settings.audit,
}
"""The settings that the endpoint reads once, when it is opened."""


def event_name(kind: type) -> str:
    """The name of a kind of record, or of evidence, in logs and streams: ``CallEnded`` is ``call_ended``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def as_fields(record: HubRecord) -> dict[str, Any]:
    """A record as JSON fields; ``event`` is its name. ``at`` is left out: the hub's clock has no meaning outside."""
    match record:
        case OneClientRecord():
            user = {"user": record.principal} if record.principal else {}
            return {**as_fields(record.record), "one_client": True, **user}
        case BreakerChanged(change=change):
            opened = isinstance(change, Tripped)
            return {"event": event_name(BreakerChanged), "server": record.server, "open": opened, **_plain(change)}
        case _:
            return {"event": event_name(type(record)), **_plain(record)}


def _plain(record: Any) -> Mapping[str, Any]:
    values = ((name, getattr(record, name)) for name in type(record).__annotations__ if name != "at")
    return {name: _plain_value(value) for name, value in values if value not in ("", ())}


def _plain_value(value: Any) -> Any:
    if isinstance(value, State):
        return value.shown
    if isinstance(value, float):
        return to_milliseconds(value)
    return value.value if isinstance(value, Enum) else value


log = logging.getLogger("holdfast.hub")
reload_log = logging.getLogger("holdfast.reload")

_LEVELS: Mapping[CallOutcome, int] = {"denied": logging.WARNING, "timed_out": logging.WARNING}
"""The outcomes of calls that leave no other line in the log; failures change the server's state, which is logged."""


def write_to_log(record: HubRecord) -> None:
    """Write one line for each record that a person may want to see."""
    if isinstance(record, ConfigApplied | ConfigRefused):
        _write_config(record)
        return
    if (about := server_text(record)) is not None:
        server, level, text = about
        log.log(level, "%s: %s", server, text, extra={"record": record})
        return
    level, words, *args = _line(record)
    log.log(level, words, *args, extra={"record": record})


def server_text(record: HubRecord) -> tuple[str, int, str] | None:
    """What happened to a server, for the hub's log and for the log of the server: its name, the level, and the words.

    None for what belongs to no server alone, and for what comes with every call.
    """
    match record:
        case Transition():
            return record.server, logging.INFO, transition_text(record)
        case RetryPlanned():
            return record.server, logging.INFO, f"reconnect attempt {record.attempt} in at most {record.delay:.1f} s"
        case AccessChanged(denied=True):
            text = f"calls and the listing are denied; calls are refused until it is asked again: {record.reason}"
            return record.server, logging.WARNING, text
        case AccessChanged():
            return record.server, logging.INFO, "calls are no longer denied"
        case BreakerChanged(change=Tripped() as trip):
            counts = f"{counted(trip.failures, 'failure')} ({counted(trip.refused, 'call')} refused since)"
            return record.server, logging.WARNING, f"breaker open for {trip.retry_in:.0f} s after {counts}"
        case BreakerChanged(change=change):
            text = f"breaker closed ({counted(change.refused, 'call')} refused while it was open)"
            return record.server, logging.INFO, text
        case CloseFailed():
            return record.server, logging.WARNING, f"an old connection did not close cleanly: {record.error}"
        case ListFailed():
            return record.server, logging.WARNING, f"its {record.kind} could not be listed: {record.reason}"
        case ToolChanged():
            held = "; it is held until the change is approved" if record.held else ""
            return record.server, logging.WARNING, f"{_changed_text(record)}{held}"
        case ToolApproved():
            return record.server, logging.INFO, f"{_subject_of(record)}: the change was approved"
        case _:
            return None


def _line(record: HubRecord) -> tuple[Any, ...]:
    """The line of a record that is not about one server alone: its level, its words, and what stands in them."""
    match record:
        case CallEnded():
            who = f" of {record.principal}" if record.principal not in ("", "local") else ""
            why = f": {record.reason}" if record.reason else ""
            # The numbers stay apart from the words: a reader of the log counts lines that differ in numbers alone.
            words, level = "%s: %s%s %s after %.3f s%s", _LEVELS.get(record.outcome, logging.DEBUG)
            return level, words, record.server, record.method, who, record.outcome, record.seconds, why
        case AccessRefused():
            level = logging.DEBUG if record.kind == "left" else logging.WARNING
            return level, "%s", _REFUSALS[record.kind].format(record)
        case OneClientRecord():
            return logging.DEBUG, "%s, connection of one client: %s", record.server, record.record
        case Published():
            kinds = ", ".join(record.kinds) or "nothing"
            return logging.DEBUG, "catalog version %d: %s of %s changed", record.version, kinds, record.server
        case Missed():
            return logging.WARNING, "a listener was too slow and missed %s", counted(record.count, "record")
        case _:
            raise AssertionError("it is about one server, or it has several lines")


def _subject_of(record: ToolChanged | ToolApproved) -> str:
    """What changed, in words: ``the tool x``, ``the prompt y``, ``its instructions``."""
    return "its instructions" if record.kind == "instructions" else f"the {record.kind} {record.tool}"


def _changed_text(record: ToolChanged) -> str:
    """What happened, in words."""
    how = "appeared after the server was first listed" if record.new else "changed since it was first seen"
    if record.kind == "instructions" and not record.new:
        how = "changed since they were first seen"
    return f"{_subject_of(record)} {how}"


def transition_text(record: Transition) -> str:
    """What happened, in words: ``lost: its process exited with code 3; reconnecting``."""
    because = f": {record.reason}" if record.reason else ""
    match record.new:
        case State.CONNECTED:
            return "connected"
        case State.CONNECTING:
            return f"{_START.get(record.cause, 'connecting')}{because}"
        case State.RECONNECTING:
            return f"{_LOSS.get(record.cause, 'connect failed')}{because}; reconnecting"
        case State.IDLE:
            return "idle: it starts at its next use"
        case State.DISCONNECTED:
            return _END.get(record.cause, "disconnected")
    return f"{record.new.shown}{because}"


_START = {
    "ConfigChanged": "its configuration changed; connecting",
    "EnableRequested": "enabled; connecting",
    "LoginSucceeded": "logged in; connecting",
    "ReconnectRequested": "reconnect requested; connecting",
}
_LOSS = {
    "FailedRepeatedly": "lost after repeated failures",
    "ReconnectRequested": "reconnect requested",
    "SessionExpired": "its session expired",
    "ToldByHub": "lost",
    "TransportLost": "lost",
}
_END = {"RemoveRequested": "removed from the configuration", "ShutdownRequested": "the hub stops"}


MOST_PROBLEMS, MOST_NAMES = 20, 10
"""How much of an edit that breaks many servers is written to the log; the record has all of it."""


def _write_config(record: ConfigApplied | ConfigRefused) -> None:
    """One line for what was done, and one for each problem; the record goes with the last line."""
    if isinstance(record, ConfigApplied):
        reload_log.info("the configuration was changed: %s", record, extra={"record": record})
        return
    servers = _some(record.servers)
    what = f"the new definition of {servers}" if servers else "the changed configuration"
    for problem in record.problems[:MOST_PROBLEMS]:
        reload_log.error("%s cannot be used: %s", what, problem)
    if (more := len(record.problems) - MOST_PROBLEMS) > 0:
        reload_log.error("%d more problems: `%s` shows all of them", more, command_line("doctor"))
    running = f"the running definition of {servers}" if servers else "the running configuration"
    reload_log.error("%s stays in force", running, extra={"record": record})


def _some(names: Sequence[str]) -> str:
    """The names; of many, the first ones and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


_REFUSALS = {
    "user": "access refused: another user of this machine, from {0.source}",
    "unknown_user": "access refused: the user of the connection is not known, from {0.source}",
    "login": "login failed: a wrong credential, from {0.source}",
    "too_many_logins": "login failed: too many wrong credentials, further ones are answered late, from {0.source}",
    "quota": "quota used up: {0.quota} of the caller {0.principal}",
    "certificate": "access refused: a client certificate does not verify ({0.reason}), from {0.source}",
    # A probe of the port, or a client that did not wait for its answer.
    "left": "a client closed its connection at once, from {0.source}",
}


OnWarning: TypeAlias = "Callable[[str, FailureStatus, str], None]"
"""Called with (server id, status, text for a person) once for each change of a server's classification, and once more
when a server that is not ready has spent its reconnect budget."""


@dataclass(frozen=True, kw_only=True)
class Warnings:
    """All unavailable servers at one moment."""

    failures: tuple[Failure, ...]
    at: datetime | None = field(default=None, compare=False)
    """The time of day of that moment, for messages that name one."""

    @property
    def for_model(self) -> str:
        """One line for each class that occurs; empty if all is well."""
        return for_model(self.failures, now=self.at)

    @property
    def for_user(self) -> tuple[str, ...]:
        """One to three sentences for each server."""
        return tuple(for_user(failure, now=self.at) for failure in self.failures)

    def __bool__(self) -> bool:
        return bool(self.failures)


def warnings_of(servers: Iterable[Health]) -> Warnings:
    """The warnings about these servers."""
    failures = [failure for health in servers if (failure := health.failure) is not None]
    failures.sort(key=lambda failure: failure.server_id)
    return Warnings(failures=tuple(failures), at=_time_of_day())


class WarningSink:
    """A sink of the journal that reports each change of a classification once, and each spent budget."""

    def __init__(self, on_warning: OnWarning, health_of: Callable[[str], Health]) -> None:
        self._on_warning = on_warning
        self._health_of = health_of
        self._reported: dict[str, tuple[FailureStatus | None, bool]] = {}
        """The latest status of each server, and whether its reconnect budget was spent."""

    def __call__(self, record: HubRecord) -> None:
        """Take a record."""
        if isinstance(record, RetryPlanned | BreakerChanged | AccessChanged) or (
            isinstance(record, Transition) and _counts(record)
        ):
            try:
                health = self._health_of(record.server)
            except UnknownServer:  # it was removed meanwhile
                self._update(record.server, None)
                return
            # A breaker counts only while the connection stands: else the lifecycle reports what is wrong.
            if not isinstance(record, BreakerChanged) or health.state is State.CONNECTED:
                self._update(record.server, health.failure)

    def _update(self, server: str, failure: Failure | None) -> None:
        status, spent = (failure.status, failure.spent) if failure is not None else (None, False)
        # Noted before the report: a listener that asks the hub something may bring about the next record of this
        # server.
        known, was_spent = self._reported.get(server, (None, False))
        self._reported[server] = status, spent
        # A spent budget changes the words of a transient failure, which is reported once more.
        changed = status != known or (status == "transient" and spent and not was_spent)
        if changed and failure is not None:
            self._on_warning(server, failure.status, for_user(failure, now=_time_of_day()))


def _counts(record: Transition) -> bool:
    """Whether a transition may change a classification.

    A first dial has no outcome yet. A healthy connection may be replaced; if the new one fails, that is reported.
    """
    # Asked for, or renewed: nothing is wrong yet, and a warning for each reconnect would teach people to skip them.
    replaced = record.new is State.RECONNECTING and record.cause in ("SessionExpired", "ReconnectRequested")
    return record.new is not State.CONNECTING and not replaced


def _time_of_day() -> datetime:
    return datetime.now(UTC).astimezone()


_Told = TypeVar("_Told")

BACKLOG = 1024
"""How many records wait for a slow listener; then the oldest are dropped, and a ``Missed`` says how many."""


class Journal:
    """Passes records on. No listener can delay it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._listeners: set[_Listener] = set()
        self._sinks: tuple[Sink, ...] = (write_to_log,)
        self._sinks_of_calls: tuple[CallSink, ...] = ()
        self._stderr_readers: list[OnStderr] = []
        self._closed = False

    def add_sink(self, sink: Sink, *, calls: CallSink | None) -> Callable[[], None]:
        """Call a function with every record at once; it must not wait. The result ends it.

        The records of calls go to ``calls``: there is one for each call. A sink that does nothing with them has None.
        """
        # Replaced, not changed: a sink that adds or ends one runs inside the loop over the old tuple.
        self._sinks = (*self._sinks, sink)
        if calls is not None:
            self._sinks_of_calls = (*self._sinks_of_calls, calls)

        def forget() -> None:
            self._sinks = tuple(one for one in self._sinks if one is not sink)
            self._sinks_of_calls = tuple(one for one in self._sinks_of_calls if one is not calls)

        return forget

    def add_stderr_reader(self, reader: OnStderr) -> None:
        """Call a function with every line that a server's process writes to stderr; it must not wait."""
        self._stderr_readers.append(reader)

    def stderr_line(self, server: str, line: bytes, redactor: Redactor) -> None:
        """Pass on a line of a process's stderr. It is not a record, because there may be any number of them."""
        for reader in self._stderr_readers:
            reader(server, line, redactor)

    def reads_calls(self, outcome: CallOutcome) -> bool:
        """Whether the record of a call that ended so has a reader: where it has none, it is not made."""
        return bool(self._sinks_of_calls) or log.isEnabledFor(_LEVELS.get(outcome, logging.DEBUG))

    def write(self, record: HubRecord) -> None:
        """Pass a record to all listeners; refusals to the sinks alone. Calls have ``write_call``.

        There may be many of both: they would push the rest out of a backlog.
        """
        for sink in self._sinks:
            _tell(sink, record)
        # An attacker makes as many refusals as he likes.
        if not isinstance(record, AccessRefused):
            for listener in self._listeners:
                listener.put(record)

    def write_call(self, ended: CallEnded) -> None:
        """Pass the record of a call to the sinks of calls."""
        if log.isEnabledFor(_LEVELS.get(ended.outcome, logging.DEBUG)):
            _tell(write_to_log, ended)
        for sink in self._sinks_of_calls:
            _tell(sink, ended)

    def records(self) -> AsyncIterator[HubRecord]:
        """Every record except those of calls, from now on (not from the first read), until the hub is closed."""
        # Here and not in the generator, which runs no line before its first read: what happens until then is not lost.
        listener = _Listener()
        self._listeners.add(listener)
        return self._records(listener)

    async def _records(self, listener: _Listener) -> AsyncIterator[HubRecord]:
        try:
            # What came before the end is still read after it: the last records say how the hub closed.
            while not self._closed or listener.waiting:
                for record in listener.take():
                    if isinstance(record, Missed):
                        for sink in self._sinks:
                            _tell(sink, record)
                    yield record
                if not self._closed:
                    await listener.came.wait()
        finally:
            self._listeners.discard(listener)

    def close(self) -> None:
        """No more records will come."""
        self._closed = True
        for listener in self._listeners:
            listener.came.set()


def _tell(sink: Callable[[_Told], None], record: _Told) -> None:
    try:
        sink(record)
    except Exception as exc:  # noqa: BLE001 - a fault in a user's sink must not stop the hub
        log.warning("a listener of the hub's records failed: %s", type(exc).__name__)


class _Listener:
    """The records that wait for one listener."""

    def __init__(self) -> None:
        self.waiting: deque[HubRecord] = deque(maxlen=BACKLOG)
        self.came = anyio.Event()
        self._missed = 0

    def put(self, record: HubRecord) -> None:
        # The deque drops the oldest by itself; it does not count.
        self._missed += len(self.waiting) == BACKLOG
        self.waiting.append(record)
        self.came.set()

    def take(self) -> list[HubRecord]:
        taken: list[HubRecord] = [Missed(count=self._missed)] if self._missed else []
        taken += self.waiting
        self.waiting.clear()
        self._missed = 0
        self.came = anyio.Event()
        return taken
