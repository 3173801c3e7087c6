"""One face of the hub: the SDK's server, which keeps the protocol, around handlers that pass everything on.

What a client asks is checked by the SDK and then passed on as it came: no typed model is built of it, nor of
the answer, so whatever a server adds to the protocol reaches the client too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Any, TypeAlias

import mcp_types as types
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import ListenHandler
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_types import methods as protocol
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from holdfast._version import __version__
from holdfast.core.catalog import Kind, NameKey
from holdfast.errors import HoldfastError
from holdfast.front import status
from holdfast.front.board import Board
from holdfast.front.clients import Channel, Client
from holdfast.front.desk import Desk
from holdfast.front.eras import for_client, is_modern, listed_for
from holdfast.front.identity import named_client
from holdfast.front.links import relinked
from holdfast.front.passing import Passing
from holdfast.front.sessions import Streams
from holdfast.front.view import LIST_METHODS, View
from holdfast.front.words import forgetful, instructions, refusal, unknown
from holdfast.wire.wishes import LOG_LEVELS

__all__ = ["Face"]

PAGE = 1_000
"""How many items one answer lists. Some clients read the first page alone, so it is a large one."""

Context: TypeAlias = ServerRequestContext[Any, Any]
Handler: TypeAlias = Callable[[Context, Client], Awaitable[Mapping[str, Any]]]

_CLIENT = "holdfast.client"


class Face(Server[Any]):
    """All servers, or one, as an MCP server; ``owner`` is the client where there can be only one."""

    def __init__(self, desk: Desk, view: View, *, owner: Hashable = None) -> None:
        self.view = view
        self.board = Board(view)
        self.streams = Streams()
        self._desk = desk
        self._owner = owner
        self._passing = Passing(desk, view)
        self._listen = ListenHandler(self.board)
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
        """End the streams of those who listen, in good order."""
        self._listen.close()

    # What is said of itself.

    def create_initialization_options(self, *args: Any, **kwargs: Any) -> InitializationOptions:
        """The answer to ``initialize``, true at the moment of asking."""
        return InitializationOptions(
            server_name=self.name,
            server_version=self.version,
            title=self.title,
            capabilities=self._capabilities(modern=False),
            instructions=self._instructions() or None,
        )

    async def _on_discover(self, ctx: Context, params: types.RequestParams) -> types.DiscoverResult:
        client = self._client(ctx)
        forgotten = forgetful([server for server in self.view.servers if self._desk.forgets(client, server)])
        return types.DiscoverResult(
            supported_versions=list(MODERN_PROTOCOL_VERSIONS),
            capabilities=self._capabilities(modern=True),
            instructions="\n\n".join(filter(None, (self._instructions(), forgotten))) or None,
        )

    def _instructions(self) -> str:
        return instructions(self.view, status.status_tool_name(self.view.hub))

    def _capabilities(self, *, modern: bool) -> types.ServerCapabilities:
        """Everything, for many servers; what the one server declared, where it is alone and its word is known."""
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

    # Every message passes here.

    async def _serve(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.request_id is None:
            await call_next(ctx)
            await self._noticed(ctx)
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
            raise refusal(error, modern=modern) from None
        return for_client(ctx.method, result, modern=modern, stamp=self.server_info_stamp)

    def _handler(self, ctx: Context) -> Handler | None:
        known = self._handlers.get(ctx.method)
        if known is not None or ctx.method in protocol.SPEC_CLIENT_METHODS:
            return known
        return self._pass_unknown

    def _check(self, ctx: Context) -> None:
        try:
            protocol.validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
        except KeyError:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method) from None

    async def _noticed(self, ctx: Context) -> None:
        if is_modern(ctx.protocol_version) or ctx.session.client_params is None:
            return
        client = self._client(ctx)
        if ctx.method == "notifications/roots/list_changed":
            await self._passing.notice(client, ctx.method, ctx.params)

    def _client(self, ctx: Context) -> Client:
        """Who asks: the one of this session, or, where there are none, of this request."""
        connection = ctx.session._connection  # noqa: SLF001 - the SDK's context has no other way to its connection
        client: Client | None = connection.state.get(_CLIENT)
        if client is not None:
            return client
        declared = ctx.session.client_capabilities
        modern = is_modern(ctx.protocol_version)
        alone = self._owner is not None
        named = named_client(ctx) if modern and not alone else None
        client = connection.state[_CLIENT] = Client(
            view=self.view,
            channel=Channel(ctx.session, reachable=self._way_to(connection.session_id)),
            capabilities=declared.model_dump(by_alias=True, mode="json", exclude_none=True) if declared else {},
            modern=modern,
            owner=self._owner if alone else named or object(),
            lasting=alone or named is not None,
            expires=named is not None,
        )
        if modern:
            client.log_level = _log_level(ctx)
        if not modern or alone:
            self._desk.attach(client)
        connection.exit_stack.callback(self._desk.detach, client)
        return client

    def _way_to(self, session: str | None) -> Callable[[], Awaitable[bool]] | None:
        return partial(self.streams.reachable, session) if session is not None else None

    # Lists.

    async def _list(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        kind, key = LIST_METHODS[ctx.method]
        await self._desk.first_listing(self.view)
        items = self.view.items(kind)
        if self.view.server is None and kind in (Kind.TOOL, Kind.RESOURCE):
            items = [*items, status.tool(self.view.hub) if kind is Kind.TOOL else status.resource()]
        start = _offset((ctx.params or {}).get("cursor"), len(items))
        page = items[start : start + PAGE]
        if kind is Kind.TOOL:
            page = [dict(listed_for(item, modern=client.modern)) for item in page]
        more = {"nextCursor": str(start + PAGE)} if start + PAGE < len(items) else {}
        return {key: page, **more}

    # Requests that are passed on.

    async def _call(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        params = ctx.params or {}
        if self.view.server is None and params["name"] == status.status_tool_name(self.view.hub):
            return status.tool_result(self.view.hub, params.get("arguments") or {}, self._desk.findings)
        key = await self._found(Kind.TOOL, params["name"], client)
        return self._linked(key, await self._passing.call_tool(ctx, client, key, {**params, "name": key.original}))

    async def _get_prompt(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        params = ctx.params or {}
        key = await self._found(Kind.PROMPT, params["name"], client)
        own = {**params, "name": key.original}
        return self._linked(key, await self._passing.on(ctx, client, key.server, own, repeatable=True))

    async def _read(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        params = ctx.params or {}
        uri = str(params["uri"])
        if self.view.server is None and uri == status.STATUS_URI:
            return status.resource_contents(self.view.hub, self._desk.findings)
        key = await self._found(Kind.RESOURCE, uri, client)
        own = {**params, "uri": key.original}
        result = self._linked(key, await self._passing.on(ctx, client, key.server, own, repeatable=True))
        return result if key.original == uri else _renamed(result, self.view.shown_uri(key.server, key.original), uri)

    async def _complete(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        params = ctx.params or {}
        ref = params["ref"]
        by = "uri" if "uri" in ref else "name"
        key = await self._found(Kind.TEMPLATE if by == "uri" else Kind.PROMPT, ref[by], client)
        own = {**params, "ref": {**ref, by: key.original}}
        return await self._passing.on(ctx, client, key.server, own, repeatable=True)

    async def _pass_unknown(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        """What the protocol does not know can be passed on where it is clear to whom."""
        if self.view.server is not None:
            return await self._passing.on(ctx, client, self.view.server, ctx.params or {}, repeatable=False)
        raise MCPError(
            METHOD_NOT_FOUND,
            f"{ctx.method} is not passed on from here, where many servers are behind one endpoint; "
            "ask the server alone, at /servers/<id>/mcp",
            ctx.method,
        )

    def _linked(self, key: NameKey, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """A result whose links lead to where they should from here too."""
        if self.view.server is not None or key.server not in self.view.servers:
            return result
        return relinked(result, partial(self.view.shown_uri, key.server))

    async def _found(self, kind: Kind, name: str, client: Client) -> NameKey:
        found = self.view.find(kind, name)
        if not isinstance(found, NameKey):
            await self._desk.first_listing(self.view)
            found = self.view.find(kind, name)
        if not isinstance(found, NameKey):
            raise unknown(kind, found, modern=client.modern)
        return found

    # Subscriptions and logging.

    async def _subscribe(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        uri = str((ctx.params or {})["uri"])
        if uri == status.STATUS_URI and self.view.server is None:
            client.watched.add(("", uri))
            return {}
        key = await self._found(Kind.RESOURCE, uri, client)
        await self._desk.watch(client, key.server, key.original)
        return {}

    async def _unsubscribe(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        uri = str((ctx.params or {})["uri"])
        client.watched.discard(("", uri))
        found = self.view.find(Kind.RESOURCE, uri)
        if isinstance(found, NameKey):
            self._desk.unwatch(client, found.server, found.original)
        return {}

    async def _set_level(self, ctx: Context, client: Client) -> Mapping[str, Any]:
        level = (ctx.params or {}).get("level")
        if level not in LOG_LEVELS:
            raise MCPError(INVALID_PARAMS, "Invalid request parameters")
        client.log_level = level
        for server in self.view.servers:
            self._desk.wants_log(client, server, level)
        return {}

    async def _on_listen(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        client = self._client(ctx)
        with self.board.read_by(client.owner):
            return await self._listen_for(ctx, client, params)

    async def _listen_for(
        self, ctx: Context, client: Client, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        for uri in params.notifications.resource_subscriptions or ():
            found = self.view.find(Kind.RESOURCE, str(uri))
            if isinstance(found, NameKey):
                try:
                    await self._desk.watch(client, found.server, found.original)
                except HoldfastError as error:
                    raise refusal(error, modern=True) from None
        return await self._listen(ctx, params)


def _log_level(ctx: Context) -> str | None:
    """What a modern client wants to be told while this request is under way."""
    level = (ctx.meta or {}).get(types.LOG_LEVEL_META_KEY)
    return level if isinstance(level, str) and level in LOG_LEVELS else None


def _offset(cursor: object, length: int) -> int:
    if cursor is None:
        return 0
    if isinstance(cursor, str) and cursor.isascii() and cursor.isdigit() and int(cursor) < length:
        return int(cursor)
    raise MCPError(INVALID_PARAMS, "Invalid cursor")


def _renamed(result: Mapping[str, Any], own: str, shown: str) -> dict[str, Any]:
    """A resource that goes by another URI here says so in what it holds."""
    contents = [{**one, "uri": shown} if one.get("uri") == own else one for one in result.get("contents", ())]
    return {**result, "contents": contents}
