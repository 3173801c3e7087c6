"""A lease is one live connection, bound to a generation; ``Leases`` makes, keeps, checks and ends those of one slot.

Theory of operation. The machine asks for a dial and gives it a number, the generation. ``Leases`` starts one task for
it, and this task does everything from the dial to the close::

    dial, list -> DialSucceeded -> wait until it is lost -> TransportLost or SessionExpired -> close -> Closed
       DialFailed                       a refresh or a ping from other tasks may find the loss first

Nothing is decided here: ``core.classify`` classifies the evidence, and the machine decides what follows. What happens
goes to the slot as an event with the generation, so that the machine can drop what an older connection says (LIFE-3).

What must never happen:

* A connection is entered by one task and left by another one: task groups and cancel scopes inside it do not allow
  that. To end a lease, the slot cancels its ``scope``; the task of the lease closes the connection, with bounds of the
  transport. So the slot does not wait for a close, and several leases of one slot may be closing at a time.
* A lease ends and the machine does not know it. However the task ends, ``Leases._live`` tells the machine that the
  connection is closed, and first that it is lost if the machine takes it for the live one.
* A failure is told with a secret in it. All evidence is masked with the lease's ``redactor``, which knows the secrets
  of the definition and those that the connection learned (tokens), before it is kept or put into words.
* A listing replaces a good one although the server behind a hub is not up yet (``lists_nothing_yet``).

A session that expired (the server answers 404) is given up, but its requests in flight may still be refused one by one
by the server. That is worth a moment (``drains``): a request that the server refused can be sent again on the next
connection, one that was cut cannot (LIFE-16).

A server that speaks both eras of the protocol has a second connection for legacy clients (``OtherEra``, HUB-18).
``ServerCache`` remembers the era of servers seen before, so that the next dial does not probe for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import anyio
import anyio.abc

from holdfast.config import Limits, LoadPolicy, ServerSpec, Settings, ToolFilter
from holdfast.core import (
    BadConfig,
    Evidence,
    HttpStatus,
    Item,
    Kind,
    Listing,
    Machine,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    OutOfDescriptors,
    Redactor,
    RpcError,
    ServerRecord,
    Verdict,
    classify_evidence,
    events as on,
    is_own_name,
    is_own_uri,
    masked,
)
from holdfast.hub.limits import DialLimit
from holdfast.wire import (
    LIST_CHANGED,
    Attempt,
    Authorize,
    Caller,
    Connection,
    DesiredState,
    Dialer,
    DialHooks,
    Offers,
    Relay,
    Starting,
    apply_desired_state,
    evidence_in,
    first_status,
    follow_hub,
    until_cancelled,
    watch_connection,
)

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from holdfast.hub.slot import SlotContext
    from holdfast.wire import Era

__all__ = [
    "CachedServer",
    "Connector",
    "FailedDial",
    "FindRelay",
    "Lease",
    "Leases",
    "ServerCache",
    "bad_definition",
    "is_shown",
    "session_expired",
]

OTHER_ERA_SECONDS = 2.0
"""How long a call waits for the connection of its client's era; then it uses the first connection."""

OTHER_ERA_PAUSE = 5.0
"""How long the other era is not tried again after a failure."""

OTHER_PROCESS_SECONDS = 30.0
"""How long a call waits for a second process in its client's era; then the first one serves that era for good."""

ASKABLE = frozenset({"elicitation", "sampling", "roots"})
"""The capabilities of a client that let a server ask it something."""

PING_SECONDS = 5.0
"""How long a connection may take to answer a ping after a call on it timed out."""

CACHE_SIZE = 4096
"""How many servers are remembered; the least recently used is dropped first."""


@dataclass
class CachedServer:
    """What is known of one server."""

    era: Era | None = None
    connected: bool = False


