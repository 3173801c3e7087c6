"""All slots of a hub, and what they share: the catalog, the journal, the approvals, the state file, the tasks.

This is the inside of a hub: Holdfast's own packages use it, programs use ``Hub``. Every configured server has a
slot here, always. The catalog is replaced as a whole; nothing changes a catalog that a reader holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread

from holdfast.auth import Logins, canonical, takes_login
from holdfast.config import ApprovalMode, Config, ServerSpec
from holdfast.core import (
    ApprovalKind,
    Catalog,
    ChangedKinds,
    Collision,
    Health,
    Kind,
    Listing,
    NameKey,
    NotMcp,
    NotMcpFault,
    State,
    Unknown,
    classify_evidence,
    effects as do,
    events as on,
    quoted_name,
)
from holdfast.errors import CallFailed, HubClosed, HubNotOpen, LoadFailed, ServerDisabled, UnknownServer
from holdfast.hub.approvals import Approvals, approval_mode
from holdfast.hub.approvals_lock import ApprovalsLock
from holdfast.hub.client_slots import ClientSlots
from holdfast.hub.clock import Clock
from holdfast.hub.journal import Journal, Published
from holdfast.hub.lease import Connector, ServerCache, is_shown
from holdfast.hub.limits import DialLimit
from holdfast.hub.polling import sleep_until_poll
from holdfast.hub.records import ConfigApplied, ListFailed, config_applied
from holdfast.hub.replica_link import RegistryHost, Replicas
from holdfast.hub.review import ALONE
from holdfast.hub.slot import Slot, SlotContext
from holdfast.hub.state_store import StateWriter, Store, written_prefixes
from holdfast.types import ProgressFn
from holdfast.wire import (
    BadJson,
    Caller,
    Dialer,
    Fields,
    HubTls,
    RawObject,
    Relay,
    Warden,
    dumps,
    keep_reaping,
    load_members,
    text_of,
    until_cancelled,
)

__all__ = ["SlotRegistry", "reconnect", "switch"]

_CALLS = {"tools/call": Kind.TOOL, "prompts/get": Kind.PROMPT}
"""The requests that name an item with a prefix, and its kind."""

CLOSE_SECONDS = 15.0
"""Each connection's close has a bound of its own; this bound is for all of them together."""


LOGIN_PERIOD = 0.5
"""Seconds between two polls: a login takes effect that soon, and a poll costs microseconds."""

START_SECONDS = 2.0
"""How long a hub's start waits for the store; a login that is read later counts as a new one."""


