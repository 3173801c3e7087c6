"""The operations of the control API in one table: it routes requests, and generates the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from pydantic.json_schema import JsonSchemaMode, models_json_schema

from holdfast._version import __version__
from holdfast.access import Role
from holdfast.control.models import (
    ActivityView,
    ApiError,
    ApiModel,
    ApprovalList,
    Approve,
    ApprovedTexts,
    CatalogView,
    DecideCall,
    HubView,
    LoginAnswer,
    LoginPage,
    LogLine,
    Logs,
    Me,
    Server,
    Servers,
    Session,
    SignIn,
    SignInCode,
    TargetsView,
    WaitingCall,
    WaitingCalls,
)
from holdfast.control.server.control_events import EVENTS

__all__ = ["MOST_LINES", "OPERATIONS", "Lookup", "Needs", "Operation", "document", "look_up"]

Needs: TypeAlias = Literal["nothing", "caller", "control"] | Role
"""What an operation needs: a role, which the control token and the page of a sign-in code have too; the control token
itself (``control``), to make sign-in codes and to read unmasked addresses; or any principal (``caller``), who sees what
is hers.
"""

MOST_LINES = 1_000
"""How many log lines one request can ask for."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation."""

    name: str
    method: Literal["GET", "POST"]
    path: str
    """Parameters are in braces; each is one percent-encoded segment."""
    summary: str
    answer: type[ApiModel] | None = None
    """None for an event stream and for the document itself."""
    media_type: str = "application/json"
    body: type[ApiModel] | None = None
    query: tuple[str, ...] = ()
    """Optional whole numbers, from 1 on."""
    needs: Needs = "read"
    errors: tuple[int, ...] = ()
    """Its own error statuses, beside those of every operation."""


_SERVER = "/api/servers/{server}"

