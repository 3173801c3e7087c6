"""``holdfast_doctor``: a model asks why a server fails, and gets cause, evidence and remedy (DX-12).

It reads what the hub recorded and nothing else: it dials no server, starts nothing and edits nothing. So it is safe for
any model, and costs nothing. The words are those of `holdfast status` and of the doctor, because one function makes
them from the evidence. What a process or a server said is quoted and labelled (MSG-11).

The remedy is for a person: a command to type, a login, a line in a file. A client on another machine need not know
what fails inside the hub, so the tool is listed by default where the hub serves this machine alone.
``holdfast.doctorTool`` decides otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core import Facts, Health, HttpStatus, ProcessExit, next_try, quote_block, quoted, text_for
from holdfast.endpoint.view import View
from holdfast.hub import latest_failure, record_of, remedy_for

__all__ = ["DOCTOR_TOOL", "doctor_result", "doctor_tool", "offers_doctor"]

DOCTOR_TOOL = "holdfast_doctor"

LONGEST_EVIDENCE = 2_000
"""Characters of what a server said."""

MOST_SERVERS = 20
"""How many servers one answer explains. The others are named."""


def offers_doctor(view: View) -> bool:
    """Whether an endpoint has the tool: by the config, else where the hub serves this machine alone."""
    written = view.hub.config.settings.doctor_tool
    wanted = view.hub.is_local if written == "auto" else written == "on"
    return wanted and (view.server is None or view.tools == "find")


def doctor_tool() -> dict[str, Any]:
    """Return the tool for the list."""
    return {
        "name": DOCTOR_TOOL,
        "title": "Holdfast doctor",
        "description": "Why an MCP server behind this endpoint fails: cause, evidence, and what a person can do.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "server": {"type": "string", "description": "The id of one server; all that fail if left out."}
            },
        },
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }


def doctor_result(view: View, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of the tool."""
    wanted = arguments.get("server")
    healths = {name: health for name, health in view.hub.servers.items() if view.covers(name)}
    if wanted is not None and wanted not in healths:
        known = ", ".join(view.servers) or "none"
        text = f"No server named {quoted(str(wanted)[:400])} is configured. Configured: {known}."
        return {"content": [{"type": "text", "text": text}], "isError": True}
    ill = [name for name, one in healths.items() if (name == wanted if wanted is not None else one.failure is not None)]
    told = {name: _diagnosis(view, name, healths[name]) for name in ill[:MOST_SERVERS]}
    parts = [_words(name, one) for name, one in told.items()]
    if more := ill[MOST_SERVERS:]:
        parts.append(f"{len(more)} more servers fail: {', '.join(more)}. Ask about each by `server`.")
    if not parts:
        parts.append(f"No server fails: {len(healths)} of {len(healths)} can be used.")
    text = "\n\n".join(parts)
    return {"content": [{"type": "text", "text": text}], "structuredContent": {"servers": told}, "isError": False}


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


def _words(name: str, one: Mapping[str, Any]) -> str:
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