class SlotRegistry:
    """The slots of one hub. It is the ``SlotHost`` of its shared slots."""

    def __init__(  # noqa: PLR0913 - what a hub is made of
        self,
        config: Config,
        *,
        state_file: Path | None,
        clock: Clock,
        chance: Callable[[], float],
        logins: Logins,
        approvals: ApprovalMode | ApprovalsLock = "warn",
        fleet: Replicas | None = None,
        hub_tls: HubTls | None = None,
    ) -> None:
        self._hub_tls = hub_tls
        self.config = config
        self.fleet = fleet
        """The other replicas of this hub, if it has any."""
        self.logins = logins
        self.catalog = Catalog()
        self.clock = clock
        self.journal = Journal(clock)
        lock = approvals if isinstance(approvals, ApprovalsLock) else None
        default: ApprovalMode = "hold" if isinstance(approvals, ApprovalsLock) else approvals
        self.approvals = Approvals(
            state_file,
            mode=lambda server: approval_mode(self.config, server, default),
            journal=self.journal,
            lock=lock,
            shared=fleet or ALONE,
        )
        self.clients = ClientSlots()
        """The slots that belong to one client each."""
        self.slots: dict[str, Slot] = {}
        """The shared slots, by the names of their servers."""
        self._chance = chance
        self._writer = StateWriter(Store(state_file) if state_file is not None else None, self.approvals.pins)
        self._cache = ServerCache()
        self._warden = Warden()
        self.relay: Relay | None = None
        """Gets the requests of servers that belong to no call."""
        self._outer: anyio.abc.TaskGroup | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._context: SlotContext | None = None
        self.is_closing = False
        """Whether the hub is closed, or closes now."""
        self._applying = anyio.Lock()
        self._unpublished: dict[str, Listing] = {}
        """Listings that wait to be published, because the catalog is large."""
        self._publishing = False
        self._all_closed = anyio.Event()

    # Opening and closing.

    @property
    def is_open(self) -> bool:
        """Whether the hub was entered; it stays so when the hub is closed."""
        return self._context is not None

    def require_use(self) -> None:
        """Raise ``HubNotOpen`` if the hub was not entered yet, ``HubClosed`` if it is closed or closes now."""
        if self.is_closing:
            raise _hub_closed()
        self.require_open()

    def require_open(self) -> None:
        """Raise ``HubNotOpen`` if the hub was not entered yet."""
        if self._context is None:
            raise HubNotOpen(
                "the hub is not open yet: its servers are not started",
                hint="use it inside `async with Hub.from_config(…) as hub:`",
            )

    async def open(self) -> None:
        """Start every slot, and return at once: servers come up in the background."""
        if self.is_closing:
            raise _hub_closed()  # nothing revives
        self.catalog = await anyio.to_thread.run_sync(self._writer.restore, self.config)
        logins = await _current_logins(self, within=START_SECONDS)
        self._outer = await anyio.create_task_group().__aenter__()
        with anyio.CancelScope(shield=True):  # it takes a moment; a group that is half entered cannot be left
            tasks: anyio.abc.TaskGroup = await self._outer.start(_own_tasks)
        self._tasks, settings = tasks, self.config.settings
        self._context = SlotContext(
            settings=settings,
            clock=self.clock,
            chance=self._chance,
            connector=Connector(
                Dialer(
                    warden=self._warden,
                    limits=settings.limits,
                    authorize=self.logins.authorize,
                    on_stderr=self.journal.stderr_line,
                    is_hub=True,
                    hub_tls=self._hub_tls,
                ),
                DialLimit(settings.load.concurrency, tasks),
                self._cache,
                settings.load,
            ),
            tasks=tasks,
            host=self,
            journal=self.journal,
            relay=lambda: self.relay,
            fleet=self.fleet,
        )
        if self.fleet is not None:
            self._join(self.fleet)
        self.clients.open(self._context)
        for slot in [self._add(server) for server in self.config.servers.values()]:
            self._start(slot)
        tasks.start_soon(self._writer.run, name="state writer")
        if self.fleet is not None:
            tasks.start_soon(self.fleet.run, name="fleet")
        tasks.start_soon(self._writer.watch, self.switched_elsewhere, self._approved_elsewhere, name="state watch")
        tasks.start_soon(until_cancelled, self._warden.keep, name="warden keeper")
        tasks.start_soon(keep_reaping, self._warden, name="orphans")
        tasks.start_soon(_watch_logins, self, logins, name="login watch")

    async def leave(self) -> None:
        """Close, and wait until no task is left."""
        if self._tasks is None or self._outer is None:
            return
        with anyio.CancelScope(shield=True):
            await self.close()
        self._tasks.cancel_scope.cancel()
        try:
            # No exception is passed in: a task group would wrap it, and the caller expects the body's own.
            await self._outer.__aexit__(None, None, None)
        finally:
            await self._warden.__aexit__(None, None, None)

    async def close(self) -> None:
        """End every connection. Idempotent, bounded, safe while servers are being dialed; nothing revives."""
        if not self.is_closing:
            self.is_closing = True
            last = self._snapshot()
            for slot in self._all_slots():
                slot.handle(on.ShutdownRequested())
            if self._tasks is None or self._tasks.cancel_scope.cancel_called:
                self._all_closed.set()  # a task that failed has ended all others; `leave` raises its failure
            else:
                self._tasks.start_soon(self._finish, last, name="hub close")
        await self._all_closed.wait()

    async def _finish(self, last: tuple[Config, Catalog, frozenset[str]]) -> None:
        """Wait until everything is closed; in a task of its own, because the caller of ``close`` may be cancelled."""
        with anyio.move_on_after(CLOSE_SECONDS):
            await self._writer.close(lambda: last)
            for slot in self._all_slots():
                await slot.closed.wait()
        self.journal.close()
        self._all_closed.set()

    # For the packages that serve and show the hub.

    def find(self, name: str, kind: Kind) -> NameKey | Unknown:
        """The owner of an item: by what was ever listed, else by the prefix of a server that is not connected."""
        found = self.catalog.resolve(name, kind)
        if isinstance(found, NameKey) or kind not in _CALLS.values():
            return found
        return next((key for key in self.catalog.possible_owners(name, kind) if self._may_own(key)), found)

    def instructions(self, server: str) -> str:
        """The instructions of a server that is connected, as they may be shown."""
        lease = self.slot(server).lease
        connection = lease.connection if lease is not None else None
        return self.approvals.instructions(server, connection.instructions) if connection is not None else ""

    def _may_own(self, key: NameKey) -> bool:
        """Whether a call can tell more than "unknown": a connected server has listed all that it has."""
        slot = self.slots.get(key.server)
        if self.approvals.is_held(key.server, key.original, "tool" if key.kind is Kind.TOOL else "prompt"):
            return True  # it is hidden, and the refusal says why
        if slot is None or (slot.lease is not None and slot.machine.told is None):
            return False
        return key.kind is not Kind.TOOL or is_shown(key.original, slot.spec.tools)

    def health(self) -> dict[str, Health]:
        """The health of every configured server, also while the hub closes."""
        return {name: slot.health() for name, slot in self.slots.items()}

    def slot(self, name: str) -> Slot:
        """The shared slot of a server."""
        self.require_open()
        slot = self.slots.get(name)
        if slot is None:
            known = ", ".join(sorted(self.slots)) or "none at all"
            raise UnknownServer(f"no server named `{name}` is configured", hint=f"configured: {known}")
        return slot

    def attach(self, relay: Relay) -> None:
        """New connections pass server-initiated requests and notifications to ``relay`` from now on."""
        self.relay = relay

    async def request(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any],
        *,
        repeatable: bool = False,
        on_progress: ProgressFn | None = None,
        caller: Caller | None = None,
        slot: Slot | None = None,
    ) -> Mapping[str, Any]:
        """Send a request whose parameters are values, and read its result."""
        sent = RawObject.of(params).members
        result = await (slot or self.slot(server)).call(
            method, sent, caller=caller, repeatable=repeatable, on_progress=on_progress
        )
        return await self.read_result(server, result)

    async def read_result(self, server: str, result: RawObject) -> dict[str, Any]:
        """A result as a value, also a large one; raises ``CallFailed`` where no program can read it."""
        try:
            return await load_members(result)
        except BadJson as exc:
            evidence = NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc))
            verdict = classify_evidence(evidence)
            raise CallFailed(evidence, f"the call to `{server}` failed: {verdict.reason}", hint=verdict.hint) from exc

    def prepared(self, server: str, method: str, params: Fields, *, late: bool) -> Fields:
        """The parameters to send now; ``late`` if they were made before the server was connected (``SlotHost``)."""
        kind = _CALLS.get(method)
        if kind is None or not (late or self.approvals.pins.changed.get(server)):
            return params
        name = text_of(params.get("name")) or ""
        if late:
            listed = self.catalog.listed_name(NameKey(kind, server, name))
            params, name = {**params, "name": dumps(listed)}, listed
        self.approvals.refuse_held(server, name, "tool" if kind is Kind.TOOL else "prompt")
        return params

    # For the hub.

    def logged_in(self, name: str) -> None:
        """Try a server again whose credentials are new."""
        for slot in [self.slot(name), *(own for own in self.clients.all() if own.id == name)]:
            slot.handle(on.LoginSucceeded())

    def state_changed(self) -> None:
        """Write the state file at once."""
        self._writer.changed(self._snapshot, at_once=True)

    async def apply(self, config: Config) -> ConfigApplied | None:
        """Use a new configuration; only the connections of servers whose definition changed are touched."""
        self.require_open()
        async with self._applying:
            return None if self.is_closing else await self._apply(config)

    async def _apply(self, config: Config) -> ConfigApplied | None:
        """Make what is new in turns, put all of it in place in one step, then tell the slots in turns.

        So no reader sees half of a change, and no edit of any size holds up the event loop (SEC-7).
        """
        before, applied = self.config, config_applied(self.config, config, at=self.clock.now())
        fresh = await self._made_slots(config, applied.added)
        arranged = await self._arranged(config)
        if self.is_closing:
            return None
        self.config = config
        gone = [self.slots.pop(name) for name in applied.removed]
        for slot in gone:
            self._unpublished.pop(slot.id, None)
        self.slots |= fresh
        self._replace(*arranged)  # last: a listener of its records is a reader too
        await self._tell(applied, gone, other_settings=config.settings != before.settings)
        self.journal.write(applied)
        self.state_changed()
        return applied

    async def _made_slots(self, config: Config, names: Iterable[str]) -> dict[str, Slot]:
        assert self._context is not None  # noqa: S101 - the hub is open
        context = replace(self._context, settings=config.settings)
        made: dict[str, Slot] = {}
        for number, name in enumerate(names, start=1):
            source = self.catalog.servers.get(name)
            made[name] = Slot(config.servers[name], context, listed=source is not None and source.listing is not None)
            if number % SLOTS_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        return made

    async def _arranged(self, config: Config) -> tuple[Catalog, Mapping[str, ChangedKinds]]:
        """The catalog with these servers, and what that changes; a thread makes it."""
        for _ in range(ARRANGE_TRIES):
            before = self.catalog
            made = await anyio.to_thread.run_sync(_arranged, before, config)
            if self.catalog is before:
                return made
        return _arranged(self.catalog, config)  # other servers publish all the time: now none can

    async def _tell(self, applied: ConfigApplied, gone: Sequence[Slot], *, other_settings: bool) -> None:
        """Tell the slots, in turns. Each of them is told, also if the caller no longer waits."""
        config, adopting = self.config, list[Slot]()
        if other_settings and self._context is not None:
            self._context.connector.adopt(config.settings)
            self._context = replace(self._context, settings=config.settings)
            self.clients.adopt(config.settings)
            adopting = [slot for slot in self._all_slots() if slot.id not in applied.added]
        slots = self.slots
        steps: list[Callable[[], object]] = [
            *(partial(slot.adopt, slot.spec, config.settings) for slot in adopting),
            *(partial(slot.handle, on.RemoveRequested()) for slot in gone),
            *(partial(self._start, slots[name]) for name in applied.added),
            *(partial(self._reconfigure, slots[name], config.servers[name]) for name in applied.changed),
        ]
        for number, step in enumerate(steps, start=1):
            step()
            if number % SLOTS_AT_ONCE == 0:
                await anyio.lowlevel.cancel_shielded_checkpoint()

    def approve(self, server: str, tool: str | None, mark: str | None, kind: ApprovalKind = "tool") -> tuple[str, ...]:
        """Approve the pending changes of a server, one or all."""
        self.slot(server)
        approved = self.approvals.approve(server, tool, mark=mark, kind=kind)
        listing = self.approvals.listings.latest.get(server)
        if listing is not None and not self.catalog.servers[server].withdrawn:
            self.publish(listing)
        self.state_changed()
        return approved

    # For the state that other hubs share.

    def _join(self, fleet: Replicas) -> None:
        fleet.open(RegistryHost(self), self.clock)

    async def scope(self, server: str) -> str:
        """Where the latest switch and approvals of a server hold: everywhere, or "this replica only".

        Empty for a hub that is alone. It waits for the other replicas, two seconds at most.
        """
        return await self.fleet.scope(server) if self.fleet is not None else ""

    def review_again(self, server: str) -> None:
        """Publish the latest listing again: what the fleet approved has changed."""
        listing = self.approvals.listings.latest.get(server)
        if listing is not None and server in self.slots and not self.catalog.servers[server].withdrawn:
            self.publish(listing)
        self.state_changed()

    def show_unverified(self, listing: Listing) -> None:
        """Show what a peer listed of a server that was not listed here."""
        catalog = self.catalog.publish(listing)
        if self.catalog.servers[listing.server].withdrawn:
            catalog = catalog.withdraw(listing.server)
        self._show(catalog)

    def switched_elsewhere(self, server: str, disabled: bool) -> bool:
        """Follow another hub that enabled or disabled a server; False if this one does not."""
        slot = self.slots.get(server)
        if slot is None or not slot.spec.enabled or slot.switched_off == disabled or self.is_closing:
            return False
        slot.handle(on.DisableRequested() if disabled else on.EnableRequested())
        return True

    def _approved_elsewhere(self) -> None:
        for server in self.approvals.follow():
            listing = self.approvals.listings.latest.get(server)
            if server in self.slots and listing is not None and not self.catalog.servers[server].withdrawn:
                self.publish(listing)

    # For the slots (``SlotHost`` in slot.py).

    def publish(self, listing: Listing) -> None:
        """Publish a newer complete listing, except for what is held; a large catalog is made in the background."""
        if listing.server not in self.slots:
            return  # it was removed a moment ago
        self._note_failed_lists(listing)
        size = sum(len(listing.of(kind)) for kind in Kind) + len(self.catalog.names)
        if (size > AT_ONCE or self._unpublished) and self._tasks is not None:
            self._unpublished.pop(listing.server, None)
            self._unpublished[listing.server] = listing
            if not self._publishing:
                self._publishing = True
                self._tasks.start_soon(self._publish_large, name="publisher")
            return
        reviewed = self.approvals.listings.review(listing)
        self._show(self.catalog.publish(reviewed))
        self._published((reviewed,))

    async def _publish_large(self) -> None:
        """Publish all that waits, together. A thread makes the catalog: it takes longer than a step may (SEC-7)."""
        try:
            while self._unpublished:
                taken = dict(self._unpublished)
                reviewed = [await self.approvals.listings.review_in_turns(listing) for listing in taken.values()]
                before = self.catalog
                made, changes = await anyio.to_thread.run_sync(_made, before, reviewed)
                newer = any(self._unpublished.get(server) is not listing for server, listing in taken.items())
                if newer or self.catalog is not before:
                    continue  # a newer listing came, or the catalog changed meanwhile: once more
                for server in taken:
                    del self._unpublished[server]
                self._replace(made, changes)
                self._published(reviewed)
        finally:
            self._publishing = False

    def _published(self, reviewed: Iterable[Listing]) -> None:
        if self.fleet is not None:
            for listing in reviewed:
                self.fleet.published(listing)
        if self.approvals.pins.unsaved:
            self._writer.changed(self._snapshot)

    def _note_failed_lists(self, listing: Listing) -> None:
        known = self.catalog.servers[listing.server].listing if listing.server in self.catalog.servers else None
        for kind, reason in listing.failed.items():
            if known is None or known.failed.get(kind) != reason:
                at = self.clock.now()
                self.journal.write(ListFailed(server=listing.server, kind=kind.value, reason=reason, at=at))

    @property
    def findings(self) -> dict[str, str]:
        """What is wrong with servers that are up all the same, in words, by server."""
        taken: dict[str, list[Collision]] = {}
        for one in self.catalog.collisions:
            if not one.holder.server:
                taken.setdefault(one.key.server, []).append(one)
        return {one: words for one in self.catalog.servers if (words := self._finding(one, taken.get(one, ())))}

    def finding(self, server: str) -> str:
        """The same of one server; empty if there is nothing."""
        of_hub = [one for one in self.catalog.collisions if not one.holder.server and one.key.server == server]
        return self._finding(server, of_hub)

    def _finding(self, server: str, of_hub: Sequence[Collision]) -> str:
        source = self.catalog.servers.get(server)
        failed = source.listing.failed if source is not None and source.listing is not None else {}
        found = [f"its {kind.value} could not be listed: {why}" for kind, why in failed.items()]
        return "; ".join([*found, *([_names_of_the_hub(of_hub)] if of_hub else [])])

    def withdraw(self, server: str, *, removed: bool) -> None:
        """Withdraw a server's items, and end the connections to it that belong to one client."""
        self._unpublished.pop(server, None)
        self.clients.end(server)
        if removed:
            self.approvals.forget(server)
        self._show(self.catalog.remove(server) if removed else self.catalog.withdraw(server))

    def reinstate(self, server: str) -> None:
        """Publish a server's last good listing again."""
        self._show(self.catalog.reinstate(server))

    def _show(self, catalog: Catalog) -> None:
        if catalog is not self.catalog:
            self._replace(catalog, catalog.changes(self.catalog))

    def _replace(self, catalog: Catalog, changes: Mapping[str, ChangedKinds]) -> None:
        if catalog is not self.catalog:
            self.catalog = catalog
            for server, (shown, own) in changes.items():
                self.journal.write(
                    Published(
                        server=server,
                        version=catalog.version,
                        kinds=tuple(sorted(kind.value for kind in shown)),
                        own_kinds=tuple(sorted(kind.value for kind in own)),
                        at=self.clock.now(),
                    )
                )
            self._writer.changed(self._snapshot)

    def _add(self, server: ServerSpec) -> Slot:
        assert self._context is not None  # noqa: S101 - the hub is open
        listed = self.catalog.servers[server.id].listing is not None
        slot = self.slots[server.id] = Slot(server, self._context, listed=listed)
        return slot

    def _start(self, slot: Slot) -> None:
        assert self._tasks is not None  # noqa: S101 - the hub is open
        self._tasks.start_soon(slot.run, name=f"{slot.id} owner")
        if slot.machine.life.stopped:
            return  # the hub was closed while its slots were started
        locked = self.approvals.lock is not None and slot.id in self.approvals.lock.disabled
        enabled = slot.spec.enabled and not self.catalog.servers[slot.id].withdrawn and not locked
        slot.handle(on.StartRequested() if enabled else on.DisableRequested())

    def _reconfigure(self, slot: Slot, server: ServerSpec) -> None:
        if slot.machine.life.stopped:
            return
        was_enabled = slot.spec.enabled
        slot.adopt(server, self.config.settings)
        if server.enabled != was_enabled:
            slot.handle(on.EnableRequested() if server.enabled else on.DisableRequested())

    def _all_slots(self) -> list[Slot]:
        return [*self.slots.values(), *self.clients.all()]

    def _snapshot(self) -> tuple[Config, Catalog, frozenset[str]]:
        off = frozenset(name for name, slot in self.slots.items() if slot.switched_off)
        return self.config, self.catalog, off


