"""What is unavailable, in the words of MSG-1 … MSG-3; told once for each change, not for each attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from holdfast.core.lifecycle.effects import Transition
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from holdfast.core.messages import Failure, FailureStatus, for_model, for_user

if TYPE_CHECKING:
    from holdfast.hub.hub import Hub
    from holdfast.hub.journal import HubRecord

__all__ = ["OnWarning", "Warnings", "Watcher", "warnings_of"]

OnWarning: TypeAlias = "Callable[[str, FailureStatus, str], None]"
"""Told (server id, status, text for a person) once for each change of a server's classification."""

STATUS: dict[State, FailureStatus] = {
    State.CONNECTING: "transient",
    State.RECONNECTING: "transient",
    State.DENIED: "denied",
    State.PERMANENTLY_FAILED: "permanent",
}
"""The states that are worth a warning; a server that is off or at rest on purpose is not."""


@dataclass(frozen=True, kw_only=True)
class Warnings:
    """All that is unavailable at one moment."""

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
    """The warnings that these servers give rise to."""
    return Warnings(failures=tuple(sorted(failure for health in servers if (failure := _failure(health)))))


class Watcher:
    """A sink of the journal that tells of each change of a classification, once."""

    def __init__(self, hub: Hub, on_warning: OnWarning | None) -> None:
        self._hub = hub
        self._on_warning = on_warning
        self._told: dict[str, FailureStatus | None] = {}

    def __call__(self, record: HubRecord) -> None:
        """Take a record."""
        if self._on_warning is None or not isinstance(record, Transition):
            return
        if record.new is State.CONNECTING:
            return  # what it is will be known in a moment; until then it is what it was
        status = STATUS.get(record.new)
        if status != self._told.get(record.server):
            self._told[record.server] = status
            if status is not None:
                self._on_warning(record.server, status, for_user(Failure(record.server, status, record.reason)))


def _failure(health: Health) -> Failure | None:
    status = STATUS.get(health.state)
    return Failure(health.server, status, health.reason) if status is not None else None
