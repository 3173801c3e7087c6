"""The inside of a hub: the table of its slots, and everything that they share.

``Hub`` is what programs use; Holdfast's own packages use this. The registry makes the parts of a hub and ends them:

* ``slots``: every configured server has one, always (LIFE-1); ``clients`` and ``users`` have those of single owners.
* ``publisher``: the catalog (publisher.py). ``approvals``: what changed and what is held (approvals.py).
* ``journal``: all records. ``writer``: the state file (state_store.py).
* ``apply`` changes the configuration (``apply_config`` in reload.py).
* ``fleet``: the other replicas; ``ReplicaHost`` is the hub as these reach it.

Opening takes a moment and starts everything in the background. Closing is the other way round and bounded: each slot is
told, the state is written, their connections close, then the tasks end. A hub that was closed never opens again: what a
late event would start is refused by the slots, which are stopped.

The parts are made before the hub is open and outlive many configurations. So they are given functions that ask for the
configuration, the catalog or the users of the moment, and never a copy of these.

What must never happen:

* A reader finds half of the servers. All slots are in the table before the first of them starts; an edit of the
  configuration replaces table and catalog in one step (reload.py).
* The cancellation of the user's task tears connections down in the wrong order. All tasks are in a group of their own,
  behind a shield, that ends with ``leave``.
* A close hangs. Each wait has a bound, and the state is written before the connections are waited for.
* A process survives the hub. The warden ends last, and kills what a connection left running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread

from holdfast.access import LOCAL, LONGEST_URI, AccessItem, ItemKind, Policy, Principal
from holdfast.auth import IdTokens, Ladders, Logins, SubjectTokens, UserTokens, UserTokenStore, canonical, takes_login
from holdfast.config import ApprovalMode, Config, ServerSpec
from holdfast.core import Catalog, Kind, Listing, NameKey, State, Unknown, events as on
from holdfast.errors import HubClosed, HubNotOpen, UnknownServer
from holdfast.hub.approvals import ALONE, Approvals, ApprovalsLock, SharedPins, approval_mode
from holdfast.hub.call_approvals import CallApprovals, QuestionSharing
from holdfast.hub.hub_clock import Clock, sleep_until_poll
from holdfast.hub.journal import ConfigApplied, Journal
from holdfast.hub.lease import Connector, ServerCache, is_shown
from holdfast.hub.limits import DialLimit
from holdfast.hub.owned_slots import CLIENTS, OwnedSlots, UserHomes, UserSlots
from holdfast.hub.publisher import ListingSharing, Publisher
from holdfast.hub.reload import apply_config, start_slot
from holdfast.hub.slot import EvidenceSharing, Slot, SlotContext
from holdfast.hub.slot_call import NAMED_CALLS, read_result
from holdfast.hub.state_store import HubState, PinnedTools, StateWriter, Store, fingerprint
from holdfast.turns import Turns
from holdfast.types import ProgressFn
from holdfast.wire import (
    Caller,
    Dialer,
    HubTls,
    RawObject,
    Relay,
    SignAssertion,
    Warden,
    is_text,
    keep_reaping,
    read_template,
    until_cancelled,
)

__all__ = [
    "ReplicaHost",
    "Replicas",
    "SlotRegistry",
    "access_item",
    "follow_switch",
    "is_or_may_be",
    "suggested",
    "use_login",
]

CLOSE_SECONDS = 15.0
"""Each connection's close has a bound of its own; this bound is for all of them together."""

LOGIN_PERIOD = 0.5
"""Seconds between two polls: a login takes effect that soon, and a poll costs microseconds."""

START_SECONDS = 2.0
"""How long a hub's start waits for the store; a login that is read later counts as a new one."""

MOST_SUGGESTED = 100
"""Values of one completion: the protocol allows no more."""

_ITEM_KINDS: Mapping[Kind, ItemKind] = {
    Kind.TOOL: "tool", Kind.PROMPT: "prompt", Kind.RESOURCE: "resource", Kind.TEMPLATE: "resource",
}  # fmt: skip


