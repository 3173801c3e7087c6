"""The subscribers of one endpoint (``subscriptions/listen``) and the events that they receive."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.shared.subscriptions import (
    SUBSCRIPTION_ID_META_KEY,
    ServerEvent,
    event_matches,
    event_to_notification,
)
from mcp_types import INTERNAL_ERROR

from holdfast.endpoint.clients import Outlet
from holdfast.endpoint.view import View

__all__ = ["Listeners"]

MAX_SUBSCRIPTIONS = 1024


class _SubscriptionStream:
    """One client that listens; events go out as they come."""

    def __init__(self, owner: Hashable, outlet: Outlet, wanted: types.SubscriptionFilter, meta: dict[str, Any]) -> None:
        self.owner = owner
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outlet = outlet
        self._wanted = wanted
        self._uris = frozenset(wanted.resource_subscriptions or ())
        self._meta = meta

    def take(self, event: ServerEvent) -> None:
        if event_matches(self._wanted, self._uris, event):
            notice = event_to_notification(event, self._meta).model_dump(by_alias=True, mode="json", exclude_none=True)
            self._outlet.tell(notice["method"], notice.get("params"))

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Listeners:
    """The listeners of one endpoint. Publishing never waits, and an event can be limited to one client."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._listeners: set[_SubscriptionStream] = set()

    def post(self, event: ServerEvent, *, only: Hashable = None) -> None:
        """Send an event to every listener, or to those of one client."""
        for listener in list(self._listeners):
            if only is None or listener.owner == only:
                listener.take(event)

    async def listen(
        self, owner: Hashable, outlet: Outlet, subscription: object, wanted: types.SubscriptionFilter
    ) -> dict[str, Any]:
        """Acknowledge, then send events until the endpoint closes; a client that leaves cancels it."""
        if len(self._listeners) >= MAX_SUBSCRIPTIONS:
            raise MCPError(INTERNAL_ERROR, "Subscription limit reached")
        honored = _honored(wanted)
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: subscription}
        told = honored.model_dump(by_alias=True, mode="json", exclude_none=True)
        outlet.tell("notifications/subscriptions/acknowledged", {"notifications": told, "_meta": meta})
        listener = _SubscriptionStream(owner, outlet, honored, meta)
        self._listeners.add(listener)
        try:
            await listener.ended
        finally:
            self._listeners.discard(listener)
        return {"_meta": meta}

    def close(self) -> None:
        """End every stream cleanly: its client gets the result of its request."""
        for listener in list(self._listeners):
            listener.end()


def _honored(wanted: types.SubscriptionFilter) -> types.SubscriptionFilter:
    """What is delivered: all that was asked for, without what says nothing."""
    return types.SubscriptionFilter(
        tools_list_changed=True if wanted.tools_list_changed else None,
        prompts_list_changed=True if wanted.prompts_list_changed else None,
        resources_list_changed=True if wanted.resources_list_changed else None,
        resource_subscriptions=list(wanted.resource_subscriptions) if wanted.resource_subscriptions else None,
    )
