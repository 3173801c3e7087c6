"""One server's slot: stable for as long as the server is configured, whatever its connection does.

The machine decides, the slot does. Every event is taken in one synchronous step: the machine changes
its state and says what is to be done, and the slot starts it, in tasks of their own that report back
as events. Nothing here waits for I/O before it takes the next event, so a hung dial, a hung close
or a flood of notices delays nobody, the slot's own commands included.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import anyio
import anyio.abc

from holdfast.config.spec import BadServer, ServerSpec, Settings
from holdfast.core.breaker import Outcome, Permit, Refusal
from holdfast.core.catalog import Listing
from holdfast.core.lifecycle import effects as do
from holdfast.core.lifecycle import events as on
from holdfast.core.lifecycle.table import IllegalTransition, State
from holdfast.core.machine import Health, Machine
from holdfast.core.redact import Redactor
from holdfast.hub.bulkhead import Bulkhead
from holdfast.hub.clock import Clock
from holdfast.hub.lease import FailedDial, FindRelay, Lease, Workshop
from holdfast.hub.policies import breaker_policy, lifecycle_policy, watch_address
from holdfast.hub.watch import look
from holdfast.wire.connection import Connection
from holdfast.wire.wishes import Wishes

__all__ = ["Shelf", "Slot", "Surroundings"]

log = logging.getLogger("holdfast.hub")

PING_SECONDS = 5.0
"""How long a connection may take to give a sign of life after a call on it had no answer in time."""


class Shelf(Protocol):
    """Where a slot puts what others read: the hub's catalog and journal."""

    def publish(self, listing: Listing) -> None:
        """A newer complete listing."""

    def withdraw(self, server: str, *, removed: bool) -> None:
        """The server's items go."""

    def reinstate(self, server: str) -> None:
        """The server's last good listing shows again."""

    def tell(self, record: do.Record) -> None:
        """Something worth a record happened."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What every slot of a hub shares."""

    settings: Settings
    clock: Clock
    chance: Callable[[], float]
    workshop: Workshop
    tasks: anyio.abc.TaskGroup
    shelf: Shelf
    relay: FindRelay

    def adopting(self, settings: Settings) -> Surroundings:
        """The same under other settings."""
        self.workshop.adopt(settings)
        return replace(self, settings=settings)


