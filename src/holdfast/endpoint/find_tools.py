"""Find mode: an endpoint that lists five tools in place of all, and lets a model find, read and call the others.

The mode belongs to the address (``/mcp?tools=find``), never to a session: lists of 2026-07-28 do not vary by
connection. What must hold:

- The list has a bounded size for any number of servers, and it changes only when servers are added or removed, or a
  pinned tool changes. It names servers and not their states: a state would change the list, and with it the prompt
  that a client caches.
- A call through ``call_tool`` is the inner call. From here on the request has the inner name and the inner arguments,
  so approvals, breaker, progress, tasks, questions and the headers to the server see nothing else.
- ``call_readonly_tool`` runs only tools that declare themselves read-only. A person who allows it always has not
  allowed a deletion.
- A tool that may not be called is not found, not described and not suggested. A server that denies access now is not
  searched either. A call to one of its tools is answered with the denial.

A mistake of a model (an unknown name, a missing argument) is a tool result that says what to do next. It is not a
protocol error, which a model may never see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mcp_types import INVALID_PARAMS

from holdfast.access import LOCAL
from holdfast.core import HUB_NAME, CatalogEntry, Kind, NameKey, RpcError, nearest, quoted_line, quoted_name
from holdfast.endpoint.instructions import mistake, said
from holdfast.endpoint.view import EndpointAddress, ToolRoute, View
from holdfast.errors import CallFailed
from holdfast.hub import READ_RESULT, Hub, found_tool, read_result_tool, shown
from holdfast.types import CallResult, ProgressFn, Tool
from holdfast.wire import BadJson, Bytes, dumps, fields, is_object, loads, text_of

__all__ = ["FIND_NAMES", "FindTools", "find_definitions", "finding_tools", "listed_for_find"]

FIND, DESCRIBE, CALL, CALL_READONLY = "find_tools", "describe_tools", "call_tool", "call_readonly_tool"
FIND_NAMES: Final = frozenset({FIND, DESCRIBE, CALL, CALL_READONLY})

HITS, MOST_HITS, MOST_DESCRIBED = 5, 20, 5

NAMES_SHOWN: Final = 240
"""Characters of server names in the description of ``find_tools``, for any number of servers: some hundred tokens."""

FULL_LIST: Final = "tools/list at this hub's address with `?tools=all` has every tool"

ALWAYS_LOAD: Final = {"anthropic/alwaysLoad": True}
"""Claude Code hides tools behind a search of its own, unless this stands in their ``_meta``."""


def find_definitions(servers: Sequence[str]) -> list[dict[str, Any]]:
    """The hub's own tools of an endpoint in find mode that has these servers; the status tool is not among them."""
    text = {"type": "string"}
    inner = {"name": text, "arguments": {"type": "object"}}
    return [
        _tool(
            FIND,
            f"Find tools by what they do. Each hit shows its parameters and whether it can be called now. Call it"
            f" with {CALL_READONLY} or {CALL}. Servers: {_names(servers)}.",
            {
                "query": {**text, "description": "What the tool should do, in plain words"},
                "limit": {"type": "integer", "minimum": 1, "maximum": MOST_HITS, "default": HITS},
                "server": {**text, "description": "Only tools of this server"},
            },
            required=["query"],
            annotations={"readOnlyHint": True, "openWorldHint": False},
        ),
        _tool(
            DESCRIBE,
            f"The whole description and input schema of up to {MOST_DESCRIBED} tools.",
            {"names": {"type": "array", "items": text, "maxItems": MOST_DESCRIBED}},
            required=["names"],
            annotations={"readOnlyHint": True, "openWorldHint": False},
        ),
        _tool(
            CALL_READONLY,
            f"Call a tool that only reads, by its name from {FIND}.",
            inner,
            required=["name"],
            annotations={"readOnlyHint": True},
        ),
        _tool(
            CALL,
            f"Call any tool, by its name from {FIND}. It may change or delete things.",
            inner,
            required=["name"],
            annotations={"readOnlyHint": False, "destructiveHint": True},
        ),
    ]


def listed_for_find(item: Mapping[str, Any]) -> dict[str, Any]:
    """A tool for the list of find mode: no client shall hide it behind a search of its own."""
    meta = item.get("_meta")
    return {**item, "_meta": {**(meta if isinstance(meta, Mapping) else {}), **ALWAYS_LOAD}}