OPERATIONS = (
    Operation(name="get_hub", method="GET", path="/api/hub", summary="The hub itself", answer=HubView),
    Operation(name="list_servers", method="GET", path="/api/servers", summary="Every server", answer=Servers),
    Operation(name="get_server", method="GET", path=_SERVER, summary="One server", answer=Server, errors=(404,)),
    Operation(
        name="reconnect",
        method="POST",
        path=f"{_SERVER}/reconnect",
        summary="Reconnect now; answers when the attempt is over",
        answer=Server,
        errors=(404, 409, 502),
        needs="operate",
    ),
    Operation(
        name="enable",
        method="POST",
        path=f"{_SERVER}/enable",
        summary="Enable the server",
        answer=Server,
        errors=(404,),
        needs="operate",
    ),
    Operation(
        name="disable",
        method="POST",
        path=f"{_SERVER}/disable",
        summary="Disable the server",
        answer=Server,
        errors=(404,),
        needs="operate",
    ),
    Operation(
        name="approve",
        method="POST",
        path=f"{_SERVER}/approve",
        summary="Approve the changes of its tools",
        body=Approve,
        answer=Server,
        errors=(404, 409),
        needs="approve",
    ),
    Operation(
        name="login",
        method="POST",
        path=f"{_SERVER}/login",
        summary="Log in to the server; the login ends with this request. Events: `visit`, then `done` or `failed`",
        media_type="text/event-stream",
        errors=(404, 409),
        needs="operate",
    ),
    Operation(
        name="answer_login",
        method="POST",
        path=f"{_SERVER}/login/answer",
        summary="Give a login the address that a browser on another machine ended up at",
        body=LoginAnswer,
        answer=Server,
        errors=(404, 409),
        needs="operate",
    ),
    Operation(
        name="list_approvals",
        method="GET",
        path="/api/approvals",
        summary="Every tool that changed since it was first seen",
        answer=ApprovalList,
    ),
    Operation(
        name="get_approved",
        method="GET",
        path="/api/approvals/approved",
        summary="What is approved of every server, and which are disabled",
        answer=ApprovedTexts,
    ),
    Operation(
        name="list_calls",
        method="GET",
        path="/api/calls",
        summary="The calls that wait for a person: all with the role `approve`, else one's own",
        answer=WaitingCalls,
        needs="caller",
    ),
    Operation(
        name="decide_call",
        method="POST",
        path="/api/calls/{call}",
        summary="Approve or refuse a call: with the role `approve`, or one's own if its rule asks the caller",
        body=DecideCall,
        answer=WaitingCall,
        needs="caller",
        errors=(404,),
    ),
    Operation(
        name="get_catalog", method="GET", path="/api/catalog", summary="The published catalog", answer=CatalogView
    ),
    Operation(
        name="get_logs",
        method="GET",
        path=f"{_SERVER}/logs",
        summary="Its last log lines: its stderr and the hub's own lines about it",
        answer=Logs,
        query=("lines",),
        errors=(404,),
    ),
    Operation(
        name="follow_logs",
        method="GET",
        path=f"{_SERVER}/logs/stream",
        summary="Its last log lines, if asked for, then new ones: one event `line`, a LogLine, each",
        media_type="text/event-stream",
        query=("lines",),
        errors=(404,),
    ),
    Operation(
        name="follow_events",
        method="GET",
        path="/api/events",
        summary="Everything that happens from now on",
        media_type="text/event-stream",
    ),
    Operation(
        name="list_activity",
        method="GET",
        path="/api/activity",
        summary="The latest records of the audit; without the role `operate`, those of the caller",
        answer=ActivityView,
        query=("lines",),
        needs="caller",
    ),
    Operation(
        name="get_me",
        method="GET",
        path="/api/me",
        summary="Who asks, and what she may do",
        answer=Me,
        needs="caller",
    ),
    Operation(
        name="get_targets",
        method="GET",
        path="/api/targets",
        summary="The servers as targets of a gateway, with unmasked addresses",
        answer=TargetsView,
        needs="control",
    ),
    Operation(name="get_openapi", method="GET", path="/api/openapi.json", summary="This document", needs="nothing"),
    Operation(
        name="new_code",
        method="POST",
        path="/api/codes",
        summary="Make a code that signs in one browser, once",
        answer=SignInCode,
        needs="control",
    ),
    Operation(
        name="sign_in",
        method="POST",
        path="/api/session",
        summary="Exchange a code for a token of the status page",
        body=SignIn,
        answer=Session,
        needs="nothing",
        errors=(401,),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """The result of a lookup."""

    operation: Operation | None = None
    """None if nothing has that path, or not with that method."""
    parameters: dict[str, str]
    allowed: tuple[str, ...] = ()
    """The methods that the path has."""


def look_up(method: str, raw_path: str, operations: Iterable[Operation] = OPERATIONS) -> Lookup:
    """Find the operation of a method and a raw path. An id may contain anything, also a slash."""
    segments = raw_path.split("/")
    fitting = [(one, found) for one in operations if (found := _parameters(one, segments)) is not None]
    for operation, parameters in fitting:
        if operation.method == method:
            return Lookup(operation=operation, parameters=parameters)
    return Lookup(parameters={}, allowed=tuple(operation.method for operation, _ in fitting))


def _parameters(operation: Operation, segments: list[str]) -> dict[str, str] | None:
    wanted = operation.path.split("/")
    if len(wanted) != len(segments):
        return None
    found: dict[str, str] = {}
    for want, segment in zip(wanted, segments, strict=True):
        if want.startswith("{"):
            found[want.strip("{}")] = unquote(segment)
        elif want != segment:
            return None
    return found


_REASONS = {
    401: "The token is missing or not valid",
    403: "The Origin has no access, or the principal lacks the role that the error names",
    404: "There is nothing with that name",
    409: "The state of the server does not allow it",
    421: "The Host is not served here",
    422: "The body or the query is not valid",
    502: "The server failed; the error gives the reason",
}

_REF = "#/components/schemas/{model}"


@cache
def document() -> dict[str, Any]:
    """Return the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast control API", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


_ABOUT = (
    "Watch and control a running hub. "
    "Times are seconds since the epoch (`at`, `since`) or seconds from now (`retry_in`). "
    "Keys may be added; none changes its meaning."
)


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "security": [] if operation.needs == "nothing" else [{"token": []}],
        "x-needs": operation.needs,
        "responses": {"200": _answer(operation), **{str(code): _error(code) for code in sorted(_errors(operation))}},
    }
    if parameters := [*_in_path(operation), *_in_query(operation)]:
        described["parameters"] = parameters
    if operation.body is not None:
        schema = {"$ref": _REF.format(model=operation.body.__name__)}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if operation.name == "follow_events":
        described["description"] = "\n".join(f"- `{name}`: {words}" for name, words in EVENTS.items())
    return described


def _answer(operation: Operation) -> dict[str, Any]:
    if operation.answer is not None:
        schema: dict[str, Any] = {"$ref": _REF.format(model=operation.answer.__name__)}
    else:
        schema = {"type": "string"} if operation.media_type == "text/event-stream" else {"type": "object"}
    return {"description": operation.summary, "content": {operation.media_type: {"schema": schema}}}


def _errors(operation: Operation) -> set[int]:
    always = {403, 421} if operation.needs == "nothing" else {401, 403, 421}
    unfit = {422} if operation.body is not None or operation.query else set()
    return {*always, *unfit, *operation.errors}


def _error(code: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REF.format(model=ApiError.__name__)}}}
    return {"description": _REASONS[code], "content": content}


def _in_path(operation: Operation) -> list[dict[str, Any]]:
    names = [part.strip("{}") for part in operation.path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _in_query(operation: Operation) -> list[dict[str, Any]]:
    schema = {"type": "integer", "minimum": 1, "maximum": MOST_LINES}
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name in operation.query]


def _schemas() -> dict[str, Any]:
    """Describe an answer with every key that is written, and a body with the keys that may be sent."""
    shapes: dict[type[ApiModel], JsonSchemaMode] = {ApiError: "serialization", LogLine: "serialization"}
    shapes[LoginPage] = "serialization"
    for operation in OPERATIONS:
        if operation.answer is not None:
            shapes[operation.answer] = "serialization"
        if operation.body is not None:
            shapes[operation.body] = "validation"
    _, definitions = models_json_schema(list(shapes.items()), ref_template=_REF)
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas
