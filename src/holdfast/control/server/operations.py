"""The operations of the control API: each is one function, and one row of ``OPERATIONS``, which says how it is reached.

Theory of operation. A row is the whole truth about an operation: method and path, what it takes and answers, what it
needs, and what its record in the audit is called. The same table routes requests (``look_up``), is enforced by
``ControlApi``, which finds out first who asks and whether she may, and generates the OpenAPI document. So a new
operation cannot be reached without a decision about its access, and the document cannot differ from the program. A
handler gets a request that is allowed, reads no header and checks no role, but for a question that the row cannot
answer: whose call it is (``decide_call``), whose login (``_user``), whose records (``ApiAccess.own``).

Most operations answer with a model. Streams answer with frames (``FrameStream``) and may outlive the access of their
reader: a role that is taken away ends them within ``RECHECK_SECONDS``.

What must never happen: a handler of ``needs="caller"`` shows one principal what is another's; an operation that changes
something leaves no record (``audited``); a name of a server or a call is read from the decoded path, in which a slash
of the name looks like the end of a segment.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, partial
from itertools import count
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import unquote

import anyio
import anyio.to_thread
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Send

from holdfast._version import __version__
from holdfast.access import AuditFilter, AuditRecord, AuditTrail, Principal, Role, latest_records
from holdfast.control.models import (
    ActivityRecord,
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
    LoginEnded,
    LoginLink,
    LoginPage,
    LogLine,
    Logs,
    Me,
    OwnLogins,
    Server,
    Servers,
    Session,
    SignIn,
    SignInCode,
    TargetsView,
    WaitingCall,
    WaitingCalls,
)
from holdfast.control.server.browser_identity import BrowserIdentity, source_of
from holdfast.control.server.control_events import EVENTS, KEEP_ALIVE, KEEP_ALIVE_SECONDS, EventStream, frame
from holdfast.control.server.log_buffer import LogBuffer
from holdfast.control.server.server_logins import PendingLogins, PrincipalLogins, log_in_from_page, login_frames
from holdfast.control.server.status_page import CODE_SECONDS, BrowserSessions, sign_in_command
from holdfast.control.server.views import Views, waiting_call
from holdfast.core import command_line
from holdfast.errors import LoginFailed
from holdfast.hub import CallVerdict, Hub, find_question

__all__ = [
    "HEADERS",
    "OPERATIONS",
    "ApiAccess",
    "ApiContext",
    "ApiRefused",
    "ApiRequest",
    "Needs",
    "Operation",
    "document",
    "look_up",
]

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""An answer is never cached and never shown as a page."""


Needs: TypeAlias = Literal["nothing", "caller", "control"] | Role
"""What an operation needs: a role, which the control token and the page of a sign-in code have too; the control token
itself (``control``), to make sign-in codes and to read unmasked addresses; or any principal (``caller``), who sees what
is hers.
"""

LARGEST_BODY = 16 * 1024
"""Bytes of a request that are read."""

MOST_LINES = 1_000
"""How many log lines one request can ask for."""


RECHECK_SECONDS = 5.0
"""How soon a stream ends whose reader lost the role for it."""

_Sent = TypeVar("_Sent", bound=ApiModel)


