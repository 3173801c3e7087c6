"""What the hub answers itself: methods (lists, ``ping``, subscriptions, log levels), and tools of its own.

What the hub itself reads of a request is checked here against the protocol version of its client.

The methods (``OwnMethods``). ``Lists`` has the lists of one endpoint: tools, prompts, resources and templates, page by
page. A page is made once for each catalog and era, and then given out as it is. Its digest is that of the page without
the marks of the hub: from the digests that a session was given it is known after a restart whether its lists changed.

The tools (``OwnTools``), beside those of the servers:

- ``holdfast_status`` and ``holdfast://status`` say which servers are unavailable, why, and when to try again (HUB-11).
- ``holdfast_doctor`` says why a server fails: cause, evidence and remedy (DX-12). It reads what the hub recorded and
  nothing else: it dials no server, starts nothing and edits nothing. So it is safe for any model, and costs nothing.
  The words are those of `holdfast status` and of the doctor, because one function makes them from the evidence. What a
  process or a server said is quoted and labelled (MSG-11). The remedy is for a person: a command to type, a login, a
  line in a file. A client on another machine need not know what fails inside the hub, so the tool is listed by default
  where the hub serves this machine alone. ``holdfast.doctorTool`` decides otherwise.
- ``read_result`` reads on in a result that was too large to be given whole (FIND-6).
- ``holdfast_login`` leads a user to the login that she lacks (``user_login``).
- In find mode there are those that find, describe and call all others (``find_tools``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import mcp_types as types
from mcp import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, methods as protocol

from holdfast.config import Config
from holdfast.core import (
    HUB_VERSION,
    STATUS_URI,
    ApprovalKind,
    Catalog,
    CatalogEntry,
    ChangedTool,
    Facts,
    Health,
    HttpStatus,
    Kind,
    NameKey,
    ProcessExit,
    Unknown,
    counted,
    next_try,
    quote_block,
    quoted,
    text_for,
    unmarked,
)
from holdfast.endpoint.broker import Broker, check_subscriptions
from holdfast.endpoint.clients import Call, Client, Handler, LivesElsewhere
from holdfast.endpoint.find_tools import DESCRIBE, FIND, FindTools, find_definitions, listed_for_find
from holdfast.endpoint.instructions import (
    LOGIN_TOOL,
    STATUS_TOOL,
    NotListed,
    discover,
    identity,
    mistake,
    said,
    unknown_name,
    warnings_at,
)
from holdfast.endpoint.message import LARGEST_READ, tool_for_client
from holdfast.endpoint.user_login import lacking_login, login_tool, offers_login
from holdfast.endpoint.view import LIST_METHODS, View
from holdfast.hub import (
    READ_RESULT,
    RESULTS_URI,
    access_item,
    findings,
    has_output_schema,
    latest_failure,
    read_result_tool,
    record_of,
    remedy_for,
    shown,
)
from holdfast.turns import Turns
from holdfast.wire import LOG_LEVELS, BadJson, Fields, RawObject, dumps, join_fields, join_items, loads, text_of, via_in

__all__ = [
    "STATUS_DEFINITION",
    "Lists",
    "OwnMethods",
    "OwnTools",
    "checked_values",
    "keeps_results",
    "not_listed",
    "own_items",
    "status_result",
    "unknown_method",
]


class OwnMethods:
    """Answers for one endpoint."""

    def __init__(self, broker: Broker, view: View) -> None:
        self._broker = broker
        self._view = view
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
        start = _offset(cursor)
        page, digest = await self._lists.page(call.view, call.method, start, modern=client.modern)
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
        uris, turns = params.notifications.resource_subscriptions or (), Turns()
        check_subscriptions(len(uris))
        for uri in uris:
            await turns.offer()
            found = call.view.find(Kind.RESOURCE, str(uri))
            if isinstance(found, NameKey):
                await self._broker.servers.subscribe(call.client, found.server, found.original)
        result = await self._broker.announcer.listen(call, params.notifications)
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


_Place: TypeAlias = tuple[str, str, bool, tuple[str, ...], int]
"""A page: the rights of its reader, the method, the era, the servers that lack a login, and where it begins."""


class Lists:
    """The pages of one endpoint, for all who see the same of it.

    A page is kept with the catalog and the configuration that it was made of, and is of no use when one of them was
    replaced. Nothing has to be forgotten when something changes: the next reader makes the page again in its place.
    What grows with the number of different rights is bounded (``MOST_PAGES``), and a page is kept only if a cursor of
    the hub leads to it: a client may send any number as a cursor (SEC-11).

    A legacy client is told after a restart which of its lists changed (``differs``), though it was given them by
    another process. For that its session keeps a digest of each list. The digest is of the items without the marks of
    the hub: right after a restart every item is marked as not yet verified, and has not changed.
    """

    def __init__(self) -> None:
        self._pages: dict[_Place, tuple[Catalog, Config, RawObject, bytes]] = {}

    async def differs(self, view: View, method: str, seen: str) -> bool:
        """Whether the pages that a legacy client was given look different now."""
        given = ""
        for start in map(int, seen.split(":")[:-1]):
            try:
                _, digest = await self.page(view, method, start, modern=False)
            except MCPError:
                return True  # there is no such page any more
            given = next_digest(given, start, digest)
        return given != seen

    async def page(self, view: View, method: str, start: int, *, modern: bool) -> tuple[RawObject, bytes]:
        """The page that begins with an item, and its digest; raises ``MCPError`` if there is no such page."""
        catalog, config = view.now.catalog, view.hub.config
        lacking = lacking_login(view) if method == "tools/list" else ()
        place: _Place = (view.rights, method, modern, lacking, start)
        made = self._pages.get(place)
        if made is not None and made[0] is catalog and made[1] is config:
            return made[2], made[3]
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
        # A listing may have come between two steps. The page is kept with the catalog that it was made of, so it is
        # given to no one who sees another.
        self._keep(place, (catalog, config, written, digest.digest()))
        return written, digest.digest()

    def _keep(self, place: _Place, page: tuple[Catalog, Config, RawObject, bytes]) -> None:
        *of_list, start = place
        alike = [one for one in self._pages if [*one[:-1]] == of_list]
        if not start:
            for one in alike:  # the list is made again, and what followed its first page is of no use
                del self._pages[one]
        elif all(self._pages[one][2].get("nextCursor") != dumps(str(start)) for one in alike):
            return  # a client may name any item as the first one: no page of the hub ends before this one
        if place[0] and place not in self._pages:
            limited = [one for one in self._pages if one[0]]
            if len(limited) >= MOST_PAGES:
                del self._pages[limited[0]]
        self._pages[place] = page


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


# The tools of the hub itself.


class OwnTool(NamedTuple):
    """A tool of the hub itself."""

    is_offered: Callable[[View], bool]
    """Whether those who see a view can call it. At an endpoint of one server the name may be one of the server's."""
    answer: Handler