class SlotRegistry:
    """The slots of one hub, and what they share."""

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
        sign: SignAssertion | None = None,
        user_tokens: UserTokenStore | None = None,
        subjects: SubjectTokens | None = None,
        id_tokens: IdTokens | None = None,
        has_local: bool = True,
    ) -> None:
        """``has_local``: there are callers without an identity, as in a program that uses the hub as a library."""
        self.config = config
        self.policy = Policy(config.settings.access)
        """Who may see and call what, by the configuration in force."""
        self.has_local = has_local
        self.fleet = fleet
        """The other replicas of this hub, if it has any."""
        self.logins = logins
        self.clock = clock
        self.journal = Journal(clock)
        default: ApprovalMode = "hold" if isinstance(approvals, ApprovalsLock) else approvals
        self.approvals = Approvals(
            state_file,
            mode=lambda server: approval_mode(self.config, server, default),
            journal=self.journal,
            lock=approvals if isinstance(approvals, ApprovalsLock) else None,
            shared=fleet.decisions if fleet is not None else ALONE,
            is_per_user=lambda server: server in self.users.servers,
        )
        self.call_approvals = CallApprovals(
            lambda: self.config.settings.access.approvals, fleet.questions if fleet is not None else None
        )
        """The calls that wait for a person."""
        self.clients = OwnedSlots(CLIENTS)
        """The slots that belong to one client each."""
        self.slots: dict[str, Slot] = {}
        """The shared slots, by the names of their servers."""
        store = Store(state_file) if state_file is not None else None
        self.writer = StateWriter(store, self.approvals.pins, lambda: _state(self))
        tokens = user_tokens or UserTokens(keeps=True)
        self.users = UserSlots(
            config=lambda: self.config,
            catalog=lambda: self.publisher.catalog,
            approvals=self.approvals,
            journal=self.journal,
            ladders=Ladders(tokens, logins, subjects=subjects, id_tokens=id_tokens),
            shared=self.slot,
            homes=fleet.presence if fleet is not None else None,
        )
        """The slots that belong to one user each."""
        self.publisher = Publisher(
            self.approvals,
            self.journal,
            listings=fleet.listings if fleet is not None else None,
            on_change=self.writer.changed,
            on_withdraw=partial(_withdrawn, self),
            on_review=self.users.catalogs.publish_again,
        )
        self.relay: Relay | None = None
        """Gets the requests of servers that belong to no call."""
        self.context: SlotContext | None = None
        """What new slots get; None until the hub is open."""
        self.is_closing = False
        """Whether the hub is closed, or closes now."""
        self._chance = chance
        self._warden = Warden()
        self._dialer = Dialer(
            warden=self._warden,
            limits=config.settings.limits,
            authorize=logins.authorize,
            on_stderr=self.journal.stderr_line,
            is_hub=True,
            hub_tls=hub_tls,
            sign=sign,
        )
        self._outer: anyio.abc.TaskGroup | None = None
        self._applying = anyio.Lock()
        self.all_closed = anyio.Event()
        """Set when every connection is closed and the state is written."""

    def __repr__(self) -> str:
        state = "closed" if self.is_closing else "open" if self.context is not None else "not open"
        return f"<SlotRegistry {state}, {len(self.slots)} slots, {self.publisher!r}>"

    # What others ask.

    @property
    def catalog(self) -> Catalog:
        """What is published now: an immutable snapshot."""
        return self.publisher.catalog

    def require_use(self) -> None:
        """Raise ``HubNotOpen`` if the hub was not entered yet, ``HubClosed`` if it is closed or closes now."""
        if self.is_closing:
            raise _hub_closed()
        self.require_open()

    def require_open(self) -> None:
        """Raise ``HubNotOpen`` if the hub was not entered yet."""
        if self.context is None:
            raise HubNotOpen(
                "the hub is not open yet: its servers are not started",
                hint="use it inside `async with Hub.from_config(…) as hub:`",
            )

    def slot(self, name: str) -> Slot:
        """The shared slot of a server."""
        self.require_open()
        slot = self.slots.get(name)
        if slot is None:
            raise UnknownServer.among(name, self.slots)
        return slot

    def all_slots(self) -> list[Slot]:
        """Every slot, also those of single clients."""
        return [*self.slots.values(), *self.clients.all(), *self.users.slots.all()]

    def find(self, name: str, kind: Kind, *, principal: str = LOCAL.name) -> NameKey | Unknown:
        """The owner of an item: by what was ever listed, else by the prefix of a server that is not connected.

        ``principal`` is the user who asks; it makes a difference for servers that are per user.
        """
        catalog = self.users.catalogs.of(principal)
        found = catalog.resolve(name, kind)
        # Only names of tools and prompts have a prefix that tells the server; a URI is its server's own.
        # A name that was ever listed is its item's own, also if it seems to have another prefix.
        if isinstance(found, NameKey) or kind not in NAMED_CALLS.values():
            return found
        return next((key for key in catalog.possible_owners(name, kind) if _may_own(self, key, principal)), found)

    async def request(  # noqa: PLR0913 - what a request is, and what limits it
        self,
        server: str,
        method: str,
        params: Mapping[str, Any],
        *,
        repeatable: bool = False,
        on_progress: ProgressFn | None = None,
        caller: Caller | None = None,
        slot: Slot | None = None,
        within: float | None = None,
        exact: bool = False,
    ) -> Mapping[str, Any]:
        """Send a request whose parameters are values, and read its result."""
        sent = RawObject.of(params).members
        result = await (slot or self.slot(server)).call(
            method, sent, caller=caller, repeatable=repeatable, on_progress=on_progress, within=within, exact=exact
        )
        return await read_result(server, result)

    async def scope(self, server: str) -> str:
        """Where the latest switch and approvals of a server hold: everywhere, or "this replica only".

        Empty for a hub that is alone. It waits for the other replicas, two seconds at most.
        """
        return await self.fleet.decisions.scope(server) if self.fleet is not None else ""

    def attach(self, relay: Relay) -> None:
        """New connections pass server-initiated requests and notifications to ``relay`` from now on."""
        self.relay = relay

    # The life of the hub.

    async def open(self) -> None:
        """Start every slot, and return at once: servers come up in the background."""
        if self.is_closing:
            raise _hub_closed()  # nothing revives
        # Before the first slot: a client that lists at once sees the tools of the last run (LIFE-21).
        self.publisher.start_with(await anyio.to_thread.run_sync(self.writer.restore, self.config))
        logins = await current_logins(self, within=START_SECONDS)
        # Two groups. The outer one belongs to the task that opened the hub, and raises there what a task of the hub
        # raised. The inner one has all tasks: cancelling the user's task does not reach it before the orderly close.
        self._outer = await anyio.create_task_group().__aenter__()
        with anyio.CancelScope(shield=True):  # it takes a moment; a group that is half entered cannot be left
            tasks: anyio.abc.TaskGroup = await self._outer.start(_own_tasks)
        settings = self.config.settings
        limit = DialLimit(settings.load.concurrency, tasks)
        context = self.context = SlotContext(
            settings=settings,
            clock=self.clock,
            chance=self._chance,
            connector=Connector(self._dialer, limit, ServerCache(), settings.load),
            tasks=tasks,
            host=self.publisher,
            approvals=self.approvals,
            journal=self.journal,
            relay=lambda: self.relay,
            fleet=self.fleet.evidence if self.fleet is not None else None,
        )
        if self.fleet is not None:
            self.fleet.open(ReplicaHost(self), self.clock)
            tasks.start_soon(self.fleet.run, name="fleet")
        self.clients.open(context)
        self.users.slots.open(context)
        # All slots exist before one of them starts: its first event lets readers look at the whole table (LIFE-1).
        for name, spec in self.config.servers.items():
            self.slots[name] = Slot(spec, context, listed=self.catalog.servers[name].listing is not None)
        for slot in list(self.slots.values()):
            start_slot(self, slot, tasks)
        tasks.start_soon(self.publisher.run, name="publisher")
        tasks.start_soon(self.writer.run, name="state writer")
        follow = partial(follow_switch, self), partial(follow_approvals, self)
        tasks.start_soon(self.writer.watch, *follow, name="state watch")
        tasks.start_soon(until_cancelled, self._warden.keep, name="warden keeper")
        tasks.start_soon(keep_reaping, self._warden, name="orphans")
        tasks.start_soon(watch_logins, self, logins, name="login watch")
        tasks.start_soon(self.users.watch_logins, name="login watch of users")
        tasks.start_soon(self.users.catalogs.run, name="catalogs of users")

    async def apply(self, config: Config) -> ConfigApplied | None:
        """Use a new configuration; only the connections of servers whose definition changed are touched."""
        self.require_open()
        # One edit at a time: what an edit adds and removes is worked out against the configuration before it.
        async with self._applying:
            if self.is_closing or self.context is None:
                return None
            return await apply_config(self, self.context, config)

    async def close(self) -> None:
        """End every connection. Idempotent, bounded, safe while servers are being dialed; nothing revives."""
        if not self.is_closing:
            self.is_closing = True
            # Before the slots are told: a slot that is stopped no longer says that it was switched off.
            last = _state(self)
            for slot in self.all_slots():
                slot.handle(on.ShutdownRequested())
            if self.context is None or self.context.tasks.cancel_scope.cancel_called:
                # It was never opened, or a task that failed has ended all others; `leave` raises its failure.
                self.journal.close()
                self.all_closed.set()
            else:
                self.context.tasks.start_soon(_finish, self, last, name="hub close")
        await self.all_closed.wait()

    async def leave(self) -> None:
        """Close, and wait until no task is left."""
        assert self.context is not None  # noqa: S101 - only a hub that was opened is left
        assert self._outer is not None  # noqa: S101 - as above
        with anyio.CancelScope(shield=True):
            await self.close()
        # Only now: every slot has closed its connections, or had its time for it.
        self.context.tasks.cancel_scope.cancel()
        try:
            # No exception is passed in: a task group would wrap it, and the caller expects the body's own.
            await self._outer.__aexit__(None, None, None)
        finally:
            # Last: the end of the warden kills what a connection left running.
            await self._warden.__aexit__(None, None, None)


