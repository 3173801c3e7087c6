"""A connection of another hub: a replica of this fleet, or a hub in front of this one. It ends with its key (FLEET-5).

The certificate of the other side is signed by the authority of one session key. When that key is not in force any more,
the connection gets no further request. What is under way is answered: a key is replaced while hubs work.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.server import ServerState

from holdfast.front.listener import LAST_ANSWER_SECONDS, HttpConnection

__all__ = ["PeerConnection"]

LOOK_SECONDS: Final = 1.0
"""How often the key of a connection is looked for."""


class PeerConnection(HttpConnection):
    """One connection. ``trusts`` tells whether the key that it stands on is in force; a Unix socket has none."""

    transport: asyncio.Transport

    def __init__(
        self, config: Any, server_state: ServerState, app_state: dict[str, Any], trusts: Callable[[ssl.SSLObject], bool]
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._trusts = trusts
        self._look_later: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A hub is there."""
        self.transport = cast("asyncio.Transport", transport)  # a stream has one; that of uvloop is of no such class
        super().connection_made(transport)
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            self._look(tls)

    def connection_lost(self, exc: Exception | None) -> None:
        """The hub is gone."""
        if self._look_later is not None:
            self._look_later.cancel()
        super().connection_lost(exc)

    def _look(self, tls: ssl.SSLObject) -> None:
        loop = asyncio.get_running_loop()
        if self._trusts(tls):
            self._look_later = loop.call_later(LOOK_SECONDS, self._look, tls)
        else:
            self._look_later = loop.call_later(LAST_ANSWER_SECONDS, self.transport.abort)
            self.shutdown()