class OwnTools:
    """Answers calls of the hub's own tools at one endpoint."""

    def __init__(self, broker: Broker, view: View) -> None:
        self._broker = broker
        self._view = view
        self._kept = view.hub.kept_results
        self.by_name: Mapping[str, OwnTool] = {
            STATUS_TOOL: OwnTool(_offers_status, self._status),
            DOCTOR_TOOL: OwnTool(_offers_doctor, self._doctor),
            READ_RESULT: OwnTool(keeps_results, self._read_on),
            LOGIN_TOOL: OwnTool(offers_login, self._login),
            **dict.fromkeys((FIND, DESCRIBE), OwnTool(_finds, self._find)),
        }

    def status_contents(self, view: View) -> RawObject:
        """The contents of the status resource."""
        return RawObject.of(status_contents(view, self._findings(view)))

    async def _status(self, call: Call) -> RawObject:
        await call.view.settle()
        return RawObject.of(status_result(call.view, _arguments(call), self._findings(call.view)))

    async def _doctor(self, call: Call) -> RawObject:
        return RawObject.of(_doctor_result(call.view, _arguments(call)))

    async def _read_on(self, call: Call) -> RawObject:
        """Raises ``LivesElsewhere`` if another replica has the result."""
        values = _arguments(call)
        await self._check_home(values.get("handle"), call.bound_to)
        return await self._kept.read(values, call.bound_to)

    async def _login(self, call: Call) -> RawObject:
        return await self._broker.logins.answer(call, call.view, _arguments(call))

    async def _find(self, call: Call) -> RawObject:
        name = text_of(call.params.get("name")) or ""
        return RawObject.of(await FindTools(call.view).own_answer(name, _arguments(call)))

    def _findings(self, view: View) -> Mapping[str, str]:
        """What is wrong with each server, of its lists and of its requests."""
        listed, asked = findings(view.now.catalog, view.shows), self._broker.findings
        return {one: "; ".join(filter(None, (listed.get(one), asked.get(one)))) for one in {**listed, **asked}}

    # Large results (FIND-6). They are in ``hub/kept_results``. Here is what an endpoint knows beside: its names, the
    # caller's protocol and principal, and the other replicas.

    async def shortened(self, call: Call, tool: NameKey, result: RawObject) -> RawObject:
        """A tool's result as its caller gets it: whole, or its beginning if it is large.

        A hub in front of this one gets every result whole: its clients cannot read on here, and it shortens results
        itself.
        """
        if via_in(call.headers) or has_output_schema(self._view.now.catalog, tool):
            return result
        homes = self._broker.homes
        return await self._kept.shortened(
            result,
            f"{tool.server}/{tool.original}",
            principal=call.bound_to,
            replica=homes.tag if homes is not None else "",
            links=call.client.modern or call.version >= LINKS_SINCE,
        )

    async def kept_result(self, call: Call) -> RawObject:
        """The contents of the resource that a shortened result links to."""
        uri = text_of(call.params["uri"]) or ""
        await self._check_home(uri.removeprefix(RESULTS_URI), call.bound_to)
        kept = await self._kept.contents(uri, call.bound_to)
        if kept is None:
            raise not_listed(call, self._view, Kind.RESOURCE, Unknown(uri, ()))
        return kept

    async def _check_home(self, handle: object, principal: str) -> None:
        """Raise ``LivesElsewhere`` if another replica keeps the result with this handle."""
        homes = self._broker.homes
        if homes is None or not isinstance(handle, str) or self._kept.knows(handle, principal):
            return
        tag, dot, _ = handle.partition(".")
        if dot and (there := await homes.replica_of(tag)) is not None:
            raise LivesElsewhere(there, RESULT_LOST)


