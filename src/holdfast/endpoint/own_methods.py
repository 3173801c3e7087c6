"""The methods that the hub answers itself: lists, ``server/discover``, ``ping``, subscriptions and log levels.

What the hub itself reads of a request is checked here against the protocol version of its client.

``Lists`` has the lists of one endpoint: tools, prompts, resources and templates, page by page.

A page is made once for each catalog and era, and then given out as it is. Its digest is that of the page without the
marks of the hub: from the digests that a session was given it is known after a restart whether its lists changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, TypeAlias

import mcp_types as types
from mcp import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, methods as protocol

from holdfast.config import Config
from holdfast.core import STATUS_URI, Catalog, CatalogEntry, Kind, NameKey, Unknown, unmarked
from holdfast.endpoint.announcements import Listeners
from holdfast.endpoint.broker import Broker
from holdfast.endpoint.clients import Call, Client
from holdfast.endpoint.eras import tool_for_client
from holdfast.endpoint.find_tools import listed_for_find
from holdfast.endpoint.instructions import NotListed, discover, unknown_name
from holdfast.endpoint.own_tools import Handler, own_items
from holdfast.endpoint.user_login import lacking_login
from holdfast.endpoint.view import LIST_METHODS, View
from holdfast.hub import access_item, shown
from holdfast.turns import Turns
from holdfast.wire import LOG_LEVELS, Fields, RawObject, dumps, join_fields, join_items

__all__ = ["Lists", "OwnMethods", "checked_values", "not_listed", "unknown_method"]


class OwnMethods:
    """Answers for one endpoint."""

    def __init__(self, broker: Broker, view: View, listeners: Listeners) -> None:
        self._broker = broker
        self._view = view
        self._listeners = listeners
        self._lists = Lists()
        self.handlers: Mapping[str, Handler] = {
            **dict.fromkeys(LIST_METHODS, self._list),
            "tasks/list": unknown_method,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "logging/setLevel": self._set_level,
            "server/discover": self._discover,
            "subscriptions/listen": self._listen,
            "ping": self._ping,
        }

    async def tell_missed(self, client: Client, listed: Mapping[str, str] | None) -> None:
        """Tell a client which of its lists changed while it could not be told, and that its resources may have.

        ``listed`` is what it was given; None if that is not known: then all of them.
        """
        if listed is None:
            changed = set(LIST_METHODS)
        else:
            await self._broker.servers.wait_for_first_listing(self._view)
            view = client.seen
            await view.settle()
            changed = {method for method, seen in listed.items() if await self._lists.differs(view, method, seen)}
        self._broker.announcer.missed(client, {LIST_METHODS[method][0].value for method in changed})

    async def _list(self, call: Call) -> RawObject:
        cursor = checked_values(call).get("cursor") if call.params else None
        client = call.client
        asker = client if call.method == "tools/list" else None
        await self._broker.servers.wait_for_first_listing(call.view, asker)
        await call.view.settle()
        page, start, digest = await self._lists.page(call.view, call.method, cursor, modern=client.modern)
        if not client.modern:
            client.listed = client.listed or {}
            client.listed[call.method] = next_digest(client.listed.get(call.method, ""), start, digest)
        return page

    async def _discover(self, call: Call) -> RawObject:
        checked_values(call)
        servers = self._broker.servers
        return discover(call.view, [one for one in call.view.servers if servers.is_stateless(call.client, one)])

    async def _ping(self, call: Call) -> RawObject:
        checked_values(call)
        return RawObject.of({})

    async def _subscribe(self, call: Call) -> RawObject:
        uri = str(checked_values(call)["uri"])
        if uri == STATUS_URI:
            call.client.subscribed.add(("", uri))
            return RawObject.of({})
        found = call.view.find(Kind.RESOURCE, uri)
        if not isinstance(found, NameKey):  # servers that were never listed get a moment first
            await self._broker.servers.wait_for_first_listing(call.view)
            found = call.view.find(Kind.RESOURCE, uri)
        if not isinstance(found, NameKey):
            raise not_listed(call, self._view, Kind.RESOURCE, found)
        await self._broker.servers.subscribe(call.client, found.server, found.original)
        return RawObject.of({})

    async def _unsubscribe(self, call: Call) -> RawObject:
        uri = str(checked_values(call)["uri"])
        call.client.subscribed.discard(("", uri))
        found = self._view.find(Kind.RESOURCE, uri)
        if isinstance(found, NameKey):
            await self._broker.servers.check_home(call.client, found.server)
            self._broker.servers.unsubscribe(call.client, found.server, found.original)
        return RawObject.of({})

    async def _set_level(self, call: Call) -> RawObject:
        level = checked_values(call).get("level")
        if level not in LOG_LEVELS:
            raise MCPError(INVALID_PARAMS, "Invalid request parameters")
        self._broker.servers.set_log_level(call.client, str(level))
        return RawObject.of({})

    async def _listen(self, call: Call) -> RawObject:
        params = types.SubscriptionsListenRequestParams.model_validate(checked_values(call), by_name=False)
        if call.sent_before:
            # Its stream ended with the hub before: the result says so, and the client listens again.
            return RawObject.of({"_meta": {SUBSCRIPTION_ID_META_KEY: call.message.key}})
        for uri in params.notifications.resource_subscriptions or ():
            found = call.view.find(Kind.RESOURCE, str(uri))
            if isinstance(found, NameKey):
                await self._broker.servers.subscribe(call.client, found.server, found.original)
        result = await self._listeners.listen(call, params.notifications)
        return RawObject.of(result)


def checked_values(call: Call) -> dict[str, Any]:
    """The parameters as values, checked against the client's version of the protocol."""
    values = call.message.values()
    try:
        protocol.validate_client_request(call.method, call.version, values or None)
    except KeyError:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", call.method) from None
    return values


