"""All of it put together for one hub: what listens to its records, and the routes that show and steer it."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Mount

from holdfast.admin.api import ControlApi
from holdfast.admin.history import History
from holdfast.admin.sessions import Sessions
from holdfast.admin.views import About, Views
from holdfast.hub.hub import Hub
from holdfast.hub.journal import HubRecord

__all__ = ["Admin"]


class Admin:
    """Make it before the hub is entered: what happens from then on is remembered."""

    def __init__(self, hub: Hub, about: About, *, control_token: str) -> None:
        self._hub = hub
        self._about = about
        self._history = History()
        self.sessions = Sessions(control_token)
        self.views = Views(hub, self._history, about)
        self._api = ControlApi(hub, self.views, self.sessions)
        hub.listen(self._happened)

    def routes(self) -> Sequence[BaseRoute]:
        """What is served beside the MCP endpoints; each route checks for itself who asks."""
        return (Mount("/api", app=self._api),)

    def drains(self) -> None:
        """The hub takes no new calls any more."""
        self._about.draining = True

    def _happened(self, record: HubRecord) -> None:
        self._history(record)
