"""What replicas tell each other about servers: evidence of failures and recoveries, and who has the right to probe.

One replica probes a server that is down, and all learn what it found (FLEET-2, FLEET-4). The slot of each replica gets
it as an event of its machine.
"""

from __future__ import annotations

from holdfast.core import FleetRecord, events as on, evidence_event, evidence_key, evidence_value
from holdfast.fleet.presence import Presence
from holdfast.fleet.replica_state import ReplicaState

__all__ = ["SharedEvidence"]


class SharedEvidence:
    """The link of the slots to the other replicas."""

    def __init__(self, state: ReplicaState, presence: Presence) -> None:
        self._state = state
        self._presence = presence

    def claim(self, server: str, at: float | None, number: int) -> None:
        """A slot needs the right to probe at that time, or not any more."""
        definition = self._state.host.definition_of(server) or ""
        self._state.member.want_probe(server, at, number, self._state.now(), definition=definition)
        self._state.wake.set()

    def release(self, server: str, delay: float) -> None:
        """A slot used its right to probe."""
        self._state.member.release_probe(server, delay)
        self._state.wake.set()

    def share(self, server: str, evidence: on.Event) -> None:
        """A slot learned something about its server."""
        definition = self._state.host.definition_of(server)
        is_news = not isinstance(evidence, on.PeerRecovered) or self._is_down(server)
        if definition is not None and is_news:
            self._state.write(evidence_key(server), evidence_value(evidence, definition), again=True)

    def learn(self, server: str, definition: str, record: FleetRecord) -> None:
        """Another replica learned something about a server."""
        if (event := evidence_event(record, definition)) is not None:
            self._state.host.handle(server, event)

    def prober_of(self, server: str) -> str:
        """The replica that has the right to probe a server that is down, or gets it next; empty if it is not down."""
        return self.probers.get(server) or (self._state.member.next_prober(server) if self._is_down(server) else "")

    @property
    def probers(self) -> dict[str, str]:
        """The replica that has the right to probe a server, for the servers that one has it for."""
        told = ((name, about.get("probes")) for name, about in self._presence.others.items())
        found = {str(server): name for name, many in told if isinstance(many, list) for server in many}
        member = self._state.member
        return found | dict.fromkeys(member.probes.told(), member.replica)

    def _is_down(self, server: str) -> bool:
        known = self._state.kept(evidence_key(server))
        return known is not None and known.get("up") is False