SLOTS_AT_ONCE = 25
"""So many slots are made, or told of a change, in one step of the event loop."""

ARRANGE_TRIES = 3

AT_ONCE = 3_000
"""A catalog of so many items is made at once; that takes about 15 ms of the event loop."""


def _made(before: Catalog, listings: Sequence[Listing]) -> tuple[Catalog, Mapping[str, ChangedKinds]]:
    """The catalog with these listings, and what they change."""
    made = before.publish_all(listings)
    return made, made.changes(before)


def _arranged(before: Catalog, config: Config) -> tuple[Catalog, Mapping[str, ChangedKinds]]:
    made = before.arrange(written_prefixes(config), longest=config.settings.name_length)
    return made, made.changes(before)


async def _own_tasks(*, task_status: anyio.abc.TaskStatus[anyio.abc.TaskGroup]) -> None:
    """Hold the group open in a task of its own; shielded, so that a cancelled user still gets an orderly close."""
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            task_status.started(tasks)
            await anyio.sleep_forever()


# Logins that other processes make: a server that waits for a login is tried again at once.


async def _current_logins(registry: SlotRegistry, *, within: float | None = None) -> Mapping[str, str]:
    """The login of each server that has one; the last known logins if the store does not answer in time."""
    await registry.logins.reading.up_to_date(within=within)
    return _logins(registry)


