"""Decides what the bridge does next, from what the gateway shows at its admin address.

A running gateway loads a new config, and keeps its old one if the new one is invalid. But it cannot start with an
invalid config. So a config that it refuses, or stops answering with, is replaced by the last one that it ran.
``decide`` is pure; only the watch reads ``/config_dump``, which shows the config that runs (``/config`` shows the
file on disk).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from holdfast.core import classify_evidence
from holdfast.errors import ServerFailure
from holdfast.wire import fetch

__all__ = [
    "AdminAddressWatch",
    "ConfigHistory",
    "Decision",
    "GatewayDown",
    "GatewayRunning",
    "GatewayState",
    "GatewayView",
    "NotWatched",
    "decide",
]

TRY_AGAIN = 300.0
"""Seconds until a refused config is tried again. The gateway may have been slow, or was upgraded."""


@dataclass(frozen=True)
class NotWatched:
    """The bridge has no admin address, so it cannot see the gateway."""


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


GatewayView: TypeAlias = NotWatched | GatewayDown | GatewayRunning


class GatewayState(Enum):
    """Whether the gateway runs the config in place."""

    NOT_WATCHED = "not watched"
    TAKEN = "taken"
    WAITING = "waiting"
    REFUSED = "refused"
    DOWN = "down"


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
        history.held = history.live if take is GatewayState.DOWN else ""
        return Decision(take, restore=True, newly_refused=newly_refused)
    if take is not GatewayState.DOWN or wanted is None or wanted != history.held:
        history.held = ""
    if wanted is None or wanted in (history.live, history.held):
        return Decision(take, accept=accept, newly_refused=newly_refused)
    if now - history.refused.get(wanted, -TRY_AGAIN) < TRY_AGAIN:
        return Decision(GatewayState.REFUSED, accept=accept, newly_refused=newly_refused)
    history.refused.pop(wanted, None)
    return Decision(take, accept=accept, write=True, newly_refused=newly_refused)


def _look(history: ConfigHistory, view: GatewayView, *, now: float, patience: float) -> GatewayState:
    match view:
        case NotWatched():
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


WITHIN = 5.0
LARGEST = 64 << 20
"""A dump repeats each route with all its policies."""


class AdminAddressWatch:
    """The admin address of a gateway, such as ``http://127.0.0.1:15000``."""

    def __init__(self, address: str) -> None:
        self._url = f"{address.rstrip('/')}/config_dump"

    async def look(self) -> GatewayView:
        """Read the loaded config."""
        try:
            return GatewayRunning(await fetch(self._url, within=WITHIN, largest=LARGEST))
        except ServerFailure as exc:
            return GatewayDown(classify_evidence(exc.evidence).reason)
