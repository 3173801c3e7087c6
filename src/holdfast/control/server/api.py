"""The control API over HTTP: it checks the token, does what is asked, and gives a reason for every refusal.

The front checks Host and Origin before. Access has one of two sources:

- The control token, or the token of a page that signed in with a code: they have every role. A code works once and for
  a short time. Codes and page tokens end with the hub; a page token ends after a day's work, and when the control token
  is changed.
- A principal: by her own token, by the headers of a trusted gateway, or by the session of her browser. She has the
  roles that ``access.roles`` gives her. A browser sends its cookie and its address by itself, so neither counts for a
  request that changes something unless a page of this hub sent it.

Each operation of the API is one function in ``HANDLERS``. ``openapi`` says how each is reached, by its name.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TypeAlias
from urllib.parse import quote

import anyio
import anyio.lowlevel
import anyio.to_thread
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.access import ALL_ROLES, AuditFilter, AuditRecord, AuditTrail, Principal, Role, latest_records, roles_of
from holdfast.control.models import (
    ActivityRecord,
    ActivityView,
    ApiError,
    ApiModel,
    Approve,
    DecideCall,
    LoginAnswer,
    Logs,
    Me,
    Server,
    Session,
    SignIn,
    SignInCode,
    WaitingCall,
)
from holdfast.control.server.browser_identity import BrowserIdentity
from holdfast.control.server.browser_login import LoginResponse, PendingLogins
from holdfast.control.server.control_events import KEEP_ALIVE, KEEP_ALIVE_SECONDS, EventStream, frame
from holdfast.control.server.log_buffer import LogBuffer
from holdfast.control.server.openapi import MOST_LINES, Operation, document, look_up
from holdfast.control.server.page import sign_in_command
from holdfast.control.server.sign_ins import CODE_SECONDS, BrowserSessions, TooManyGuesses
from holdfast.control.server.views import Views, waiting_call
from holdfast.core import classify_evidence, command_line
from holdfast.errors import (
    HoldfastError,
    LoadFailed,
    ServerDisabled,
    ServerUnavailable,
    ToolHeld,
    UnknownServer,
    UnknownTool,
)
from holdfast.hub import CallVerdict, Hub, UnknownQuestion, find_question

__all__ = ["HANDLERS", "HEADERS", "ApiContext", "ApiRefused", "ApiRequest", "ControlApi", "FrameStream", "Handler"]

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""An answer is never cached and never shown as a page."""

LARGEST_BODY = 16 * 1024

ITEMS_IN_A_TURN = 25
"""How many items of an answer are written in one step of the event loop."""


RECHECK_SECONDS = 5.0
"""How soon a stream ends whose reader lost the role for it."""

_AUDITED = {
    "enable": "switch",
    "disable": "switch",
    "reconnect": "reconnect",
    "approve": "approval",
    "decide_call": "approval",
    "login": "login",
    "answer_login": "login",
    "new_code": "sign-in",
    "sign_in": "sign-in",
}
"""The operations that leave a record in the audit, and what it is called there."""


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

    @property
    def source(self) -> str:
        """Where it comes from: an address, and the user if it is on this machine."""
        admission = (self._request.scope.get("extensions") or {}).get("holdfast.admission")
        return admission.peer.name if admission is not None else ""

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
    audit: AuditTrail | None = None
    logins: PendingLogins = field(default_factory=PendingLogins)


Handler: TypeAlias = Callable[[ApiContext, ApiRequest], Awaitable[ApiModel | Response]]


def page_name(token: str) -> str:
    """What the audit calls a page that signed in: a mark of its token."""
    return f"page:{hashlib.sha256(token.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