async def unknown_method(call: Call) -> RawObject:
    """Refuse a method of the protocol that the hub does not have."""
    checked_values(call)
    raise MCPError(METHOD_NOT_FOUND, "Method not found", call.method)


def not_listed(call: Call, view: View, kind: Kind, found: Unknown) -> NotListed:
    """The error for a name that is not there for the caller. The audit learns of the rule that hides it (SEC-14)."""
    grants = call.view.grants
    there = view.find(kind, found.name) if grants is not None else None
    if grants is not None and isinstance(there, NameKey):
        call.server, call.hidden_by = there.server, grants.hidden_by(access_item(view.hub.registry, there))
    return unknown_name(kind, found, modern=call.client.modern)


PAGE = 1_000
"""How many items one answer lists. Some clients read only the first page, so it is large."""

PAGE_BYTES = 8 * 1024 * 1024
"""How large a page may become."""

DIGEST_BYTES = 8
"""Of a list that a client was given: enough to tell whether it changed."""


MOST_PAGES = 64
"""How many pages are kept for callers that do not see everything. A page that is dropped is made again."""


_Place: TypeAlias = tuple[str, str, bool, int, tuple[str, ...]]
"""A page: the rights of its reader, the method, the era, where it begins, and the servers that lack a login."""


class Lists:
    """The pages of one endpoint, for all who see the same of it."""

    def __init__(self) -> None:
        self._pages: dict[_Place, tuple[Catalog, Config, RawObject, bytes]] = {}

    async def page(self, view: View, method: str, cursor: object, *, modern: bool) -> tuple[RawObject, int, bytes]:
        """One page, where it begins, and its digest; raises ``MCPError`` if the cursor is of no page."""
        start = _offset(cursor)
        return await self._page(view, method, start, modern=modern)

    async def differs(self, view: View, method: str, seen: str) -> bool:
        """Whether the pages that a legacy client was given look different now."""
        given = ""
        for start in map(int, seen.split(":")[:-1]):
            try:
                _, _, digest = await self._page(view, method, start, modern=False)
            except MCPError:
                return True  # there is no such page any more
            given = next_digest(given, start, digest)
        return given != seen

    async def _page(self, view: View, method: str, start: int, *, modern: bool) -> tuple[RawObject, int, bytes]:
        catalog, config = view.user.catalog, view.hub.config
        lacking = lacking_login(view) if method == "tools/list" else ()
        place: _Place = (view.rights, method, modern, start, lacking)
        made = self._pages.get(place)
        if made is not None and made[0] is catalog and made[1] is config:
            return made[2], start, made[3]
        kind, key = LIST_METHODS[method]
        entries = view.entries(kind)
        # The hub's own items count as one: they are on the page of the last item, or on one of their own.
        own = own_items(view, kind, lacking)
        units = len(entries) + bool(own)
        if start and start >= units:
            raise MCPError(INVALID_PARAMS, "Invalid cursor")
        page: list[bytes] = []
        digest = blake2b(digest_size=DIGEST_BYTES)
        size, turns = 0, Turns()
        for entry in entries[start : start + PAGE]:
            page.append(_written(kind, _listed(view, _item(view, entry)), modern=modern))
            plain = _unmarked_item(view, entry)
            digest.update(page[-1] if plain is None else _written(kind, plain, modern=modern))
            size += len(page[-1])
            if size > PAGE_BYTES:
                break
            await turns.offer()
        following = start + len(page)
        if own and following == len(entries) and len(page) < PAGE:
            written_own = [_written(kind, item, modern=modern) for item in own]
            page += written_own
            digest.update(b"".join(written_own))
            following += 1
        more: Fields = {"nextCursor": dumps(str(following))} if following < units else {}
        members: Fields = {key: join_items([*page]), **more}
        digest.update(more.get("nextCursor", b""))
        written = RawObject(members, join_fields(members))
        if view.user.catalog is catalog:
            self._keep(place, (catalog, config, written, digest.digest()))
        return written, start, digest.digest()

    def _keep(self, place: _Place, page: tuple[Catalog, Config, RawObject, bytes]) -> None:
        if place[0] and place not in self._pages:
            limited = [one for one in self._pages if one[0]]
            if len(limited) >= MOST_PAGES:
                del self._pages[limited[0]]
        self._pages[place] = page

    def __repr__(self) -> str:
        return f"<Lists: {len(self._pages)} pages made>"


