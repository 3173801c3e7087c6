"""The hub: many agents share one set of connections that heals itself.

Every configured server has a slot that is always here. The catalog is an immutable snapshot: a reader
takes one reference and keeps it. Calls resolve the live connection when they are made.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import anyio
import anyio.abc
import anyio.to_thread

from holdfast.auth.bearer import Logins
from holdfast.config.spec import BadServer, Config, ServerSpec, Settings
from holdfast.core.catalog import Catalog, Listing, NameKey
from holdfast.core.lifecycle import events as on
from holdfast.core.machine import Health
from holdfast.core.names import Kind
from holdfast.errors import UnknownServer
from holdfast.hub.accounts import Account
from holdfast.hub.approvals import Approvals
from holdfast.hub.calls import Errand, send
from holdfast.hub.clock import Clock, RealClock
from holdfast.hub.commands import renewed, switched
from holdfast.hub.house import keep_house
from holdfast.hub.journal import HubRecord, Journal, Published, Sink
from holdfast.hub.keeper import Keeper
from holdfast.hub.lease import Workshop
from holdfast.hub.loader import read
from holdfast.hub.logins import START_SECONDS, noted_logins, notice_logins
from holdfast.hub.lookup import holds_changed, is_repeatable, refuse_held, resolved
from holdfast.hub.memory import Memory
from holdfast.hub.private import PrivateSlots, ready_within
from holdfast.hub.records import config_applied
from holdfast.hub.showing import shown
from holdfast.hub.slot import Slot, Surroundings
from holdfast.hub.store import Store, default_state_file
from holdfast.hub.turnstile import Turnstile
from holdfast.hub.warnings import OnWarning, Warnings, Watcher, warnings_of
from holdfast.types import CallResult, ProgressFn, Tool
from holdfast.wire.dial import Dialer
from holdfast.wire.listing import tool_info
from holdfast.wire.relay import Caller, Relay
from holdfast.wire.warden import Warden

__all__ = ["Hub"]

CLOSE_SECONDS = 15.0
"""Each connection's close has bounds of its own; this one is for all of them together."""


