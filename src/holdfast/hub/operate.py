"""What operators do with the servers of a hub, here and in other processes.

``Operations`` is the part of ``Hub`` for operators: each command waits for its outcome and reports it. The functions
below it follow what people did elsewhere: a switch or an approval at another hub of the same state file, a login in
another terminal. Following is no command: where this hub does not follow, it says so, and nothing is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.auth import canonical, takes_login
from holdfast.config import Config
from holdfast.core import ApprovalKind, Health, State, events as on
from holdfast.errors import HubClosed, LoadFailed, ServerDisabled
from holdfast.hub.hub_clock import sleep_until_poll
from holdfast.hub.lease import FailedDial
from holdfast.hub.slot import Slot

if TYPE_CHECKING:
    from holdfast.hub.registry import SlotRegistry

__all__ = ["Operations", "current_logins", "follow_approvals", "follow_switch", "watch_logins"]

LOGIN_PERIOD = 0.5
"""Seconds between two polls: a login takes effect that soon, and a poll costs microseconds."""


class Operations:
    """The part of ``Hub`` for operators: commands for its servers."""

    registry: SlotRegistry

    async def reconnect(self, name: str) -> Health:
        """Make a new connection now; of a server that is per user, those of all users.

        A user who is denied access is no failure of the server.

        Raises ``UnknownServer``, ``ServerDisabled``, ``HubClosed``, or ``LoadFailed`` with the reason.
        """
        slot, users = self._slot(name), self.registry.users
        _require_served(slot)
        own = [one for _, one in users.of_server(name)]
        # Where no caller is `local`, the shared slot of a per-user server is not used.
        common = [slot] if self.registry.has_local or name not in users.servers else []
        dials = [(one, _dialing_again(one)) for one in (*common, *own)]
        for one, generation in dials:
            failure = await _failure_of(one, generation)
            _require_served(slot)  # still
            if failure is not None and not (one in own and failure.event.status == "denied"):
                raise LoadFailed(failure.evidence, f"MCP server '{slot.id}' could not be connected: {failure.reason}")
        return slot.health()

    async def toggle(self, name: str, enabled: bool) -> Health:
        """Enable or disable a server. Idempotent; enabling resets its health.

        Enabling takes no time. Disabling waits until the server is disabled.

        Raises ``UnknownServer``, or ``HubClosed`` if the server is no longer served.
        """
        slot = self._slot(name)
        self.registry.writer.changed(at_once=True)
        if self.registry.fleet is not None:
            self.registry.fleet.decisions.note_switch(name, not enabled)
        slot.handle(on.EnableRequested() if enabled else on.DisableRequested())
        while not enabled and slot.state is State.DISABLING:
            await slot.changed()
        if slot.machine.life.stopped:
            raise _refusal(slot)
        return slot.health()

    def logged_in(self, name: str) -> Health:
        """Try a server again now that was denied or parked, because it has new credentials.

        Raises ``UnknownServer``.
        """
        slot = self._slot(name)
        _use_login(self.registry, name)
        return slot.health()

    def approve(
        self, server: str, tool: str | None = None, *, mark: str | None = None, kind: ApprovalKind = "tool"
    ) -> tuple[str, ...]:
        """Approve the pending changes of a server, one or all: what was held can be used again.

        ``kind`` says what is named: a tool, a prompt, or the instructions, which have no name. With the ``mark`` of the
        change that was reviewed, a newer change is not approved.

        Raises ``UnknownServer``, ``UnknownTool``, or ``ToolHeld`` if it cannot be approved here.
        """
        self._slot(server)
        approved = self.registry.approvals.approve(server, tool, mark=mark, kind=kind)
        self.registry.publisher.publish_again(server)
        self.registry.writer.changed(at_once=True)
        return approved

    async def apply(self, config: Config) -> None:
        """Use a new configuration; only the connections of servers whose definition changed are touched.

        Raises ``HubNotOpen`` or ``HubClosed``.
        """
        self.registry.require_use()
        await self.registry.apply(config)

    def _slot(self, name: str) -> Slot:
        self.registry.require_use()
        return self.registry.slot(name)


def _require_served(slot: Slot) -> None:
    if slot.machine.life.stopped or slot.state in (State.DISABLED, State.DISABLING):
        raise _refusal(slot)


def _dialing_again(slot: Slot) -> int | None:
    """Begin a new connection; the generation that is dialed."""
    slot.handle(on.ReconnectRequested())
    return slot.machine.dialing


async def _failure_of(slot: Slot, generation: int | None) -> FailedDial | None:
    """Wait for the outcome of a dial; None if it did not fail."""
    while slot.machine.dialing == generation and generation is not None:
        await slot.changed()
    return slot.leases.failed_dials.get(generation) if generation is not None else None


def _refusal(slot: Slot) -> ServerDisabled | HubClosed:
    state = slot.state
    if state in (State.DISABLED, State.DISABLING):
        return ServerDisabled(f"MCP server '{slot.id}' is {state.value}", server_id=slot.id, state=state.value)
    return HubClosed(f"MCP server '{slot.id}' is no longer served", server_id=slot.id, state=state.value)


# What people did elsewhere.


def follow_switch(registry: SlotRegistry, server: str, disabled: bool) -> bool:
    """Follow another hub that enabled or disabled a server; False if this one does not."""
    slot = registry.slots.get(server)
    if slot is None or not slot.spec.enabled or slot.switched_off == disabled or registry.is_closing:
        return False
    slot.handle(on.DisableRequested() if disabled else on.EnableRequested())
    return True


def follow_approvals(registry: SlotRegistry) -> None:
    """Follow another hub that wrote the approvals file."""
    for server in registry.approvals.follow():
        registry.publisher.publish_again(server)


def _use_login(registry: SlotRegistry, server: str) -> None:
    for slot in [*registry.slots.values(), *registry.clients.all()]:
        if slot.id == server:
            slot.handle(on.LoginSucceeded())


async def current_logins(registry: SlotRegistry, *, within: float | None = None) -> Mapping[str, str]:
    """The login of each server that has one; the last known logins if the store does not answer in time."""
    await registry.logins.reading.up_to_date(within=within)
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
                _use_login(registry, name)
        await sleep_until_poll(LOGIN_PERIOD)