class ServerCache:
    """Keyed by what a server is (its address or command), not by its name."""

    def __init__(self) -> None:
        self._entry = lru_cache(maxsize=CACHE_SIZE)(lambda *_: CachedServer())

    def of(self, spec: ServerSpec) -> CachedServer:
        """The entry of a server; the code that dials keeps it up to date."""
        return self._entry(spec.transport, spec.url, spec.command, spec.args, spec.cwd)


FindRelay: TypeAlias = Callable[[], Relay | None]
"""Finds the relay for server-initiated requests; None if there are no clients at the time of the dial."""


class Lease:
    """One connection, from dial to close."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.scope = anyio.CancelScope()
        """Cancelled to end the lease, during the dial or later."""
        self.connection: Connection | None = None
        """None until the connection stands."""
        self.listing: Listing | None = None
        self.offers: Offers | None = None
        """What ``listing`` was made of."""
        self.denial: Evidence | None = None
        """The evidence of the latest refresh, if it was denied: it says what would change that."""
        self.attempt: Attempt[Listing] | None = None
        self.other: OtherEra | None = None
        """The connection for legacy clients of a server that speaks both eras."""
        self.told: ServerRecord | None = None
        """What a hub on the other side says of its server; None if there is no such hub."""
        self.redactor = Redactor()
        """Made new for each lease: what it learns of secrets comes with the connection."""
        self.close_error = ""
        """How the close failed, or by which fault the lease ended; for the log alone."""
        self.cut = ""
        """Why the hub itself ended it; empty if the server or the network did."""
        self.faults = 0
        """How often the network failed on this lease; calls in flight together count as one."""
        self.drains = False
        """Whether its session expired: requests in flight may end, for a moment, before it is closed."""

    @property
    def lists_nothing_yet(self) -> bool:
        """Whether its list is empty because the server behind a hub is not up: then the last good one stays.

        Published, an empty list would be taken for what the server first offered, and all of its tools for new ones.
        """
        if self.told is None or self.told.health.status == "available" or self.listing is None:
            return False
        return not any(self.listing.of(kind) for kind in Kind)

    def connection_for(self, caller: Caller | None) -> Connection | None:
        """The connection for this caller; None if it is one of its own era that is not open (``open_other``).

        A second process has its own state, and takes the memory and the start of a process. It is for clients that can
        be asked something, and for tasks.
        """
        first, other = self.connection, self.other
        assert first is not None  # noqa: S101 - only a lease that stands is used
        if other is None or caller is None or caller.era in (None, first.era):
            return first
        gains = not other.is_process or first.runs_tasks or not ASKABLE.isdisjoint(caller.capabilities)
        return other.connection if gains else first

    async def open_other(self) -> Connection:
        """The connection of the other era, opened if that can be done in time; else the first one."""
        assert self.connection is not None  # noqa: S101 - as above
        return (await self.other.get() if self.other is not None else None) or self.connection

    @property
    def starting(self) -> Starting | None:
        """How the start of its process goes; None where no process starts, or it has answered."""
        return self.attempt.starting if self.attempt is not None else None

    def __repr__(self) -> str:
        return f"<Lease {self.generation} {'stands' if self.connection is not None else 'dialing'}>"


class OtherEra:
    """A second connection of a lease, in the legacy era, for clients of that era (HUB-18).

    It is opened when the first call needs it and again after it was lost. Its failures are those of the calls on it;
    the health, the breaker and the catalog of the server rest on the first connection.

    A second process does not know what calls did in the first one, so no client may change from one to the other: if
    the second does not stand in time, it is given up, and the first serves both eras for as long as the lease lasts.
    """

    def __init__(self, *, is_process: bool) -> None:
        self.connection: Connection | None = None
        self.is_process = is_process
        self.absent = False
        """Whether there is none: the server refused the legacy era, or a second process did not stand."""
        self._wanted = anyio.Event()
        self._settled = anyio.Event()
        self._not_before = 0.0
        self._scope = anyio.CancelScope()

    async def get(self) -> Connection | None:
        """The connection; opens it and waits a moment if there is none. None if there is none by then."""
        if self.connection is None and not self.absent and anyio.current_time() >= self._not_before:
            self._wanted.set()
            with anyio.move_on_after(OTHER_PROCESS_SECONDS if self.is_process else OTHER_ERA_SECONDS):
                await self._settled.wait()
            if self.is_process and self.connection is None:  # a second process that does not stand by now is given up
                self.absent = True
                self._settled.set()
                self._scope.cancel()
        return self.connection

    def drop(self, connection: Connection | None) -> None:
        """Close it, if it is still this one: the server no longer knows its session. The next call opens another."""
        if connection is not None and connection is self.connection:
            self._down()
            self._scope.cancel()

    async def run(
        self, open_: Callable[[], AbstractAsyncContextManager[Connection]], changed: Callable[[], object]
    ) -> None:
        """Open it whenever it is wanted, until cancelled; the task that opens it closes it."""
        while not self.absent:
            await self._wanted.wait()
            # A new event for the next call, and a new scope for each try: a cancelled one would end the next at once.
            self._wanted = anyio.Event()
            with anyio.CancelScope() as self._scope:
                try:
                    async with open_() as connection:
                        self.connection = connection
                        self._settled.set()
                        await watch_connection(connection, changed)
                except Exception as exc:  # noqa: BLE001 - the first connection goes on
                    if self.connection is None:
                        self.absent = self.is_process or isinstance(evidence_in(exc), RpcError | NotMcp)
                    self._not_before = anyio.current_time() + OTHER_ERA_PAUSE
                    self._settled.set()
            self._down()

    def _down(self) -> None:
        self.connection = None
        # Only one that was set: callers that wait for the first opening hold on to the old one.
        if self._settled.is_set():
            self._settled = anyio.Event()


@dataclass
class Connector:
    """What the connections of all slots of a hub are made with."""

    dialer: Dialer
    dial_limit: DialLimit
    cache: ServerCache
    policy: LoadPolicy

    def adopt(self, settings: Settings) -> None:
        """Use other settings from the next attempt on."""
        self.policy = settings.load
        self.dial_limit.resize(settings.load.concurrency)
        self.dialer.adopt(settings.limits)

    def dialer_for(self, authorize: Authorize | None) -> Dialer:
        """The dialer with the logins of a slot's owner; with those of the hub if there is none."""
        return self.dialer if authorize is None else self.dialer.with_logins(authorize)


