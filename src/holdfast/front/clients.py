"""The clients of the hub, and what each of them is told on its own account.

In the legacy era a client is a session. In the modern era there are no sessions: over HTTP each request is
a client of its own unless it says whose it is (see ``identity.py``), over a pipe the pipe is. What a client
is told coalesces: a notice that says "this changed" says no more when it is said twice, so a slow client costs
a bounded memory and nobody's time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.session import ServerSession
from mcp.shared.message import ServerMessageMetadata
from mcp_types import INVALID_REQUEST, RequestId
from pydantic import ValidationError

from holdfast.front.view import View
from holdfast.wire.requests import RawNotice, RawRequest, RawResult
from holdfast.wire.wishes import LOG_LEVELS

__all__ = ["ASK_SECONDS", "Channel", "Client", "refuse_unasked"]

ASK_SECONDS = 600.0
"""How long a person, or a model, may take to answer what a server asks."""

_CAPABILITY = {"sampling/createMessage": "sampling", "elicitation/create": "elicitation", "roots/list": "roots"}


@dataclass(frozen=True)
class Channel:
    """A way to a client: the stream of one request, or the one that it keeps open for everything else."""

    session: ServerSession
    request_id: RequestId | None = None
    reachable: Callable[[], Awaitable[bool]] | None = None
    """Where the way is a stream that the client may have open or not: whether it is, now or in a moment."""

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """The client's answer; raises ``MCPError`` where it gives none."""
        if self.reachable is not None and not await self.reachable():
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach the client: it keeps no stream open to be asked on")
        request = cast("types.ServerRequest", RawRequest(method=method, params=dict(params or {})))
        related = ServerMessageMetadata(related_request_id=self.request_id) if self.request_id is not None else None
        try:
            with anyio.fail_after(ASK_SECONDS):
                return (await self.session.send_request(request, RawResult, metadata=related)).raw
        except TimeoutError:
            raise MCPError(INVALID_REQUEST, f"the client did not answer {method} in time") from None
        except ValidationError:
            raise MCPError(INVALID_REQUEST, f"the client's answer to {method} does not follow the protocol") from None

    async def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notice."""
        notice = RawNotice(method=method, params=dict(params or {}))
        await self.session.send_notification(cast("types.ServerNotification", notice), self.request_id)


@dataclass(eq=False)
class Client:
    """One client, for as long as it is there."""

    view: View
    channel: Channel
    capabilities: Mapping[str, Any]
    modern: bool
    owner: Hashable
    """Whose the connections are that it does not share."""
    lasting: bool = False
    """Whether the owner outlives what is known here as the client: a pipe carries many modern requests, and a client
    that says who it is makes many."""
    expires: bool = False
    """Whether the owner can be gone without anybody being told."""
    log_level: str | None = None
    watched: set[tuple[str, str]] = field(default_factory=set)
    """The server and the URI, as the server knows it, of each resource that it watches."""
    _pending: dict[tuple[str, str], Mapping[str, Any] | None] = field(default_factory=dict)
    _sending: bool = False

    def wants_log(self, level: object) -> bool:
        """Whether a log message of this level is for it."""
        if self.log_level is None or level not in LOG_LEVELS:
            return not self.modern
        return LOG_LEVELS.index(str(level)) >= LOG_LEVELS.index(self.log_level)

    def note(self, method: str, params: Mapping[str, Any] | None = None) -> bool:
        """Something to tell it on its own stream; whether ``flush`` must be started for it."""
        self._pending[method, str((params or {}).get("uri", ""))] = params
        return not self._sending

    async def flush(self) -> None:
        """Tell it all that is to be told."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._pending:
                (method, uri), params = next(iter(self._pending.items()))
                del self._pending[method, uri]
                await self.channel.tell(method, params)
        finally:
            self._sending = False

    def __repr__(self) -> str:
        return f"<Client {'modern' if self.modern else 'legacy'} of {self.view.server or 'all servers'}>"


def refuse_unasked(client: Client, method: str, params: Mapping[str, Any] | None) -> None:
    """A server that asks what the client cannot answer gets an error, not silence."""
    capability = _CAPABILITY[method]
    declared = client.capabilities.get(capability)
    if declared is None:
        raise MCPError(INVALID_REQUEST, f"the client does not support {capability}")
    mode = (params or {}).get("mode", "form")
    if method == "elicitation/create" and mode != "form" and mode not in declared:
        raise MCPError(INVALID_REQUEST, f"the client does not support elicitation by {mode}")