def own_items(view: View, kind: Kind, lacking: tuple[str, ...]) -> list[dict[str, Any]]:
    """The hub's own items of an endpoint's list; ``lacking`` are the servers that lack the login of its user."""
    if kind is not Kind.TOOL:
        return [_STATUS_RESOURCE] if kind is Kind.RESOURCE and view.server is None else []
    own = find_definitions(view.servers) if _finds(view) else []
    own += [STATUS_DEFINITION] if _offers_status(view) else []
    own += [_DOCTOR_DEFINITION] if _offers_doctor(view) else []
    own += [read_result_tool()] if keeps_results(view) else []
    own += [login_tool(lacking)] if lacking else []
    return [listed_for_find(tool) for tool in own] if _finds(view) else own


def _arguments(call: Call) -> Mapping[str, Any]:
    """The arguments of one of the hub's own tools; raises ``MCPError``."""
    raw = call.params.get("arguments")
    if raw is not None and len(raw) > LARGEST_READ:
        raise MCPError(INVALID_PARAMS, f"the arguments have more than {LARGEST_READ} bytes")
    try:
        values = loads(raw) if raw is not None else {}
    except BadJson as exc:
        raise MCPError(INVALID_PARAMS, f"the arguments cannot be read: {exc}") from None
    return values if isinstance(values, Mapping) else {}


def _finds(view: View) -> bool:
    """Whether an endpoint is in find mode."""
    return view.tools == "find"


def _offers_status(view: View) -> bool:
    """Whether an endpoint has the status tool; that of one server has the server's own names alone."""
    return view.server is None or view.tools == "find"


# The status.


def _tool_about_servers(name: str, title: str, description: str, default: str) -> dict[str, Any]:
    """A tool that reads what the hub knows, of one server or of several."""
    server = {"type": "string", "description": f"The id of one server; {default}."}
    return {
        "name": name,
        "title": title,
        "description": description,
        "inputSchema": {"type": "object", "properties": {"server": server}},
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }


