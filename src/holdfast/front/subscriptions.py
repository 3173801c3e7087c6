"""The subscribers of one endpoint (``subscriptions/listen``) and the events that they receive."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mcp.shared.subscriptions import ServerEvent

from holdfast.front.view import View

__all__ = ["Subscriptions"]


_LISTENER: ContextVar[Hashable] = ContextVar("holdfast_listener", default=None)


class Subscriptions:
    """The SDK's subscription bus. Publishing never waits, and an event can be limited to one client."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._listeners: dict[object, tuple[Hashable, Callable[[ServerEvent], None]]] = {}

    def post(self, event: ServerEvent, *, only: Hashable = None) -> None:
        """Send an event to every listener, or to those of one client; the SDK ends the stream of a slow listener."""
        for owner, listener in list(self._listeners.values()):
            if only is None or owner == only:
                listener(event)

    @contextmanager
    def listening_as(self, owner: Hashable) -> Iterator[None]:
        """Listeners that subscribe within the block belong to this client."""
        token = _LISTENER.set(owner)
        try:
            yield
        finally:
            _LISTENER.reset(token)

    async def publish(self, event: ServerEvent) -> None:
        """Do the same for the SDK, which awaits it."""
        self.post(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Add a listener; the returned function removes it."""
        key = object()
        self._listeners[key] = _LISTENER.get(), listener

        def leave() -> None:
            self._listeners.pop(key, None)

        return leave
