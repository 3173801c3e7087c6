"""The slot of one server: it exists for as long as the server is configured.

Theory of operation. The machine decides, the slot acts (``core.machine``). Everything that happens to a server is an
event: a dial that succeeded or failed, a lost connection, a request of an operator, a timer. Each event is one
synchronous step::

    handle(event) -> machine.handle(event, now) -> effects -> each effect is done, or started in a task of its own
                                                              tasks end with an event of their own

What must never happen:

* The slot waits for I/O between two events. A hung dial, a hung close or a flood of notifications would delay
  everything else about the server, so all of them run in tasks, and carry the generation of the connection that they
  belong to. An event of an older generation changes nothing: the machine drops it (LIFE-3).
* A connection is entered by one task and left by another. ``Leases`` runs each in one task, from dial to close.
* A reader finds no slot, or a slot without a state. The slot is there before the first dial and until all its leases
  are closed; ``lease`` is None while there is no connection.

Calls do not go through events. They ask ``admit``, use the current lease and report with ``settle`` (slot_call.py).
The machine learns from that what it must.

A server runs once for all (``shared``), once for each client, for each user, or for each project folder. A slot is the
same for each of them: its context says whose it is (``SlotContext``), and nothing else has to know.

``is_listening`` makes a bare TCP connect to the address of a server that was not there, to find out when it listens
again (LIFE-22). That is no dial: it sends nothing, uses no budget and counts for nothing. The lifecycle says when.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import anyio.abc

from holdfast.config import UNIX, ServerSpec, Settings
from holdfast.core import (
    Catalog,
    CheckAddress,
    CheckLiveness,
    ClaimProbe,
    Close,
    Dial,
    Effect,
    Emit,
    Evidence,
    FailureRemedy,
    Health,
    IllegalTransition,
    LifecyclePolicy,
    Listing,
    Machine,
    Outcome,
    Permit,
    Publish,
    Redactor,
    RefreshNow,
    Refusal,
    Reinstate,
    ReleaseProbe,
    ServerRecord,
    ShareEvidence,
    State,
    WakeAt,
    Withdraw,
    events as on,
    remedy_of,
)
from holdfast.errors import ServerFailure
from holdfast.hub.approvals import Approvals
from holdfast.hub.hub_clock import Clock
from holdfast.hub.journal import Journal, OneClientRecord, event_name
from holdfast.hub.lease import Connector, FindRelay, Lease, Leases
from holdfast.hub.limits import Bulkhead
from holdfast.hub.slot_call import SlotCall, begin_trace, is_tracing, out_of_time, outcome_of
from holdfast.types import ProgressFn
from holdfast.wire import Authorize, Caller, DesiredState, Fields, RawObject, is_word

__all__ = [
    "EvidenceSharing",
    "Slot",
    "SlotContext",
    "SlotHost",
    "is_listening",
    "latest_failure",
    "lifecycle_policy",
    "record_of",
    "remedy_for",
    "watch_address",
]

log = logging.getLogger("holdfast.hub")

_NO_LIMIT = nullcontext()


CUTS: Mapping[type[on.Event], str] = {
    on.ReconnectRequested: "a reconnect was requested",
    on.LoginSucceeded: "a reconnect with a new login was requested",
    on.DisableRequested: "the server was disabled",
    on.RemoveRequested: "the server was removed from the configuration",
    on.ConfigChanged: "the server's definition changed",
    on.ShutdownRequested: "the hub is closing",
    on.RefreshFailed: "the connection failed too often",
    on.LivenessFailed: "the connection failed too often",
}
"""The events by which the hub ends a connection that still stands, and the reason for the calls on it."""


class SlotHost(Protocol):
    """Where the listings of a slot go, and the catalog that they become a part of."""

    @property
    def catalog(self) -> Catalog:
        """What is shown now, as the owner of the slot sees it."""

    def publish(self, listing: Listing) -> None:
        """Publish a newer complete listing."""

    def withdraw(self, server: str, *, removed: bool) -> None:
        """Withdraw the server's items."""

    def reinstate(self, server: str) -> None:
        """Publish the server's last good listing again."""