class Leases:
    """All connections of one slot: the one that stands, the one that is dialed, and those that are being closed.

    Each lives in one task, from dial to close, because the task that enters a session must leave it. The slot starts
    and ends them; everything that they find out comes back to it (``handle``) as an event with their generation.
    ``told`` gets what a hub on the other side says of its server.
    """

    def __init__(
        self,
        machine: Machine,
        context: SlotContext,
        desired: DesiredState,
        *,
        handle: Callable[[on.Event], object],
        told: Callable[[int, ServerRecord | None], object],
    ) -> None:
        self._machine = machine
        self._context = context
        """Of its parts, those are used that stay the same while the settings change."""
        self._desired = desired
        self._handle = handle
        self._told = told
        self.by_generation: dict[int, Lease] = {}
        self.latest: Lease | None = None
        """The one that stood last, open or closed."""
        self.failed_dial: FailedDial | None = None
        """The failure of the latest dial, if it failed."""

    def __bool__(self) -> bool:
        return bool(self.by_generation)

    def __repr__(self) -> str:
        return (
            f"<Leases of {self._machine.life.server!r}: {', '.join(map(repr, self.by_generation.values())) or 'none'}>"
        )

    def get(self, generation: int | None) -> Lease | None:
        """The lease of a generation, if there is one."""
        return self.by_generation.get(generation) if generation is not None else None

    def dial(self, spec: ServerSpec, generation: int) -> None:
        """Begin a new connection."""
        lease = self.by_generation[generation] = Lease(generation)
        self._context.tasks.start_soon(self._live, spec, lease, name=f"{spec.id} connection {generation}")

    def close(self, generation: int, cut: str | None) -> None:
        """End a connection; ``cut`` is the reason for the calls in flight if the hub itself ends it (LIFE-29)."""
        lease = self.by_generation.get(generation)
        if lease is None:
            return
        # A close without a reason of its own keeps the one that was given before.
        lease.cut = cut or lease.cut
        if lease.drains and lease.connection is not None:
            # In a task of its own: the slot does its effects in one step, and does not wait.
            self._context.tasks.start_soon(_drain, lease, lease.connection, name=f"drain {generation}")
        else:
            lease.scope.cancel()

    def refresh(self, spec: ServerSpec, generation: int) -> None:
        """List everything again."""
        if (lease := self.by_generation.get(generation)) is not None:
            look = partial(_refreshed, spec, lease, self._context.connector.policy.attempt_timeout)
            self._context.tasks.start_soon(self._report, look, name="refresh")

    def check(self, generation: int) -> None:
        """Find out whether a connection still answers."""
        if (lease := self.by_generation.get(generation)) is not None:
            self._context.tasks.start_soon(self._report, partial(_checked, lease), name="liveness")

    def adopt(self, limits: Limits) -> None:
        """Use other limits for the connections that stand."""
        for lease in self.by_generation.values():
            if lease.connection is not None:
                lease.connection.adopt(limits)

    async def _report(self, look: Callable[[], Awaitable[on.Event]]) -> None:
        self._handle(await look())

    async def _live(self, spec: ServerSpec, lease: Lease) -> None:
        """The task of one lease."""
        generation, machine = lease.generation, self._machine
        seen: Evidence | None = None
        try:
            with lease.scope:
                seen = await self._connect(spec, lease)
        finally:
            # Before any event of its end: a slot that handles one of them must not find this lease, and `run` of a slot
            # that is stopped waits until there is none.
            del self.by_generation[generation]
            lease.attempt = None  # it refers to the lease: a cycle would wait for the collector (SEC-7)
        if seen is not None and lease.connection is not None:
            lease.close_error = classify_evidence(seen).reason
        # A dial that was cancelled while it failed is no news: the machine no longer waits for it.
        elif seen is not None and machine.dialing == generation:
            self.failed_dial = _failed(generation, seen, ever_connected=machine.life.ever_connected)
            self._handle(self.failed_dial.event)
            return
        if machine.connection == generation:
            # It ended by an unexpected fault: the machine must not take a lost connection for a live one.
            self._handle(on.TransportLost(generation, lease.close_error))
        self._handle(on.Closed(generation, lease.close_error))

    async def _connect(self, spec: ServerSpec, lease: Lease) -> Evidence | None:
        """Dial, list, report that it stands, wait until it is lost, close. Returns the fault that ended it, if any."""
        if spec.problems:
            return bad_definition(spec)
        lease.redactor = Redactor(spec.secrets)
        try:
            await self._stand(spec, lease)
        except Exception as exc:  # noqa: BLE001 - any fault is charged to this server and to no other
            return masked(evidence_in(exc), lease.redactor)
        return None

    async def _stand(self, spec: ServerSpec, lease: Lease) -> None:
        generation, connector = lease.generation, self._context.connector
        known = connector.cache.of(spec)

        def changed() -> None:
            self._handle(on.ListChanged(generation))

        def noticed(method: str) -> None:
            if method in LIST_CHANGED:
                changed()

        def stood(connection: Connection) -> None:
            known.era, known.connected = connection.era, True

        def heard(record: ServerRecord | None) -> None:
            lease.told = record
            self._told(generation, record)

        async def listing(connection: Connection, within: float) -> Listing:
            # The status comes before the list. If the server behind that hub comes up in between, its list is asked
            # for again; the other way round, an empty list would be taken for that of a server which is up.
            if connection.hub is not None:
                lease.told = await first_status(connection, within=within)
            lease.offers = await connection.list_everything(within=within)
            return _listing(spec, lease, connection, lease.offers)

        within = connector.policy.attempt_timeout
        attempt = lease.attempt = Attempt(
            spec=spec,
            redactor=lease.redactor,
            read=listing,
            within=within,
            listing_within=within,
            era=known.era,
        )
        async with attempt.connected(
            connector.dialer_for(self._context.authorize),
            connector.dial_limit,
            on_connected=stood,
            on_notice=noticed,
            relay=self._context.relay(),
        ) as connection:
            assert attempt.listing is not None  # noqa: S101 - a connection is handed over with its listing
            lease.listing = attempt.listing
            lease.connection = connection
            # What runs beside it ends with it: nothing of a lease outlives the task of the lease.
            async with anyio.create_task_group() as beside:
                if connection.hub is not None:
                    beside.start_soon(until_cancelled, follow_hub, connection, heard)
                elif connection.era == "modern" and spec.era == "auto":
                    lease.other = OtherEra(is_process=spec.transport == "stdio")
                    legacy = partial(self._legacy, spec, lease, noticed)
                    beside.start_soon(until_cancelled, lease.other.run, legacy, changed)
                self.latest = lease
                self.failed_dial = None  # a remedy for an older failure would mislead
                # From here on callers get it: everything that they may use is set above.
                self._handle(on.DialSucceeded(generation, lease.listing))
                if connection.hub is not None:
                    heard(lease.told)  # after the dial: the machine mirrors the state of the live connection alone
                try:
                    self._handle(_end(lease, await _stay(connection, changed, self._desired)))
                finally:
                    # Before the connection closes. It is bounded, and a cancellation does not cut it short.
                    if lease.drains:
                        await connection.drain()
                    beside.cancel_scope.cancel()

    def _legacy(
        self, spec: ServerSpec, lease: Lease, noticed: Callable[[str], None]
    ) -> AbstractAsyncContextManager[Connection]:
        """Dial the server again, in the legacy era alone."""
        return self._context.connector.dialer_for(self._context.authorize).connect(
            replace(spec, era="legacy"),
            within=self._context.connector.policy.attempt_timeout,
            start_within=spec.start_timeout,
            redactor=lease.redactor,
            hooks=DialHooks(on_notice=noticed, relay=self._context.relay()),
        )