class Hub:
    """A fleet of servers. Use it as ``async with Hub.from_config("mcp.json") as hub``."""

    def __init__(
        self,
        config: Config,
        *,
        state_file: Path | None = None,
        on_warning: OnWarning | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        logins: Logins | None = None,
    ) -> None:
        self.config = config
        self.logins = logins or Logins()
        self.catalog = Catalog()
        self._clock = clock or RealClock()
        self._chance = chance
        self.journal = Journal(self._clock)
        self.journal.add_sink(Watcher(on_warning))
        self.approvals = Approvals(state_file, holds=lambda one: holds_changed(self.config, one), journal=self.journal)
        self._keeper = Keeper(Store(state_file) if state_file is not None else None, self.approvals)
        self._slots: dict[str, Slot] = {}
        self._memory = Memory()
        self._warden = Warden()
        self._relay: Relay | None = None
        self.private = PrivateSlots()
        self._house: anyio.abc.TaskGroup | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._around: Surroundings | None = None
        self._closing = False
        self._all_closed = anyio.Event()

    @classmethod
    def from_config(
        cls,
        source: Config | Mapping[str, Any] | str | Path | None = None,
        *,
        state_file: Path | None = None,
        on_warning: OnWarning | None = None,
        clock: Clock | None = None,
    ) -> Hub:
        """A hub for an ``mcp.json``, a mapping of the same form, or the file found in the usual places.

        The last good catalog of a file survives a restart in the user's state folder, or in ``state_file``;
        that of a mapping only if ``state_file`` says where. ``clock`` is for tests (``holdfast.testing.FakeClock``).
        """
        config = read(source)
        if state_file is None and config.source is not None:
            state_file = default_state_file(config.source)
        return cls(config, state_file=state_file, on_warning=on_warning, clock=clock)

    async def __aenter__(self) -> Self:
        """Start, and return at once: servers come up in the background."""
        self.catalog = await anyio.to_thread.run_sync(self._keeper.restore, self.config)
        logins = await noted_logins(self, within=START_SECONDS)
        self._house = await anyio.create_task_group().__aenter__()
        with anyio.CancelScope(shield=True):  # over in a moment; half an entered group could not be left again
            tasks: anyio.abc.TaskGroup = await self._house.start(keep_house)
        self._tasks, settings = tasks, self.config.settings
        self._around = Surroundings(
            settings=settings,
            clock=self._clock,
            chance=self._chance,
            workshop=Workshop(
                Dialer(
                    warden=self._warden,
                    limits=settings.limits,
                    authorize=self.logins.authorize,
                    on_stderr=self.journal.heard,
                ),
                Turnstile(settings.load.concurrency, tasks),
                self._memory,
                settings.load,
            ),
            tasks=tasks,
            shelf=self,
            relay=lambda: self._relay,
        )
        self.private.open(self._around, self.journal.tell)
        for slot in [self._placed(server) for server in self.config.servers.values()]:
            self._begin(slot)
        tasks.start_soon(self._keeper.run, name="state keeper")
        tasks.start_soon(self._warden.keep, name="warden keeper")
        tasks.start_soon(notice_logins, self, logins, name="login watch")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._tasks is None or self._house is None:
            return
        with anyio.CancelScope(shield=True):
            await self.close()
        self._tasks.cancel_scope.cancel()
        try:
            # No exception is passed in: a task group would wrap it, and the body's own is what the caller expects.
            await self._house.__aexit__(None, None, None)
        finally:
            await self._warden.__aexit__(None, None, None)

    async def close(self) -> None:
        """End every connection. Idempotent, bounded, safe while servers are being dialed; nothing revives."""
        if not self._closing:
            self._closing = True
            last = self._snapshot()
            for slot in self._all_slots():
                slot.tell(on.ShutdownRequested())
            if self._tasks is None:
                self._all_closed.set()
            else:
                self._tasks.start_soon(self._finish, last, name="hub close")
        await self._all_closed.wait()

    async def _finish(self, last: tuple[Config, Catalog, frozenset[str]]) -> None:
        """Wait for what a close has begun; in a task of its own, since whoever asked for it may be cancelled."""
        with anyio.move_on_after(CLOSE_SECONDS):
            await self._keeper.close(lambda: last)
            for slot in self._all_slots():
                await slot.closed.wait()
        self.journal.close()
        self._all_closed.set()

    # What readers see.

    async def ready(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - part of what is asked for
        """Wait until every server has an outcome (not: until every server is up); False if time ran out."""
        until = self._clock.now() + timeout if timeout is not None else None
        for slot in list(self._slots.values()):
            if not slot.has_outcome.is_set() and not await self._clock.wait(slot.has_outcome, until):
                return False
        return True

    @property
    def servers(self) -> Mapping[str, Health]:
        """Every configured server and how it is: none is ever missing."""
        return MappingProxyType({name: slot.health() for name, slot in self._slots.items()})

    def server_health(self, name: str) -> Health:
        """How one server is: state, reason, generation, failures, attempts, breaker, next try."""
        return self.slot(name).health()

    def warnings(self) -> Warnings:
        """What is unavailable, in words for people and for the model."""
        return warnings_of(self.servers.values())

    def tools(self) -> tuple[Tool, ...]:
        """Handles on all listed tools; each finds the live connection when it is called."""
        listed = self.catalog.tools
        return tuple(Tool(entry.server, tool_info(entry.name, shown(entry)), self._handle) for entry in listed)

    def attach(self, relay: Relay) -> None:
        """From now on, new connections pass what servers ask of clients on to ``relay``."""
        self._relay = relay

    def events(self) -> AsyncIterator[HubRecord]:
        """Every transition, trip, retry and publication from now on, until the hub is closed."""
        return self.journal.records()

    def listen(self, sink: Sink) -> Callable[[], None]:
        """Have ``sink`` told every record at once, calls too; it must not wait. What is returned ends it."""
        return self.journal.add_sink(sink)

    # What callers ask.

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, on_progress: ProgressFn | None = None
    ) -> CallResult:
        """Call a tool by its name in the catalog."""
        key = resolved(self.catalog, name, Kind.TOOL)
        params = {"name": key.original, "arguments": dict(arguments or {})}
        raw = await self.request(
            key.server, "tools/call", params, repeatable=is_repeatable(self.catalog, name), on_progress=on_progress
        )
        return CallResult.from_raw(raw)

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """Get a prompt by its name in the catalog."""
        key = resolved(self.catalog, name, Kind.PROMPT)
        params = {"name": key.original, "arguments": dict(arguments or {})}
        return await self.request(key.server, "prompts/get", params, repeatable=True)

    async def read_resource(self, uri: str, *, server: str | None = None) -> Mapping[str, Any]:
        """Read a resource by its URI in the catalog, or any URI of a server that is named."""
        key = NameKey(Kind.RESOURCE, server, uri) if server is not None else resolved(self.catalog, uri, Kind.RESOURCE)
        return await self.request(key.server, "resources/read", {"uri": key.original}, repeatable=True)

    async def complete(self, ref: Mapping[str, Any], argument: Mapping[str, str]) -> Mapping[str, Any]:
        """Ask for completions of a prompt's or a template's argument; ``ref`` uses the catalog's names."""
        by_uri = "uri" in ref
        key = resolved(self.catalog, str(ref["uri" if by_uri else "name"]), Kind.TEMPLATE if by_uri else Kind.PROMPT)
        params = {"ref": {**ref, ("uri" if by_uri else "name"): key.original}, "argument": dict(argument)}
        return await self.request(key.server, "completion/complete", params, repeatable=True)

    # What operators do.

    async def reconnect(self, name: str) -> Health:
        """Make a new connection now. Raises ``ServerDisabled``, or ``LoadFailed`` with the reason."""
        return await renewed(self.slot(name))

    def logged_in(self, name: str) -> Health:
        """New credentials are there: a server that was denied or parked is tried again now."""
        for slot in [self.slot(name), *(own for own in self.private.all() if own.id == name)]:
            slot.tell(on.LoginSucceeded())
        return self.server_health(name)

    async def toggle(self, name: str, enabled: bool) -> Health:
        """Switch a server on or off. Idempotent; switching on resets its health."""
        slot = self.slot(name)
        self._keeper.changed(self._snapshot)
        return await switched(slot, enabled=enabled)

    async def apply(self, config: Config) -> None:
        """Take a new configuration; only the connections of servers whose definition changed are touched."""
        if self._closing:
            return
        before, self.config = self.config, config
        applied = config_applied(before, config, at=self._clock.now())
        if config.settings != before.settings:
            self._adopt(config.settings)
        # All are in place, or out of it, before any of them is told: no reader sees half of a change.
        gone = [self._slots.pop(name) for name in applied.removed]
        fresh = [self._placed(config.servers[name]) for name in applied.added]
        for slot in gone:
            slot.tell(on.RemoveRequested())
        for slot in fresh:
            self._begin(slot)
        for name in applied.changed:
            self._reconfigure(self._slots[name], config.servers[name])
        self.journal.tell(applied)
        self._keeper.changed(self._snapshot)

    # What slots tell (the ``Shelf`` of slot.py).

    def publish(self, listing: Listing) -> None:
        """Show a newer complete listing, except for what is held."""
        self._show(listing.server, self.catalog.publish(self.approvals.review(listing)))
        if self.approvals.unsaved:
            self._keeper.changed(self._snapshot)

    def approve(self, server: str, tool: str | None = None, *, mark: str | None = None) -> tuple[str, ...]:
        """Take what is pending of a server's tools for good, one or all: what was held is shown and called."""
        self.slot(server)
        approved = self.approvals.approve(server, tool, mark=mark)
        listing = self.approvals.latest(server)
        if listing is not None and not self.catalog.servers[server].withdrawn:
            self.publish(listing)
        self._keeper.changed(self._snapshot)
        return approved

    def withdraw(self, server: str, *, removed: bool) -> None:
        """Stop showing a server's items, and end the connections to it that were one client's."""
        self.private.end(server)
        if removed:
            self.approvals.forget(server)
        self._show(server, self.catalog.remove(server) if removed else self.catalog.withdraw(server))

    def reinstate(self, server: str) -> None:
        """Show a server's last good listing again."""
        self._show(server, self.catalog.reinstate(server))

    def tell(self, record: HubRecord) -> None:
        """Pass a record on."""
        self.journal.tell(record)

    def _show(self, server: str, catalog: Catalog) -> None:
        before, self.catalog = self.catalog, catalog
        if catalog is not before:
            kinds = tuple(sorted(kind.value for kind in catalog.since(before).kinds))
            if kinds:
                self.journal.tell(Published(server=server, version=catalog.version, kinds=kinds, at=self._clock.now()))
            self._keeper.changed(self._snapshot)

    def _placed(self, server: ServerSpec | BadServer) -> Slot:
        assert self._around is not None  # noqa: S101 - the hub is open
        self.catalog = self.catalog.configure(server.id, prefix=getattr(server, "prefix", None))
        listed = self.catalog.servers[server.id].listing is not None
        slot = self._slots[server.id] = Slot(server, self._around, listed=listed)
        return slot

    def _begin(self, slot: Slot) -> None:
        assert self._tasks is not None  # noqa: S101 - the hub is open
        self._tasks.start_soon(slot.run, name=f"{slot.id} owner")
        enabled = slot.spec.enabled and not self.catalog.servers[slot.id].withdrawn
        slot.tell(on.StartRequested() if enabled else on.DisableRequested())

    def _adopt(self, settings: Settings) -> None:
        assert self._around is not None  # noqa: S101 - the hub is open
        self._around = self._around.adopting(settings)
        self.private.adopt(settings)
        for slot in self._all_slots():
            slot.adopt(settings)

    def _reconfigure(self, slot: Slot, server: ServerSpec | BadServer) -> None:
        was_enabled = slot.spec.enabled
        self._show(server.id, self.catalog.configure(server.id, prefix=getattr(server, "prefix", None)))
        slot.reconfigure(server)
        if server.enabled != was_enabled:
            slot.tell(on.EnableRequested() if server.enabled else on.DisableRequested())

    def _all_slots(self) -> list[Slot]:
        return [*self._slots.values(), *self.private.all()]

    def slot(self, name: str) -> Slot:
        """The slot of a server, for whoever passes requests on."""
        slot = self._slots.get(name)
        if slot is None:
            known = ", ".join(sorted(self._slots)) or "none at all"
            raise UnknownServer(f"no server named `{name}` is configured", hint=f"configured: {known}")
        return slot

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
        """Pass any request on, under the server's names, for ``caller``, on its own connection if ``slot`` is one."""
        used, settings = slot or self.slot(server), self.config.settings
        refuse = partial(refuse_held, self.approvals, server, method, params)
        with Account(server, method, params, self._clock, self.journal.tell) as account:
            errand = Errand(method, params, settings.call, account, refuse, on_progress=on_progress, caller=caller)
            refuse()
            ready_at = self._clock.now() + ready_within(used, settings, own=slot is not None)
            return account.answered(await send(used, errand, account, repeatable=repeatable, ready_at=ready_at))

    async def _handle(self, name: str, args: Mapping[str, Any], on_progress: ProgressFn | None) -> CallResult:
        return await self.call_tool(name, args, on_progress=on_progress)

    def _snapshot(self) -> tuple[Config, Catalog, frozenset[str]]:
        off = frozenset(name for name, slot in self._slots.items() if slot.switched_off)
        return self.config, self.catalog, off

    def __repr__(self) -> str:
        return f"<Hub of {len(self._slots)} servers, catalog {self.catalog.version}>"
