"""The unavailable servers, in the words of MSG-1 … MSG-3; one warning for each change, not for each attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from holdfast.core.messages import Failure, FailureStatus, ServerStatus, for_model, for_user
from holdfast.hub.records import HubRecord, RetryPlanned, Transition

__all__ = ["STATUS", "OnWarning", "WarningSink", "Warnings", "failure_status", "warnings_of"]

OnWarning: TypeAlias = "Callable[[str, FailureStatus, str], None]"
"""Called with (server id, status, text for a person) once for each change of a server's classification."""

STATUS: dict[State, ServerStatus] = {
    State.CONNECTED: "available",
    State.CONNECTING: "transient",
    State.RECONNECTING: "transient",
    State.DENIED: "denied",
    State.PERMANENTLY_FAILED: "permanent",
    State.IDLE: "idle",
    State.DISABLING: "disabled",
    State.DISABLED: "disabled",
    State.DISCONNECTED: "idle",
}
"""The status of each state; the only such table."""


def failure_status(state: State) -> FailureStatus | None:
    """Return the status of a failed state; None for a server that is available, idle or disabled."""
    match STATUS[state]:
        case "transient" | "permanent" | "denied" as status:
            return status
        case _:
            return None


@dataclass(frozen=True, kw_only=True)
class Warnings:
    """All unavailable servers at one moment."""

    failures: tuple[Failure, ...]

    @property
    def for_model(self) -> str:
        """One line for each class that occurs; empty if all is well."""
        return for_model(self.failures)

    @property
    def for_user(self) -> tuple[str, ...]:
        """A sentence or two for each server."""
        return tuple(for_user(failure) for failure in self.failures)

    def __bool__(self) -> bool:
        return bool(self.failures)


def warnings_of(servers: Iterable[Health]) -> Warnings:
    """The warnings about these servers."""
    return Warnings(failures=tuple(sorted(failure for health in servers if (failure := _failure(health)))))


class WarningSink:
    """A sink of the journal that reports each change of a classification once."""

    def __init__(self, on_warning: OnWarning | None) -> None:
        self._on_warning = on_warning
        self._reported: dict[str, FailureStatus | None] = {}

    def __call__(self, record: HubRecord) -> None:
        """Take a record."""
        if isinstance(record, RetryPlanned):
            self._update(Failure(record.server, "transient"), "transient")
        elif isinstance(record, Transition) and record.new is not State.CONNECTING and not _is_routine(record):
            status = failure_status(record.new)
            self._update(Failure(record.server, status or "transient", record.reason), status)

    def _update(self, failure: Failure, status: FailureStatus | None) -> None:
        server = failure.server_id
        changed, self._reported[server] = status != self._reported.get(server), status
        if changed and status is not None and self._on_warning is not None:
            self._on_warning(server, status, for_user(failure))


def _is_routine(record: Transition) -> bool:
    """Whether a healthy connection is replaced; if the new one fails, that is reported."""
    return record.new is State.RECONNECTING and record.cause in ("SessionExpired", "ReconnectRequested")


def _failure(health: Health) -> Failure | None:
    status = failure_status(health.state)
    return Failure(health.server, status, health.reason) if status is not None else None