class FailedDial(NamedTuple):
    """A failed dial: the event, and the evidence behind it."""

    event: on.DialFailed
    """Its reason has no secrets."""
    evidence: Evidence


async def _drain(lease: Lease, connection: Connection) -> None:
    """Let the server refuse the requests in flight on an expired session."""
    await connection.drain()
    lease.scope.cancel()


async def _refreshed(spec: ServerSpec, lease: Lease, within: float) -> on.Event:
    """What a new listing of everything shows."""
    connection, generation = lease.connection, lease.generation
    assert connection is not None  # noqa: S101 - only a lease that stands is refreshed
    try:
        offers = await connection.list_everything(within=within)
        lease.denial = None
        if offers is lease.offers:  # the same bytes came, and were not read again (PERF-4)
            return on.RefreshSucceeded(generation)
        listing = _listing(spec, lease, connection, offers)
    except Exception as exc:  # noqa: BLE001 - any fault is charged to this server and to no other
        seen = evidence_in(exc)
        verdict = _judged(lease, seen)
        if isinstance(verdict, on.Event):
            return verdict
        lease.denial = masked(seen, lease.redactor) if verdict.status == "denied" else None
        return on.RefreshFailed(generation, verdict.status, verdict.reason, verdict.unconfirmed)
    lease.offers = offers
    # Other bytes and the same content: a server may write its keys in another order each time.
    if listing == lease.listing:
        return on.RefreshSucceeded(generation)
    lease.listing = listing
    return on.RefreshSucceeded(generation, listing)