STATUS_DEFINITION: Final = _tool_about_servers(
    STATUS_TOOL,
    "Holdfast status",
    "Which MCP servers behind this endpoint are unavailable, why, and when to try again.",
    "all servers if left out",
)
_STATUS_RESOURCE: Final = {
    "uri": STATUS_URI,
    "name": "holdfast-status",
    "title": "Holdfast status",
    "description": "The state of every MCP server behind this endpoint.",
    "mimeType": "application/json",
}


def status_result(view: View, arguments: Mapping[str, Any], findings: Mapping[str, str]) -> dict[str, Any]:
    """Return the result of the tool, about the servers of the endpoint alone."""
    wanted = arguments.get("server")
    servers = {name: one for name, one in _servers(view, findings).items() if wanted in (None, name)}
    if wanted is not None and not servers:
        return _no_server(view, wanted)
    lines = [_line(name, one) for name, one in servers.items()]
    return said("\n".join(filter(None, (warnings_at(view), *lines))), {"servers": servers})


def _no_server(view: View, wanted: object) -> dict[str, Any]:
    known = ", ".join(view.servers) or "none"
    return mistake(f"No server named {quoted(str(wanted)[:400])} is configured. Configured: {known}.")


def status_contents(view: View, findings: Mapping[str, str]) -> dict[str, Any]:
    """Return the contents of the resource: for people, and with a record of each server for another hub."""
    servers = _servers(view, findings)
    told = {name: {**record_of(view.slot(name)).written(), **one} for name, one in servers.items()}
    body = {"version": HUB_VERSION, "servers": told, "identity": identity(view), "collisions": _collisions(view)}
    text = json.dumps(body, ensure_ascii=False, indent=1)
    return {"contents": [{"uri": STATUS_URI, "mimeType": "application/json", "text": text}]}


