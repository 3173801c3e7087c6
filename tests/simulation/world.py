"""The parts around the replicas: virtual time, servers, the store and the network between them."""

from __future__ import annotations

import copy
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.core import FleetExchange, FleetReply, Item, Listing, SharedStore

if TYPE_CHECKING:
    from tests.simulation.replica import Replica

__all__ = ["Broken", "SimServer", "SimStore", "World"]


MOST_AT_ONCE = 20_000
"""Steps in one moment. A replica that works without a pause in virtual time takes a whole core in production."""


class Broken(AssertionError):
    """An invariant does not hold."""


class World:
    """Virtual time, and everything that several replicas share."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.chance = random.Random(f"{seed}/world")
        self.servers: dict[str, SimServer] = {}
        self.replicas: dict[str, Replica] = {}
        self.store = SimStore()
        self.cut: set[tuple[str, str]] = set()
        """Pairs that cannot reach each other: a replica, and ``store`` or a server."""
        self.first_seen: dict[str, int] = {}
        """The version of each tool that any replica saw first, by the key of its pin."""
        self.steps = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay: float, act: Callable[[], None]) -> None:
        """Do something later."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + max(0.0, delay), self._count, act))

    def run(self, until: float, check: Callable[[], None]) -> None:
        """Let time pass, and check after every step."""
        stuck = 0
        while self._queue and self._queue[0][0] <= until:
            before = self.now
            self.now, _, act = heapq.heappop(self._queue)
            self.steps += 1
            stuck = stuck + 1 if self.now == before else 0
            if stuck > MOST_AT_ONCE:
                raise Broken(f"time stands still at {self.now}: something is done over and over")
            act()
            check()
        self.now = until

    def latency(self) -> float:
        """The time that one message takes."""
        return 0.0005 + 0.003 * self.chance.random()

    def reaches(self, replica: str, place: str) -> bool:
        """Whether messages of a replica arrive."""
        return (replica, place) not in self.cut

    def talk(self, one: str, other: str) -> bool:
        """Whether two replicas reach each other."""
        return self.reaches(one, "peers") and self.reaches(other, "peers")


@dataclass
class SimServer:
    """One server: what it does to a dial, to a listing and to a call."""

    name: str
    mode: str = "up"
    """``up``, ``refuses``, ``hangs``, ``not_ready``, ``denies`` or ``calls_fail``."""
    incarnation: int = 0
    """Changes when it restarts: old connections are dead."""
    text: int = 1
    """The version of its tools' description."""
    changed_at: float = 0.0
    dials: list[tuple[float, str, str]] = field(default_factory=list)
    """When, by which replica, and why it was dialed."""
    executed: dict[int, int] = field(default_factory=dict)
    """How often each call ran."""

    @property
    def accepts(self) -> bool:
        """Whether a dial succeeds."""
        return self.mode in ("up", "calls_fail")

    def listing(self, generation: int) -> Listing:
        """What it offers."""
        items = tuple(Item(name, {"description": f"v{self.text}"}) for name in ("search", f"only_{self.name}", "a__x"))
        return Listing(server=self.name, generation=generation, tools=items, resources=(Item("file:///readme"),))


@dataclass
class SimStore:
    """The store: the production code, and what can go wrong with it."""

    state: SharedStore = field(default_factory=SharedStore)
    mode: str = "up"
    """``up``, ``down`` or ``stuck`` (it is stopped: it answers when it goes on)."""
    unread: list[Callable[[], None]] = field(default_factory=list)
    """What arrived while it was stopped: it is read later, also if the sender has given it up."""
    lag: float = 0.0
    era: int = 0
    """Changes when it restarts: connections end."""
    saved: SharedStore | None = None
    exchanges: int = 0
    moved: int = 0
    """Records that were sent or received."""
    recent: list[float] = field(default_factory=list)

    def exchange(self, asked: FleetExchange, now: float) -> FleetReply:
        """Answer as production does."""
        self.exchanges += 1
        self.recent.append(now)
        reply = self.state.exchange(asked, now)
        self.moved += len(asked.records) + len(reply.records)
        return reply

    def go_on(self) -> None:
        """It is up again, and reads what arrived meanwhile."""
        self.mode = "up"
        unread, self.unread = self.unread, []
        for read in unread:
            read()

    def flush(self) -> None:
        """Everything in it is gone; connections stay."""
        self.state = SharedStore()

    def save(self) -> None:
        """Make a copy, as a snapshot on disk."""
        self.saved = copy.deepcopy(self.state)

    def restart(self, *, older: bool) -> None:
        """Start again: with the older copy, or empty."""
        self.era += 1
        self.state = copy.deepcopy(self.saved) if older and self.saved is not None else SharedStore()