async def _watch_logins(registry: SlotRegistry, known: Mapping[str, str]) -> None:
    """Poll the token store until cancelled, in real time. ``known`` are the logins before the first dial."""
    while True:
        before, known = known, await _current_logins(registry)
        for name, login in known.items():
            if login != before.get(name):
                registry.logged_in(name)
        await sleep_until_poll(LOGIN_PERIOD)


def _logins(registry: SlotRegistry) -> Mapping[str, str]:
    """By server, its login. A fleet without logins is not looked through at every poll."""
    by_address = {address: grant.login for grant in registry.logins.store.known for address in grant.servers}
    if not by_address:
        return {}
    servers = registry.config.servers.values()
    found = {server.id: by_address.get(canonical(server.url)) for server in servers if takes_login(server)}
    return {name: login for name, login in found.items() if login is not None}


# The commands of operators for one server. Each waits for its outcome and reports it.


async def reconnect(slot: Slot) -> Health:
    """Make a new connection; raises ``LoadFailed`` with the reason if there is none."""
    effects = slot.handle(on.ReconnectRequested())
    if any(isinstance(effect, do.Reject) for effect in effects):
        raise _refusal(slot)
    generation = slot.machine.dialing
    while slot.machine.dialing == generation and generation is not None:
        await slot.changed()
    if slot.machine.life.stopped or slot.switched_off:
        raise _refusal(slot)  # meanwhile
    failure = slot.leases.failed_dials.get(generation) if generation is not None else None
    if failure is not None:
        raise LoadFailed(failure.evidence, f"MCP server '{slot.id}' could not be connected: {failure.reason}")
    return slot.health()


