"""Where a face's listeners (``subscriptions/listen``) read what changed."""

from __future__ import annotations

from collections.abc import Callable

from mcp.shared.subscriptions import ServerEvent

from holdfast.front.view import View

__all__ = ["Board"]


class Board:
    """The SDK's subscription bus, written to without waiting."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._readers: dict[object, Callable[[ServerEvent], None]] = {}

    def post(self, event: ServerEvent) -> None:
        """Tell every listener; each keeps what it was told, or ends its stream if it reads too slowly."""
        for read in list(self._readers.values()):
            read(event)

    async def publish(self, event: ServerEvent) -> None:
        """The same, as the SDK calls it."""
        self.post(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Add a listener; the returned function removes it."""
        key = object()
        self._readers[key] = listener

        def leave() -> None:
            self._readers.pop(key, None)

        return leave
