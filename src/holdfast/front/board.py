"""Where a face's listeners (``subscriptions/listen``) read what changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mcp.shared.subscriptions import ServerEvent

from holdfast.front.view import View

__all__ = ["Board"]


_READER: ContextVar[Hashable] = ContextVar("holdfast_reader", default=None)


class Board:
    """The SDK's subscription bus, written to without waiting; some of it is for one client's eyes."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._readers: dict[object, tuple[Hashable, Callable[[ServerEvent], None]]] = {}

    def post(self, event: ServerEvent, *, only: Hashable = None) -> None:
        """Tell every listener, or those of one client; each keeps what it was told, or ends its stream if too slow."""
        for owner, read in list(self._readers.values()):
            if only is None or owner == only:
                read(event)

    @contextmanager
    def read_by(self, owner: Hashable) -> Iterator[None]:
        """Whoever listens within the block is this client."""
        token = _READER.set(owner)
        try:
            yield
        finally:
            _READER.reset(token)

    async def publish(self, event: ServerEvent) -> None:
        """The same, as the SDK calls it."""
        self.post(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Add a listener; the returned function removes it."""
        key = object()
        self._readers[key] = _READER.get(), listener

        def leave() -> None:
            self._readers.pop(key, None)

        return leave