class Slot:
    """One server: its machine, its leases, and whoever waits for it."""

    def __init__(self, spec: ServerSpec | BadServer, around: Surroundings, *, listed: bool = False) -> None:
        self.spec = spec
        self._around = around
        self.machine = Machine(
            spec.id,
            breaker=breaker_policy(around.settings),
            lifecycle=lifecycle_policy(spec, around.settings),
            listed=listed,
        )
        self.wishes = Wishes()
        call = around.settings.call
        self.bulkhead = Bulkhead(call.concurrency, call.queue, patience=call.timeout)
        self._leases: dict[int, Lease] = {}
        self._latest: Lease | None = None
        self._looks: dict[int, anyio.CancelScope] = {}
        self._changed = anyio.Event()
        self._wake_at: float | None = None
        self._poked = anyio.Event()
        self._begun = around.clock.now()
        self.has_outcome = anyio.Event()
        """Set once it is known what became of the first try, or that there will be none."""
        self.failed_dials: dict[int, FailedDial] = {}
        """Why the latest dial failed, for whoever asked for it."""
        self.closed = anyio.Event()
        """Set once it is stopped and nothing of it is left."""

    @property
    def id(self) -> str:
        """The server's name in the configuration."""
        return self.spec.id

    @property
    def state(self) -> State:
        """Where the server stands."""
        return self.machine.state

    @property
    def switched_off(self) -> bool:
        """Whether somebody disabled it; a definition that says so is another matter."""
        return self.spec.enabled and self.state in (State.DISABLING, State.DISABLED)

    @property
    def redactor(self) -> Redactor:
        """Knows the server's secrets, also those that its latest connection learned, be it gone by now."""
        return self._latest.redactor if self._latest is not None else Redactor(getattr(self.spec, "secrets", ()))

    @property
    def lease(self) -> Lease | None:
        """The live connection, if there is one."""
        generation = self.machine.connection
        return self._leases.get(generation) if generation is not None else None

    def health(self) -> Health:
        """How the server is, now."""
        return self.machine.health(self._around.clock.now())

    # Events in, effects out.

    def tell(self, event: on.Event) -> tuple[do.Effect, ...]:
        """Take an event and do what follows from it. One step: nothing waits, nothing comes in between."""
        try:
            effects = self.machine.handle(event, self._around.clock.now(), chance=self._around.chance())
        except IllegalTransition as exc:
            log.error("%s: %s", self.id, exc)  # noqa: TRY400 - a traceback would tell nothing that this does not
            return ()
        self._perform(effects)
        self._note()
        return effects

    def session_expired(self, generation: int) -> None:
        """The server forgot the session of this connection, and refused a request for it."""
        if (lease := self._leases.get(generation)) is not None:
            lease.drains = True
        self.tell(on.SessionExpired(generation))

    def admit(self) -> Permit | Refusal:
        """May a call try?"""
        decision, effects = self.machine.admit(self._around.clock.now())
        if effects:
            self._perform(effects)
            self._note()
        return decision

    def settle(self, permit: Permit, outcome: Outcome, reason: str = "") -> None:
        """What became of a call."""
        around = self._around
        effects = self.machine.settle(permit, outcome, around.clock.now(), chance=around.chance(), reason=reason)
        if effects:
            self._perform(effects)
            self._note()

    async def outcome(self, within: float) -> None:
        """Wait until it is known what became of the first try, at most until so many seconds after it was begun."""
        if not self.has_outcome.is_set():
            await self._around.clock.wait(self.has_outcome, self._begun + within)

    async def changed(self, until: float | None = None) -> bool:
        """Wait until anything about the server changes; False if the time came first."""
        return await self._around.clock.wait(self._changed, until)

    async def run(self) -> None:
        """The owner's loop: wake when the machine asked to be woken, until everything is closed."""
        while not (self.machine.life.stopped and not self._leases):
            self._poked = anyio.Event()
            poked = await self._around.clock.wait(self._poked, self._wake_at)
            if not poked and not self.machine.life.stopped:
                self._wake_at = None
                self.tell(on.Tick())
        self.closed.set()

    def reconfigure(self, spec: ServerSpec | BadServer) -> None:
        """The server's definition is another one now."""
        self.spec = spec
        policy = lifecycle_policy(spec, self._around.settings)
        self.tell(on.ConfigChanged(lazy=policy.lazy, watchable=policy.watchable))

    def adopt(self, settings: Settings) -> None:
        """Holdfast's settings are others now; what stands or is under way is left alone."""
        around = self._around = replace(self._around, settings=settings)
        policies = breaker_policy(settings), lifecycle_policy(self.spec, settings)
        call = settings.call
        self.bulkhead.resize(call.concurrency, call.queue, patience=call.timeout)
        for lease in self._leases.values():
            if lease.connection is not None:
                lease.connection.adopt(settings.limits)
        self._perform(self.machine.adopt(*policies, around.clock.now(), chance=around.chance()))
        self._note()

    def _perform(self, effects: tuple[do.Effect, ...]) -> None:
        for effect in effects:
            self._do(effect)

    def _do(self, effect: do.Effect) -> None:  # noqa: PLR0912 - one arm for each kind of effect
        around, start = self._around, self._around.tasks.start_soon
        match effect:
            case do.Dial(generation=generation):
                lease = Lease(generation, relay=around.relay, wishes=self.wishes)
                self._leases[generation] = lease
                start(self._live, lease, name=f"{self.id} connection {generation}")
            case do.Close(generation=generation):
                self._close(generation)
            case do.WakeAt(at=at):
                self._wake_at = at
                self._poked.set()
            case do.Publish(listing=listing):
                around.shelf.publish(listing)
            case do.Withdraw(removed=removed):
                around.shelf.withdraw(self.id, removed=removed)
            case do.Reinstate():
                around.shelf.reinstate(self.id)
            case do.Watch(look=number):
                start(self._look, number, name=f"{self.id} look {number}")
            case do.StopWatch(look=number):
                if (scope := self._looks.get(number)) is not None:
                    scope.cancel()
            case do.RefreshNow(generation=generation):
                start(self._refresh, generation, name=f"{self.id} refresh")
            case do.CheckLiveness(generation=generation):
                start(self._check, generation, name=f"{self.id} liveness")
            case do.Emit(record=record):
                around.shelf.tell(record)
            case do.Reject():
                pass  # whoever gave the command finds it among the effects

    def _note(self) -> None:
        """Wake whoever waits for the server; the owner too, once there is nothing left to wait for."""
        stopped = self.machine.life.stopped
        if stopped or self.state not in (State.DISCONNECTED, State.CONNECTING, State.DISABLING):
            self.has_outcome.set()
        if stopped:
            self._poked.set()
        self._changed.set()
        self._changed = anyio.Event()

    # What the effects start. Each ends by telling an event.

    async def _live(self, lease: Lease) -> None:
        """One connection from dial to close, in one task: whoever enters a session must leave it."""
        failed: FailedDial | None = None
        try:
            with lease.scope:
                failed = await self._around.workshop.live(
                    self.spec,
                    lease,
                    ever_connected=self.machine.life.ever_connected,
                    stands=lambda listing: self._stands(lease, listing),
                    changed=lambda: self.tell(on.ListChanged(lease.generation)),
                    gone=self._hear,
                )
        finally:
            del self._leases[lease.generation]
        if failed is not None and self.machine.dialing == lease.generation:
            self.failed_dials = {lease.generation: failed}
            self.tell(failed.event)
            return
        if self.machine.connection == lease.generation:
            # It ended by a fault that nobody foresaw: a connection that is gone must not pass for one that stands.
            self.tell(on.TransportLost(lease.generation, lease.close_error))
        self.tell(on.Closed(lease.generation, lease.close_error))

    def _stands(self, lease: Lease, listing: Listing) -> None:
        self._latest = lease
        self.tell(on.DialSucceeded(lease.generation, listing))

    def _hear(self, event: on.Event) -> None:
        """What the workshop found out about a connection."""
        if isinstance(event, on.SessionExpired):
            self.session_expired(event.generation)
        else:
            self.tell(event)

    def _close(self, generation: int) -> None:
        lease = self._leases.get(generation)
        if lease is None:
            return
        if lease.drains and lease.connection is not None:
            self._around.tasks.start_soon(self._drain, lease, lease.connection, name=f"{self.id} drain {generation}")
        else:
            lease.scope.cancel()

    async def _drain(self, lease: Lease, connection: Connection) -> None:
        """Let those under way on an expired session hear so from the server: cut off, they could not be repeated."""
        await connection.drain()
        lease.scope.cancel()

    async def _look(self, number: int) -> None:
        address = watch_address(self.spec)
        with anyio.CancelScope() as scope:
            self._looks[number] = scope
            listening = address is not None and await look(*address)
            self.tell(on.Looked(number, listening))
        self._looks.pop(number, None)

    async def _refresh(self, generation: int) -> None:
        if (lease := self._leases.get(generation)) is not None:
            self._hear(await self._around.workshop.refresh(self.spec, lease))

    async def _check(self, generation: int) -> None:
        if (lease := self._leases.get(generation)) is not None:
            self._hear(await self._around.workshop.check(lease, within=PING_SECONDS))

    def __repr__(self) -> str:
        health = self.health()
        attempt = f" attempt={health.attempts}" if health.attempts else ""
        later = f" next={health.retry_in:.1f}s" if health.retry_in is not None else ""
        return f"<Slot {self.id!r} {health.state.value}{attempt}{later} gen={self.machine.life.generation}>"
