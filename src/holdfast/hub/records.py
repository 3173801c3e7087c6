"""The events of a hub, each as one frozen record, and the plain fields of a record for logs and streams.

The records of the lifecycle are defined beside its effects (``core/lifecycle/effects.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.config import Config, Settings
from holdfast.core import (
    AccessChanged,
    ApprovalKind,
    BreakerChanged,
    CloseFailed,
    Record,
    RetryPlanned,
    State,
    Transition,
    Tripped,
    to_milliseconds,
)

if TYPE_CHECKING:
    from holdfast.access import RefusalKind  # the checks of the door import a web framework

__all__ = [
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
    "ListFailed",
    "Missed",
    "OneClientRecord",
    "Published",
    "RetryPlanned",
    "Sink",
    "ToolApproved",
    "ToolChanged",
    "Transition",
    "as_fields",
    "config_applied",
    "event_name",
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


class CallEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A call ended: one record for each call, also for a call that was never sent.

    It is a struct: every call makes one, and a frozen dataclass takes thirty times as long to make.
    """

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
        parts = [(f"{word}: {', '.join(names)}") for word, names in self._changes() if names]
        return "; ".join(parts) or "no server's definition changed"

    def _changes(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        yield "added", self.added
        yield "removed", self.removed
        yield "changed", self.changed
        yield "settings", self.settings
        yield "in force at the next start", self.at_restart


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
        settings=tuple(_settings(before.settings, after.settings)),
        at_restart=tuple(_at_restart(before.settings, after.settings)),
        at=at,
    )


def _settings(before: Settings, after: Settings) -> Iterator[str]:
    for one in fields(Settings):
        if getattr(before, one.name) != getattr(after, one.name):
            yield f"holdfast.{one.name}"


def _at_restart(before: Settings, after: Settings) -> Iterator[str]:
    """The settings that the endpoint reads once, when it is opened."""
    if before.limits.message_bytes != after.limits.message_bytes:
        yield "holdfast.limits.messageBytes, for what clients send"
    if before.audit != after.audit:
        yield "holdfast.audit"


def event_name(kind: type[HubRecord]) -> str:
    """The name of a kind of record in logs and streams: ``CallEnded`` is ``call_ended``."""
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