class EvidenceSharing(Protocol):
    """What replicas tell each other about servers, as a slot tells it."""

    def claim(self, server: str, at: float | None, number: int) -> None:
        """A slot needs the right to probe at that time; None: it is not needed any more."""

    def release(self, server: str, delay: float) -> None:
        """A slot used its right to probe."""

    def share(self, server: str, evidence: on.Event) -> None:
        """A slot learned something about its server."""


@dataclass(frozen=True, kw_only=True)
class SlotContext:
    """What all slots of a hub share."""

    settings: Settings
    clock: Clock
    chance: Callable[[], float]
    connector: Connector
    tasks: anyio.abc.TaskGroup
    host: SlotHost
    approvals: Approvals
    journal: Journal
    relay: FindRelay
    one_client: bool = False
    """Whether its slots belong to one client or one user each."""
    principal: str = ""
    """The user that its slots belong to; empty for the slots of the hub and of clients."""
    authorize: Authorize | None = None
    """Whose logins its connections use; None for those of the hub."""
    fleet: EvidenceSharing | None = None


class Slot:
    """One server: its machine, its leases, and the callers that wait for it."""

    def __init__(self, spec: ServerSpec, context: SlotContext, *, listed: bool = False) -> None:
        self.id = spec.id
        """The server's name in the configuration."""
        self.spec = spec
        self._context = context
        self.machine = Machine(
            spec.id,
            breaker=context.settings.breaker,
            lifecycle=lifecycle_policy(spec, context.settings, claims=context.fleet is not None),
            listed=listed,
        )
        self.desired_state = DesiredState()
        """What clients want of the server: subscriptions and the log level. It outlives connections."""
        self.leases = Leases(
            self.machine,
            context,
            self.desired_state,
            handle=self.handle,
            told=lambda generation, record: self._perform(self.machine.mirror(record, generation, context.clock.now())),
        )
        self.bulkhead = Bulkhead(context.settings.call.of(spec))
        self.begun = context.clock.now()
        """When the slot was made."""
        self.has_outcome = anyio.Event()
        """Set when the first attempt has an outcome, or when there will be no attempt."""
        self.closed = anyio.Event()
        """Set when the slot is stopped and all its leases are closed."""
        self._changed = anyio.Event()
        self._wake_at: float | None = None
        self._poked = anyio.Event()

    # What readers see.

    @property
    def state(self) -> State:
        """The state of the server."""
        return self.machine.state

    @property
    def switched_off(self) -> bool:
        """Whether an operator disabled it; a definition with `enabled: false` does not count."""
        return self.spec.enabled and self.state in (State.DISABLING, State.DISABLED)

    @property
    def redactor(self) -> Redactor:
        """Masks the server's secrets, also those that its latest connection learned, open or closed."""
        # The latest one also when it is closed: a failure that it caused is told after its end.
        latest = self.leases.latest
        return latest.redactor if latest is not None else Redactor(self.spec.secrets)

    @property
    def lease(self) -> Lease | None:
        """The live connection for new calls, if there is one."""
        stands = self.machine.life.lease
        return self.leases.by_generation.get(stands.generation) if stands is not None else None

    def health(self) -> Health:
        """The health of the server now.

        While its process starts, the reason says why the one before ended, for how long this one starts, and its last
        line (LOAD-13).
        """
        health = self.machine.health(self._context.clock.now())
        dialing = self.leases.get(self.machine.dialing)
        starting = dialing.starting if dialing is not None else None
        if starting is None:
            return health
        return replace(health, reason=f"{health.reason}; {starting.words}" if health.reason else starting.words)

    async def changed(self, until: float | None = None) -> bool:
        """Wait until anything about the server changes; False if the time is reached first."""
        return await self._context.clock.wait(self._changed, until)

    # Calls.

    async def call(  # noqa: PLR0913 - what a request is, and what limits it
        self,
        method: str,
        params: Fields,
        *,
        caller: Caller | None = None,
        repeatable: bool = False,
        on_progress: ProgressFn | None = None,
        within: float | None = None,
        exact: bool = False,
        check: Callable[[], object] | None = None,
    ) -> RawObject:
        """Send any request for ``caller``, with the server's own names; slot_call.py says what can happen to it.

        Parameters and result pass as the bytes that they came in. ``repeatable``: it may be sent a second time.
        ``within`` is the caller's own limit, in seconds: for everything, waits too. ``exact``: it was judged under the
        name in its parameters, so it is refused if that was a guess and its true name is another one. ``check`` is
        asked after a wait, and raises if the call may not be made any more.
        """
        call = SlotCall(
            self, self._context, method, params, caller, caller.principal if caller is not None else "",
            repeatable, within, exact, check, late=self.machine.life.lease is None, began=perf_counter(),
            limit=anyio.move_on_after(within) if within is not None else None,
        )  # fmt: skip
        if is_tracing():
            begin_trace(call)
        result: RawObject | None = None
        try:
            with call.limit or _NO_LIMIT:
                while result is None:
                    try:
                        if call.trace is not None:
                            call.trace.enter("admission")
                        call.admit()
                        call.has_place = self.bulkhead.try_acquire()
                        if not call.has_place:
                            await call.wait_for_place()
                        if call.trace is not None:
                            call.trace.enter("wait")
                        # Looked up after the permit, with no wait in between: permit and connection belong to the same
                        # moment.
                        lease = self.lease
                        if lease is None:
                            lease = await call.wait_for_lease()
                        # Nearly every server has one connection. Only a second one asks who calls.
                        connection = lease.connection if lease.other is None else lease.connection_for(caller)
                        if connection is None:
                            call.has_waited = True
                            connection = await lease.open_other()
                        policy = self.bulkhead.policy
                        result = await connection.request(
                            method,
                            call.send_on(lease, connection),
                            idle=policy.timeout,
                            within=policy.hard_timeout,
                            on_progress=on_progress,
                            caller=caller,
                        )
                    except ServerFailure as raised:
                        call.fail(raised)
                    finally:
                        call.end(completed=result is not None)
                    # After the `finally`: the first attempt has given everything back before the second one asks, or
                    # the error is raised.
                    if result is None:
                        call.begin_again()
            # Only `limit` ends the loop without a result: its cancellation does not leave the `with`.
            if result is None:
                raise out_of_time(call)
        except BaseException as exc:
            call.record(outcome_of(exc), exc)
            raise
        failed = result.get("isError")
        call.record("tool_error" if failed is not None and is_word(failed, b"true") else "completed")
        return result

    def admit(self) -> Permit | Refusal:
        """Ask whether a call may be made."""
        decision, effects = self.machine.admit(self._context.clock.now())
        if effects:
            self._perform(effects)
        return decision

    def settle(self, permit: Permit, outcome: Outcome, reason: str = "") -> None:
        """Report the outcome of a call."""
        context = self._context
        effects = self.machine.settle(permit, outcome, context.clock.now(), chance=context.chance(), reason=reason)
        if effects:
            self._perform(effects)

    # Events in, effects out.

    def handle(self, event: on.Event) -> None:
        """Handle an event and start its effects, in one synchronous step."""
        try:
            effects = self.machine.handle(event, self._context.clock.now(), chance=self._context.chance())
        except IllegalTransition as exc:
            # A fault of ours, and no reason to end the task that reported the event: the slot would hear nothing more.
            log.error("%s: %s", self.id, exc)  # noqa: TRY400 - a traceback adds nothing to the message
            return
        # The server may refuse the requests in flight, so that they can be repeated. Noted before the effects: one of
        # them closes the lease.
        if isinstance(event, on.SessionExpired) and (lease := self.leases.get(event.generation)) is not None:
            lease.drains = True
        self._perform(effects, cut=CUTS.get(type(event)))

    async def run(self) -> None:
        """The loop of the owner task: wake when the machine asks for it, until everything is closed."""
        while not (self.machine.life.stopped and not self.leases):
            self._poked = anyio.Event()
            # The event is new before the time is read: a step in between pokes it, and the wait ends at once.
            poked = await self._context.clock.wait(self._poked, self._wake_at)
            if not poked and not self.machine.life.stopped:
                # Forgotten first: the tick may arm the next one.
                self._wake_at = None
                self.handle(on.Tick())
        self.closed.set()

    def adopt(self, spec: ServerSpec, settings: Settings) -> None:
        """Use this definition and these settings.

        Settings touch no connection and no call in flight, and neither does a definition that differs only in how long
        calls may take. Any other change of the definition ends the connection.
        """
        before, self.spec = self.spec, spec
        if settings != self._context.settings:
            context = self._context = replace(self._context, settings=settings)
            lifecycle = lifecycle_policy(spec, settings, claims=context.fleet is not None)
            self.leases.adopt(settings.limits)
            self._perform(self.machine.adopt(settings.breaker, lifecycle, context.clock.now(), chance=context.chance()))
        # Also without other settings: the definition has limits of its own.
        self.bulkhead.adopt(settings.call.of(spec))
        if not before.connects_like(spec):
            self.handle(on.ConfigChanged(lazy=spec.lazy, watchable=watch_address(spec) is not None))

    def _perform(self, effects: tuple[Effect, ...], cut: str | None = None) -> None:  # noqa: PLR0912 - one arm each
        """Do or start each effect, then wake all that wait; ``cut`` says why the hub itself ends a connection."""
        context, fleet = self._context, self._context.fleet
        for effect in effects:
            match effect:
                case Dial(generation=generation):
                    self.leases.dial(self.spec, generation)
                case Close(generation=generation):
                    self.leases.close(generation, cut)
                case RefreshNow(generation=generation):
                    self.leases.refresh(self.spec, generation)
                case CheckLiveness(generation=generation):
                    self.leases.check(generation)
                case WakeAt(at=at):
                    self._wake_at = at
                    self._poked.set()
                case Publish(listing=listing):
                    # The server behind a hub may not be up yet: its empty list must not replace the last good one.
                    lease = self.leases.get(listing.generation)
                    if lease is None or not lease.lists_nothing_yet:
                        context.host.publish(listing)
                case Withdraw(removed=removed):
                    context.host.withdraw(self.id, removed=removed)
                case Reinstate():
                    context.host.reinstate(self.id)
                case CheckAddress(number=number):
                    name, address = f"{self.id} address check {number}", watch_address(self.spec)
                    context.tasks.start_soon(_check_address, self.handle, address, number, name=name)
                case Emit(record=record):
                    # What one client's connection does says nothing about the server's state for others.
                    own = OneClientRecord(server=self.id, record=record, principal=context.principal)
                    context.journal.write(own if context.one_client else record)
                case ClaimProbe(at=at, round=number) if fleet is not None:
                    fleet.claim(self.id, at, number)
                case ReleaseProbe(delay=delay) if fleet is not None:
                    fleet.release(self.id, delay)
                case ShareEvidence(evidence=evidence) if fleet is not None:
                    fleet.share(self.id, evidence)
                case _:
                    pass  # a hub that is alone shares nothing
        # After all effects: those who wake see the state and the catalog that belong together.
        stopped = self.machine.life.stopped
        lease = self.lease
        # A hub answers while the server behind it still starts: the outcome is that of the server.
        state = lease.told.health.state if lease is not None and lease.told is not None else self.state
        if stopped or state not in (State.DISCONNECTED, State.CONNECTING, State.DISABLING):
            self.has_outcome.set()
        if stopped:
            self._poked.set()  # the owner task looks whether everything is closed
        self._changed.set()
        self._changed = anyio.Event()  # an event of anyio cannot be cleared: the next wait needs another one

    def __repr__(self) -> str:
        health = self.health()
        attempt = f" attempt={health.attempts}" if health.attempts else ""
        later = f" next={health.retry_in:.1f}s" if health.retry_in is not None else ""
        return f"<Slot {self.id!r} {health.state.value}{attempt}{later} gen={self.machine.life.generation}>"


