"""A new configuration for a running hub: only what changed is touched (LIFE-20).

Theory of operation. An edit may add, change and remove a thousand servers. No reader may see half of it, and no step of
it may hold up the event loop (SEC-7). So it is done in three parts:

1. What is new is made in turns: the slots of added servers, and the catalog with all names. No reader sees any of it.
2. In one step the configuration, the slots and the catalog are put in place.
3. The slots are told in turns: to use the new settings, to start, to change or to end. Each of them is told, also if
   the caller no longer waits: a slot that was never told would keep its old definition for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio.abc
import anyio.lowlevel

from holdfast.config import Config, ServerSpec
from holdfast.core import events as on
from holdfast.hub.records import ConfigApplied, config_applied
from holdfast.hub.slot import Slot, SlotContext

if TYPE_CHECKING:
    from holdfast.hub.registry import SlotRegistry

__all__ = ["apply_config", "start_slot"]

SLOTS_AT_ONCE = 25
"""So many slots are made, or told of a change, in one step of the event loop."""


async def apply_config(registry: SlotRegistry, context: SlotContext, config: Config) -> ConfigApplied | None:
    """Use a configuration; None if the hub closed meanwhile."""
    before = registry.config
    applied = config_applied(before, config, at=registry.clock.now())
    fresh = await _made_slots(registry, replace(context, settings=config.settings), config, applied.added)
    arranged = await registry.publisher.arranged(config)
    if registry.is_closing:
        return None
    registry.config = config
    gone = [registry.slots.pop(name) for name in applied.removed]
    registry.slots |= fresh
    registry.publisher.replace(*arranged)  # last: a listener of its records is a reader too
    adopting: list[Slot] = []
    if config.settings != before.settings:
        context.connector.adopt(config.settings)
        context = registry.context = replace(context, settings=config.settings)
        registry.clients.adopt(config.settings)
        adopting = [slot for slot in registry.all_slots() if slot.id not in applied.added]
    await _tell(registry, context, applied, adopting, gone)
    registry.journal.write(applied)
    registry.writer.changed(at_once=True)
    return applied


async def _made_slots(
    registry: SlotRegistry, context: SlotContext, config: Config, names: Iterable[str]
) -> dict[str, Slot]:
    made: dict[str, Slot] = {}
    for number, name in enumerate(names, start=1):
        source = registry.catalog.servers.get(name)
        made[name] = Slot(config.servers[name], context, listed=source is not None and source.listing is not None)
        if number % SLOTS_AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
    return made


async def _tell(
    registry: SlotRegistry,
    context: SlotContext,
    applied: ConfigApplied,
    adopting: Sequence[Slot],
    gone: Sequence[Slot],
) -> None:
    config, slots = registry.config, registry.slots
    steps: list[Callable[[], object]] = [
        *(partial(slot.adopt, slot.spec, config.settings) for slot in adopting),
        *(partial(slot.handle, on.RemoveRequested()) for slot in gone),
        *(partial(start_slot, registry, slots[name], context.tasks) for name in applied.added),
        *(partial(_change, registry, slots[name], config.servers[name]) for name in applied.changed),
    ]
    for number, step in enumerate(steps, start=1):
        step()
        if number % SLOTS_AT_ONCE == 0:
            await anyio.lowlevel.cancel_shielded_checkpoint()


def start_slot(registry: SlotRegistry, slot: Slot, tasks: anyio.abc.TaskGroup) -> None:
    """Start a slot: connect to its server, unless the server is disabled."""
    tasks.start_soon(slot.run, name=f"{slot.id} owner")
    if slot.machine.life.stopped:
        return  # the hub was closed while its slots were started
    lock = registry.approvals.lock
    disabled = registry.catalog.servers[slot.id].withdrawn or (lock is not None and slot.id in lock.disabled)
    slot.handle(on.StartRequested() if slot.spec.enabled and not disabled else on.DisableRequested())


def _change(registry: SlotRegistry, slot: Slot, spec: ServerSpec) -> None:
    if slot.machine.life.stopped:
        return
    was_enabled = slot.spec.enabled
    slot.adopt(spec, registry.config.settings)
    if spec.enabled != was_enabled:
        slot.handle(on.EnableRequested() if spec.enabled else on.DisableRequested())
