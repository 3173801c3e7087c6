"""What operators decide for all replicas: switches and approvals of servers, and where each of them holds.

A decision holds here at once. It holds everywhere when every replica that is present has read it. If the store does not
answer, the operator is told "this replica only" (FLEET-3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast.core import Ticket, pin_key, pinned_tool, switch_key
from holdfast.fleet.replica_state import ReplicaState

__all__ = ["SharedDecisions"]

EVERYWHERE_SECONDS: Final = 2.0
"""How long a switch waits for the other replicas before it is answered "this replica only"."""


class SharedDecisions:
    """Switches and approvals, as the hub tells them and hears of them."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state

    @property
    def is_settled(self) -> bool:
        """Whether a first sight is one for the whole fleet."""
        return self._state.is_settled

    @property
    def not_shared_since(self) -> float | None:
        """Since when the store does not answer, in seconds since the epoch; None while it does."""
        return self._state.not_shared_since

    def note_pin(self, server: str, tool: str, text: Mapping[str, Any], approved: bool) -> None:
        """A tool was seen for the first time, or its change was approved."""
        self._state.write(pin_key(server, tool), {"text": text}, first=not approved)

    def note_switch(self, server: str, disabled: bool) -> None:
        """An operator enabled or disabled a server here."""
        self._state.write(switch_key(server), {"off": disabled}, again=True)

    def learn(self, kind: str, server: str, tool: str, value: Mapping[str, Any]) -> None:
        """Another replica decided something."""
        if kind == "switch":
            self._state.host.follow_switch(server, value.get("off") is True)
        elif isinstance(value.get("text"), dict):
            self._state.host.follow_pin(server, tool, value["text"])

    def settled(self) -> None:
        """Share what was decided here before this hub joined, unless the fleet decided otherwise."""
        for server in self._state.host.disabled_servers():
            if self._state.kept(switch_key(server)) is None:
                self.note_switch(server, disabled=True)

    @property
    def not_shared(self) -> tuple[str, ...]:
        """The servers whose switch or approvals hold on this replica only, because the store does not answer."""
        if self._state.is_shared:
            return ()
        return tuple(dict.fromkeys(pinned_tool(key)[0] for key in self._state.member.unsent_decisions()))

    async def scope(self, server: str) -> str:
        """Where the latest switch and approvals of a server hold, in words. It waits, two seconds at most."""
        if not await self._is_everywhere(self._tickets(server)):
            return "this replica only"
        count = len(self._state.member.peers)
        return f"all {count} replicas" if count > 1 else "the fleet"

    def _tickets(self, server: str) -> list[Ticket]:
        """The latest switch and approvals of a server."""
        pins, book = pin_key(server, ""), self._state.member.book
        return [
            Ticket(record.key, record.stamp)
            for record in book
            if record.key == switch_key(server) or record.key.startswith(pins)
        ]

    async def _is_everywhere(self, tickets: Iterable[Ticket]) -> bool:
        """Wait until every replica that is present has seen these writes; False if that takes too long."""
        state, member = self._state, self._state.member
        if state.not_shared_since is not None or member.strangers:
            return False  # known before: an approval of many tools would wait for each of them
        waiting = list(tickets)
        until = state.now() + EVERYWHERE_SECONDS
        member.watch_tickets(until)
        state.wake.set()
        while not all(member.is_everywhere(ticket, state.now()) for ticket in waiting):
            if state.now() >= until or not await state.waiting.wait(state.changed, until):
                return all(member.is_everywhere(ticket, state.now()) for ticket in waiting)
        return True
