"""The hub as an MCP server: the SDK's server, with handlers that forward every request.

The SDK checks a request, then it is forwarded as it came. No typed model is built of the request or of the result,
so extensions of a server reach the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Any, TypeAlias

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import ListenHandler
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, methods as protocol
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from holdfast._version import __version__
from holdfast.core import Kind, NameKey
from holdfast.errors import HoldfastError
from holdfast.front.access.principals import client_key_of, principal_of
from holdfast.front.broker import Broker
from holdfast.front.clients import Channel, Client
from holdfast.front.eras import is_modern, relinked, result_for_client, tool_for_client
from holdfast.front.forwarder import Forwarder
from holdfast.front.messages import (
    STATUS_URI,
    instructions,
    protocol_error,
    stateless_notice,
    status_contents,
    status_resource,
    status_result,
    status_tool,
    status_tool_name,
    unknown_name,
)
from holdfast.front.sessions import OpenStreams
from holdfast.front.subscriptions import Subscriptions
from holdfast.front.view import LIST_METHODS, View
from holdfast.wire import LOG_LEVELS

__all__ = ["McpServer"]

PAGE = 1_000
"""How many items one answer lists. Some clients read only the first page, so it is large."""

Context: TypeAlias = ServerRequestContext[Any, Any]
Handler: TypeAlias = Callable[[Context, Client], Awaitable[Mapping[str, Any]]]

_CLIENT = "holdfast.client"


class McpServer(Server[Any]):
    """All servers, or one, as an MCP server; ``owner`` is set on stdio, where there is only one client."""

    def __init__(self, broker: Broker, view: View, *, owner: Hashable = None) -> None:
        self.view = view
        self.subscriptions = Subscriptions(view)
        self.streams = OpenStreams()
        self._broker = broker
        self._owner = owner
        self._forwarder = Forwarder(broker, view)
        self._listen = ListenHandler(self.subscriptions)
        super().__init__(
            "holdfast",
            version=__version__,
            title="Holdfast",
            get_tool_input_schema=view.input_schema,
            on_subscriptions_listen=self._on_listen,
        )
        self.add_request_handler("server/discover", types.RequestParams, self._on_discover)
        self.middleware.append(self._serve)
        self._handlers: dict[str, Handler] = {
            **dict.fromkeys(LIST_METHODS, self._list),
            "tools/call": self._call,
            "prompts/get": self._get_prompt,
            "resources/read": self._read,
            "completion/complete": self._complete,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "logging/setLevel": self._set_level,
        }

    def close(self) -> None:
        """End the subscription streams cleanly."""
        self._listen.close()

    # Handshakes.

    def create_initialization_options(self, *args: Any, **kwargs: Any) -> InitializationOptions:
        """Return the answer to ``initialize``, made for each request."""
        return InitializationOptions(
            server_name=self.name,
            server_version=self.version,
            title=self.title,
            capabilities=self._capabilities(modern=False),
            instructions=self._instructions() or None,
        )

    async def _on_discover(self, ctx: Context, params: types.RequestParams) -> types.DiscoverResult:
        client = self._client(ctx)
        notice = stateless_notice([server for server in self.view.servers if self._broker.is_stateless(client, server)])
        return types.DiscoverResult(
            supported_versions=list(MODERN_PROTOCOL_VERSIONS),
            capabilities=self._capabilities(modern=True),
            instructions="\n\n".join(filter(None, (self._instructions(), notice))) or None,
        )

    def _instructions(self) -> str:
        return instructions(self.view, status_tool_name(self.view.hub))

    def _capabilities(self, *, modern: bool) -> types.ServerCapabilities:
        """Everything for many servers; for one server that is connected, what it declared."""
        full: dict[str, Any] = {
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "completions": {},
        }
        if not modern:
            full["logging"] = {}
        own = self._own_capabilities()
        if own is not None:
            kept = {name: full[name] for name in full if name in own or name == "tools"}
            full = kept | {name: own[name] for name in ("experimental", "extensions") if name in own}
        return types.ServerCapabilities.model_validate(full)

    def _own_capabilities(self) -> Mapping[str, Any] | None:
        lease = self.view.hub.registry.slot(self.view.server).lease if self.view.server is not None else None
        return lease.connection.capabilities if lease is not None and lease.connection is not None else None

    # Every message.

    async def _serve(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.request_id is None:
            await call_next(ctx)
            await self._on_notification(ctx)
            return None
        handler = self._handler(ctx)
        if handler is None:
            return await call_next(ctx)
        modern = is_modern(ctx.protocol_version)
        if not modern and ctx.session.client_params is None:
            raise MCPError(INVALID_REQUEST, "the session is not initialized")
        if ctx.method in protocol.SPEC_CLIENT_METHODS:
            self._check(ctx)
        try:
            result = await handler(ctx, self._client(ctx))
        except HoldfastError as error:
            raise protocol_error(error, modern=modern) from None
        return result_for_client(ctx.method, result, modern=modern, stamp=self.server_info_stamp)

    def _handler(self, ctx: Context) -> Handler | None:
        known = self._handlers.get(ctx.method)
        if known is not None or ctx.method in protocol.SPEC_CLIENT_METHODS:
            return known
        return self._forward_unknown

    def _check(self, ctx: Context) -> None:
        try:
            protocol.validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
        except KeyError:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method) from None

    async def _on_notification(self, ctx: Context) -> None:
        if is_modern(ctx.protocol_version) or ctx.session.client_params is None:
            return
        client = self._client(ctx)
        if ctx.method == "notifications/roots/list_changed":
            await self._forwarder.notice(client, ctx.method, ctx.params)

    def _client(self, ctx: Context) -> Client:
        """Return the client of this session or, in the modern era, of this request."""
        connection = ctx.session._connection  # noqa: SLF001 - the SDK's context has no other way to its connection
        client: Client | None = connection.state.get(_CLIENT)
        if client is not None:
            client.seen_at = anyio.current_time()
            return client
        declared = ctx.session.client_capabilities
        modern = is_modern(ctx.protocol_version)
        is_stdio = self._owner is not None
        key = client_key_of(ctx) if modern and not is_stdio else None
        client = connection.state[_CLIENT] = Client(
            view=self.view,
            channel=Channel(ctx.session, reachable=self._reachable(connection.session_id)),
            capabilities=declared.model_dump(by_alias=True, mode="json", exclude_none=True) if declared else {},
            modern=modern,
            owner=self._owner if is_stdio else key or object(),
            principal=principal_of(ctx).name,
            stream_open=self._stream_open(connection.session_id),
            persistent=is_stdio or key is not None,
            expires=key is not None,
        )
        if modern:
            client.log_level = _log_level(ctx)
        if not modern or is_stdio:
            self._broker.attach(client)
        connection.exit_stack.callback(self._broker.detach, client)
        return client

    def _reachable(self, session: str | None) -> Callable[[], Awaitable[bool]] | None:
        return partial(self.streams.reachable, session) if session is not None else None

    def _stream_open(self, session: str | None) -> Callable[[], bool] | None:
        return partial(self.streams.is_open, session) if session is not None else None

    # Lists.

    async def _list(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        kind, key = LIST_METHODS[ctx.method]
        await self._broker.wait_for_first_listing(self.view)
        items = self.view.items(kind)
        if self.view.server is None and kind in (Kind.TOOL, Kind.RESOURCE):
            items = [*items, status_tool(self.view.hub) if kind is Kind.TOOL else status_resource()]
        start = _offset((ctx.params or {}).get("cursor"), len(items))
        page = items[start : start + PAGE]
        if kind is Kind.TOOL:
            page = [dict(tool_for_client(item, modern=client.modern)) for item in page]
        more = {"nextCursor": str(start + PAGE)} if start + PAGE < len(items) else {}
        return {key: page, **more}

    @property
    def _findings(self) -> Mapping[str, str]:
        return {**self.view.hub.registry.findings, **self._broker.findings}

    # Forwarded requests.

    async def _call(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        params = ctx.params or {}
        if self.view.server is None and params["name"] == status_tool_name(self.view.hub):
            return status_result(self.view.hub, params.get("arguments") or {}, self._findings)
        key = await self._find(Kind.TOOL, params["name"], client)
        return self._linked(key, await self._forwarder.call_tool(ctx, client, key, {**params, "name": key.original}))

    async def _get_prompt(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        params = ctx.params or {}
        key = await self._find(Kind.PROMPT, params["name"], client)
        own = {**params, "name": key.original}
        return self._linked(key, await self._forwarder.forward(ctx, client, key.server, own, repeatable=True))

    async def _read(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        params = ctx.params or {}
        uri = str(params["uri"])
        if self.view.server is None and uri == STATUS_URI:
            return status_contents(self.view.hub, self._findings)
        key = await self._find(Kind.RESOURCE, uri, client)
        own = {**params, "uri": key.original}
        result = self._linked(key, await self._forwarder.forward(ctx, client, key.server, own, repeatable=True))
        return result if key.original == uri else _with_uri(result, self.view.shown_uri(key.server, key.original), uri)

    async def _complete(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        params = ctx.params or {}
        ref = params["ref"]
        by = "uri" if "uri" in ref else "name"
        key = await self._find(Kind.TEMPLATE if by == "uri" else Kind.PROMPT, ref[by], client)
        own = {**params, "ref": {**ref, by: key.original}}
        return await self._forwarder.forward(ctx, client, key.server, own, repeatable=True)

    async def _forward_unknown(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        """Forward a method that the protocol does not define, where the endpoint has one server."""
        if self.view.server is not None:
            return await self._forwarder.forward(ctx, client, self.view.server, ctx.params or {}, repeatable=False)
        raise MCPError(
            METHOD_NOT_FOUND,
            f"{ctx.method} is not forwarded from here: this endpoint has many servers; "
            "use the endpoint of one server, /servers/<id>/mcp",
            ctx.method,
        )

    def _linked(self, key: NameKey, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a result whose resource URIs can be read at this endpoint."""
        if self.view.server is not None or key.server not in self.view.servers:
            return result
        return relinked(result, partial(self.view.shown_uri, key.server))

    async def _find(self, kind: Kind, name: str, client: Client) -> NameKey:
        found = self.view.find(kind, name)
        if not isinstance(found, NameKey):
            await self._broker.wait_for_first_listing(self.view)
            found = self.view.find(kind, name)
        if not isinstance(found, NameKey):
            raise unknown_name(kind, found, modern=client.modern)
        return found

    # Subscriptions and logging.

    async def _subscribe(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        uri = str((ctx.params or {})["uri"])
        if uri == STATUS_URI and self.view.server is None:
            client.subscribed.add(("", uri))
            return {}
        key = await self._find(Kind.RESOURCE, uri, client)
        await self._broker.subscribe(client, key.server, key.original)
        return {}

    async def _unsubscribe(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        uri = str((ctx.params or {})["uri"])
        client.subscribed.discard(("", uri))
        found = self.view.find(Kind.RESOURCE, uri)
        if isinstance(found, NameKey):
            self._broker.unsubscribe(client, found.server, found.original)
        return {}

    async def _set_level(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        level = (ctx.params or {}).get("level")
        if level not in LOG_LEVELS:
            raise MCPError(INVALID_PARAMS, "Invalid request parameters")
        client.log_level = level
        for server in self.view.servers:
            self._broker.wants_log(client, server, level)
        return {}

    async def _on_listen(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        client = self._client(ctx)
        with self.subscriptions.listening_as(client.owner):
            return await self._listen_for(ctx, client, params)

    async def _listen_for(
        self, ctx: Context, client: Client, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        for uri in params.notifications.resource_subscriptions or ():
            found = self.view.find(Kind.RESOURCE, str(uri))
            if isinstance(found, NameKey):
                try:
                    await self._broker.subscribe(client, found.server, found.original)
                except HoldfastError as error:
                    raise protocol_error(error, modern=True) from None
        return await self._listen(ctx, params)


def _log_level(ctx: Context) -> str | None:
    """Return the log level that a modern client wants for this request."""
    level = (ctx.meta or {}).get(types.LOG_LEVEL_META_KEY)
    return level if isinstance(level, str) and level in LOG_LEVELS else None


def _offset(cursor: object, length: int) -> int:
    if cursor is None:
        return 0
    if isinstance(cursor, str) and cursor.isascii() and cursor.isdigit() and int(cursor) < length:
        return int(cursor)
    raise MCPError(INVALID_PARAMS, "Invalid cursor")


def _with_uri(result: Mapping[str, Any], own: str, shown: str) -> dict[str, Any]:
    """Put the URI that this endpoint shows into the contents of a resource."""
    contents = [{**one, "uri": shown} if one.get("uri") == own else one for one in result.get("contents", ())]
    return {**result, "contents": contents}