class ControlApi:
    """An ASGI application for everything below ``/api``."""

    def __init__(self, context: ApiContext, handlers: Mapping[str, Handler]) -> None:
        self._context = context
        self._handlers = handlers

    def __repr__(self) -> str:
        return f"<ControlApi of {len(self._handlers)} operations>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        try:
            response = await self._served(request)
        except ClientDisconnect:
            return
        except ApiRefused as refusal:
            response = _json(refusal.body, refusal.status, refusal.headers)
        except HoldfastError as error:
            response = _json(_explained(error), _status(error))
        await response(scope, receive, send)

    async def _served(self, request: Request) -> Response:
        found = look_up(request.method, _raw_path(request.scope))
        if found.operation is None:
            raise _nothing_there(found.allowed)
        self._check_origin(request)
        access = await self._access(found.operation, request)
        still = partial(self._may_still, found.operation, request) if access.principal is not None else None
        asked = ApiRequest(found.operation, found.parameters, request, access=access, still_allowed=still)
        try:
            _require(found.operation, access, request)
            asked.body = await _body(found.operation, request)
            result = await self._handlers[found.operation.name](self._context, asked)
        except (ApiRefused, HoldfastError) as error:
            self._record(asked, "refused", error.message if isinstance(error, HoldfastError) else str(error))
            raise
        self._record(asked, "done", signed_in=result.token if isinstance(result, Session) else "")
        return result if isinstance(result, Response) else await _json_in_turns(result)

    async def _may_still(self, operation: Operation, request: Request) -> bool:
        """Whether the sender of a request that is still answered has the access that it needs."""
        try:
            _require(operation, await self._access(operation, request), request)
        except ApiRefused:
            return False
        return True

    def _record(self, asked: ApiRequest, outcome: str, reason: str = "", *, signed_in: str = "") -> None:
        """Record what an operator did. What only reads leaves no record."""
        event = _AUDITED.get(asked.operation.name)
        if self._context.audit is None or event is None:
            return
        named = getattr(asked.body, "tool", None) or asked.call
        if isinstance(asked.body, DecideCall) and outcome == "done":
            outcome, reason = "approved" if asked.body.approve else "refused", asked.body.reason
        self._context.audit.event(
            event,
            principal=page_name(signed_in) if signed_in else asked.access.operator,
            source=asked.source,
            server=asked.server,
            method=asked.operation.name,
            tool=named,
            outcome=outcome,
            reason=reason,
        )

    async def _access(self, operation: Operation, request: Request) -> ApiAccess:
        """The access of a request. Raises ``ApiRefused`` if it has none."""
        if operation.needs == "nothing":
            return ApiAccess()
        access = self._by_control_token(request) or await self._by_principal(request)
        if access is None:
            raise ApiRefused(
                401,
                "the control token, the token of a signed-in page, or that of a principal with a role is required",
                hint=f"`{sign_in_command(request)}` signs a browser in; commands find the token of a local hub by "
                "themselves",
                headers={"www-authenticate": "Bearer"},
            )
        return access

    def _by_control_token(self, request: Request) -> ApiAccess | None:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        sessions, token = self._context.sessions, token.strip()
        found = sessions.access(token) if kind.lower() == "bearer" else None
        if found is None:
            return None
        left = sessions.left(token) if found == "session" else None
        return ApiAccess(
            operator="control" if found == "control" else page_name(token),
            roles=ALL_ROLES,
            until=anyio.current_time() + left if left is not None else None,
            is_control=found == "control",
        )

    async def _by_principal(self, request: Request) -> ApiAccess | None:
        """The access of a principal; None if none is known."""
        browsers = self._context.browsers
        found = await browsers.identify(request)
        if found is None:
            return None
        if found.by == "cookie" and request.method not in ("GET", "HEAD") and not browsers.is_own_page(request):
            raise ApiRefused(403, "only a page of this hub may use this session", hint="use the status page")
        roles = roles_of(found.principal, self._context.hub.config.settings.access.roles)
        if found.by == "connection" and not roles:
            return None  # the user of the machine has the control token
        return ApiAccess(
            operator=found.principal.name,
            principal=found.principal,
            roles=roles,
            until=anyio.current_time() + found.until - time.time() if found.until is not None else None,
            by_cookie=found.by == "cookie",
        )

    def _check_origin(self, request: Request) -> None:
        """Refuse pages of other origins: a page that another program serves on this machine has another port."""
        if request.headers.get("origin") is not None and not self._context.browsers.is_own_page(request):
            raise ApiRefused(403, "this Origin may not use the control API", hint="open the status page of this hub")