class ApiRefused(Exception):
    """A refused request; ``ControlApi`` turns it into an answer."""

    def __init__(self, status: int, error: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.headers = dict(headers or {})
        self.body = ApiError(error=error, hint=hint)


@dataclass(frozen=True, kw_only=True)
class ApiAccess:
    """Who asks, and what she may do."""

    operator: str = ""
    """Her name in the audit: the principal, ``control``, or for a page of a sign-in code a mark of its token."""
    principal: Principal | None = None
    """None for the control token, a page that signed in with a code, and an operation that needs nothing."""
    roles: frozenset[Role] = frozenset()
    until: float | None = None
    """When her access ends, on the clock of the event loop."""
    by_cookie: bool = False
    is_control: bool = False

    @property
    def own(self) -> str:
        """The principal that sees what is its own, and nothing else; empty for an operator."""
        return "" if self.principal is None or "operate" in self.roles else self.principal.name


@dataclass(frozen=True)
class Operation:
    """One operation: what it does (``handler``), and how it is reached."""

    handler: Handler
    method: Literal["GET", "POST"]
    path: str
    """Parameters are in braces; each is one percent-encoded segment."""
    summary: str
    _: KW_ONLY
    answer: type[ApiModel] | None = None
    """None for an event stream and for the document itself."""
    media_type: str = "application/json"
    body: type[ApiModel] | None = None
    query: tuple[str, ...] = ()
    """Optional whole numbers, from 1 on."""
    needs: Needs = "read"
    errors: tuple[int, ...] = ()
    """Its own error statuses, beside those of every operation."""
    audited: str = ""
    """What its record in the audit is called; empty if it leaves none, because it only reads."""

    @property
    def name(self) -> str:
        """What the document calls it: the name of its handler."""
        return self.handler.__name__


class ApiRequest:
    """A request with access, and what its handler needs of it."""

    def __init__(
        self,
        operation: Operation,
        parameters: Mapping[str, str],
        request: Request,
        *,
        access: ApiAccess,
        still_allowed: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.operation = operation
        self.server = parameters.get("server", "")
        self.call = parameters.get("call", "")
        """The id of a call that waits."""
        self.body: ApiModel | None = None
        """What it sends, once that is read."""
        self.access = access
        self.still_allowed = still_allowed
        """Looks again whether a principal has the access; None for an access that only time ends."""
        self._request = request
        self.source = source_of(request)

    def sent(self, model: type[_Sent]) -> _Sent:
        """What it sends; the table of operations says which model that is."""
        assert isinstance(self.body, model)  # noqa: S101 - the table says so
        return self.body

    @property
    def sign_in(self) -> str:
        """The command that signs a browser in, for the one who asks."""
        return sign_in_command(self._request)

    def number(self, name: str, *, default: int, most: int) -> int:
        """Return a whole number of the query."""
        text = self._request.query_params.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most and len(text) < 9):
            raise ApiRefused(422, f"`{name}` must be a whole number from 1 to {most}")
        return int(text)


@dataclass(frozen=True)
class ApiContext:
    """What the operations work on."""

    hub: Hub
    views: Views
    sessions: BrowserSessions
    events: EventStream
    logs: LogBuffer
    reconnect: Callable[[str], Awaitable[None]]
    """Reconnects a server, in every worker."""
    browsers: BrowserIdentity
    """Knows principals by their requests."""
    own_logins: PrincipalLogins
    audit: AuditTrail | None = None
    logins: PendingLogins = field(default_factory=PendingLogins)


Handler: TypeAlias = Callable[[ApiContext, ApiRequest], Awaitable[ApiModel | Response]]


async def get_hub(api: ApiContext, _: ApiRequest) -> ApiModel:
    return api.views.hub()


async def list_servers(api: ApiContext, _: ApiRequest) -> ApiModel:
    return await api.views.servers()


async def get_server(api: ApiContext, request: ApiRequest) -> Server:
    return api.views.server(request.server)


async def reconnect(api: ApiContext, request: ApiRequest) -> Server:
    await api.reconnect(request.server)
    return api.views.server(request.server)


async def enable(api: ApiContext, request: ApiRequest) -> Server:
    await api.hub.toggle(request.server, True)
    return await _with_scope(api, request.server)


async def disable(api: ApiContext, request: ApiRequest) -> Server:
    await api.hub.toggle(request.server, False)
    return await _with_scope(api, request.server)


async def _with_scope(api: ApiContext, server: str) -> Server:
    scope = await api.hub.registry.scope(server)
    return api.views.server(server).model_copy(update={"scope": scope})


async def approve(api: ApiContext, request: ApiRequest) -> Server:
    body = request.sent(Approve)
    api.hub.approve(request.server, body.tool, mark=body.mark, kind=body.kind)
    api.events.touched(request.server)
    return await _with_scope(api, request.server)


async def login(api: ApiContext, request: ApiRequest) -> Response:
    spec = api.hub.registry.slot(request.server).spec
    helps, scope = api.views.login_scope(request.server)
    if not helps or spec.problems:
        hint = f"its row says what it needs; `{command_line('login')}` in a terminal logs in to any server"
        raise ApiRefused(409, f"`{request.server}` does not ask for a login", hint=hint)
    frames, news = anyio.create_memory_object_stream[bytes](math.inf)
    work = partial(log_in_from_page, api.hub, spec, api.logins, frames, scope=scope)
    return FrameStream(login_frames(news), request, beside=work)


async def answer_login(api: ApiContext, request: ApiRequest) -> Server:
    body = request.sent(LoginAnswer)
    if not api.logins.answer(request.server, body.address):
        raise ApiRefused(409, f"no login of `{request.server}` waits for an answer", hint="log in again")
    return api.views.server(request.server)


async def list_calls(api: ApiContext, request: ApiRequest) -> ApiModel:
    return api.views.calls(None if _decides_for_others(request.access) else request.access.operator)


def _decides_for_others(access: ApiAccess) -> bool:
    return access.principal is None or "approve" in access.roles


async def decide_call(api: ApiContext, request: ApiRequest) -> WaitingCall:
    body = request.sent(DecideCall)
    questions, access = api.hub.registry.call_approvals, request.access
    found = find_question(questions, request.call)
    is_own = access.principal is not None and found.binding.principal == access.principal.name
    if is_own and found.approver == "operator":
        raise ApiRefused(403, "another person has to decide about this call", hint="its rule asks an operator")
    if not is_own and not _decides_for_others(access):
        raise ApiRefused(403, "this needs the role `approve`, or a call of your own", hint="`access.roles` gives roles")
    questions.decide(request.call, CallVerdict(body.approve, access.operator, body.reason))
    return waiting_call(found)


async def list_logins(api: ApiContext, request: ApiRequest) -> OwnLogins:
    principal = request.access.principal
    return await api.own_logins.shown(principal) if principal is not None else OwnLogins(principal="", logins=())


async def link_login(api: ApiContext, request: ApiRequest) -> LoginLink:
    try:
        return api.own_logins.link(_user(request), request.server)
    except LoginFailed as failed:
        raise ApiRefused(409, failed.message, hint=failed.hint or "") from None


async def end_login(api: ApiContext, request: ApiRequest) -> LoginEnded:
    ended = await api.own_logins.end(_user(request), request.server)
    if ended is None:
        raise ApiRefused(409, f"you have no login to `{request.server}`")
    return ended


def _user(request: ApiRequest) -> Principal:
    """The user whose logins are meant: her own, with any role."""
    if request.access.principal is None:
        raise ApiRefused(403, "only a user has logins of her own", hint="sign in as yourself, not with a code")
    return request.access.principal


async def list_approvals(api: ApiContext, _: ApiRequest) -> ApiModel:
    return await api.views.approvals()


async def get_approved(api: ApiContext, _: ApiRequest) -> ApiModel:
    return await api.views.approved()


async def get_catalog(api: ApiContext, _: ApiRequest) -> ApiModel:
    return await api.views.catalog()


async def get_logs(api: ApiContext, request: ApiRequest) -> ApiModel:
    api.hub.registry.slot(request.server)
    most = request.number("lines", default=200, most=MOST_LINES)
    return Logs(server=request.server, lines=await api.logs.last(request.server, most))


async def follow_logs(api: ApiContext, request: ApiRequest) -> Response:
    api.hub.registry.slot(request.server)
    last = request.number("lines", default=0, most=MOST_LINES)
    frames = _log_frames(api, request.server, last)
    return FrameStream(frames, request)


async def _log_frames(api: ApiContext, server: str, last: int) -> AsyncGenerator[bytes, None]:
    numbers = count(1)
    async with aclosing(api.logs.follow(server, silence=KEEP_ALIVE_SECONDS, last=last)) as news:
        async for lines in news:
            yield b"".join(frame("line", line.model_dump_json(), next(numbers)) for line in lines) or KEEP_ALIVE


async def follow_events(api: ApiContext, request: ApiRequest) -> Response:
    return FrameStream(api.events.follow(), request)


async def list_activity(api: ApiContext, request: ApiRequest) -> ApiModel:
    if api.audit is None:
        return ActivityView(audit=False, principal=request.access.own, records=())
    most = request.number("lines", default=100, most=MOST_LINES)
    wanted = AuditFilter(principal=request.access.own)
    records = await anyio.to_thread.run_sync(latest_records, api.audit.folder, wanted, most)
    shown = [
        ActivityRecord(
            at=one.time.timestamp(),
            server="" if request.access.own and _may_be_hidden(one) else one.server,
            **{name: getattr(one, name) for name in ActivityRecord.model_fields if name not in ("at", "server")},
        )
        for one in records
    ]
    return ActivityView(audit=True, principal=request.access.own, records=tuple(shown))


def _may_be_hidden(record: AuditRecord) -> bool:
    """Whether a caller was told "unknown" because of a rule: its server would tell her that the name is there."""
    return record.event == "call" and record.outcome == "refused" and bool(record.rule)


async def get_me(_: ApiContext, request: ApiRequest) -> ApiModel:
    access = request.access
    return Me(
        principal=access.principal.name if access.principal is not None else "",
        groups=tuple(sorted(access.principal.groups)) if access.principal is not None else (),
        roles=tuple(sorted(access.roles)),
        signed_in=access.by_cookie,
        expires_in=access.until - anyio.current_time() if access.until is not None else None,
    )


async def get_targets(api: ApiContext, _: ApiRequest) -> ApiModel:
    return api.views.targets()


async def get_openapi(_api: ApiContext, _: ApiRequest) -> Response:
    return JSONResponse(document(), headers=HEADERS)


async def new_code(api: ApiContext, _: ApiRequest) -> ApiModel:
    return SignInCode(code=api.sessions.new_code(), expires_in=CODE_SECONDS)


async def sign_in(api: ApiContext, request: ApiRequest) -> ApiModel:
    token = api.sessions.sign_in(request.sent(SignIn).code)
    if token is None:
        again = f"`{request.sign_in}` makes a new one"
        raise ApiRefused(401, "this code is not valid: it was used already, or it expired", hint=again)
    return Session(token=token)


class FrameStream(StreamingResponse):
    """Streams frames; it closes the generator as soon as the client disconnects, not at garbage collection.

    It ends when the access of its reader ends: at its time, or because a role or a token was taken away.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        request: ApiRequest,
        *,
        beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """``beside`` is work that the request asked for: it runs as long as the stream."""
        super().__init__(frames, media_type="text/event-stream", headers={**HEADERS, "x-accel-buffering": "no"})
        self._frames = frames
        self._until = math.inf if request.access.until is None else request.access.until
        self._allowed = request.still_allowed
        self._beside = beside

    async def stream_response(self, send: Send) -> None:
        """Write the frames until the generator, the reader or the access ends."""
        async with aclosing(self._frames):
            with anyio.CancelScope(deadline=self._until) as access:
                async with anyio.create_task_group() as tasks:
                    if self._allowed is not None:
                        tasks.start_soon(_end_without, self._allowed, access)
                    if self._beside is not None:
                        tasks.start_soon(self._beside)
                    await super().stream_response(send)
                    tasks.cancel_scope.cancel()
        if access.cancelled_caught:
            # The writer was cancelled before its last message: without it, the reader would see a broken connection.
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _end_without(allowed: Callable[[], Awaitable[bool]], stream: anyio.CancelScope) -> None:
    # A role is taken away by an edit of the file, a token by its removal: neither tells the streams that are open.
    while True:
        await anyio.sleep(RECHECK_SECONDS)
        if not await allowed():
            stream.cancel()
            return


# The table.

_SERVER = "/api/servers/{server}"

OPERATIONS = (
    Operation(get_hub, "GET", "/api/hub", "The hub itself", answer=HubView),
    Operation(list_servers, "GET", "/api/servers", "Every server", answer=Servers),
    Operation(get_server, "GET", _SERVER, "One server", answer=Server, errors=(404,)),
    Operation(
        reconnect,
        "POST",
        f"{_SERVER}/reconnect",
        "Reconnect now; answers when the attempt is over",
        answer=Server,
        errors=(404, 409, 502),
        needs="operate",
        audited="reconnect",
    ),
    Operation(
        enable,
        "POST",
        f"{_SERVER}/enable",
        "Enable the server",
        answer=Server,
        errors=(404,),
        needs="operate",
        audited="switch",
    ),
    Operation(
        disable,
        "POST",
        f"{_SERVER}/disable",
        "Disable the server",
        answer=Server,
        errors=(404,),
        needs="operate",
        audited="switch",
    ),
    Operation(
        approve,
        "POST",
        f"{_SERVER}/approve",
        "Approve the changes of its tools",
        body=Approve,
        answer=Server,
        errors=(404, 409),
        needs="approve",
        audited="approval",
    ),
    Operation(
        login,
        "POST",
        f"{_SERVER}/login",
        "Log in to the server; the login ends with this request. Events: `visit`, then `done` or `failed`",
        media_type="text/event-stream",
        errors=(404, 409),
        needs="operate",
        audited="login",
    ),
    Operation(
        answer_login,
        "POST",
        f"{_SERVER}/login/answer",
        "Give a login the address that a browser on another machine ended up at",
        body=LoginAnswer,
        answer=Server,
        errors=(404, 409),
        needs="operate",
        audited="login",
    ),
    Operation(
        list_approvals, "GET", "/api/approvals", "Every tool that changed since it was first seen", answer=ApprovalList
    ),
    Operation(
        get_approved,
        "GET",
        "/api/approvals/approved",
        "What is approved of every server, and which are disabled",
        answer=ApprovedTexts,
    ),
    Operation(
        list_calls,
        "GET",
        "/api/calls",
        "The calls that wait for a person: all with the role `approve`, else one's own",
        answer=WaitingCalls,
        needs="caller",
    ),
    Operation(
        decide_call,
        "POST",
        "/api/calls/{call}",
        "Approve or refuse a call: with the role `approve`, or one's own if its rule asks the caller",
        body=DecideCall,
        answer=WaitingCall,
        needs="caller",
        errors=(404,),
        audited="approval",
    ),
    Operation(
        list_logins,
        "GET",
        "/api/logins",
        "One's own logins to the servers that are per user",
        answer=OwnLogins,
        needs="caller",
    ),
    Operation(
        link_login,
        "POST",
        "/api/logins/{server}/link",
        "Where one logs in to a server: a page of the hub",
        answer=LoginLink,
        needs="caller",
        errors=(404, 409),
    ),
    Operation(
        end_login,
        "POST",
        "/api/logins/{server}/end",
        "Remove one's own login to a server, and revoke its tokens where that is possible",
        answer=LoginEnded,
        needs="caller",
        errors=(404, 409),
        audited="logout",
    ),
    Operation(get_catalog, "GET", "/api/catalog", "The published catalog", answer=CatalogView),
    Operation(
        get_logs,
        "GET",
        f"{_SERVER}/logs",
        "Its last log lines: its stderr and the hub's own lines about it",
        answer=Logs,
        query=("lines",),
        errors=(404,),
    ),
    Operation(
        follow_logs,
        "GET",
        f"{_SERVER}/logs/stream",
        "Its last log lines, if asked for, then new ones: one event `line`, a LogLine, each",
        media_type="text/event-stream",
        query=("lines",),
        errors=(404,),
    ),
    Operation(
        follow_events, "GET", "/api/events", "Everything that happens from now on", media_type="text/event-stream"
    ),
    Operation(
        list_activity,
        "GET",
        "/api/activity",
        "The latest records of the audit; without the role `operate`, those of the caller",
        answer=ActivityView,
        query=("lines",),
        needs="caller",
    ),
    Operation(get_me, "GET", "/api/me", "Who asks, and what she may do", answer=Me, needs="caller"),
    Operation(
        get_targets,
        "GET",
        "/api/targets",
        "The servers as targets of a gateway, with unmasked addresses",
        answer=TargetsView,
        needs="control",
    ),
    Operation(get_openapi, "GET", "/api/openapi.json", "This document", needs="nothing"),
    Operation(
        new_code,
        "POST",
        "/api/codes",
        "Make a code that signs in one browser, once",
        answer=SignInCode,
        needs="control",
        audited="sign-in",
    ),
    Operation(
        sign_in,
        "POST",
        "/api/session",
        "Exchange a code for a token of the status page",
        body=SignIn,
        answer=Session,
        needs="nothing",
        errors=(401,),
        audited="sign-in",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """The operation that a request asks for."""

    operation: Operation | None = None
    """None if nothing has that path, or not with that method."""
    parameters: dict[str, str]
    allowed: tuple[str, ...] = ()
    """The methods that the path has."""


def look_up(method: str, raw_path: str) -> Lookup:
    """Find the operation of a method and a raw path. An id may contain anything, also a slash."""
    segments = raw_path.split("/")
    fitting = [(one, found) for one in OPERATIONS if (found := _parameters(one, segments)) is not None]
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
    in_path = [part.strip("{}") for part in operation.path.split("/") if part.startswith("{")]
    number = {"type": "integer", "minimum": 1, "maximum": MOST_LINES}
    parameters = [{"name": one, "in": "path", "required": True, "schema": {"type": "string"}} for one in in_path]
    parameters += [{"name": one, "in": "query", "required": False, "schema": number} for one in operation.query]
    if parameters:
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