async def switch(slot: Slot, *, enabled: bool) -> Health:
    """Enable the server, which takes no time, or disable it and wait until it is disabled."""
    slot.handle(on.EnableRequested() if enabled else on.DisableRequested())
    while not enabled and slot.state is State.DISABLING:
        await slot.changed()
    if slot.machine.life.stopped:
        raise _refusal(slot)
    return slot.health()


MOST_NAMED = 3
"""How many names of a server a finding shows."""


def _names_of_the_hub(taken: Sequence[Collision]) -> str:
    """What is said of a server that uses names of the hub (SEC-21)."""
    said = [
        f"{quoted_name(one.wanted)} {f'is shown as {one.given}' if one.given else 'is not shown'}"
        for one in taken[:MOST_NAMED]
    ]
    more = f", and {len(taken) - MOST_NAMED} more" if len(taken) > MOST_NAMED else ""
    return f"it uses names that are Holdfast's own: {', '.join(said)}{more}"


def _refusal(slot: Slot) -> ServerDisabled | HubClosed:
    state = slot.state
    if state in (State.DISABLED, State.DISABLING):
        return ServerDisabled(f"MCP server '{slot.id}' is {state.value}", server_id=slot.id, state=state.value)
    return HubClosed(f"MCP server '{slot.id}' is no longer served", server_id=slot.id, state=state.value)


def _hub_closed() -> HubClosed:
    hint = "open another one with `async with Hub.from_config(…) as hub:`"
    return HubClosed("the hub is closed", server_id="", state=State.DISCONNECTED.value, hint=hint)