def _require(operation: Operation, access: ApiAccess, request: Request) -> None:
    """Refuse a request whose access is not enough for the operation, and name what is missing."""
    if operation.needs == "control" and not access.is_control:
        raise ApiRefused(403, "this needs the control token itself", hint=f"`{sign_in_command(request)}` uses it")
    if operation.needs in ALL_ROLES and operation.needs not in access.roles:
        has = ", ".join(f"`{role}`" for role in sorted(access.roles)) or "none"
        raise ApiRefused(
            403,
            f"this needs the role `{operation.needs}`, which {access.operator} does not have (roles: {has})",
            hint="an operator gives roles in `holdfast.access.roles` of the mcp.json",
        )


def _raw_path(scope: Scope) -> str:
    """Return the path as it was sent: after decoding, an id with a slash looks like two segments."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if isinstance(raw, bytes) else quote(scope["path"])


def _nothing_there(allowed: tuple[str, ...]) -> ApiRefused:
    if not allowed:
        return ApiRefused(404, "there is nothing at this path", hint="GET /api/openapi.json lists all paths")
    return ApiRefused(405, f"this path takes only {' and '.join(allowed)}", headers={"allow": ", ".join(allowed)})


async def _body(operation: Operation, request: Request) -> ApiModel | None:
    if operation.body is None:
        return None
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > LARGEST_BODY:
            raise ApiRefused(422, f"the body has more than {LARGEST_BODY} bytes")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiRefused(422, "the body must be JSON", hint="send `content-type: application/json`")
    try:
        return operation.body.model_validate_json(data)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ApiRefused(422, f"the body is not valid: {f'{where}: ' if where else ''}{first['msg']}") from None


class FrameStream(StreamingResponse):
    """Streams frames; it closes the generator as soon as the client disconnects, not at garbage collection.

    It ends when the access of its reader ends.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        until: float | None = None,
        allowed: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """``allowed`` says whether the reader still has the access: a role or a token may be taken away."""
        super().__init__(frames, media_type="text/event-stream", headers={**HEADERS, "x-accel-buffering": "no"})
        self._frames = frames
        self._until = math.inf if until is None else until
        self._allowed = allowed

    async def stream_response(self, send: Send) -> None:
        """Write the frames until the generator, the reader or the access ends."""
        async with aclosing(self._frames):
            with anyio.CancelScope(deadline=self._until) as access:
                async with anyio.create_task_group() as tasks:
                    if self._allowed is not None:
                        tasks.start_soon(_end_without, self._allowed, access)
                    await super().stream_response(send)
                    tasks.cancel_scope.cancel()
        if access.cancelled_caught:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _end_without(allowed: Callable[[], Awaitable[bool]], stream: anyio.CancelScope) -> None:
    while True:
        await anyio.sleep(RECHECK_SECONDS)
        if not await allowed():
            stream.cancel()
            return


def _status(error: HoldfastError) -> int:
    match error:
        case UnknownServer() | UnknownTool() | UnknownQuestion():
            return 404
        case ServerUnavailable() | ToolHeld():
            return 409
    return 502


def _explained(error: HoldfastError) -> ApiError:
    return ApiError(error=error.message, hint=error.hint or _next_step(error))


def _next_step(error: HoldfastError) -> str:
    match error:
        case LoadFailed():
            return classify_evidence(error.evidence).hint
        case ServerDisabled():
            return f"switch it on first: `{command_line('enable', server=error.server_id)}`"
    return ""


async def _json_in_turns(shape: ApiModel) -> Response:
    """The answer for a model that may be large: calls of tools get a turn between the items of its lists."""
    pieces: list[bytes] = []
    for name, value in shape:
        pieces.append(b"," if pieces else b"{")
        if not (isinstance(value, tuple) and value and isinstance(value[0], ApiModel)):
            pieces.append(shape.model_dump_json(include={name})[1:-1].encode())
            continue
        pieces.append(f'"{name}":'.encode())
        for number, item in enumerate(value):
            if number % ITEMS_IN_A_TURN == 0:
                await anyio.lowlevel.checkpoint()
            pieces += (b"," if number else b"[", item.model_dump_json().encode())
        pieces.append(b"]")
    content = await anyio.to_thread.run_sync(b"".join, (*pieces, b"}"))
    return Response(content, media_type="application/json", headers=HEADERS)


