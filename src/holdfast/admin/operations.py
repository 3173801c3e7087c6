"""The operations of the control API in one table: it routes requests and generates the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import unquote

from holdfast.control.models import (
    Approvals,
    Approve,
    CatalogView,
    Code,
    HubView,
    Logs,
    Server,
    Servers,
    Session,
    Shape,
    SignIn,
    TargetsView,
)

__all__ = ["MOST_LINES", "OPERATIONS", "Lookup", "Needs", "Operation", "look_up"]

Needs: TypeAlias = Literal["nothing", "session", "control"]
"""The token that an operation needs. A browser's token (``session``) can do all that the control token can, except
make sign-in codes and read unmasked addresses.
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
    answer: type[Shape] | None = None
    """None for an event stream and for the document itself."""
    media_type: str = "application/json"
    body: type[Shape] | None = None
    query: tuple[str, ...] = ()
    """Optional whole numbers, from 1 on."""
    needs: Needs = "session"
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
    ),
    Operation(
        name="enable",
        method="POST",
        path=f"{_SERVER}/enable",
        summary="Enable the server",
        answer=Server,
        errors=(404,),
    ),
    Operation(
        name="disable",
        method="POST",
        path=f"{_SERVER}/disable",
        summary="Disable the server",
        answer=Server,
        errors=(404,),
    ),
    Operation(
        name="approve",
        method="POST",
        path=f"{_SERVER}/approve",
        summary="Approve the changes of its tools",
        body=Approve,
        answer=Server,
        errors=(404, 409),
    ),
    Operation(
        name="list_approvals",
        method="GET",
        path="/api/approvals",
        summary="Every tool that changed since it was first seen",
        answer=Approvals,
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
        answer=Code,
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
