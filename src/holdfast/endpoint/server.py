"""The hub as an MCP server: handshakes and lists of its own, everything else forwarded as the bytes that it came in.

It knows no transport: a request comes with its client and with a channel to it, the result goes back as bytes. What
the hub itself reads of a request is checked against the protocol; arguments and results are passed on unread.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, TypeAlias

import mcp_types as types
from mcp import MCPError
from mcp.shared.inbound import MCP_PARAM_HEADER_PREFIX, validate_mcp_param_headers
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    methods as protocol,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from holdfast._version import __version__
from holdfast.access import LOCAL, ClientKey, Principal, client_key_in
from holdfast.core import HUB_CAPABILITY, HUB_VERSION, Catalog, Kind, NameKey, quoted_line
from holdfast.endpoint.broker import Broker
from holdfast.endpoint.clients import Channel, Client
from holdfast.endpoint.eras import is_modern, relinked, result_for_client, tool_for_client
from holdfast.endpoint.forwarder import Forwarder
from holdfast.endpoint.inbound import LARGEST_READ, ClientRequest, Message, small_values
from holdfast.endpoint.instructions import (
    STATUS_TOOL,
    STATUS_URI,
    instructions,
    protocol_error,
    stateless_notice,
    status_contents,
    status_resource,
    status_result,
    status_tool,
    unknown_name,
)
from holdfast.endpoint.subscriptions import Subscriptions
from holdfast.endpoint.tasks import LEGACY_TASKS, MODERN_TASKS, is_new_task, renamed
from holdfast.endpoint.view import LIST_METHODS, ToolRoute, View
from holdfast.errors import HoldfastError
from holdfast.wire import (
    LOG_LEVELS,
    TASK_METHODS,
    TASKS_EXTENSION,
    Fields,
    KeyNames,
    RawObject,
    dumps,
    fields,
    is_array,
    is_object,
    items,
    join_fields,
    join_items,
    loads,
    text_of,
    via_in,
)

__all__ = ["McpServer"]

PAGE = 1_000
"""How many items one answer lists. Some clients read only the first page, so it is large."""

PAGE_BYTES, STEP_BYTES = 8 * 1024 * 1024, 128 * 1024
"""How large a page may become, and how much of it is written in one step of the event loop."""

DIGEST_BYTES = 8
"""Of a list that a client was given: enough to tell whether it changed."""

CLIENT_KEY_BYTES = 18
"""Of the digest by which a hub behind this one recognises a client."""

Handler: TypeAlias = Callable[[ClientRequest], Awaitable[RawObject]]

_PARAMS = KeyNames(
    *("_meta", "name", "arguments", "uri", "ref", "argument", "context", "task", "taskId"),
    *("requestState", "inputResponses", "cursor", "level", "notifications", "type"),
)
"""The parameters that the protocol's own methods have, and the parts of a reference."""

_INFO = {"name": "holdfast", "title": "Holdfast", "version": __version__}
_STAMP = dumps({"name": "holdfast", "version": __version__, "title": "Holdfast"})
_MCP_PARAM = MCP_PARAM_HEADER_PREFIX.lower()


class McpServer:
    """All servers, or one, as an MCP server; ``owner`` is set on stdio, where there is only one client."""

    def __init__(self, broker: Broker, view: View, *, owner: Hashable = None) -> None:
        self.view = view
        self.subscriptions = Subscriptions(view)
        self._broker = broker
        self._owner = owner
        self._pipe_key = secrets.token_urlsafe(CLIENT_KEY_BYTES)
        self._forwarder = Forwarder(broker, view)
        self._pages: dict[tuple[str, bool, int], tuple[Catalog, RawObject, bytes]] = {}
        self._handlers: dict[str, Handler] = {
            **dict.fromkeys(LIST_METHODS, self._list),
            "tools/call": self._call,
            "prompts/get": self._get_prompt,
            "resources/read": self._read,
            "completion/complete": self._complete,
            **dict.fromkeys(TASK_METHODS, self._task),
            "tasks/list": self._unknown,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "logging/setLevel": self._set_level,
            "server/discover": self._discover,
            "subscriptions/listen": self._listen,
            "ping": self._ping,
        }

    def close(self) -> None:
        """End the subscription streams cleanly."""
        self.subscriptions.close()

    # Handshakes and clients.

    def initialize(self, params: Mapping[str, Any]) -> tuple[bytes, str, Mapping[str, Any]]:
        """The answer to ``initialize``, the version that it settles, and what the client declares."""
        init = types.InitializeRequestParams.model_validate(params, by_name=False)
        wanted = init.protocol_version
        version = str(wanted) if wanted in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
        result: dict[str, Any] = {
            "protocolVersion": version,
            "capabilities": self._capabilities(modern=False),
            "serverInfo": _INFO,
        }
        if text := self._instructions():
            result["instructions"] = text
        return dumps(result), version, init.capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)

    def new_client(
        self,
        *,
        channel: Channel,
        capabilities: Mapping[str, Any],
        principal: Principal = LOCAL,
        headers: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] | None = None,
        session: bytes | None = None,
    ) -> Client:
        """A legacy client, or with the ``meta`` of its request a modern one. A session may be rebuilt later."""
        modern, is_stdio = meta is not None, self._owner is not None
        key = client_key_in(headers or {}, principal, meta) if modern and not is_stdio else None
        client = Client(
            view=self.view,
            channel=channel,
            capabilities=capabilities,
            modern=modern,
            owner=self._owner if is_stdio else key or session or object(),
            principal=principal.name,
            persistent=is_stdio or key is not None,
            expires=key is not None,
            key=self._pipe_key if is_stdio else _key_of(key, session),
            via=via_in(headers or {}),
        )
        if meta is not None:
            level = meta.get(types.LOG_LEVEL_META_KEY)
            client.log_level = level if isinstance(level, str) and level in LOG_LEVELS else None
        return client

    def attach(self, client: Client) -> None:
        """A client is ready for messages."""
        self._broker.attach(client)

    def detach(self, client: Client, *, lingering: bool = False) -> None:
        """A client left; if it may come back, its own connections linger."""
        self._broker.detach(client, lingering=lingering)

    def restore(self, client: Client, subscribed: Collection[tuple[str, str]]) -> None:
        """Subscribe a rebuilt session again."""
        self._broker.restore(client, subscribed)

    def set_log_level(self, client: Client, level: str | None) -> None:
        """The lowest level of log messages that a client wants."""
        client.log_level = level
        for server in self.view.servers if level is not None else ():
            self._broker.wants_log(client, server, str(level))

    def follow_subscriptions(self, client: Client, subscribed: Collection[tuple[str, str]]) -> None:
        """Another replica changed the subscriptions of a session that is here too."""
        for server, uri in client.subscribed.difference(subscribed):
            self._broker.unsubscribe(client, server, uri)
        self._broker.restore(client, subscribed)

    async def tell_missed(self, client: Client, listed: Mapping[str, str] | None) -> None:
        """Tell a client which of its lists changed while it could not be told, and that its resources may have.

        ``listed`` is what it was given; None if that is not known: then all of them.
        """
        if listed is None:
            changed = set(LIST_METHODS)
        else:
            await self._broker.wait_for_first_listing(self.view)
            changed = {method for method, seen in listed.items() if await self._differs(method, seen)}
        self._broker.tell_missed(client, {LIST_METHODS[method][0].value for method in changed})

    async def _differs(self, method: str, seen: str) -> bool:
        """Whether the pages that a legacy client was given look different now."""
        given = ""
        for start in map(int, seen.split(":")[:-1]):
            try:
                _, digest = await self._page(method, *LIST_METHODS[method], start, modern=False)
            except MCPError:
                return True  # there is no such page any more
            given = _next_digest(given, start, digest)
        return given != seen

    def start(self, work: Callable[..., Any], *args: Any) -> None:
        """Run a task in the background."""
        self._broker.start(work, *args)

    async def _discover(self, request: ClientRequest) -> RawObject:
        self._check(request)
        notice = stateless_notice(
            [server for server in self.view.servers if self._broker.is_stateless(request.client, server)]
        )
        result: dict[str, Any] = {
            "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
            "capabilities": self._capabilities(modern=True),
        }
        if text := "\n\n".join(filter(None, (self._instructions(), notice))):
            result["instructions"] = text
        return RawObject.of(result)

    async def _ping(self, request: ClientRequest) -> RawObject:
        self._check(request)
        return RawObject.of({})

    def _instructions(self) -> str:
        return instructions(self.view)

    def _capabilities(self, *, modern: bool) -> dict[str, Any]:
        """Everything for many servers; for one server that is connected, what it declared."""
        full: dict[str, Any] = {
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "completions": {},
        }
        if modern:
            full["extensions"] = {TASKS_EXTENSION: {}}
        else:
            full |= {"logging": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
        own = self._own_capabilities()
        if own is not None:
            kept = {name: full[name] for name in full if name in own or name == "tools"}
            full = kept | {name: own[name] for name in ("experimental", "extensions") if name in own}
            if "tasks" in full:
                full["tasks"] = {name: own["tasks"][name] for name in ("cancel", "requests") if name in own["tasks"]}
        # A hub behind this one announced itself to this hub, not to its clients.
        full["experimental"] = {**full.get("experimental", {}), HUB_CAPABILITY: {"version": HUB_VERSION}}
        can = types.ServerCapabilities.model_validate(full)
        return can.model_dump(by_alias=True, mode="json", exclude_none=True)

    def _own_capabilities(self) -> Mapping[str, Any] | None:
        lease = self.view.hub.registry.slot(self.view.server).lease if self.view.server is not None else None
        return lease.connection.capabilities if lease is not None and lease.connection is not None else None

    # Every message.

    async def answer(self, request: ClientRequest) -> RawObject:
        """The result of a request, as the client's era writes it; raises ``MCPError``."""
        modern = request.client.modern
        try:
            handler = self._handlers.get(request.method)
            if handler is None:
                handler = self._handler(request.method)
            else:
                _check_spelling(request.params)
            result = await handler(request)
        except HoldfastError as error:
            raise protocol_error(error, modern=modern) from None
        if result.is_large:
            await asyncio.sleep(0)  # each pass over a large result takes milliseconds
        return result_for_client(request.method, result, modern=modern, stamp=_STAMP)

    def _handler(self, method: str) -> Handler:
        """What answers a method that is not one of the endpoint's own."""
        return self._unknown if method in protocol.SPEC_CLIENT_METHODS else self._forward_unknown

    async def _unknown(self, request: ClientRequest) -> RawObject:
        self._check(request)
        raise MCPError(METHOD_NOT_FOUND, "Method not found", request.method)

    def _check(self, request: ClientRequest) -> dict[str, Any]:
        """The parameters as values, checked against the client's version of the protocol."""
        values = request.values()
        try:
            protocol.validate_client_request(request.method, request.version, values or None)
        except KeyError:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", request.method) from None
        return values

    async def noticed(self, client: Client, version: str, message: Message) -> str | None:
        """A notification of a client; the other replica that it concerns too, if there is one."""
        if is_modern(version) or message.method != "notifications/roots/list_changed":
            return None
        params = small_values(message)
        protocol.validate_client_notification(message.method, version, params or None)
        await self._forwarder.notice(client, message.method, params)
        return self._broker.homes.known_elsewhere(client) if self._broker.homes is not None else None

    def _check_mirrored(self, request: ClientRequest, name: str) -> None:
        """Refuse a call whose headers contradict the arguments that they mirror."""
        raw = request.params.get("arguments")
        arguments = loads(raw) if raw is not None else {}
        if not isinstance(arguments, dict):
            return
        rejected = validate_mcp_param_headers(self.view.input_schema(name), arguments, request.headers)
        if rejected is not None:
            raise MCPError(rejected.code, rejected.message, rejected.data)

    # Lists.

    async def _list(self, request: ClientRequest) -> RawObject:
        cursor = self._check(request).get("cursor") if request.params else None
        await self._broker.wait_for_first_listing(self.view)
        kind, key = LIST_METHODS[request.method]
        start = _offset(cursor)
        client = request.client
        page, digest = await self._page(request.method, kind, key, start, modern=client.modern)
        if not client.modern:
            client.listed = client.listed or {}
            client.listed[request.method] = _next_digest(client.listed.get(request.method, ""), start, digest)
        return page

    async def _page(self, method: str, kind: Kind, key: str, start: int, *, modern: bool) -> tuple[RawObject, bytes]:
        """One page and its digest, made once for each catalog; other tasks get a turn while a large one is made.

        The digest is that of the page without the marks of the hub.
        """
        catalog = self.view.hub.catalog
        made = self._pages.get((method, modern, start))
        if made is not None and made[0] is catalog:
            return made[1], made[2]
        entries = self.view.entries(kind)
        own = self.view.server is None and kind in (Kind.TOOL, Kind.RESOURCE)
        if start and start >= len(entries) + own:
            raise MCPError(INVALID_PARAMS, "Invalid cursor")
        page: list[bytes] = []
        digest = blake2b(digest_size=DIGEST_BYTES)
        size = since = 0
        for entry in entries[start : start + PAGE]:
            page.append(_written(kind, self.view.item(entry), modern=modern))
            plain = self.view.unmarked_item(entry)
            digest.update(page[-1] if plain is None else _written(kind, plain, modern=modern))
            size += len(page[-1])
            if size > PAGE_BYTES:
                break
            if size > since + STEP_BYTES:
                since = size
                await asyncio.sleep(0)
        following = start + len(page)
        if own and following == len(entries) and len(page) < PAGE:
            page.append(dumps(status_tool() if kind is Kind.TOOL else status_resource()))
            digest.update(page[-1])
            following += 1
        more: Fields = {"nextCursor": dumps(str(following))} if following < len(entries) + own else {}
        members: Fields = {key: join_items([*page]), **more}
        digest.update(more.get("nextCursor", b""))
        written = RawObject(members, join_fields(members))
        if self.view.hub.catalog is catalog:
            self._pages[method, modern, start] = catalog, written, digest.digest()
        return written, digest.digest()

    @property
    def _findings(self) -> Mapping[str, str]:
        """What is wrong with each server, of its lists and of its requests."""
        listed, asked = self.view.hub.registry.findings, self._broker.findings
        return {one: "; ".join(filter(None, (listed.get(one), asked.get(one)))) for one in {**listed, **asked}}

    # Forwarded requests.

    async def _call(self, request: ClientRequest) -> RawObject:
        params = request.params
        name = text_of(params.get("name"))
        arguments = params.get("arguments")
        if name is None or (arguments is not None and not is_object(arguments)):
            raise MCPError(INVALID_PARAMS, "Invalid request parameters", "")
        if self.view.server is None and name == STATUS_TOOL:
            if arguments is not None and len(memoryview(arguments)) > LARGEST_READ:
                raise MCPError(INVALID_PARAMS, f"the arguments have more than {LARGEST_READ} bytes")
            values = loads(arguments) if arguments is not None else {}
            return RawObject.of(status_result(self.view.hub, values, self._findings))
        route = self.view.tool(name)
        if not isinstance(route, ToolRoute):
            route = await self._find_tool(name, request.client)
        if route.mirrors and request.client.modern and request.headers:
            self._check_mirrored(request, name)
        key, own = route.key, params if route.own_name is None else {**params, "name": route.own_name}
        result = await self._forwarder.forward(request, key.server, own, repeatable=route.repeatable)
        if is_new_task(result):
            return renamed(result, key.server, self._broker.task_ids, request.principal.name)
        if result.is_large:
            await asyncio.sleep(0)
        return self._linked(key, result)

    async def _task(self, request: ClientRequest) -> RawObject:
        """A request about a task; its id says which server has it."""
        client = request.client
        if self.view.server is not None and not self._runs_tasks(client):
            return await self._forward_unknown(request)
        if request.method not in (MODERN_TASKS if client.modern else LEGACY_TASKS):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", request.method)
        if client.modern and TASKS_EXTENSION not in (client.capabilities.get("extensions") or {}):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "Missing required client capability", needed)
        ids, principal = self._broker.task_ids, request.principal.name
        found = ids.find(text_of(request.params.get("taskId")) or "", principal)
        if found is None or not self.view.has(found.server) or not self._broker.check_task(found.home):
            raise MCPError(INVALID_PARAMS, "there is no such task here, or it has expired", "taskId")
        own = {**request.params, "taskId": dumps(found.id)}
        result = await self._forwarder.forward(
            request, found.server, own, repeatable=request.method in ("tasks/get", "tasks/result")
        )
        key = NameKey(Kind.TOOL, found.server, "")
        inner = result.get("result")
        if inner is not None and is_object(inner):
            result = result.changed({"result": self._linked(key, RawObject.read(inner)).written()})
        return self._linked(key, renamed(result, found.server, ids, principal))

    async def _get_prompt(self, request: ClientRequest) -> RawObject:
        values = self._check(request)
        key = await self._find(Kind.PROMPT, values["name"], request.client)
        own = {**request.params, "name": dumps(key.original)}
        return self._linked(key, await self._forwarder.forward(request, key.server, own, repeatable=True))

    async def _read(self, request: ClientRequest) -> RawObject:
        uri = str(self._check(request)["uri"])
        if uri == STATUS_URI:
            return RawObject.of(status_contents(self.view, self._findings))
        key = await self._find(Kind.RESOURCE, uri, request.client)
        own = {**request.params, "uri": dumps(key.original)}
        result = self._linked(key, await self._forwarder.forward(request, key.server, own, repeatable=True))
        return result if key.original == uri else _with_uri(result, self.view.shown_uri(key.server, key.original), uri)

    async def _complete(self, request: ClientRequest) -> RawObject:
        ref = self._check(request)["ref"]
        _check_spelling(ref)
        by = "uri" if "uri" in ref else "name"
        key = await self._find(Kind.TEMPLATE if by == "uri" else Kind.PROMPT, ref[by], request.client)
        own = {**request.params, "ref": dumps({**ref, by: key.original})}
        return await self._forwarder.forward(request, key.server, own, repeatable=True)

    async def _forward_unknown(self, request: ClientRequest) -> RawObject:
        """Forward a method that the protocol does not define, where the endpoint has one server."""
        if self.view.server is not None:
            return await self._forwarder.forward(request, self.view.server, request.params, repeatable=False)
        raise MCPError(
            METHOD_NOT_FOUND,
            f"{request.method} is not forwarded from here: this endpoint has many servers; "
            "use the endpoint of one server, /servers/<id>/mcp",
            request.method,
        )

    def _runs_tasks(self, client: Client) -> bool:
        """Whether the endpoint's server declares tasks in the client's era; assumed while it is not connected."""
        own = self._own_capabilities()
        if own is None:
            return True
        return TASKS_EXTENSION in own.get("extensions", {}) if client.modern else "tasks" in own

    def _linked(self, key: NameKey, result: RawObject) -> RawObject:
        """Return a result whose resource URIs can be read at this endpoint."""
        view = self.view
        if view.server is not None or key.server not in view.hub.registry.slots:
            return result
        return relinked(result, partial(view.shown_uri, key.server))

    async def _find_tool(self, name: str, client: Client) -> ToolRoute:
        await self._broker.wait_for_first_listing(self.view)
        found = self.view.tool(name)
        if not isinstance(found, ToolRoute):
            raise unknown_name(Kind.TOOL, found, modern=client.modern)
        return found

    async def _find(self, kind: Kind, name: str, client: Client) -> NameKey:
        found = self.view.find(kind, name)
        if not isinstance(found, NameKey):
            await self._broker.wait_for_first_listing(self.view)
            found = self.view.find(kind, name)
        if not isinstance(found, NameKey):
            raise unknown_name(kind, found, modern=client.modern)
        return found

    # Subscriptions and logging.

    async def _subscribe(self, request: ClientRequest) -> RawObject:
        uri = str(self._check(request)["uri"])
        if uri == STATUS_URI:
            request.client.subscribed.add(("", uri))
            return RawObject.of({})
        key = await self._find(Kind.RESOURCE, uri, request.client)
        await self._broker.subscribe(request.client, key.server, key.original)
        return RawObject.of({})

    async def _unsubscribe(self, request: ClientRequest) -> RawObject:
        uri = str(self._check(request)["uri"])
        request.client.subscribed.discard(("", uri))
        found = self.view.find(Kind.RESOURCE, uri)
        if isinstance(found, NameKey):
            await self._broker.check_home(request.client, found.server)
            self._broker.unsubscribe(request.client, found.server, found.original)
        return RawObject.of({})

    async def _set_level(self, request: ClientRequest) -> RawObject:
        level = self._check(request).get("level")
        if level not in LOG_LEVELS:
            raise MCPError(INVALID_PARAMS, "Invalid request parameters")
        self.set_log_level(request.client, str(level))
        return RawObject.of({})

    async def _listen(self, request: ClientRequest) -> RawObject:
        params = types.SubscriptionsListenRequestParams.model_validate(self._check(request), by_name=False)
        client = request.client
        for uri in params.notifications.resource_subscriptions or ():
            found = self.view.find(Kind.RESOURCE, str(uri))
            if isinstance(found, NameKey):
                await self._broker.subscribe(client, found.server, found.original)
        result = await self.subscriptions.listen(client.owner, request.channel, request.key, params.notifications)
        return RawObject.of(result)


