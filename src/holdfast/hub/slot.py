"""The slot of one server: it exists for as long as the server is configured.

The machine decides, the slot acts. Each event is one synchronous step: the machine changes its state and returns
effects, and the slot starts them in tasks that report back as events. The slot never waits for I/O before the next
event, so a hung dial, a hung close or a flood of notifications delays nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import anyio.abc

from holdfast.config import ServerSpec, Settings
from holdfast.core import (
    BreakerPolicy,
    Health,
    IllegalTransition,
    LifecyclePolicy,
    Listing,
    Machine,
    Outcome,
    Permit,
    Redactor,
    Refusal,
    State,
    effects as do,
    events as on,
)
from holdfast.hub.call import SlotCall
from holdfast.hub.clock import Clock
from holdfast.hub.journal import Journal
from holdfast.hub.lease import Connector, FailedDial, FindRelay, Lease
from holdfast.hub.limits import Bulkhead
from holdfast.hub.records import OneClientRecord
from holdfast.types import ProgressFn
from holdfast.wire import Caller, Connection, DesiredState, Fields, RawObject, Starting

__all__ = ["Slot", "SlotContext", "SlotHost", "breaker_policy", "is_listening", "lifecycle_policy", "watch_address"]


def breaker_policy(settings: Settings) -> BreakerPolicy:
    """The policy of a server's breaker."""
    written = settings.breaker
    return BreakerPolicy(
        threshold=written.threshold,
        window=written.window,
        cooldown=written.cooldown,
        growth=written.growth,
        max_cooldown=written.max_cooldown,
    )


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
    """The address for a bare TCP connect; None behind a proxy, and for a child process."""
    if server.transport == "stdio":
        return None
    url = urlsplit(server.url)
    try:
        port = url.port or {"http": 80, "https": 443}[url.scheme]
    except (KeyError, ValueError):
        return None
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


log = logging.getLogger("holdfast.hub")

PING_SECONDS = 5.0
"""How long a connection may take to answer a ping after a call on it timed out."""


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
    """The catalog of the hub, as a slot sees it."""

    def publish(self, listing: Listing) -> None:
        """Publish a newer complete listing."""

    def withdraw(self, server: str, *, removed: bool) -> None:
        """Withdraw the server's items."""

    def reinstate(self, server: str) -> None:
        """Publish the server's last good listing again."""

    def prepared(self, server: str, method: str, params: Fields, *, late: bool) -> Fields:
        """The parameters of a call to send now. ``late``: they were made before the server was connected.

        Raises ``ToolHeld`` for a tool or a prompt that waits for approval.
        """


class FleetLink(Protocol):
    """The other replicas, as a slot sees them."""

    def claim(self, server: str, at: float | None, number: int) -> None:
        """Ask for the right to probe at that time; None: it is not needed any more."""

    def release(self, server: str, delay: float) -> None:
        """Give the right to probe back."""

    def share(self, server: str, evidence: on.Event) -> None:
        """Tell the other replicas."""


@dataclass(frozen=True, kw_only=True)
class SlotContext:
    """What all slots of a hub share."""

    settings: Settings
    clock: Clock
    chance: Callable[[], float]
    connector: Connector
    tasks: anyio.abc.TaskGroup
    host: SlotHost
    journal: Journal
    relay: FindRelay
    one_client: bool = False
    """Whether its slots belong to one client each."""
    fleet: FleetLink | None = None

    def adopting(self, settings: Settings) -> SlotContext:
        """The same with other settings."""
        self.connector.adopt(settings)
        return replace(self, settings=settings)


