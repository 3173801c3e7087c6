"""What operators ask of one server: a new connection, on, off. Waited for, and told truly what became of it."""

from __future__ import annotations

from holdfast.core.lifecycle import effects as do
from holdfast.core.lifecycle import events as on
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from holdfast.errors import HubClosed, LoadFailed, ServerDisabled
from holdfast.hub.slot import Slot

__all__ = ["renewed", "switched"]


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


async def switched(slot: Slot, *, enabled: bool) -> Health:
    """How the server is once it is switched on, which takes no time, or off."""
    slot.tell(on.EnableRequested() if enabled else on.DisableRequested())
    while not enabled and slot.state is State.DISABLING:
        await slot.changed()
    return slot.health()


def _refused(slot: Slot) -> ServerDisabled | HubClosed:
    state = slot.state
    kind = ServerDisabled if state in (State.DISABLED, State.DISABLING) else HubClosed
    return kind(f"MCP server '{slot.id}' is {state.value}", server_id=slot.id, state=state.value)
