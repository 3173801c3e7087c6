"""The control API over HTTP: it checks the token, does what is asked, and gives a reason for every refusal.

The front checks Host and Origin before. Cookies and addresses count for nothing here, because a browser sends them
by itself: only the control token, or the token of a signed-in browser, gives access. A browser signs in with a code
that works once and for a short time. Codes and browser tokens end with the hub; a browser token ends after a day's
work, and when the control token is changed.

Each operation of the API is one function in ``HANDLERS``. ``openapi`` says how each is reached, by its name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias
from urllib.parse import quote, urlsplit

import anyio
import anyio.lowlevel
import anyio.to_thread
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.access import AuditFilter, AuditTrail, Principal, latest_records
from holdfast.control.models import (
    ActivityRecord,
    ActivityView,
    ApiError,
    ApiModel,
    Approve,
    LoginAnswer,
    Logs,
    Server,
    Session,
    SignIn,
    SignInCode,
)
from holdfast.control.server.browser_login import LoginResponse, PendingLogins
from holdfast.control.server.control_events import KEEP_ALIVE, KEEP_ALIVE_SECONDS, EventStream, frame
from holdfast.control.server.log_buffer import LogBuffer
from holdfast.control.server.openapi import MOST_LINES, Operation, document, look_up
from holdfast.control.server.page import sign_in_command
from holdfast.control.server.sign_ins import CODE_SECONDS, BrowserSessions, TooManyGuesses
from holdfast.control.server.views import Views
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
from holdfast.hub import Hub

__all__ = ["HANDLERS", "HEADERS", "ApiContext", "ApiRefused", "ApiRequest", "ControlApi", "FrameStream", "Handler"]

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""An answer is never cached and never shown as a page."""

LARGEST_BODY = 16 * 1024

LONGEST_TOKEN = 16 * 1024
"""Characters of a caller's token, as at the MCP endpoints."""

ITEMS_IN_A_TURN = 25
"""How many items of an answer are written in one step of the event loop."""