def _servers(view: View, findings: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    tools = dict[str, int]()
    for entry in view.all_entries(Kind.TOOL):
        tools[entry.server] = tools.get(entry.server, 0) + 1
    return {
        name: {
            "state": health.shown_state,
            "status": health.status,
            "available": health.status in ("available", "idle"),
            "reason": health.reason,
            "retryIn": health.next_try,
            "tools": tools.get(name, 0),
        }
        | ({"finding": findings[name]} if name in findings else {})
        | ({"changedTools": sorted(one.label for one in changed)} if (changed := _changed(view, name)) else {})
        for name, health in ((name, view.slot(name).health()) for name in view.servers if view.has(name))
    }


_APPROVED: Final[Mapping[ApprovalKind, Kind]] = {"tool": Kind.TOOL, "prompt": Kind.PROMPT}


def _changed(view: View, server: str) -> list[ChangedTool]:
    """What of a server changed and is there for those who see a view; of a per-user server what this user has.

    A prompt is judged by the rules for prompts. The instructions are the server's, and the view has the server.
    """
    own = view.hub.registry.users.has_own(view.principal, server)
    hers = {entry.key for kind in _APPROVED.values() for entry in view.now.catalog.of(kind)} if own else set[NameKey]()
    found = []
    for one in view.hub.approvals.pending(server):
        key = NameKey(_APPROVED[one.kind], server, one.tool) if one.kind in _APPROVED else None
        if key is None or (view.shows(key) and (not own or key in hers)):
            found.append(one)
    return found


def _line(name: str, one: Mapping[str, Any]) -> str:
    because = f": {one['reason']}" if one["reason"] and not one["available"] else ""
    later = f" (next try {when})" if (when := next_try(one["retryIn"])) and not one["available"] else ""
    changed = one.get("changedTools")
    warning = f"; changed since first seen: {', '.join(changed)}" if changed else ""
    finding = f"; {one['finding']}" if "finding" in one else ""
    return f"{name}: {one['state']}{because}{later}; {counted(one['tools'], 'tool')} listed{finding}{warning}"


def _collisions(view: View) -> list[dict[str, str]]:
    return [
        {"server": one.key.server, "name": one.key.original, "wanted": one.wanted, "given": one.given}
        for one in view.now.catalog.collisions
        if view.covers(one.key.server) and view.shows(one.key)
    ]


# The doctor.

DOCTOR_TOOL = "holdfast_doctor"

_DOCTOR_DEFINITION: Final = _tool_about_servers(
    DOCTOR_TOOL,
    "Holdfast doctor",
    "Why an MCP server behind this endpoint fails: cause, evidence, and what a person can do.",
    "all that fail if left out",
)

LONGEST_EVIDENCE = 2_000
"""Characters of what a server said."""

MOST_SERVERS = 20
"""How many servers one answer explains. The others are named."""


def _offers_doctor(view: View) -> bool:
    """Whether an endpoint has the tool: by the config, else where the hub serves this machine alone."""
    written = view.hub.config.settings.doctor_tool
    wanted = view.hub.is_local if written == "auto" else written == "on"
    return wanted and _offers_status(view)


def _doctor_result(view: View, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of the tool."""
    wanted = arguments.get("server")
    healths = {name: health for name, health in view.hub.servers.items() if view.covers(name)}
    if wanted is not None and wanted not in healths:
        return _no_server(view, wanted)
    ill = [name for name, one in healths.items() if (name == wanted if wanted is not None else one.failure is not None)]
    told = {name: _diagnosis(view, name, healths[name]) for name in ill[:MOST_SERVERS]}
    parts = [_doctor_words(name, one, healths[name].retry_in) for name, one in told.items()]
    if more := ill[MOST_SERVERS:]:
        parts.append(f"{len(more)} more servers fail: {', '.join(more)}. Ask about each by `server`.")
    if not parts:
        parts.append(f"No server fails: {len(healths)} of {len(healths)} can be used.")
    return said("\n\n".join(parts), {"servers": told})


def _diagnosis(view: View, name: str, health: Health) -> dict[str, Any]:
    slot = view.slot(name)
    remedy = remedy_for(slot)
    held = [one for one in _changed(view, name) if one.held]
    words = text_for(health, Facts(held=len(held), hint=remedy.hint, login=remedy.login))
    return {
        "state": health.shown_state,
        "status": health.status,
        "cause": health.reason if health.failure is not None else words.summary,
        "evidence": {"kind": record_of(slot).kind, "said": _said(latest_failure(slot))},
        "failures": health.failures,
        "remedy": words.action,
        "command": words.command,
        "retryIn": health.next_try,
    }


def _said(seen: object) -> str:
    """What the process or the server itself said, cut; empty if it said nothing."""
    match seen:
        case ProcessExit():
            return (seen.stderr or seen.noise)[-LONGEST_EVIDENCE:]
        case HttpStatus():
            return seen.body[:LONGEST_EVIDENCE]
    return ""


def _doctor_words(name: str, one: Mapping[str, Any], own_try: float | None) -> str:
    """For people. ``own_try``: seconds until the hub itself tries; ``retryIn`` may be the time of a call."""
    evidence = one["evidence"]
    lines = [f"{name}: {one['state']}", f"Cause: {one['cause'] or 'none is recorded'}"]
    if evidence["kind"]:
        counted = f"; {one['failures']} failures in a row" if one["failures"] > 1 else ""
        lines.append(f"Evidence: {evidence['kind'].replace('_', ' ')}{counted}")
    if block := quote_block(evidence["said"], LONGEST_EVIDENCE):
        lines += ["What it said, in its own words:", block]
    if one["remedy"]:
        typed = f" A person types: {one['command']}" if one["command"] else ""
        lines.append(f"Remedy: {one['remedy']}{typed}")
    if when := next_try(own_try):
        lines.append(f"The hub tries again by itself {when}.")
    return "\n".join(lines)


# Large results.

LINKS_SINCE: Final = "2025-06-18"
"""The first version of the protocol in which a result may hold links to resources."""

RESULT_LOST: Final = "the result with this handle is kept by a replica that does not answer. Call the tool again."


def keeps_results(view: View) -> bool:
    """Whether large results are kept for the clients of an endpoint.

    The endpoint of one server has the server's own names. Where one of its tools is named ``read_result``, results go
    out whole: their clients could not read on.
    """
    if not view.hub.registry.config.settings.large_results.over:
        return False
    own = NameKey(Kind.TOOL, view.server, READ_RESULT) if view.server is not None and view.tools == "all" else None
    return own is None or own not in view.now.catalog.names
