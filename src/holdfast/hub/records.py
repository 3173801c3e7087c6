"""What can happen in a hub, each as one frozen record; and a record as plain fields, for whoever writes or sends it.

The lifecycle's own records are beside its effects (``core/lifecycle/effects.py``): it decides on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Literal, TypeAlias, get_args

from holdfast.config.spec import Config
from holdfast.core.breaker import Tripped
from holdfast.core.lifecycle.effects import BreakerChanged, CloseFailed, Record, RetryPlanned, Transition

__all__ = [
    "RECORDS",
    "BreakerChanged",
    "CallEnded",
    "CallOutcome",
    "CloseFailed",
    "ConfigApplied",
    "ConfigRefused",
    "HubRecord",
    "Missed",
    "OfOneClient",
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
    """The catalog is another one now."""

    server: str
    version: int
    kinds: tuple[str, ...]
    """What changed: tools, prompts, resources, templates."""
    at: float


@dataclass(frozen=True, kw_only=True)
class Missed:
    """A listener was too slow: so many records were not told to it."""

    count: int


CallOutcome: TypeAlias = Literal[
    "completed", "tool_error", "rpc_error", "failed", "timed_out", "denied", "cancelled", "refused"
]
"""What became of a call: three kinds of answer, three kinds of failure, given up by its caller, or never sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded:
    """A call came to its end, one record for each, whether a server ever saw it or not."""

    server: str
    method: str
    outcome: CallOutcome
    waited: float
    """Seconds until it was sent: its admission, its place, and the connection that it needed."""
    seconds: float
    """Seconds in all, the wait among them."""
    at: float
    error: str = ""
    """The kind of error that its caller got, by its name in ``holdfast.errors``; empty if there was an answer."""
    reason: str = ""
    """What its caller was told, masked."""


@dataclass(frozen=True, kw_only=True)
class ToolChanged:
    """A tool says something else than when it was first seen."""

    server: str
    tool: str
    held: bool
    """Whether it is not called until somebody approves that."""
    at: float


@dataclass(frozen=True, kw_only=True)
class ToolApproved:
    """Somebody approved what a tool says now."""

    server: str
    tool: str
    at: float


@dataclass(frozen=True, kw_only=True)
class ConfigApplied:
    """The hub goes by another configuration now."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    at: float


@dataclass(frozen=True, kw_only=True)
class ConfigRefused:
    """A configuration was changed and cannot be used: what was in force stays in force."""

    servers: tuple[str, ...] = ()
    """Those whose new definition cannot be used; none where the whole file cannot."""
    problems: tuple[str, ...] = ()
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OfOneClient:
    """A record of a connection that one client has for itself; it says nothing of the server's state for others."""

    server: str
    record: Record


HubRecord: TypeAlias = (
    Record | Published | Missed | CallEnded | ToolChanged | ToolApproved | ConfigApplied | ConfigRefused | OfOneClient
)
RECORDS: tuple[type[HubRecord], ...] = get_args(HubRecord)
Sink: TypeAlias = Callable[[HubRecord], None]
"""Told every record at once; it must not wait."""


def config_applied(before: Config, after: Config, *, at: float) -> ConfigApplied:
    """What of a configuration is another one now."""
    both = [name for name in after.servers if name in before.servers]
    return ConfigApplied(
        added=tuple(name for name in after.servers if name not in before.servers),
        removed=tuple(name for name in before.servers if name not in after.servers),
        changed=tuple(name for name in both if after.servers[name] != before.servers[name]),
        at=at,
    )


def event_name(kind: type[HubRecord]) -> str:
    """What a kind of record is called outside: ``CallEnded`` is ``call_ended``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def as_fields(record: HubRecord) -> dict[str, Any]:
    """A record as what JSON can hold; ``event`` is its name. The hub's own clock (``at``) means nothing outside."""
    match record:
        case OfOneClient():
            return {**as_fields(record.record), "one_client": True}
        case BreakerChanged(change=change):
            opened = isinstance(change, Tripped)
            return {"event": event_name(BreakerChanged), "server": record.server, "open": opened, **_plain(change)}
        case _:
            return {"event": event_name(type(record)), **_plain(record)}


def _plain(record: Any) -> Mapping[str, Any]:
    values = ((field.name, getattr(record, field.name)) for field in fields(record) if field.name != "at")
    return {name: value.value if isinstance(value, Enum) else value for name, value in values if value not in ("", ())}