_AUDITED = {
    "enable": "switch",
    "disable": "switch",
    "reconnect": "reconnect",
    "approve": "approval",
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


class ApiRequest:
    """A request with access, and what its handler needs of it."""

    def __init__(
        self,
        operation: Operation,
        parameters: Mapping[str, str],
        request: Request,
        body: ApiModel | None,
        *,
        until: float | None = None,
        own: str | None = None,
    ) -> None:
        self.operation = operation
        self.server = parameters.get("server", "")
        self.body = body
        self.until = until
        """When the access of its sender ends."""
        self.own = own
        """The principal that may see what is its own, and nothing else; None for an operator."""
        self._request = request

    @property
    def operator(self) -> str:
        """Who asks: the holder of the control token, or one page that signed in, by a mark of its token."""
        token = self._request.headers.get("authorization", "").partition(" ")[2].strip()
        if self.until is None:
            return "control" if token else ""
        return page_name(token)

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
    audit: AuditTrail | None = None
    principal_of: Callable[[str], Awaitable[Principal | None]] | None = None
    """The principal of a caller's own token."""
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
        _check_origin(request)
        own = await self._caller(found.operation, request)
        until = self._check_token(found.operation, request) if own is None else None
        body = await _body(found.operation, request)
        asked = ApiRequest(found.operation, found.parameters, request, body, until=until, own=own)
        try:
            result = await self._handlers[found.operation.name](self._context, asked)
        except (ApiRefused, HoldfastError) as error:
            self._record(asked, "refused", error.message if isinstance(error, HoldfastError) else str(error))
            raise
        self._record(asked, "done", signed_in=result.token if isinstance(result, Session) else "")
        return result if isinstance(result, Response) else await _json_in_turns(result)

    def _record(self, asked: ApiRequest, outcome: str, reason: str = "", *, signed_in: str = "") -> None:
        """Record what an operator did. What only reads leaves no record."""
        event = _AUDITED.get(asked.operation.name)
        if self._context.audit is None or event is None:
            return
        named = getattr(asked.body, "tool", None) or ""
        self._context.audit.event(
            event,
            principal=page_name(signed_in) if signed_in else asked.operator,
            source=asked.source,
            server=asked.server,
            method=asked.operation.name,
            tool=named,
            outcome=outcome,
            reason=reason,
        )

    async def _caller(self, operation: Operation, request: Request) -> str | None:
        """The principal of a request with a caller's own token, where such a token is enough; else None."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        find, token = self._context.principal_of, token.strip()
        if operation.needs != "caller" or find is None or kind.lower() != "bearer":
            return None
        if self._context.sessions.access(token) is not None:
            return None
        principal = await find(token) if len(token) <= LONGEST_TOKEN else None
        return principal.name if principal is not None else None

    def _check_token(self, operation: Operation, request: Request) -> float | None:
        """Check the access of a request; returns when it ends, for the token of a page."""
        if operation.needs == "nothing":
            return None
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        access = self._context.sessions.access(token.strip()) if kind.lower() == "bearer" else None
        if access is None:
            raise ApiRefused(
                401,
                "the control token, or the token of a signed-in page, is required",
                hint=f"`{sign_in_command(request)}` signs a browser in; commands find the token of a local hub by "
                "themselves",
                headers={"www-authenticate": "Bearer"},
            )
        if operation.needs == "control" and access != "control":
            raise ApiRefused(403, "this needs the control token itself", hint=f"`{sign_in_command(request)}` uses it")
        left = self._context.sessions.left(token.strip()) if access == "session" else None
        return anyio.current_time() + left if left is not None else None


def _raw_path(scope: Scope) -> str:
    """Return the path as it was sent: after decoding, an id with a slash looks like two segments."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if isinstance(raw, bytes) else quote(scope["path"])


def _nothing_there(allowed: tuple[str, ...]) -> ApiRefused:
    if not allowed:
        return ApiRefused(404, "there is nothing at this path", hint="GET /api/openapi.json lists all paths")
    return ApiRefused(405, f"this path takes only {' and '.join(allowed)}", headers={"allow": ", ".join(allowed)})


def _check_origin(request: Request) -> None:
    """Refuse pages of other origins: a page that another program serves on this machine has another port."""
    origin = request.headers.get("origin")
    if origin is not None and _authority(origin) != request.headers.get("host", "").lower():
        raise ApiRefused(403, "this Origin may not use the control API", hint="open the status page of this hub")


def _authority(origin: str) -> str | None:
    """Return host and port of an origin; None if it is not one."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


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

    def __init__(self, frames: AsyncGenerator[bytes, None], *, until: float | None = None) -> None:
        super().__init__(frames, media_type="text/event-stream", headers={**HEADERS, "x-accel-buffering": "no"})
        self._frames = frames
        self._until = math.inf if until is None else until

    async def stream_response(self, send: Send) -> None:
        """Write the frames until the generator, the reader or the access ends."""
        async with aclosing(self._frames):
            with anyio.CancelScope(deadline=self._until) as access:
                await super().stream_response(send)
        if access.cancelled_caught:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _status(error: HoldfastError) -> int:
    match error:
        case UnknownServer() | UnknownTool():
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
    return FrameStream(_log_frames(api, request.server, last), until=request.until)


async def _log_frames(api: ApiContext, server: str, last: int) -> AsyncGenerator[bytes, None]:
    numbers = count(1)
    async with aclosing(api.logs.follow(server, silence=KEEP_ALIVE_SECONDS, last=last)) as news:
        async for lines in news:
            yield b"".join(frame("line", line.model_dump_json(), next(numbers)) for line in lines) or KEEP_ALIVE


async def follow_events(api: ApiContext, request: ApiRequest) -> Response:
    return FrameStream(api.events.follow(), until=request.until)


async def list_activity(api: ApiContext, request: ApiRequest) -> ApiModel:
    if api.audit is None:
        return ActivityView(audit=False, principal=request.own or "", records=())
    most = request.number("lines", default=100, most=MOST_LINES)
    wanted = AuditFilter(principal=request.own or "")
    records = await anyio.to_thread.run_sync(latest_records, api.audit.folder, wanted, most)
    shown = [
        ActivityRecord(
            at=one.time.timestamp(),
            **{name: getattr(one, name) for name in ActivityRecord.model_fields if name != "at"},
        )
        for one in records
    ]
    return ActivityView(audit=True, principal=request.own or "", records=tuple(shown))


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
        *(list_approvals, get_approved, get_catalog, get_logs, follow_logs, follow_events, list_activity, get_targets),
        *(get_openapi, new_code, sign_in),
    )
}
"""Each operation of ``openapi.OPERATIONS`` by its name."""
