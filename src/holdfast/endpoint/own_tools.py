"""The tools and the resource of the hub itself, beside those of its servers: which an endpoint has, and their answers.

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
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from holdfast.core import (
    HUB_VERSION,
    STATUS_URI,
    Facts,
    Health,
    HttpStatus,
    Kind,
    NameKey,
    ProcessExit,
    counted,
    next_try,
    quote_block,
    quoted,
    text_for,
)
from holdfast.endpoint.broker import Broker
from holdfast.endpoint.clients import Call, LivesElsewhere, RequestHomes
from holdfast.endpoint.find_tools import DESCRIBE, FIND, FindTools, find_definitions, listed_for_find, own_arguments
from holdfast.endpoint.instructions import LOGIN_TOOL, STATUS_TOOL, identity, mistake, said, warnings_at
from holdfast.endpoint.user_login import login_tool, offers_login
from holdfast.endpoint.view import View
from holdfast.hub import (
    READ_RESULT,
    RESULTS_URI,
    findings,
    has_output_schema,
    latest_failure,
    read_result_tool,
    record_of,
    remedy_for,
)
from holdfast.wire import RawObject, text_of, via_in

__all__ = ["Handler", "OwnTools", "keeps_results", "own_items", "status_result", "status_tool"]

Handler: TypeAlias = Callable[[Call], Awaitable[RawObject]]


class OwnTool(NamedTuple):
    """A tool of the hub itself."""

    is_offered: Callable[[View], bool]
    """Whether those who see a view can call it. At an endpoint of one server the name may be one of the server's."""
    answer: Handler


class OwnTools:
    """Answers calls of the hub's own tools at one endpoint."""

    def __init__(self, broker: Broker, view: View) -> None:
        self._broker = broker
        self.large = LargeResults(view, broker.homes)
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
        return await self.large.read_on(call, _arguments(call))

    async def _login(self, call: Call) -> RawObject:
        return await self._broker.logins.answer(call, call.view, _arguments(call))

    async def _find(self, call: Call) -> RawObject:
        name = text_of(call.params.get("name")) or ""
        return RawObject.of(await FindTools(call.view).own_answer(name, _arguments(call)))

    def _findings(self, view: View) -> Mapping[str, str]:
        """What is wrong with each server, of its lists and of its requests."""
        listed, asked = findings(view.user.catalog), self._broker.findings
        return {one: "; ".join(filter(None, (listed.get(one), asked.get(one)))) for one in {**listed, **asked}}

    def __repr__(self) -> str:
        return f"<OwnTools {', '.join(self.by_name)}>"


def own_items(view: View, kind: Kind, lacking: tuple[str, ...]) -> list[dict[str, Any]]:
    """The hub's own items of an endpoint's list; ``lacking`` are the servers that lack the login of its user."""
    if kind is not Kind.TOOL:
        return [status_resource()] if kind is Kind.RESOURCE and view.server is None else []
    own = find_definitions(view.servers) if _finds(view) else []
    own += [status_tool()] if _offers_status(view) else []
    own += [doctor_tool()] if _offers_doctor(view) else []
    own += [read_result_tool()] if keeps_results(view) else []
    own += [login_tool(lacking)] if lacking else []
    return [listed_for_find(tool) for tool in own] if _finds(view) else own


def _arguments(call: Call) -> Mapping[str, Any]:
    return own_arguments(call.params.get("arguments"))


def _finds(view: View) -> bool:
    """Whether an endpoint is in find mode."""
    return view.tools == "find"


def _offers_status(view: View) -> bool:
    """Whether an endpoint has the status tool; that of one server has the server's own names alone."""
    return view.server is None or view.tools == "find"


# The status.


def status_tool() -> dict[str, Any]:
    """Return the tool for the list."""
    about = "Which MCP servers behind this endpoint are unavailable, why, and when to try again."
    return _tool_about_servers(STATUS_TOOL, "Holdfast status", about, "all servers if left out")


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


def status_resource() -> dict[str, Any]:
    """Return the resource for the list."""
    return {
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
    told = {name: {**record_of(view.user.slot(name)).written(), **one} for name, one in servers.items()}
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
        | ({"changedTools": sorted(changed)} if (changed := _changed(view, name)) else {})
        for name, health in ((name, view.user.health(name)) for name in view.servers if view.has(name))
    }


