"""The other replicas of a hub, as the hub sees them, and the hub as they see it.

A hub may be one of several. What it knows of that is here: protocols, and the host that gives what others decided to
the slots, the approvals and the catalog. ``fleet/`` implements ``Replicas``; the hub imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.config import ServerSpec
from holdfast.core import Listing, events as on
from holdfast.hub.call_approvals import QuestionSharing
from holdfast.hub.hub_clock import Clock
from holdfast.hub.review import SharedPins
from holdfast.hub.state_store import fingerprint

if TYPE_CHECKING:
    from holdfast.hub.registry import SlotRegistry

__all__ = [
    "EvidenceSharing",
    "ListingSharing",
    "ReplicaHost",
    "Replicas",
    "UserHomes",
    "follow_approvals",
    "follow_switch",
]


class EvidenceSharing(Protocol):
    """What replicas tell each other about servers, as a slot tells it."""

    def claim(self, server: str, at: float | None, number: int) -> None:
        """A slot needs the right to probe at that time; None: it is not needed any more."""

    def release(self, server: str, delay: float) -> None:
        """A slot used its right to probe."""

    def share(self, server: str, evidence: on.Event) -> None:
        """A slot learned something about its server."""


class ListingSharing(Protocol):
    """What servers list, as the publisher tells it."""

    def published(self, listing: Listing) -> None:
        """This hub published a listing."""


class DecisionSharing(SharedPins, Protocol):
    """What operators decide for all replicas. Nothing here waits for the store, except ``scope``."""

    def note_switch(self, server: str, disabled: bool) -> None:
        """An operator enabled or disabled a server here."""

    async def scope(self, server: str) -> str:
        """Where the latest switch and approvals of a server hold, in words. It waits, two seconds at most."""


class UserHomes(Protocol):
    """Which replica runs the processes of a user."""

    def user_home(self, principal: str) -> str | None:
        """The address of the replica that runs them; None if it is this one."""


class Replicas(Protocol):
    """The other replicas."""

    @property
    def presence(self) -> UserHomes:
        """For the users."""

    @property
    def evidence(self) -> EvidenceSharing:
        """For the slots."""

    @property
    def listings(self) -> ListingSharing:
        """For the publisher."""

    @property
    def decisions(self) -> DecisionSharing:
        """For the approvals, and for the operator."""

    @property
    def questions(self) -> QuestionSharing:
        """For the calls that wait for a person."""

    def open(self, host: ReplicaHost, clock: Clock) -> None:
        """Begin for this hub; before ``run``."""

    async def run(self) -> None:
        """Share until cancelled; then tell the others that this replica leaves."""


class ReplicaHost:
    """The hub, as the other replicas reach it."""

    def __init__(self, registry: SlotRegistry) -> None:
        self._registry = registry

    def definition_of(self, server: str) -> str | None:
        """Identifies the definition of a configured server; None for another server."""
        slot = self._registry.slots.get(server)
        if slot is None:
            return None
        return "" if slot.spec.problems else fingerprint(slot.spec)

    def servers(self) -> Mapping[str, ServerSpec]:
        """The configuration that this hub runs; another object after each change."""
        return self._registry.config.servers

    def handle(self, server: str, event: on.Event) -> None:
        """Give an event to the slot of a server."""
        slot = self._registry.slots.get(server)
        if slot is not None and not slot.machine.life.stopped:
            slot.handle(event)

    def is_trying(self, server: str) -> bool:
        """Whether the right to probe is in use."""
        slot = self._registry.slots.get(server)
        return slot is not None and slot.machine.life.claim_used

    def follow_switch(self, server: str, disabled: bool) -> None:
        """A peer enabled or disabled a server."""
        follow_switch(self._registry, server, disabled)
        self._registry.writer.changed(at_once=True)

    def follow_pin(self, server: str, tool: str, text: Mapping[str, Any]) -> None:
        """The fleet's version of a tool."""
        if self._registry.approvals.take_pin(server, tool, text):
            self._publish_again(server)

    def follow_question(self, question: str, value: Mapping[str, Any] | None) -> None:
        """A call waits for a person at another replica; None: not any more."""
        self._registry.call_approvals.follow_question(question, value)

    def follow_verdict(self, question: str, value: Mapping[str, Any]) -> None:
        """A person decided about a call at another replica."""
        self._registry.call_approvals.follow_verdict(question, value)

    def follow_listing(self, listing: Listing) -> None:
        """A peer's listing of a server that was not listed here."""
        self._registry.publisher.show_unverified(listing)

    def needs_listing(self, server: str) -> bool:
        """Whether a server was not listed here."""
        source = self._registry.catalog.servers.get(server)
        return source is not None and (source.listing is None or source.listing.generation == 0)

    def settled(self) -> None:
        """The copy has what the fleet has: what is seen for the first time now is new."""
        for server in list(self._registry.slots):
            for key, text in self._registry.approvals.pins.of(server).items():
                if self._registry.fleet is not None:
                    self._registry.fleet.decisions.note_pin(server, key, text, False)
            self._publish_again(server)

    def alone(self) -> None:
        """The store does not answer: what waits to hear of the fleet waits no more."""
        self._registry.approvals.listings.tell_held()

    def _publish_again(self, server: str) -> None:
        self._registry.publisher.publish_again(server)
        self._registry.writer.changed(at_once=True)

    def disabled_servers(self) -> Iterable[str]:
        """The servers that an operator disabled."""
        return [name for name, slot in self._registry.slots.items() if slot.switched_off]


# What people decided elsewhere. Where this hub does not follow, it says so, and nothing is raised.


def follow_switch(registry: SlotRegistry, server: str, disabled: bool) -> bool:
    """Follow another hub that enabled or disabled a server; False if this one does not."""
    slot = registry.slots.get(server)
    if slot is None or not slot.spec.enabled or slot.switched_off == disabled or registry.is_closing:
        return False
    slot.handle(on.DisableRequested() if disabled else on.EnableRequested())
    return True


def follow_approvals(registry: SlotRegistry) -> None:
    """Follow another hub that wrote the approvals file."""
    for server in registry.approvals.follow():
        registry.publisher.publish_again(server)