async def _checked(lease: Lease) -> on.Event:
    """Whether a connection still answers."""
    assert lease.connection is not None  # noqa: S101 - only a lease that stands is checked
    try:
        await lease.connection.ping(within=PING_SECONDS)
    except Exception as exc:  # noqa: BLE001 - any fault is charged to this server and to no other
        verdict = _judged(lease, evidence_in(exc))
        if isinstance(verdict, on.Event):
            return verdict
        if verdict.status != "denied":  # a denial is an answer
            return on.LivenessFailed(lease.generation, verdict.reason)
    return on.LivenessConfirmed(lease.generation)


async def _stay(connection: Connection, changed: Callable[[], object], desired: DesiredState) -> Evidence:
    """Wait until a connection is lost; meanwhile, bring the server to the state that clients want."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_cancelled, apply_desired_state, connection, desired)
        seen = await watch_connection(connection, changed)
        tasks.cancel_scope.cancel()
    return seen


def _end(lease: Lease, seen: Evidence) -> on.Event:
    if session_expired(seen):
        return on.SessionExpired(lease.generation)
    reason = classify_evidence(masked(seen, lease.redactor), connected_before=True).reason
    return on.TransportLost(lease.generation, reason)


def _judged(lease: Lease, seen: Evidence) -> on.Event | Verdict:
    """What a failed listing or ping means: the end of the connection, or a failure of this one request."""
    refused = isinstance(seen, NetworkFailure) and seen.fault is NetworkFault.REFUSED  # so none can still stand
    if refused or session_expired(seen):
        return _end(lease, seen)
    return classify_evidence(masked(seen, lease.redactor), connected_before=True)


def session_expired(seen: Evidence) -> bool:
    """Whether the server no longer knows the session: a 404 on a connection that stood."""
    return isinstance(seen, HttpStatus) and seen.status == 404


def bad_definition(server: ServerSpec) -> Evidence:
    """The evidence of a definition that cannot be used."""
    # Each hint once: several fields of one definition are often wrong for the same reason.
    hints = dict.fromkeys(problem.hint for problem in server.problems if problem.hint)
    return BadConfig(problems=tuple(str(problem) for problem in server.problems), hint="; ".join(hints))


def is_shown(name: str, tools: ToolFilter) -> bool:
    """Whether a tool passes the server's filter."""
    included = any(fnmatchcase(name, pattern) for pattern in tools.include)
    return included and not any(fnmatchcase(name, pattern) for pattern in tools.exclude)