def record_of(slot: Slot) -> ServerRecord:
    """What this hub tells another one about the server of a slot."""
    told, seen = slot.machine.told, latest_failure(slot)
    kind = told.kind if told is not None else event_name(type(seen)) if seen is not None else ""
    return ServerRecord(health=slot.health(), kind=kind, hint=remedy_for(slot).hint, hubs=_hubs_behind(slot))


def _hubs_behind(slot: Slot) -> tuple[str, ...]:
    """The hubs through which the server is reached, this one first; none if this hub has the server itself."""
    lease = slot.lease
    if lease is None or lease.connection is None or lease.connection.hub is None:
        return ()
    return (lease.connection.hub.own_id, *(lease.told.hubs if lease.told is not None else ()))


def remedy_for(slot: Slot) -> FailureRemedy:
    """What would end the present failure of a server: as the hub behind it says, or by the evidence here."""
    if (told := slot.machine.told) is not None:
        return FailureRemedy(told.hint)
    return remedy_of(latest_failure(slot), connected_before=slot.machine.life.ever_connected)


def latest_failure(slot: Slot) -> Evidence | None:
    """The evidence of the latest dial if it failed, or of the refreshes by which a server became denied."""
    failed, latest = slot.leases.failed_dial, slot.leases.latest
    if failed is not None:
        return failed.evidence
    return latest.denial if latest is not None and slot.health().status == "denied" else None