def _json(shape: ApiModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    content = shape.model_dump_json()
    return Response(content, status, media_type="application/json", headers={**HEADERS, **(headers or {})})


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
    assert isinstance(request.body, Approve)  # noqa: S101 - the table says so
    body = request.body
    api.hub.approve(request.server, body.tool, mark=body.mark, kind=body.kind)
    api.events.touched(request.server)
    return await _with_scope(api, request.server)


async def login(api: ApiContext, request: ApiRequest) -> Response:
    spec = api.hub.registry.slot(request.server).spec
    helps, scope = api.views.login_scope(request.server)
    if not helps or spec.problems:
        hint = f"its row says what it needs; `{command_line('login')}` in a terminal logs in to any server"
        raise ApiRefused(409, f"`{request.server}` does not ask for a login", hint=hint)
    return LoginResponse(api.hub, spec, api.logins, scope=scope, headers=HEADERS)


async def answer_login(api: ApiContext, request: ApiRequest) -> Server:
    assert isinstance(request.body, LoginAnswer)  # noqa: S101 - the table says so
    if not api.logins.answer(request.server, request.body.address):
        raise ApiRefused(409, f"no login of `{request.server}` waits for an answer", hint="log in again")
    return api.views.server(request.server)


async def list_calls(api: ApiContext, request: ApiRequest) -> ApiModel:
    return api.views.calls(None if _decides_for_others(request.access) else request.access.operator)


def _decides_for_others(access: ApiAccess) -> bool:
    return access.principal is None or "approve" in access.roles


async def decide_call(api: ApiContext, request: ApiRequest) -> WaitingCall:
    assert isinstance(request.body, DecideCall)  # noqa: S101 - the table says so
    questions, access = api.hub.registry.call_approvals, request.access
    found = find_question(questions, request.call)
    is_own = access.principal is not None and found.binding.principal == access.principal.name
    if is_own and found.approver == "operator":
        raise ApiRefused(403, "another person has to decide about this call", hint="its rule asks an operator")
    if not is_own and not _decides_for_others(access):
        raise ApiRefused(403, "this needs the role `approve`, or a call of your own", hint="`access.roles` gives roles")
    questions.decide(request.call, CallVerdict(request.body.approve, access.operator, request.body.reason))
    return waiting_call(found)


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
    return FrameStream(frames, until=request.access.until, allowed=request.still_allowed)


async def _log_frames(api: ApiContext, server: str, last: int) -> AsyncGenerator[bytes, None]:
    numbers = count(1)
    async with aclosing(api.logs.follow(server, silence=KEEP_ALIVE_SECONDS, last=last)) as news:
        async for lines in news:
            yield b"".join(frame("line", line.model_dump_json(), next(numbers)) for line in lines) or KEEP_ALIVE


async def follow_events(api: ApiContext, request: ApiRequest) -> Response:
    return FrameStream(api.events.follow(), until=request.access.until, allowed=request.still_allowed)


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
    assert isinstance(request.body, SignIn)  # noqa: S101 - the table says so
    again = f"`{request.sign_in}` makes a new one"
    try:
        token = api.sessions.sign_in(request.body.code)
    except TooManyGuesses:
        raise ApiRefused(403, "too many wrong codes in the last minute", hint="wait a minute") from None
    if token is None:
        raise ApiRefused(401, "this code is not valid: it was used already, or it expired", hint=again)
    return Session(token=token)


HANDLERS: Mapping[str, Handler] = {
    one.__name__: one
    for one in (
        *(get_hub, list_servers, get_server, reconnect, enable, disable, approve, login, answer_login),
        *(
            list_calls,
            decide_call,
            list_approvals,
            get_approved,
            get_catalog,
            get_logs,
            follow_logs,
            follow_events,
            list_activity,
            get_targets,
            get_me,
        ),
        *(get_openapi, new_code, sign_in),
    )
}
"""Each operation of ``openapi.OPERATIONS`` by its name."""