def use_login(registry: SlotRegistry, server: str) -> None:
    """A server that was denied or parked has new credentials: try it again now."""
    # Not the slots of users: they have logins of their own (``UserSlots.watch_logins``).
    for slot in [*registry.slots.values(), *registry.clients.all()]:
        if slot.id == server:
            slot.handle(on.LoginSucceeded())


async def current_logins(registry: SlotRegistry, *, within: float | None = None) -> Mapping[str, str]:
    """The login of each server that has one; the last known logins if the store does not answer in time."""
    await registry.logins.store.up_to_date(within=within)
    by_address = {address: grant.login for grant in registry.logins.store.known for address in grant.servers}
    if not by_address:
        return {}  # many servers are not looked through at every poll
    servers = registry.config.servers.values()
    found = {server.id: by_address.get(canonical(server.url)) for server in servers if takes_login(server)}
    return {name: login for name, login in found.items() if login is not None}


async def watch_logins(registry: SlotRegistry, known: Mapping[str, str]) -> None:
    """Poll the token store until cancelled, in real time. ``known`` are the logins before the first dial."""
    while True:
        before, known = known, await current_logins(registry)
        for name, login in known.items():
            if login != before.get(name) and name in registry.slots:
                use_login(registry, name)
        await sleep_until_poll(LOGIN_PERIOD)


