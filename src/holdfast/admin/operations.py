"""The operations of the control API in one table: requests are routed by it, its OpenAPI document is made of it."""

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
"""What a caller must show: a browser's token is as good as the control token, but neither makes further codes
nor is told addresses with whatever is secret in them.
"""

MOST_LINES = 1_000
"""How many lines of a log can be asked for."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing that can be asked."""

    name: str
    method: Literal["GET", "POST"]
    path: str
    """Its parameters in braces; a parameter is one segment, percent-encoded."""
    summary: str
    answer: type[Shape] | None = None
    """None for a stream of events, and for the document itself."""
    media_type: str = "application/json"
    body: type[Shape] | None = None
    query: tuple[str, ...] = ()
    """Whole numbers from 1 on, each optional."""
    needs: Needs = "session"
    errors: tuple[int, ...] = ()
    """The statuses of its own refusals, beside those of every operation."""


_SERVER = "/api/servers/{server}"

OPERATIONS = (
    Operation(name="get_hub", method="GET", path="/api/hub", summary="The hub itself", answer=HubView),
    Operation(name="list_servers", method="GET", path="/api/servers", summary="Every server", answer=Servers),
    Operation(name="get_server", method="GET", path=_SERVER, summary="One server", answer=Server, errors=(404,)),
    Operation(
        name="reconnect",
        method="POST",
        path=f"{_SERVER}/reconnect",
        summary="Make a new connection now; answers when that is over",
        answer=Server,
        errors=(404, 409, 502),
    ),
    Operation(
        name="enable", method="POST", path=f"{_SERVER}/enable", summary="Switch it on", answer=Server, errors=(404,)
    ),
    Operation(
        name="disable", method="POST", path=f"{_SERVER}/disable", summary="Switch it off", answer=Server, errors=(404,)
    ),
    Operation(
        name="approve",
        method="POST",
        path=f"{_SERVER}/approve",
        summary="Take for good what its changed tools say now",
        body=Approve,
        answer=Server,
        errors=(404, 409),
    ),
    Operation(
        name="list_approvals",
        method="GET",
        path="/api/approvals",
        summary="Every tool that is not what it was when it was first seen",
        answer=Approvals,
    ),
    Operation(
        name="get_catalog", method="GET", path="/api/catalog", summary="What clients are shown", answer=CatalogView
    ),
    Operation(
        name="get_logs",
        method="GET",
        path=f"{_SERVER}/logs",
        summary="The last lines about it: its stderr, and what the hub noted",
        answer=Logs,
        query=("lines",),
        errors=(404,),
    ),
    Operation(
        name="follow_logs",
        method="GET",
        path=f"{_SERVER}/logs/stream",
        summary="Its last lines, if asked for, and those from now on: an event `line`, a LogLine, for each",
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
        summary="The servers as a gateway's targets, with their addresses as they are",
        answer=TargetsView,
        needs="control",
    ),
    Operation(name="get_openapi", method="GET", path="/api/openapi.json", summary="This document", needs="nothing"),
    Operation(
        name="new_code",
        method="POST",
        path="/api/codes",
        summary="A code that signs one browser in, once",
        answer=Code,
        needs="control",
    ),
    Operation(
        name="sign_in",
        method="POST",
        path="/api/session",
        summary="A code becomes a token for the status page",
        body=SignIn,
        answer=Session,
        needs="nothing",
        errors=(401,),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """What a request's path leads to."""

    operation: Operation | None = None
    """None if there is nothing at that path, or not by that method."""
    parameters: dict[str, str]
    allowed: tuple[str, ...] = ()
    """The methods that the path does have."""


def look_up(method: str, raw_path: str, operations: Iterable[Operation] = OPERATIONS) -> Lookup:
    """The operation that a method and a path, as it was sent, stand for. An id may hold anything, a slash too."""
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