def lifecycle_policy(server: ServerSpec, settings: Settings, *, claims: bool = False) -> LifecyclePolicy:
    """The policy of a server's lifecycle; ``claims`` if several replicas use it."""
    written = settings.reconnect
    return LifecyclePolicy(
        failures=written.failures,
        backoff=written.backoff,
        standing=written.standing,
        self_probe=written.self_probe,
        parked=settings.breaker.cooldown,
        refresh=settings.refresh,
        lazy=server.lazy,
        idle_after=settings.idle,
        watchable=watch_address(server) is not None,
        claims=claims,
    )


def watch_address(server: ServerSpec) -> tuple[str, int] | None:
    """The address for a bare TCP connect; None behind a proxy, for a child process and for a Unix socket."""
    # The one has no address, and a socket file shows nothing that a dial would not show as cheaply.
    if server.transport == "stdio" or server.hub.startswith(UNIX):
        return None
    url = urlsplit(server.url)
    try:
        port = url.port or {"http": 80, "https": 443}[url.scheme]
    except (KeyError, ValueError):
        return None
    # Behind a proxy a connect shows that the proxy listens, and nothing about the server.
    if url.hostname is None or (url.scheme in getproxies() and not proxy_bypass(url.hostname)):
        return None
    return url.hostname, port


ADDRESS_CHECK_SECONDS = 1.0
"""A host that takes longer to accept a connection is not listening yet."""


async def is_listening(host: str, port: int) -> bool:
    """Whether a connection was accepted."""
    try:
        with anyio.fail_after(ADDRESS_CHECK_SECONDS):
            stream = await anyio.connect_tcp(host, port, happy_eyeballs_delay=0.1)
    except (OSError, TimeoutError, ValueError):  # ValueError: a host name that no resolver accepts
        return False
    await anyio.aclose_forcefully(stream)
    return True


async def _check_address(handle: Callable[[on.Event], object], address: tuple[str, int] | None, number: int) -> None:
    """Look once whether a server listens, and report it."""
    listening = address is not None and await is_listening(*address)
    handle(on.AddressChecked(number, listening))