def _withdrawn(registry: SlotRegistry, server: str) -> None:
    registry.clients.end(server)
    registry.users.withdrawn(server)


async def _finish(registry: SlotRegistry, last: HubState) -> None:
    """Wait until everything is closed; in a task of its own, because the caller of ``close`` may be cancelled."""
    with anyio.move_on_after(CLOSE_SECONDS):
        # The state first: a connection that hangs in its close must not cost what the hub has learned.
        await registry.writer.close(last)
        for slot in registry.all_slots():
            await slot.closed.wait()
    registry.journal.close()
    registry.all_closed.set()


def _state(registry: SlotRegistry) -> HubState:
    """What the state file keeps, now."""
    off = frozenset(name for name, slot in registry.slots.items() if slot.switched_off)
    return registry.config, registry.catalog, off


def access_item(registry: SlotRegistry, key: NameKey) -> AccessItem:
    """An item as access rules name it: by the names of the configuration and of the server."""
    spec = registry.config.servers.get(key.server)
    server = spec.plain_name if spec is not None else key.server
    return AccessItem(_ITEM_KINDS[key.kind], server, key.original)


async def suggested(
    registry: SlotRegistry, principal: Principal, key: NameKey, asked: Mapping[str, Any], values: Iterable[object]
) -> list[str]:
    """The values for an argument of a template, without those that name a resource which the rules hide (SEC-14).

    ``asked`` are the parameters of the completion. An argument without a value yet stands in the URI by its name, as in
    the template. What cannot be judged is not suggested.
    """
    grants = registry.policy.grants(principal)
    argument, context = asked["argument"]["name"], asked.get("context") or {}
    template = read_template(key.original)
    if template is None or argument not in template.variable_names:
        return []
    unknown = {name: f"{{{name}}}" for name in template.variable_names}
    listed: list[str] = []
    turns = Turns()
    for value in islice(values, MOST_SUGGESTED):
        if not isinstance(value, str):
            continue
        filled = {**unknown, **(context.get("arguments") or {}), argument: value}
        if sum(map(len, filled.values())) <= LONGEST_URI and all(map(is_text, filled.values())):
            uri = NameKey(Kind.RESOURCE, key.server, template.expand(filled))
            listed += [value] if grants.may_list(access_item(registry, uri)) else []
        await turns.offer()
    return listed