def _changed(view: View, server: str) -> frozenset[str]:
    """The tools of a server that changed and that the endpoint shows; of a per-user server those of this user."""
    changed = view.hub.approvals.changed.get(server, frozenset())
    if changed and view.hub.registry.users.has_own(view.principal, server):
        changed &= {entry.original for entry in view.user.catalog.tools if entry.server == server}
    return frozenset(tool for tool in changed if view.shows(NameKey(Kind.TOOL, server, tool)))


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
        for one in view.user.catalog.collisions
        if view.covers(one.key.server) and view.shows(one.key)
    ]


# The doctor.

DOCTOR_TOOL = "holdfast_doctor"

LONGEST_EVIDENCE = 2_000
"""Characters of what a server said."""

MOST_SERVERS = 20
"""How many servers one answer explains. The others are named."""


def _offers_doctor(view: View) -> bool:
    """Whether an endpoint has the tool: by the config, else where the hub serves this machine alone."""
    written = view.hub.config.settings.doctor_tool
    wanted = view.hub.is_local if written == "auto" else written == "on"
    return wanted and _offers_status(view)


def doctor_tool() -> dict[str, Any]:
    """Return the tool for the list."""
    about = "Why an MCP server behind this endpoint fails: cause, evidence, and what a person can do."
    return _tool_about_servers(DOCTOR_TOOL, "Holdfast doctor", about, "all that fail if left out")


def _doctor_result(view: View, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of the tool."""
    wanted = arguments.get("server")
    healths = {name: health for name, health in view.hub.servers.items() if view.covers(name)}
    if wanted is not None and wanted not in healths:
        return _no_server(view, wanted)
    ill = [name for name, one in healths.items() if (name == wanted if wanted is not None else one.failure is not None)]
    told = {name: _diagnosis(view, name, healths[name]) for name in ill[:MOST_SERVERS]}
    parts = [_doctor_words(name, one) for name, one in told.items()]
    if more := ill[MOST_SERVERS:]:
        parts.append(f"{len(more)} more servers fail: {', '.join(more)}. Ask about each by `server`.")
    if not parts:
        parts.append(f"No server fails: {len(healths)} of {len(healths)} can be used.")
    return said("\n\n".join(parts), {"servers": told})


def _diagnosis(view: View, name: str, health: Health) -> dict[str, Any]:
    slot = view.user.slot(name)
    remedy = remedy_for(slot)
    held = view.hub.approvals.held(name)
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


def _doctor_words(name: str, one: Mapping[str, Any]) -> str:
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
    if when := next_try(one["retryIn"]):
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
    return own is None or own not in view.user.catalog.names


class LargeResults:
    """The large results of one endpoint: which ones are shortened, and which replica reads on (FIND-6).

    The results themselves are in ``hub/kept_results``. Here is what an endpoint knows beside: its names, the caller's
    protocol and principal, and the other replicas.
    """

    def __init__(self, view: View, homes: RequestHomes | None) -> None:
        self._view = view
        self._kept = view.hub.kept_results
        self._homes = homes

    async def shortened(self, call: Call, tool: NameKey, result: RawObject) -> RawObject:
        """A tool's result as its caller gets it: whole, or its beginning if it is large.

        A hub in front of this one gets every result whole: its clients cannot read on here, and it shortens results
        itself.
        """
        view, homes = self._view, self._homes
        if via_in(call.headers) or has_output_schema(view.user.catalog, tool):
            return result
        return await self._kept.shortened(
            result,
            f"{tool.server}/{tool.original}",
            principal=call.bound_to,
            replica=homes.tag if homes is not None else "",
            links=call.client.modern or call.version >= LINKS_SINCE,
        )

    async def read_on(self, call: Call, values: Mapping[str, Any]) -> RawObject:
        """What ``read_result`` answers; raises ``LivesElsewhere`` if another replica has the result."""
        await self._check(values.get("handle"), call.bound_to)
        return await self._kept.read(values, call.bound_to)

    async def contents(self, call: Call, uri: str) -> RawObject | None:
        """The contents of the resource that a shortened result links to; None if there is no such result."""
        await self._check(uri.removeprefix(RESULTS_URI), call.bound_to)
        return await self._kept.contents(uri, call.bound_to)

    async def _check(self, handle: object, principal: str) -> None:
        """Raise ``LivesElsewhere`` if another replica keeps the result with this handle."""
        if self._homes is None or not isinstance(handle, str) or self._kept.knows(handle, principal):
            return
        tag, dot, _ = handle.partition(".")
        if dot and (there := await self._homes.replica_of(tag)) is not None:
            raise LivesElsewhere(there, RESULT_LOST)

    def __repr__(self) -> str:
        return f"<LargeResults of {self._view!r}>"
