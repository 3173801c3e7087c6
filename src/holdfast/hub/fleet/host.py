"""The hub as its fleet sees it: gives what peers decided to the slots, the approvals and the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.config import ServerSpec
from holdfast.core import Listing, events as on
from holdfast.hub.state_store import fingerprint

if TYPE_CHECKING:
    from holdfast.hub.registry import SlotRegistry

__all__ = ["RegistryHost"]


class RegistryHost:
    """``FleetHost`` for the slots of one hub."""

    def __init__(self, registry: SlotRegistry) -> None:
        self._registry = registry

    def definition_of(self, server: str) -> str | None:
        """See ``FleetHost``."""
        slot = self._registry.slots.get(server)
        if slot is None:
            return None
        return "" if slot.spec.problems else fingerprint(slot.spec)

    def servers(self) -> Mapping[str, ServerSpec]:
        """See ``FleetHost``."""
        return self._registry.config.servers

    def handle(self, server: str, event: on.Event) -> None:
        """See ``FleetHost``."""
        slot = self._registry.slots.get(server)
        if slot is not None and not slot.machine.life.stopped:
            slot.handle(event)

    def is_trying(self, server: str) -> bool:
        """See ``FleetHost``."""
        slot = self._registry.slots.get(server)
        return slot is not None and slot.machine.life.claim_used

    def follow_switch(self, server: str, disabled: bool) -> None:
        """See ``FleetHost``."""
        self._registry.switched_elsewhere(server, disabled)
        self._registry.state_changed()

    def follow_pin(self, server: str, tool: str, text: Mapping[str, Any]) -> None:
        """See ``FleetHost``."""
        if self._registry.approvals.take_pin(server, tool, text):
            self._registry.review_again(server)

    def follow_listing(self, listing: Listing) -> None:
        """See ``FleetHost``."""
        self._registry.show_unverified(listing)

    def needs_listing(self, server: str) -> bool:
        """See ``FleetHost``."""
        source = self._registry.catalog.servers.get(server)
        return source is not None and (source.listing is None or source.listing.generation == 0)

    def settled(self) -> None:
        """See ``FleetHost``."""
        for server in list(self._registry.slots):
            for key, text in self._registry.approvals.pins.of(server).items():
                if self._registry.fleet is not None:
                    self._registry.fleet.note_pin(server, key, text, False)
            self._registry.review_again(server)

    def alone(self) -> None:
        """See ``FleetHost``."""
        self._registry.approvals.tell_held()

    def disabled_servers(self) -> Iterable[str]:
        """See ``FleetHost``."""
        return [name for name, slot in self._registry.slots.items() if slot.switched_off]
