"""The control server of a hub: its API, its event stream, its status page, its log buffer and its metrics, in one.

It reads the hub's records and gives commands. It is never on the path of a call.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

import anyio
from starlette.requests import Request
from starlette.routing import BaseRoute, Mount

from holdfast.access import AuditTrail, roles_of
from holdfast.config import UNIX
from holdfast.control.models import FleetView
from holdfast.control.server.api import ControlApi
from holdfast.control.server.browser_identity import BrowserIdentity
from holdfast.control.server.control_events import EventStream
from holdfast.control.server.log_buffer import LOGGED_OUTCOMES, LogBuffer
from holdfast.control.server.metrics import Metrics, metrics_route
from holdfast.control.server.operations import ApiContext
from holdfast.control.server.page import page_routes
from holdfast.control.server.server_logins import PrincipalLogins
from holdfast.control.server.sign_ins import BrowserSessions
from holdfast.control.server.views import History, HubInfo, Views
from holdfast.control.server.workers import SharedTotals, SpokenApi, WorkerGroup, asked, keep_switches, worker_routes
from holdfast.core import Transition
from holdfast.endpoint import LoginLinks
from holdfast.fleet import Fleet
from holdfast.hub import CallEnded, ConfigApplied, ConfigRefused, Hub, HubRecord

__all__ = ["ControlServer"]

AUDIT_SECONDS = 2.0
"""How soon a page shows that the audit cannot be written."""

RECONNECT_SECONDS = 10.0
"""How long the answer to a reconnect waits for the other workers."""


class ControlServer:
    """Create it before the hub is entered, so that it receives every record.

    Where callers need a token, the metrics need one too: that of a caller, or one of the control API. In a worker,
    ``workers`` are those that answer as one hub.
    """

    def __init__(  # noqa: PLR0913 - each part of a hub that it shows is given
        self,
        hub: Hub,
        about: HubInfo,
        *,
        sessions: BrowserSessions,
        browsers: BrowserIdentity,
        links: LoginLinks,
        workers: WorkerGroup | None = None,
        fleet: Fleet | None = None,
        audit: AuditTrail | None = None,
    ) -> None:
        self._hub = hub
        self._fleet = fleet
        self._about = about
        self.history = History()
        self.logs = LogBuffer()
        self.sessions = sessions
        self._metrics = Metrics(hub, fleet, audit)
        self.views = Views(hub, self.history, about, fleet, loop_lag=self._loop_lag)
        self.events = EventStream(self.views, wall=time.time)
        context = ApiContext(
            *(hub, self.views, sessions, self.events, self.logs, self._reconnect, browsers),
            own_logins=PrincipalLogins(hub, links),
            audit=audit,
        )
        self._api = ControlApi(context)
        self._browsers = browsers
        self._audit = audit
        self._workers = workers
        self._totals = SharedTotals(hub, workers, self.history, about, self.events) if workers is not None else None
        self._fleet_told: FleetView | None = None
        self._probers_told: dict[str, str] = {}
        if fleet is not None:
            fleet.presence.watch(self._fleet_changed)
        hub.registry.call_approvals.watch(self.events.hub_changed)
        hub.registry.journal.add_sink(self._happened, calls=self._called)
        hub.registry.journal.add_stderr_reader(self.logs.add_stderr)

    def __repr__(self) -> str:
        return f"<ControlServer of {len(self._hub.config.servers)} servers, {self._workers or 'alone'}>"

    async def _reconnect(self, server: str) -> None:
        """Reconnect a server here, and in the other workers: each has a connection of its own."""
        target = f"/workers/reconnect?server={quote(server, safe='')}"
        if self._workers is not None and self._workers.stdio is not None and self._runs_in_stdio(server):
            await asked(
                self._workers.stdio, "POST", target, within=RECONNECT_SECONDS
            )  # the workers show what came of it
        try:
            await self._hub.reconnect(server)
        finally:
            if self._workers is not None:
                await self._workers.ask_others("POST", target, within=RECONNECT_SECONDS)

    def _runs_in_stdio(self, server: str) -> bool:
        """Whether a server runs in the process of the stdio servers, and this hub has it behind that one."""
        slot = self._hub.registry.slots.get(server)
        return slot is not None and slot.spec.hub.startswith(UNIX)

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes beside the MCP endpoints; each one checks access itself."""
        read_by = self._may_read_metrics if self._browsers.tokens is not None else None
        metrics = metrics_route(self._metrics, self._workers, read_by=read_by)
        page = page_routes(by_issuer=self._browsers.by_issuer, is_known=partial(_is_known, self._browsers))
        pages = (*page, *self._browsers.routes())
        if self._workers is None or self._totals is None:
            return (Mount("/api", app=self._api), metrics, *pages)
        api = Mount("/api", app=SpokenApi(self._api, self._workers, self._runs_in_stdio))
        return (api, metrics, worker_routes(self._totals, self._hub), *pages)

    def _fleet_changed(self) -> None:
        """Tell the followers of what changed in the fleet, without the times and counts that always change."""
        fleet, view = self._fleet, self.views.hub().fleet
        if fleet is None or view is None:
            return
        said = view.model_copy(update={"events_lost": 0, "problem": ""})
        if said != self._fleet_told:
            self._fleet_told = said
            self.events.hub_changed()
        before, self._probers_told = self._probers_told, fleet.evidence.probers
        for server in before.keys() | self._probers_told.keys():
            if before.get(server) != self._probers_told.get(server):
                self.events.touched(server)

    async def run(self) -> None:
        """Measure the event loop, and ask other workers for their calls, until cancelled."""
        async with anyio.create_task_group() as tasks:
            if self._totals is not None and self._workers is not None:
                tasks.start_soon(self._totals.run)
                tasks.start_soon(keep_switches, self._hub, self._workers, self._runs_in_stdio)
            if self._audit is not None:
                tasks.start_soon(_watch_audit, self._audit, self.events)
            await self._metrics.loop.run()

    def _loop_lag(self) -> float | None:
        loop = self._metrics.loop
        return loop.largest if loop.measured else None

    async def _may_read_metrics(self, token: str) -> bool:
        if self.sessions.access(token) is not None:
            return True
        callers = self._browsers.tokens
        principal = await callers.principal(token) if callers is not None else None
        if principal is None:
            return False
        # Metrics name every server: a caller who may not see all of them needs the role.
        roles = roles_of(principal, self._hub.config.settings.access.roles)
        return "read" in roles or self._hub.registry.policy.grants(principal).is_unlimited

    # Called by the server.

    def drains(self) -> None:
        """The hub refuses new calls from now on."""
        self._about.draining = True
        self.events.hub_changed()

    def hub_changed(self) -> None:
        """What users should know about the hub itself, or its clients changed."""
        self.events.hub_changed()

    def close(self) -> None:
        """End every stream, so that a shutdown does not wait for readers."""
        self.events.close()
        self.logs.close()

    def _called(self, ended: CallEnded) -> None:
        """One for each call: this is on its path."""
        self.history.called(ended)
        if ended.outcome in LOGGED_OUTCOMES:
            self.logs.handle(ended)
        self.events.called(ended.server)

    def _happened(self, record: HubRecord) -> None:
        self.history(record)
        self.logs.handle(record)
        self.events.handle(record)
        if isinstance(record, Transition) and record.server not in self._hub.config.servers:
            self.history.forget(record.server)
            self.logs.forget(record.server)
            self.events.gone(record.server)
        elif isinstance(record, ConfigApplied | ConfigRefused):
            self._config_changed(record)

    def _config_changed(self, record: ConfigApplied | ConfigRefused) -> None:
        problem = str(record) if isinstance(record, ConfigRefused) else ""
        if self._about.config_problem != problem:
            self._about.config_problem = problem
            self.events.hub_changed()
        for server in (*record.added, *record.changed) if isinstance(record, ConfigApplied) else ():
            self.events.touched(server)


async def _is_known(browsers: BrowserIdentity, request: Request) -> bool:
    """Whether a browser is signed in. The user of the machine is not, by the connection alone."""
    found = await browsers.identify(request)
    return found is not None and found.by != "connection"


async def _watch_audit(audit: AuditTrail, events: EventStream) -> None:
    """Tell the followers when the audit fails, and when it is written again."""
    told = ""
    while True:
        if audit.failing != told:
            told = audit.failing
            events.hub_changed()
        await anyio.sleep(AUDIT_SECONDS)