_NAME = {Kind.TOOL: "name", Kind.PROMPT: "name", Kind.RESOURCE: "uri", Kind.TEMPLATE: "uriTemplate"}


def _item(view: View, entry: CatalogEntry) -> dict[str, Any]:
    """One item, as it goes over the wire."""
    return {**shown(entry), _NAME[entry.key.kind]: view.name_of(entry)}


def _unmarked_item(view: View, entry: CatalogEntry) -> dict[str, Any] | None:
    """One item without the marks of the hub; None if it has none."""
    plain = unmarked(entry.item.raw)
    if entry.verified and plain is entry.item.raw:
        return None
    return {**plain, _NAME[entry.key.kind]: view.name_of(entry)}


def _listed(view: View, item: dict[str, Any]) -> dict[str, Any]:
    return listed_for_find(item) if view.tools == "find" and "inputSchema" in item else item


def next_digest(before: str, start: int, digest: bytes) -> str:
    """What a client has of a list after one more page: where each page began, and one digest of them all.

    A page that does not follow the ones before begins again: a client that reads one page for ever costs no more.
    """
    *starts, last = before.split(":")
    if starts and start <= int(starts[-1]):
        starts, last = [], ""
    both = blake2b(bytes.fromhex(last) + digest, digest_size=DIGEST_BYTES).hexdigest()
    return ":".join((*starts, str(start), both))


def _written(kind: Kind, item: Mapping[str, Any], *, modern: bool) -> bytes:
    return dumps(dict(tool_for_client(item, modern=modern)) if kind is Kind.TOOL else item)


def _offset(cursor: object) -> int:
    if cursor is None:
        return 0
    if isinstance(cursor, str) and cursor.isascii() and cursor.isdigit() and len(cursor) < 10:
        return int(cursor)
    raise MCPError(INVALID_PARAMS, "Invalid cursor")
