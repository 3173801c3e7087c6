"""What the bridge does next: a decision, without a file, a socket or a clock.

The gateway takes a new config while it runs, and keeps its old one if the new one is no good; but
if it starts on one that is no good, it cannot start. So a config that it refuses is replaced by the
last one that it was seen to run, and so is one with which it has gone silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from holdfast.gateway.merge import Rendered

__all__ = ["Decision", "Down", "Ledger", "NotWatched", "Running", "Sight", "Take", "decide"]

TRY_AGAIN = 300.0
"""Seconds after which a refused config is offered again: the gateway may only have been slow, or be a newer one."""


@dataclass(frozen=True)
class NotWatched:
    """Nobody told the bridge where the gateway's admin address is."""


@dataclass(frozen=True)
class Down:
    """The gateway did not answer."""

    reason: str


@dataclass(frozen=True)
class Running:
    """The gateway answered; ``dump`` is all that it has loaded."""

    dump: bytes = field(repr=False)

    def runs(self, mark: str) -> bool:
        """Whether the config of this fingerprint is what it has loaded."""
        return bool(mark) and mark.encode() in self.dump


Sight: TypeAlias = NotWatched | Down | Running


class Take(Enum):
    """How it stands between the gateway and the config in place."""

    NOT_WATCHED = "not watched"
    TAKEN = "taken"
    WAITING = "waiting"
    REFUSED = "refused"
    DOWN = "down"


@dataclass
class Ledger:
    """What the bridge remembers between its decisions. Fingerprints; empty for none."""

    live: str = ""
    """The config in place."""
    accepted: str = ""
    """The last one that the gateway was seen to run."""
    since: float = 0.0
    """When the one in place was put there."""
    refused: dict[str, float] = field(default_factory=dict)
    """Those that the gateway would not run, and when that was seen."""
    held: str = ""
    """One that is held back because the gateway went silent with it."""


@dataclass(frozen=True)
class Decision:
    """What is to be done, and how it stands."""

    take: Take
    write: bool = False
    """Put the wanted config in place."""
    restore: bool = False
    """Put the accepted one back."""
    accept: bool = False
    """Remember the one in place as accepted."""
    newly_refused: bool = False


def decide(wanted: Rendered | None, ledger: Ledger, sight: Sight, *, now: float, patience: float) -> Decision:
    """Look at what is there and at what the gateway says, and decide; the ledger learns of it.

    ``patience`` is how long the gateway may take to load a config. Without a ``wanted`` one,
    what is in place stays there.
    """
    take = _look(ledger, sight, now=now, patience=patience)
    accept = take is Take.TAKEN and ledger.accepted != ledger.live
    if take is Take.TAKEN:
        ledger.accepted = ledger.live
        ledger.refused.pop(ledger.live, None)
    newly_refused = take is Take.REFUSED and ledger.live not in ledger.refused
    if newly_refused:
        ledger.refused[ledger.live] = now
    if _is_no_good(ledger, take, now=now, patience=patience) and ledger.accepted:
        ledger.held = ledger.live if take is Take.DOWN else ""
        return Decision(take, restore=True, newly_refused=newly_refused)
    if take is not Take.DOWN or wanted is None or wanted.mark != ledger.held:
        ledger.held = ""
    if wanted is None or wanted.mark in (ledger.live, ledger.held):
        return Decision(take, accept=accept, newly_refused=newly_refused)
    if now - ledger.refused.get(wanted.mark, -TRY_AGAIN) < TRY_AGAIN:
        return Decision(Take.REFUSED, accept=accept, newly_refused=newly_refused)
    ledger.refused.pop(wanted.mark, None)
    return Decision(take, accept=accept, write=True, newly_refused=newly_refused)


def _look(ledger: Ledger, sight: Sight, *, now: float, patience: float) -> Take:
    match sight:
        case NotWatched():
            return Take.NOT_WATCHED
        case Down():
            return Take.DOWN
        case Running() if sight.runs(ledger.live):
            return Take.TAKEN
        case _:
            return Take.REFUSED if ledger.live and now - ledger.since >= patience else Take.WAITING


def _is_no_good(ledger: Ledger, take: Take, *, now: float, patience: float) -> bool:
    """Whether the config in place is one that the gateway will not run, or has gone silent with."""
    silent = take is Take.DOWN and bool(ledger.live) and now - ledger.since >= patience
    return (take is Take.REFUSED or silent) and ledger.live != ledger.accepted