class InnerCall(NamedTuple):
    """The call that a model asks for through ``call_tool``."""

    name: str
    route: ToolRoute
    arguments: Bytes
    raw: Mapping[str, object]
    """The description of the tool; empty if it is not listed."""

    def refused(self, error: CallFailed) -> dict[str, Any]:
        """The result if its server refused the arguments; raises every other failure."""
        if not isinstance(error.evidence, RpcError) or error.evidence.code != INVALID_PARAMS:
            raise error
        why = quoted_line(error.evidence.message)
        return mistake(_with_schema(f'{self.name} refused its arguments: "{why}".', self.raw))


class FindTools:
    """What the hub's own tools of find mode do, for one endpoint or one program."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def own_answer(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The result of ``find_tools`` or ``describe_tools``."""
        return await self._find(values) if name == FIND else self._describe(values)

    async def _find(self, values: Mapping[str, Any]) -> dict[str, Any]:
        query, limit, server = values.get("query"), values.get("limit", HITS), values.get("server")
        if not isinstance(query, str) or not isinstance(limit, int) or not isinstance(server, str | None):
            return mistake(f"{FIND} needs `query`, a text; `limit` is a number and `server` a text")
        view, hub = self._view, self._view.hub
        if server is not None and not view.has(server):
            near = nearest(server, view.servers) or view.servers
            return mistake(f"There is no server {quoted_name(server)} here. Servers: {_names(near)}")
        denied = frozenset(name for name in view.servers if view.slot(name).health().status == "denied")
        found = await hub.tool_index.search(
            view.now.catalog,
            query,
            limit=min(max(limit, 1), MOST_HITS),
            allowed=lambda entry: (
                server in (None, entry.server) and entry.server not in denied and self._may_call(entry)
            ),
        )
        hits = [
            found_tool(entry, view.name_of(entry), view.slot(entry.server).health())
            for entry in found
            if view.has(entry.server)
        ]
        if not hits:
            near = nearest(query[:80], view.servers) or view.servers
            # A denial is told of the server, and not hidden behind "no tool".
            told = f" Access is denied at: {_names(there)}." if (there := sorted(denied & {*view.servers})) else ""
            return said(f"No tool matches. Servers: {_names(near)}.{told} {FULL_LIST}.", {"tools": []})
        data = [
            {
                "name": hit.name,
                "server": hit.server_id,
                "signature": hit.signature,
                "summary": hit.summary,
                "available": hit.available,
                **({} if hit.available else {"state": hit.state, "reason": hit.reason, "retryIn": hit.retry_in}),
            }
            for hit in hits
        ]
        return said("\n".join(hit.text for hit in hits), {"tools": data})

    def _describe(self, values: Mapping[str, Any]) -> dict[str, Any]:
        names = values.get("names")
        wanted = [names] if isinstance(names, str) else names
        if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
            return mistake(f"{DESCRIBE} needs `names`, a list of texts")
        if not 1 <= len(wanted) <= MOST_DESCRIBED:
            return mistake(f"{DESCRIBE} takes 1 to {MOST_DESCRIBED} names")
        told = [self._described(name) for name in dict.fromkeys(wanted)]
        return said("\n\n".join(text for text, _ in told), {"tools": [tool for _, tool in told if tool is not None]})

    def _described(self, name: str) -> tuple[str, dict[str, Any] | None]:
        entry = self._entry(self._view.find(Kind.TOOL, name))
        if entry is None:
            return self._unknown(name), None
        raw = shown(entry)
        described = {key: raw[key] for key in ("title", "description", "annotations", "inputSchema") if key in raw}
        schema = dumps(raw.get("inputSchema", {})).decode()
        text = f"{name}\n{raw.get('description') or 'It has no description.'}\ninputSchema: {schema}"
        return text, {"name": name, "server": entry.server, **described}

    def inner_call(self, arguments: Bytes | None, *, readonly: bool) -> InnerCall | dict[str, Any]:
        """The call that the arguments of ``call_tool`` ask for, or the result that says what is wrong with them."""
        try:
            asked = fields(arguments) if arguments is not None else {}
        except BadJson as exc:
            return mistake(f"The arguments cannot be read: {exc}. Call the tool under its own name.")
        name, inner = text_of(asked.get("name")), asked.get("arguments")
        if name is None:
            return mistake(f"`name` is missing: the name of a tool, as {FIND} gives it")
        route = self._view.tool(name) if name not in FIND_NAMES else None
        if not isinstance(route, ToolRoute):
            return mistake(self._unknown(name))
        raw = entry.item.raw if (entry := self._entry(route.key)) is not None else {}
        if readonly and not _reads_only(raw):
            return mistake(f"{name} does not declare that it only reads. Call it with {CALL}.")
        if problem := _problem(raw, inner):
            return mistake(_with_schema(f"{name} was not called: {problem}.", raw))
        return InnerCall(name, route, inner if inner is not None else b"{}", raw)

    def _entry(self, key: object) -> CatalogEntry | None:
        """The listed tool that this is, if it may be called."""
        catalog = self._view.now.catalog
        listed = catalog.names.get(key) if isinstance(key, NameKey) else None
        entry = catalog.entry(listed) if listed is not None else None
        return entry if entry is not None and self._may_call(entry) else None

    def _may_call(self, entry: CatalogEntry) -> bool:
        shown_here = self._view.find(Kind.TOOL, self._view.name_of(entry)) == entry.key
        return shown_here and not self._is_held(entry)

    def _is_held(self, entry: CatalogEntry) -> bool:
        return self._view.hub.approvals.is_held(entry.server, entry.original)

    def _unknown(self, name: str) -> str:
        listed = self._view.all_entries(Kind.TOOL)
        near = nearest(name, (self._view.name_of(entry) for entry in listed if not self._is_held(entry)))
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        return f"Unknown tool: {quoted_line(name)}.{meant} {FIND} searches all tools."


