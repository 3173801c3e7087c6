"""All of it put together for one hub: what listens to its records, and the routes that show and steer it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from starlette.routing import BaseRoute, Mount

from holdfast.admin.api import ControlApi
from holdfast.admin.feed import Feed
from holdfast.admin.history import History
from holdfast.admin.lines import Lines
from holdfast.admin.metrics import Metrics, metrics_route
from holdfast.admin.page import page_routes
from holdfast.admin.sessions import Sessions
from holdfast.admin.views import About, Views
from holdfast.core.lifecycle.effects import Transition
from holdfast.hub.hub import Hub
from holdfast.hub.journal import HubRecord
from holdfast.hub.records import ConfigApplied, ConfigRefused

__all__ = ["Admin", "MayRead"]


MayRead: TypeAlias = Callable[[str], Awaitable[bool]]
"""Whether a bearer token is that of somebody who may read the metrics."""


class Admin:
    """Make it before the hub is entered: what happens from then on is remembered.

    The metrics are for everybody who can reach them, or with ``metrics_for`` for those whose token it knows,
    and for whoever may use the control API.
    """

    def __init__(self, hub: Hub, about: About, *, control_token: str, metrics_for: MayRead | None = None) -> None:
        self._hub = hub
        self._about = about
        self._history = History()
        self._lines = Lines()
        self.sessions = Sessions(control_token)
        self.views = Views(hub, self._history, about)
        self._feed = Feed(self.views, wall=time.time)
        self._api = ControlApi(hub, self.views, self.sessions, feed=self._feed, lines=self._lines)
        self._metrics = Metrics(hub)
        self._metrics_for = metrics_for
        hub.listen(self._happened)
        hub.registry.journal.add_stderr_reader(self._lines.heard)

    def routes(self) -> Sequence[BaseRoute]:
        """What is served beside the MCP endpoints; each route checks for itself who asks."""
        read_by = self._may_read_metrics if self._metrics_for is not None else None
        return (Mount("/api", app=self._api), metrics_route(self._metrics, read_by=read_by), *page_routes())

    async def _may_read_metrics(self, token: str) -> bool:
        if self.sessions.access(token) is not None:
            return True
        return self._metrics_for is not None and await self._metrics_for(token)

    # What is told to it.

    def drains(self) -> None:
        """The hub takes no new calls any more."""
        self._about.draining = True
        self._feed.hub_changed()

    def close(self) -> None:
        """End every stream: whoever follows knows that the hub ends, and nothing waits for them."""
        self._feed.close()
        self._lines.close()

    def _happened(self, record: HubRecord) -> None:
        self._history(record)
        self._lines.happened(record)
        self._feed.happened(record)
        if isinstance(record, Transition) and record.server not in self._hub.config.servers:
            self._history.forget(record.server)
            self._lines.forget(record.server)
            self._feed.gone(record.server)
        elif isinstance(record, ConfigApplied | ConfigRefused):
            self._config_changed(record)

    def _config_changed(self, record: ConfigApplied | ConfigRefused) -> None:
        problem = str(record) if isinstance(record, ConfigRefused) else ""
        if self._about.config_problem != problem:
            self._about.config_problem = problem
            self._feed.hub_changed()
        for server in (*record.added, *record.changed) if isinstance(record, ConfigApplied) else ():
            self._feed.touched(server)