def is_or_may_be(registry: SlotRegistry, key: NameKey, principal: str) -> bool:
    """Whether a call of an item can tell more than "unknown": it is listed, or its server cannot be asked now."""
    listed = registry.users.catalogs.of(principal).names
    return key in listed or (key.kind is not Kind.TEMPLATE and _may_own(registry, key, principal))


def _may_own(registry: SlotRegistry, key: NameKey, principal: str) -> bool:
    """Whether a call can tell more than "unknown": a connected server has listed all that it has."""
    slot = registry.users.slot(principal, key.server) if key.server in registry.slots else None
    # Asked first: a held tool is not listed, also where its server is connected.
    if registry.approvals.is_held(key.server, key.original, "tool" if key.kind is Kind.TOOL else "prompt"):
        return True  # it is hidden, and the refusal says why
    # A hub behind this one answers for a server that is not up: its list may lack what the server has.
    if slot is None or (slot.lease is not None and slot.machine.told is None):
        return False
    return key.kind is not Kind.TOOL or is_shown(key.original, slot.spec.tools)


async def _own_tasks(*, task_status: anyio.abc.TaskStatus[anyio.abc.TaskGroup]) -> None:
    """Hold the group open in a task of its own; shielded, so that a cancelled user still gets an orderly close."""
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            task_status.started(tasks)
            await anyio.sleep_forever()


def _hub_closed() -> HubClosed:
    hint = "open another one with `async with Hub.from_config(…) as hub:`"
    return HubClosed("the hub is closed", server_id="", state=State.DISCONNECTED.value, hint=hint)


# More than one hub: the other replicas as the hub sees them, and the hub as they see it. ``fleet/`` implements
# ``Replicas``, and the hub imports nothing of it. Each part of the hub has the protocol for what it shares.


class DecisionSharing(SharedPins, Protocol):
    """What operators decide for all replicas. Nothing here waits for the store, except ``scope``."""

    def note_switch(self, server: str, disabled: bool) -> None:
        """An operator enabled or disabled a server here."""

    async def scope(self, server: str) -> str:
        """Where the latest switch and approvals of a server hold, in words. It waits, two seconds at most."""


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


def follow_approvals(registry: SlotRegistry, known: PinnedTools | None) -> None:
    """Follow another hub that wrote the approvals file."""
    for server in registry.approvals.follow(known):
        registry.publisher.publish_again(server)