def finding_tools(hub: Hub, server: str | None = None) -> tuple[Tool, ...]:
    """The tools of find mode as handles, for programs that use the hub in their own process; of one server if named."""
    view = View(hub, EndpointAddress(server, "find"))

    async def called(
        name: str, arguments: Mapping[str, Any], on_progress: ProgressFn | None, within: float | None
    ) -> CallResult:
        if name == READ_RESULT:
            return await hub.call_tool(name, arguments)
        finder = FindTools(view.seen_by(LOCAL))
        if name not in (CALL, CALL_READONLY):
            return CallResult.from_raw(await finder.own_answer(name, arguments))
        inner = finder.inner_call(dumps(arguments), readonly=name == CALL_READONLY)
        if not isinstance(inner, InnerCall):
            return CallResult.from_raw(inner)
        try:
            name = hub.catalog.names.get(inner.route.key, inner.name)
            return await hub.call_tool(name, loads(inner.arguments), on_progress=on_progress, timeout=within)
        except CallFailed as error:
            return CallResult.from_raw(inner.refused(error))

    definitions = [
        *find_definitions(view.seen_by(LOCAL).servers),
        *([read_result_tool()] if hub.kept_results.is_on else []),
    ]
    return tuple(Tool(HUB_NAME, one["name"], one, called) for one in definitions)


def _tool(
    name: str, description: str, properties: Mapping[str, Any], *, required: list[str], annotations: Mapping[str, bool]
) -> dict[str, Any]:
    tool = {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties, "required": required},
        "annotations": annotations,
    }
    return tool | ({"execution": {"taskSupport": "optional"}} if name in (CALL, CALL_READONLY) else {})


def _names(servers: Sequence[str]) -> str:
    """The names of servers, cut: ``a, b, c and 12 more``."""
    told: list[str] = []
    room = NAMES_SHOWN
    for server in servers:
        room -= len(server) + 2
        if room < 0:
            break
        told.append(server)
    more = len(servers) - len(told)
    return ", ".join(told) + (f" and {more} more" if more else "") if servers else "none"


def _reads_only(raw: Mapping[str, object]) -> bool:
    annotations = raw.get("annotations")
    return isinstance(annotations, Mapping) and annotations.get("readOnlyHint") is True


def _problem(raw: Mapping[str, object], arguments: Bytes | None) -> str:
    """What is certainly wrong with the arguments. Only the server knows the rest."""
    if arguments is not None and not is_object(arguments):
        return "`arguments` must be an object"
    schema = raw.get("inputSchema")
    required = schema.get("required") if isinstance(schema, Mapping) else None
    if not isinstance(required, list | tuple) or not required:
        return ""
    try:
        given = fields(arguments) if arguments is not None else {}
    except BadJson:
        return ""  # too large to look into; the server does
    missing = [quoted_name(str(name), ticks=True) for name in required if name not in given]
    return f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing" if missing else ""


def _with_schema(text: str, raw: Mapping[str, object]) -> str:
    return f"{text}\nIts input schema: {dumps(raw.get('inputSchema', {})).decode()}"
