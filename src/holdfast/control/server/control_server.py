"""The control server of a hub: its API, its event stream, its status page, its log buffer and its metrics, in one.

It reads the hub's records and gives commands. It is never on the path of a call.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import anyio
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp

from holdfast.control.models import FleetView
from holdfast.control.server.api import BrowserSessions, ControlApi
from holdfast.control.server.events import EventStream
from holdfast.control.server.group import SpokenApi, WorkerGroup
from holdfast.control.server.history import History
from holdfast.control.server.logs import LOGGED_OUTCOMES, LogBuffer
from holdfast.control.server.metrics import Metrics, metrics_route
from holdfast.control.server.page import page_routes
from holdfast.control.server.shared_history import SharedHistory
from holdfast.control.server.sign_ins import SharedSignIns
from holdfast.control.server.views import HubInfo, Views
from holdfast.core import Transition
from holdfast.errors import HoldfastError
from holdfast.fleet import Fleet, PeerReply, PeerRequest
from holdfast.hub import CallEnded, ConfigApplied, ConfigRefused, Hub, HubRecord

__all__ = ["ControlServer", "MayRead"]

MayRead: TypeAlias = Callable[[str], Awaitable[bool]]
"""Whether a bearer token gives access to the metrics."""


RECONNECT_SECONDS = 10.0
"""How long the answer to a reconnect waits for the other workers."""


async def _reconnect_elsewhere(group: WorkerGroup, server: str) -> None:
    await group.ask_all("reconnect", {"server": server}, within=RECONNECT_SECONDS)


class ControlServer:
    """Create it before the hub is entered, so that it receives every record.

    The metrics need no token unless ``metrics_for`` is given. Then they need a token that it accepts, or one of the
    control API.
    """

    def __init__(
        self,
        hub: Hub,
        about: HubInfo,
        *,
        control_token: str,
        metrics_for: MayRead | None = None,
        sign_ins: SharedSignIns | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        self._hub = hub
        self._fleet = fleet
        self._about = about
        self._history = History()
        self._logs = LogBuffer()
        self.sessions = BrowserSessions(control_token, shared=sign_ins)
        self.views = Views(hub, self._history, about, fleet)
        self._events = EventStream(self.views, wall=time.time)
        self._api = ControlApi(hub, self.views, self.sessions, events=self._events, logs=self._logs)
        self._metrics = Metrics(hub, fleet)
        about.loop_lag = self._loop_lag
        self._metrics_for = metrics_for
        self._group: WorkerGroup | None = None
        self._shared: SharedHistory | None = None
        self._served: ASGIApp = self._api
        self._join_workers()
        self._fleet_told: FleetView | None = None
        self._probers_told: dict[str, str] = {}
        if fleet is not None:
            fleet.watch_peers(self._fleet_changed)
        hub.registry.journal.add_sink(self._happened, calls=self._called)
        hub.registry.journal.add_stderr_reader(self._logs.add_stderr)

    def _join_workers(self) -> None:
        """In a worker: answer together with the others."""
        fleet = self._fleet
        if fleet is None or fleet.peers is None or not any(one.here and one.group for one in fleet.replicas):
            return
        group = self._group = WorkerGroup(fleet, fleet.peers)
        self._served = SpokenApi(self._api, group, fleet.peers)
        self._metrics.join(group, fleet.peers)
        self._api.reconnect_elsewhere = partial(_reconnect_elsewhere, group)
        fleet.peers.handle("reconnect", self._reconnect)
        self._shared = SharedHistory(
            self._hub, group, fleet.peers, history=self._history, logs=self._logs, called=self._events.called
        )
        self._hub.registry.journal.add_stderr_reader(self._shared.add_stderr)

    async def _reconnect(self, request: PeerRequest, _: PeerReply) -> None:
        """Another worker reconnects a server, and this one does too."""
        with suppress(HoldfastError):
            await self._hub.reconnect(str(request.about.get("server", "")))

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes beside the MCP endpoints; each one checks access itself."""
        read_by = self._may_read_metrics if self._metrics_for is not None else None
        return (Mount("/api", app=self._served), metrics_route(self._metrics, read_by=read_by), *page_routes())

    def _fleet_changed(self) -> None:
        """Tell the followers of what changed in the fleet, without the times and counts that always change."""
        fleet, view = self._fleet, self.views.hub().fleet
        if fleet is None or view is None:
            return
        said = view.model_copy(update={"events_lost": 0, "problem": ""})
        if said != self._fleet_told:
            self._fleet_told = said
            self._events.hub_changed()
        before, self._probers_told = self._probers_told, fleet.probers
        for server in before.keys() | self._probers_told.keys():
            if before.get(server) != self._probers_told.get(server):
                self._events.touched(server)

    async def run(self) -> None:
        """Measure the event loop, and tell other workers about the calls here, until cancelled."""
        async with anyio.create_task_group() as tasks:
            if self._shared is not None:
                tasks.start_soon(self._shared.run)
            await self._metrics.loop.run()

    def _loop_lag(self) -> float | None:
        loop = self._metrics.loop
        return loop.largest if loop.measured else None

    async def _may_read_metrics(self, token: str) -> bool:
        if self.sessions.access(token) is not None:
            return True
        return self._metrics_for is not None and await self._metrics_for(token)

    # Called by the server.

    def drains(self) -> None:
        """The hub refuses new calls from now on."""
        self._about.draining = True
        self._events.hub_changed()

    def notice_changed(self) -> None:
        """What users should know about the hub itself changed."""
        self._events.hub_changed()

    def close(self) -> None:
        """End every stream, so that a shutdown does not wait for readers."""
        if self._group is not None:
            self._group.leave()
        self._events.close()
        self._logs.close()

    def _called(self, ended: CallEnded) -> None:
        """One for each call: this is on its path."""
        self._history.called(ended)
        if ended.outcome in LOGGED_OUTCOMES:
            self._logs.handle(ended)
        self._events.called(ended.server)

    def _happened(self, record: HubRecord) -> None:
        self._history(record)
        self._logs.handle(record)
        self._events.handle(record)
        if isinstance(record, Transition) and record.server not in self._hub.config.servers:
            self._history.forget(record.server)
            self._logs.forget(record.server)
            self._events.gone(record.server)
        elif isinstance(record, ConfigApplied | ConfigRefused):
            self._config_changed(record)

    def _config_changed(self, record: ConfigApplied | ConfigRefused) -> None:
        problem = str(record) if isinstance(record, ConfigRefused) else ""
        if self._about.config_problem != problem:
            self._about.config_problem = problem
            self._events.hub_changed()
        for server in (*record.added, *record.changed) if isinstance(record, ConfigApplied) else ():
            self._events.touched(server)