def _listing(spec: ServerSpec, lease: Lease, connection: Connection, offers: Offers) -> Listing:
    items = {kind: tuple(Item(name, raw) for name, raw in offered) for kind, offered in offers.items()}
    if connection.hub is not None:  # what a hub offers of its own is for this hub
        items = {
            kind: tuple(item for item in some if not (is_own_name(item.name) or is_own_uri(item.name)))
            for kind, some in items.items()
        }
    tools = tuple(item for item in items.pop("tools", ()) if is_shown(item.name, spec.tools))
    failed = {
        Kind(kind): classify_evidence(masked(seen, lease.redactor), connected_before=True).reason
        for kind, seen in offers.failures.items()
    }
    return Listing(
        server=spec.id,
        generation=lease.generation,
        tools=tools,
        instructions="" if connection.hub is not None and connection.hub.warns else connection.instructions,
        failed=failed,
        **items,
    )


def _failed(generation: int, seen: Evidence, *, ever_connected: bool) -> FailedDial:
    verdict = classify_evidence(seen, connected_before=ever_connected)
    event = on.DialFailed(
        generation,
        verdict.status,
        reason=verdict.reason,
        unreachable=verdict.unreachable,
        answers=verdict.answers,
        unconfirmed=verdict.unconfirmed,
        neutral=isinstance(seen, BadConfig | OutOfDescriptors),
        retry_after=verdict.retry_after,
    )
    return FailedDial(event, seen)
