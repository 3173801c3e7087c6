"""Hot reload: changes of the configuration file are applied to the running hub.

The file is polled by its path, so that every way of changing it is seen: written in place, replaced by an editor,
or swapped behind symbolic links as Kubernetes does. A broken edit changes nothing and is reported. A server whose
new definition cannot be used keeps its running definition. Everything that happens is a record of the hub.

``apply_config`` puts a new configuration in force; only what changed is touched (LIFE-20).

Theory of operation. An edit may add, change and remove a thousand servers. No reader may see half of it, and no step of
it may hold up the event loop (SEC-7). So it is done in three parts:

1. What is new is made in turns: the slots of added servers, and the catalog with all names. No reader sees any of it.
2. In one step the configuration, the slots and the catalog are put in place.
3. The slots are told in turns: to use the new settings, to start, to change or to end. Each of them is told, also if
   the caller no longer waits: a slot that was never told would keep its old definition for ever.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.abc
import anyio.to_thread

from holdfast.access import Policy
from holdfast.config import Config, ServerSpec, TrustStore, read_file
from holdfast.core import events as on
from holdfast.errors import ConfigError, Problem, UsageError
from holdfast.hub.hub_clock import Stamps, sleep_until_poll, stamps
from holdfast.hub.journal import ConfigApplied, ConfigRefused, config_applied
from holdfast.hub.slot import Slot, SlotContext
from holdfast.turns import Turns

if TYPE_CHECKING:
    from holdfast.hub.hub import Hub
    from holdfast.hub.registry import SlotRegistry

__all__ = ["Reloader", "apply_config", "start_slot"]

RELOAD_PERIOD = 0.5
"""Seconds between two polls: an edit is in force about a second after it is saved. A poll costs microseconds."""

ConfigRecord: TypeAlias = ConfigApplied | ConfigRefused


class Reloader:
    """Watches the file of one hub. ``await Reloader(hub, file).run()`` never returns; cancel it."""

    def __init__(
        self,
        hub: Hub,
        file: Path,
        *,
        part: Callable[[Config], Config] | None = None,
    ) -> None:
        """``part`` says which part of a configuration the hub serves; all of it if that is None."""
        self._part = part
        self._hub = hub
        self._file = file
        # A found file that changed is used once its user trusts it: then the trust store changes, not the file.
        self._always = (file, TrustStore(os.environ).file) if hub.config.found else (file,)
        self._watched: tuple[Path, ...] = self._always
        """These, and the env files that the configuration names; they are known when it was read."""
        self._applied: Stamps = ()
        """Their states from before they were read last."""
        self._seen: Stamps = ()
        """Their states at the latest poll."""
        self._refused = False

    async def run(self) -> None:
        """Poll until cancelled. The file is read at the start: it may have changed since the hub read it."""
        await self.reload()
        while True:
            await self.look()
            await sleep_until_poll(RELOAD_PERIOD)

    async def reload(self) -> tuple[ConfigRecord, ...]:
        """Read the file now, whether it changed or not. The result is what was recorded."""
        # The stamp is older than the text that is read: an edit in between is seen by the next poll.
        self._applied = self._seen = await stamps(*self._watched)
        return await self._take()

    async def look(self) -> tuple[ConfigRecord, ...]:
        """Poll once. A change is used when two polls in a row see the same, so that no half-written file is read."""
        stamp = await stamps(*self._watched)
        settled, self._seen = stamp == self._seen, stamp
        # Compared with what was read, not with the poll before: an edit that was undone meanwhile is none.
        if stamp == self._applied or not settled:
            return ()
        self._applied = stamp
        return await self._take()

    async def _take(self) -> tuple[ConfigRecord, ...]:
        read = partial(read_file, self._file, environ=os.environ, found=self._hub.config.found)
        try:
            reading = await anyio.to_thread.run_sync(read)
            # Files that are watched from now on were read before their first stamp. An edit in between would never be
            # seen, so they are read once more.
            while await self._watch(d.env_file.path for d in reading.definitions if d.env_file is not None):
                reading = await anyio.to_thread.run_sync(read)
        except ConfigError as exc:
            # A hub may start before the user's own file is there. It serves no server then, as that file says.
            if self._applied[0] is None and not self._hub.config.servers and not self._refused:
                return ()
            return (self._refuse((), exc.problems),)
        try:
            return await self._apply(self._part(reading.config) if self._part is not None else reading.config)
        except UsageError as exc:  # the part that it serves is gone from the file
            return (self._refuse((), (Problem(message=exc.message, hint=exc.hint),)),)

    async def _watch(self, env_files: Iterable[Path]) -> bool:
        """Watch these beside the files that are always watched; whether they are others than before."""
        watched = (*self._always, *dict.fromkeys(env_files))
        if watched == self._watched:
            return False
        self._watched = watched
        self._applied = self._seen = await stamps(*watched)
        return True

    async def _apply(self, fresh: Config) -> tuple[ConfigRecord, ...]:
        # Server by server: one broken definition must not keep the edits of all others from being used.
        before = self._hub.config
        unusable = dict(_unusable(before, fresh))
        servers = {name: before.servers[name] if name in unusable else server for name, server in fresh.servers.items()}
        config = replace(fresh, servers=servers)
        # After a refused edit, a file that is as it was is news: it is recorded that the configuration is good.
        if config == before and not unusable and not self._refused:
            return ()
        applied = await self._hub.registry.apply(config)
        self._refused = False
        records: tuple[ConfigRecord, ...] = (applied,) if applied is not None else ()
        if unusable:
            records += (self._refuse(tuple(unusable), tuple(p for several in unusable.values() for p in several)),)
        return records

    def _refuse(self, servers: tuple[str, ...], problems: tuple[Problem, ...]) -> ConfigRefused:
        self._refused = True
        texts = tuple(f"{one} ({one.hint})" if one.hint else str(one) for one in problems)
        refused = ConfigRefused(servers=servers, problems=texts, at=self._hub.registry.clock.now())
        self._hub.registry.journal.write(refused)
        return refused


def _unusable(before: Config, fresh: Config) -> Iterator[tuple[str, tuple[Problem, ...]]]:
    """The servers whose running definition works and whose new definition does not."""
    for name, server in fresh.servers.items():
        running = before.servers.get(name)
        # A server that never worked may get its broken definition: its status then says what is wrong with it.
        if server.problems and server.enabled and running is not None and not running.problems:
            yield name, server.problems


async def apply_config(registry: SlotRegistry, context: SlotContext, config: Config) -> ConfigApplied | None:
    """Use a configuration; None if the hub closed meanwhile."""
    before = registry.config
    applied = config_applied(before, config, at=registry.clock.now())
    fresh = await _made_slots(registry, replace(context, settings=config.settings), config, applied.added)
    policy = registry.policy
    if config.settings.access != policy.settings:
        policy = await anyio.to_thread.run_sync(Policy, config.settings.access)  # conditions take time to compile
    # The last wait: the catalog is made of the one of that moment, and must not replace a newer one.
    arranged = await registry.publisher.arranged(config)
    if registry.is_closing:
        return None
    # The waits are over. From here to ``replace`` no other task runs, so no reader sees half of the edit.
    registry.config, registry.policy = config, policy
    # Out of the table at once, told later: calls that come from now on get "unknown", and not a slot that ends.
    gone = [registry.slots.pop(name) for name in applied.removed]
    registry.slots |= fresh
    registry.publisher.replace(*arranged)  # last: a listener of its records is a reader too
    adopting: list[Slot] = []
    if config.settings != before.settings:
        context.connector.adopt(config.settings)
        context = registry.context = replace(context, settings=config.settings)
        registry.clients.adopt(config.settings)
        registry.users.slots.adopt(config.settings)
        # The added ones were made with these settings.
        adopting = [slot for slot in registry.all_slots() if slot.id not in applied.added]
    await _tell(registry, context, applied, adopting, gone)
    registry.journal.write(applied)
    registry.writer.changed(at_once=True)
    return applied


async def _made_slots(
    registry: SlotRegistry, context: SlotContext, config: Config, names: Iterable[str]
) -> dict[str, Slot]:
    made: dict[str, Slot] = {}
    turns = Turns()
    for name in names:
        source = registry.catalog.servers.get(name)
        made[name] = Slot(config.servers[name], context, listed=source is not None and source.listing is not None)
        await turns.offer()
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
    turns = Turns()
    with anyio.CancelScope(shield=True):
        for step in steps:
            step()
            await turns.offer()


def start_slot(registry: SlotRegistry, slot: Slot, tasks: anyio.abc.TaskGroup) -> None:
    """Start a slot: connect to its server, unless the server is disabled."""
    tasks.start_soon(slot.run, name=f"{slot.id} owner")
    if slot.machine.life.stopped:
        return  # the hub was closed while its slots were started
    lock = registry.approvals.lock
    disabled = registry.catalog.servers[slot.id].withdrawn or (lock is not None and slot.id in lock.disabled)
    if not slot.spec.enabled or disabled:
        slot.handle(on.DisableRequested())
    elif slot.spec.sharing == "per-user" and not registry.has_local and not slot.spec.problems:
        slot.handle(on.WentIdle())  # it is the slot of `local`, who is not expected here
    else:
        slot.handle(on.StartRequested())


def _change(registry: SlotRegistry, slot: Slot, spec: ServerSpec) -> None:
    if slot.machine.life.stopped:
        return
    was_enabled = slot.spec.enabled
    slot.adopt(spec, registry.config.settings)
    if spec.enabled != was_enabled:
        slot.handle(on.EnableRequested() if spec.enabled else on.DisableRequested())
