"""A connection that somebody asks for, now: ordered, waited for, and told truly whatever becomes of it."""

from __future__ import annotations

from holdfast.core.lifecycle import effects as do
from holdfast.core.lifecycle import events as on
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from holdfast.errors import HubClosed, LoadFailed, ServerDisabled
from holdfast.hub.slot import Slot

__all__ = ["renewed"]


async def renewed(slot: Slot) -> Health:
    """How the server is after a new connection was made; raises the reason if there is none."""
    effects = slot.tell(on.ReconnectRequested())
    if any(isinstance(effect, do.Reject) for effect in effects):
        raise _refused(slot)
    generation = slot.machine.dialing
    while slot.machine.dialing == generation and generation is not None:
        await slot.changed()
    failure = slot.failed_dials.get(generation) if generation is not None else None
    if failure is not None:
        raise LoadFailed(failure.evidence, f"MCP server '{slot.id}' could not be connected: {failure.reason}")
    return slot.health()


def _refused(slot: Slot) -> ServerDisabled | HubClosed:
    state = slot.state
    kind = ServerDisabled if state in (State.DISABLED, State.DISABLING) else HubClosed
    return kind(f"MCP server '{slot.id}' is {state.value}", server_id=slot.id, state=state.value)