class Slot:
    """One server: its machine, its leases, and the tasks that wait for it."""

    def __init__(self, spec: ServerSpec, context: SlotContext, *, listed: bool = False) -> None:
        self.id = spec.id
        """The server's name in the configuration."""
        self.spec = spec
        self._context = context
        self.machine = Machine(
            spec.id,
            breaker=breaker_policy(context.settings),
            lifecycle=lifecycle_policy(spec, context.settings, claims=context.fleet is not None),
            listed=listed,
        )
        self.desired_state = DesiredState()
        call = context.settings.call.of(spec)
        self.bulkhead = Bulkhead(call.concurrency, call.queue, patience=call.timeout)
        self._leases: dict[int, Lease] = {}
        self._latest: Lease | None = None
        self._address_checks: dict[int, anyio.CancelScope] = {}
        self._changed = anyio.Event()
        self._wake_at: float | None = None
        self._poked = anyio.Event()
        self._begun = context.clock.now()
        self.has_outcome = anyio.Event()
        """Set when the first attempt has an outcome, or when there will be no attempt."""
        self.failed_dials: dict[int, FailedDial] = {}
        """The failure of the latest dial, for the caller that requested it."""
        self.closed = anyio.Event()
        """Set when the slot is stopped and all its leases are closed."""

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
        return self._latest.redactor if self._latest is not None else Redactor(self.spec.secrets)

    @property
    def lease(self) -> Lease | None:
        """The live connection for new calls, if there is one."""
        if (stands := self.machine.life.lease) is None:
            return None
        return self._leases.get(stands.generation)

    @property
    def standing(self) -> Lease | None:
        """The live connection, also if new calls wait for another one."""
        stands = self.machine.life.lease
        return self._leases.get(stands.generation) if stands is not None else None

    def health(self) -> Health:
        """The health of the server now.

        While its process starts, the reason says why the one before ended, for how long this one starts, and its last
        line.
        """
        health = self.machine.health(self._context.clock.now())
        starting = self.starting
        if starting is None:
            return health
        return replace(health, reason=f"{health.reason}; {starting.words}" if health.reason else starting.words)

    @property
    def starting(self) -> Starting | None:
        """How the start of its process goes, if one starts (LOAD-13)."""
        dialing = self.machine.dialing
        lease = self._leases.get(dialing) if dialing is not None else None
        return lease.starting if lease is not None else None

    # Events in, effects out.

    def handle(self, event: on.Event, *, cut: str = "") -> tuple[do.Effect, ...]:
        """Handle an event and start its effects, in one synchronous step; ``cut`` is why calls in flight end."""
        try:
            effects = self.machine.handle(event, self._context.clock.now(), chance=self._context.chance())
        except IllegalTransition as exc:
            log.error("%s: %s", self.id, exc)  # noqa: TRY400 - a traceback adds nothing to the message
            return ()
        self._note_cuts(type(event), effects, cut)
        self._perform(effects)
        self._note()
        return effects

    def _note_cuts(self, cause: type[on.Event], effects: tuple[do.Effect, ...], cut: str) -> None:
        """Note why the hub itself ends a connection: the calls that it cuts are told so (LIFE-29)."""
        for effect in effects:
            if isinstance(effect, do.Close) and (lease := self._leases.get(effect.generation)) is not None:
                lease.cut = cut or CUTS.get(cause, lease.cut)

    async def call(
        self,
        method: str,
        params: Fields,
        *,
        caller: Caller | None = None,
        repeatable: bool = False,
        on_progress: ProgressFn | None = None,
    ) -> RawObject:
        """Send any request for ``caller``, with the server's own names; call.py says what can happen to it.

        Parameters and result pass as the bytes that they came in. ``repeatable``: it may be sent a second time.
        """
        call = SlotCall(
            self, self._context, method, params, caller=caller, repeatable=repeatable, on_progress=on_progress
        )
        return await call.run()

    @property
    def ready_within(self) -> float:
        """How long a call waits for a connection; the first call of one client's slot waits for its first dial."""
        settings = self._context.settings
        first = self._context.one_client and not self.machine.life.ever_connected
        return settings.load.attempt_timeout if first else settings.call.ready_timeout

    def session_expired(self, generation: int) -> None:
        """The server refused a request because the session of this connection expired."""
        if (lease := self._leases.get(generation)) is not None:
            lease.drains = True
        self.handle(on.SessionExpired(generation))

    def admit(self) -> Permit | Refusal:
        """Ask whether a call may be made."""
        decision, effects = self.machine.admit(self._context.clock.now())
        if effects:
            self._perform(effects)
            self._note()
        return decision

    def settle(self, permit: Permit, outcome: Outcome, reason: str = "") -> None:
        """Report the outcome of a call."""
        context = self._context
        effects = self.machine.settle(permit, outcome, context.clock.now(), chance=context.chance(), reason=reason)
        if effects:
            self._perform(effects)
            self._note()

    async def outcome(self, within: float) -> None:
        """Wait for the outcome of the first attempt, at most ``within`` seconds after the start of the slot."""
        if not self.has_outcome.is_set():
            await self._context.clock.wait(self.has_outcome, self._begun + within)

    async def changed(self, until: float | None = None) -> bool:
        """Wait until anything about the server changes; False if the time is reached first."""
        return await self._context.clock.wait(self._changed, until)

    async def run(self) -> None:
        """The loop of the owner task: wake when the machine asks for it, until everything is closed."""
        while not (self.machine.life.stopped and not self._leases):
            self._poked = anyio.Event()
            poked = await self._context.clock.wait(self._poked, self._wake_at)
            if not poked and not self.machine.life.stopped:
                self._wake_at = None
                self.handle(on.Tick())
        self.closed.set()

    def reconfigure(self, spec: ServerSpec) -> None:
        """Use a new definition of the server. How long its calls may take concerns no connection."""
        before, self.spec = self.spec, spec
        self._adopt_call_policy()
        if before.connects_like(spec):
            return
        policy = lifecycle_policy(spec, self._context.settings)
        self.handle(on.ConfigChanged(lazy=policy.lazy, watchable=policy.watchable))

    def _adopt_call_policy(self) -> None:
        call = self._context.settings.call.of(self.spec)
        self.bulkhead.adopt(call.concurrency, call.queue, patience=call.timeout)

    def adopt(self, settings: Settings) -> None:
        """Use new settings; connections and calls in flight are not touched."""
        context = self._context = replace(self._context, settings=settings)
        lifecycle = lifecycle_policy(self.spec, settings, claims=context.fleet is not None)
        policies = breaker_policy(settings), lifecycle
        self._adopt_call_policy()
        for lease in self._leases.values():
            if lease.connection is not None:
                lease.connection.adopt(settings.limits)
        self._perform(self.machine.adopt(*policies, context.clock.now(), chance=context.chance()))
        self._note()

    def _perform(self, effects: tuple[do.Effect, ...]) -> None:
        for effect in effects:
            self._do(effect)

    def _do(self, effect: do.Effect) -> None:  # noqa: PLR0912 - one arm for each kind of effect
        context, start = self._context, self._context.tasks.start_soon
        match effect:
            case do.Dial(generation=generation):
                lease = Lease(generation, relay=context.relay, desired=self.desired_state)
                self._leases[generation] = lease
                start(self._live, lease, name=f"{self.id} connection {generation}")
            case do.Close(generation=generation):
                self._close(generation)
            case do.WakeAt(at=at):
                self._wake_at = at
                self._poked.set()
            case do.Publish(listing=listing):
                context.host.publish(listing)
            case do.Withdraw(removed=removed):
                context.host.withdraw(self.id, removed=removed)
            case do.Reinstate():
                context.host.reinstate(self.id)
            case do.CheckAddress(number=number):
                start(self._check_address, number, name=f"{self.id} address check {number}")
            case do.StopAddressCheck(number=number):
                if (scope := self._address_checks.get(number)) is not None:
                    scope.cancel()
            case do.RefreshNow(generation=generation):
                start(self._refresh, generation, name=f"{self.id} refresh")
            case do.CheckLiveness(generation=generation):
                start(self._check, generation, name=f"{self.id} liveness")
            case do.Emit(record=record):
                # What one client's connection does says nothing about the server's state for others.
                own = context.one_client
                context.journal.write(OneClientRecord(server=self.id, record=record) if own else record)
            case do.ClaimProbe() | do.ReleaseProbe() | do.ShareEvidence():
                self._tell_fleet(effect)
            case do.Reject():
                pass  # the caller of handle() finds it among the effects

    def _tell_fleet(self, effect: do.ClaimProbe | do.ReleaseProbe | do.ShareEvidence) -> None:
        fleet = self._context.fleet
        if fleet is None:
            return
        match effect:
            case do.ClaimProbe(at=at, round=number):
                fleet.claim(self.id, at, number)
            case do.ReleaseProbe(delay=delay):
                fleet.release(self.id, delay)
            case do.ShareEvidence(evidence=evidence):
                fleet.share(self.id, evidence)

    def _note(self) -> None:
        """Wake the tasks that wait for the server, and the owner task once the machine has stopped."""
        stopped = self.machine.life.stopped
        if stopped or self.state not in (State.DISCONNECTED, State.CONNECTING, State.DISABLING):
            self.has_outcome.set()
        if stopped:
            self._poked.set()
        self._changed.set()
        self._changed = anyio.Event()

    # What the effects start. Each ends with an event.

    async def _live(self, lease: Lease) -> None:
        """One connection from dial to close, in one task: the task that enters a session must leave it."""
        failed: FailedDial | None = None
        try:
            with lease.scope:
                failed = await self._context.connector.live(
                    self.spec,
                    lease,
                    ever_connected=self.machine.life.ever_connected,
                    stands=lambda listing: self._stands(lease, listing),
                    changed=lambda: self.handle(on.ListChanged(lease.generation)),
                    gone=self._handle_connection_event,
                )
        finally:
            del self._leases[lease.generation]
            lease.attempt = None  # it refers to the lease
        if failed is not None and self.machine.dialing == lease.generation:
            self.failed_dials = {lease.generation: failed}
            self.handle(failed.event)
            return
        if self.machine.connection == lease.generation:
            # It ended by an unexpected fault: the machine must not take a lost connection for a live one.
            self.handle(on.TransportLost(lease.generation, lease.close_error))
        self.handle(on.Closed(lease.generation, lease.close_error))

    def _stands(self, lease: Lease, listing: Listing) -> None:
        self._latest = lease
        self.failed_dials = {}  # a remedy for an older failure would mislead
        self.handle(on.DialSucceeded(lease.generation, listing))

    def _handle_connection_event(self, event: on.Event) -> None:
        """Handle an event from the connector."""
        if isinstance(event, on.SessionExpired):
            self.session_expired(event.generation)
        else:
            self.handle(event)

    def _close(self, generation: int) -> None:
        lease = self._leases.get(generation)
        if lease is None:
            return
        if lease.drains and lease.connection is not None:
            self._context.tasks.start_soon(self._drain, lease, lease.connection, name=f"{self.id} drain {generation}")
        else:
            lease.scope.cancel()

    async def _drain(self, lease: Lease, connection: Connection) -> None:
        """Let the server refuse the requests in flight on an expired session, so that they can be repeated."""
        await connection.drain()
        lease.scope.cancel()

    async def _check_address(self, number: int) -> None:
        address = watch_address(self.spec)
        with anyio.CancelScope() as scope:
            self._address_checks[number] = scope
            listening = address is not None and await is_listening(*address)
            self.handle(on.AddressChecked(number, listening))
        self._address_checks.pop(number, None)

    async def _refresh(self, generation: int) -> None:
        if (lease := self._leases.get(generation)) is not None:
            self._handle_connection_event(await self._context.connector.refresh(self.spec, lease))

    async def _check(self, generation: int) -> None:
        if (lease := self._leases.get(generation)) is not None:
            self._handle_connection_event(await self._context.connector.check(lease, within=PING_SECONDS))

    def __repr__(self) -> str:
        health = self.health()
        attempt = f" attempt={health.attempts}" if health.attempts else ""
        later = f" next={health.retry_in:.1f}s" if health.retry_in is not None else ""
        return f"<Slot {self.id!r} {health.state.value}{attempt}{later} gen={self.machine.life.generation}>"