def _key_of(key: ClientKey | None, session: bytes | None) -> str | None:
    """How a hub behind this one recognises a client: equal at every replica, and it tells nothing about the client."""
    known = session or (f"{key.principal}\0{key.key}".encode() if key is not None else None)
    if not known:
        return None
    return blake2b(known, digest_size=CLIENT_KEY_BYTES, person=b"holdfast client").hexdigest()


def _check_spelling(params: Mapping[str, object]) -> None:
    """Refuse a second spelling of a parameter: a server that does not look at case would read that one."""
    if others := _PARAMS.misspelled(params):
        raise MCPError(INVALID_PARAMS, f"{quoted_line(others[0])} is another spelling of a parameter's name")


def _written(kind: Kind, item: Mapping[str, Any], *, modern: bool) -> bytes:
    return dumps(dict(tool_for_client(item, modern=modern)) if kind is Kind.TOOL else item)


def _next_digest(before: str, start: int, digest: bytes) -> str:
    """What a client has of a list after one more page: where each page began, and one digest of them all.

    A page that does not follow the ones before begins again: a client that reads one page for ever costs no more.
    """
    *starts, last = before.split(":")
    if starts and start <= int(starts[-1]):
        starts, last = [], ""
    both = blake2b(bytes.fromhex(last) + digest, digest_size=DIGEST_BYTES).hexdigest()
    return ":".join((*starts, str(start), both))


def _offset(cursor: object) -> int:
    if cursor is None:
        return 0
    if isinstance(cursor, str) and cursor.isascii() and cursor.isdigit() and len(cursor) < 10:
        return int(cursor)
    raise MCPError(INVALID_PARAMS, "Invalid cursor")


def _with_uri(result: RawObject, own: str, shown: str) -> RawObject:
    """Return a resource's contents under the URI that the client asked for."""
    contents = result.get("contents")
    if contents is None or not is_array(contents):
        return result
    new = []
    for one in items(contents):
        members: Fields = fields(one) if is_object(one) else {}
        same = text_of(members.get("uri")) == own if members else False
        new.append(RawObject(members).changed({"uri": dumps(shown)}).written() if same else one)
    return result.changed({"contents": join_items(new)})
