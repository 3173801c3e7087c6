"""The clients of the hub, the channels to them, and their calls in flight.

In the legacy era a client is a session. The modern era has no sessions: over HTTP each request is a client of its
own, unless it carries a client key; over stdio the pipe is the client. A message is written when it comes: progress
and log messages of a call go out in the order in which they came, all of them before its result. What a client does
not read is bounded by its transport, so a slow client delays no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST

from holdfast.access import LOCAL
from holdfast.endpoint.tasks import with_related_task
from holdfast.endpoint.view import View
from holdfast.wire import LOG_LEVELS, Era, LoadedObject, dumps

__all__ = ["ASK_SECONDS", "Call", "Channel", "Client", "require_capability"]

ASK_SECONDS = 600.0
"""How long a person or a model may take to answer a server's request."""

ABSENT_SECONDS = 60.0
"""After this time without a stream and without a request, a client counts as gone for a server's requests."""

_CAPABILITY = {"sampling/createMessage": "sampling", "elicitation/create": "elicitation", "roots/list": "roots"}


class Channel(Protocol):
    """A channel to a client: the stream of one request, or the stream that it keeps open for notifications."""

    def tell(self, method: str, params: Mapping[str, Any] | None, *, everywhere: bool = False) -> None:
        """Send a notification; ``everywhere`` if each replica of a fleet tells the same. Never waits."""

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the client's answer to a request; raise ``MCPError`` if there is none."""


@dataclass(eq=False, slots=True)
class Client:
    """One client, for as long as it is connected."""

    view: View
    channel: Channel
    capabilities: Mapping[str, Any]
    modern: bool
    owner: Hashable
    """The owner of the connections that are not shared."""
    principal: str = LOCAL.name
    """The name of the principal that it acts for."""
    stream_open: Callable[[], bool] | None = None
    """Whether its notification stream is open; None where the connection itself shows that it is there (stdio)."""
    calls: int = 0
    """How many of its calls are in flight."""
    seen_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """When it last sent a request."""
    persistent: bool = False
    """Whether the owner outlives this object: a pipe, or a client with a key, sends many modern requests."""
    expires: bool = False
    """Whether the owner can leave without a notice; its connections then end after a time without use."""
    rebuilt: bool = False
    """Whether it is a session that was rebuilt from its id: connections of its own may have been lost."""
    restarted: frozenset[str] = frozenset()
    """The servers whose connection was made again for it, and it has not been told yet."""
    key: str | None = None
    """What a hub behind this one recognises it by; None if its next request cannot be told from those of others."""
    via: tuple[str, ...] = ()
    """The hubs that its requests pass before this one."""
    log_level: str | None = None
    subscribed: set[tuple[str, str]] = field(default_factory=set)
    """Server and original URI of each resource that it subscribed to."""
    listed: dict[str, str] | None = field(default_factory=dict)
    """The digest of each list that it was given, by method; None for a rebuilt session if it is not known."""

    def is_present(self) -> bool:
        """Whether it is still there: a client can leave without a word (no stream, no request for a while)."""
        if self.stream_open is None or self.stream_open():
            return True
        return asyncio.get_running_loop().time() - self.seen_at < ABSENT_SECONDS

    def wants_log(self, level: object) -> bool:
        """Whether it wants a log message of this level."""
        if self.log_level is None or level not in LOG_LEVELS:
            return not self.modern
        return LOG_LEVELS.index(str(level)) >= LOG_LEVELS.index(self.log_level)

    def __repr__(self) -> str:
        return f"<Client {'modern' if self.modern else 'legacy'} of {self.view.server or 'all servers'}>"


def require_capability(client: Client, method: str, params: Mapping[str, Any] | None) -> None:
    """Raise if the client cannot answer this request: the server gets an error, not silence."""
    capability = _CAPABILITY[method]
    declared = client.capabilities.get(capability)
    if declared is None:
        raise MCPError(INVALID_REQUEST, f"the client does not support {capability}")
    mode = (params or {}).get("mode", "form")
    if method == "elicitation/create" and mode != "form" and mode not in declared:
        raise MCPError(INVALID_REQUEST, f"the client does not support elicitation by {mode}")


class Call:
    """A request in flight; it is the ``Caller`` of the wire."""

    def __init__(self, client: Client, server: str, *, channel: Channel | None, token: str | int | None) -> None:
        self.client = client
        self.server = server
        self._channel = channel
        self._token = token
        self._lead: bytes | None = None
        """How each of its progress notices begins."""
        self.task: str | None = None
        """The id under which the client knows the task that it asks about."""

    @property
    def era(self) -> Era:
        """The era that the client speaks."""
        return "modern" if self.client.modern else "legacy"

    @property
    def principal(self) -> str:
        """Who calls."""
        return self.client.principal

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client declares."""
        return self.client.capabilities

    @property
    def client_key(self) -> str | None:
        """What a hub behind this one recognises the client by."""
        return self.client.key

    @property
    def via(self) -> tuple[str, ...]:
        """The hubs that the request has passed before this one."""
        return self.client.via

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Send a server's request to the client, on the stream of the client's own request."""
        require_capability(self.client, method, params)
        if self.client.modern or self._channel is None:
            raise MCPError(INTERNAL_ERROR, f"{method} cannot reach this client: its protocol knows no such request")
        return await self._channel.ask(method, with_related_task(params, self.task))

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification, if the client wants it."""
        if method == "notifications/message" and not self.client.wants_log((params or {}).get("level")):
            return
        if method == "notifications/elicitation/complete" and self.client.modern:
            return  # the modern era has no such notification: the client learns it when it repeats the request
        self._send(method, params)

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress, if the client asked for it."""
        if self._token is None:
            return
        params = LoadedObject(progressToken=self._token, progress=progress)
        if self._lead is None:
            self._lead = b'{"progressToken":%b,"progress":' % _as_json(self._token)
        raw = self._lead + (b"%d" % progress if type(progress) is int else _as_json(progress))
        if total is not None:
            params["total"] = total
            raw += b',"total":%d' % total if type(total) is int else b',"total":' + _as_json(total)
        if message is not None:
            params["message"] = message
            raw += b',"message":' + dumps(message)
        params.raw = raw + b"}"
        self._send("notifications/progress", params)

    def _send(self, method: str, params: Mapping[str, Any] | None) -> None:
        if self._channel is not None:
            self._channel.tell(method, params)


def _as_json(value: float | str) -> bytes:
    """A finite number or a text as JSON; a number needs no encoder."""
    if type(value) is int:
        return b"%d" % value
    return repr(value).encode() if type(value) is float else dumps(value)
