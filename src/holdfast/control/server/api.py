"""The control API over HTTP: it checks the token, does what is asked, and gives a reason for every refusal.

The front checks Host and Origin before. Cookies and addresses count for nothing here, because a browser sends them
by itself: only the control token, or the token of a signed-in browser, gives access. A browser signs in with a code
that works once and for a short time. Codes and browser tokens end with the hub; a browser token ends after a day's
work, and when the control token is changed.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from itertools import count
from typing import Literal, TypeAlias
from urllib.parse import quote, urlsplit

import anyio
import anyio.lowlevel
import anyio.to_thread
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.control.models import (
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
from holdfast.control.server.events import KEEP_ALIVE, KEEP_ALIVE_SECONDS, EventStream, frame
from holdfast.control.server.login import LoginResponse, PendingLogins
from holdfast.control.server.logs import LogBuffer
from holdfast.control.server.openapi import MOST_LINES, OPERATIONS, Operation, document, look_up
from holdfast.control.server.page import sign_in_command
from holdfast.control.server.sign_ins import CODE_SECONDS, SharedSignIns
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

__all__ = ["HEADERS", "Access", "ApiRefused", "BrowserSessions", "ControlApi", "TooManyGuesses"]

Access: TypeAlias = Literal["control", "session"]

SESSION_SECONDS = 12 * 3600.0
"""How long a signed-in page may read and act: a working day. Then it must sign in again."""

MOST_CODES = 16
MOST_SESSIONS = 64
"""Over either limit, the oldest one ends."""

GUESSES, GUESS_SECONDS = 20, 60.0
"""After this many wrong codes in this time, the answer to a wrong code says so: a person who types one needs fewer."""


class TooManyGuesses(Exception):
    """Too many wrong codes came within the last minute."""


class BrowserSessions:
    """The codes and browser tokens of one run of the hub. With ``shared``, other workers accept them too."""

    def __init__(
        self,
        control_token: str,
        *,
        clock: Callable[[], float] = anyio.current_time,
        shared: SharedSignIns | None = None,
    ) -> None:
        self._control_token = control_token
        self._shared = shared
        self._clock = clock
        self._codes: dict[str, float] = {}
        self._tokens: dict[str, float] = {}
        """Each token of a page, and when it expires."""
        self._wrong: deque[float] = deque(maxlen=GUESSES)

    def use_control_token(self, token: str) -> None:
        """Accept another control token from now on; pages that signed in with the old one are signed out."""
        self._control_token = token
        self._tokens.clear()
        self._codes.clear()

    def access(self, token: str) -> Access | None:
        """Return the access that a bearer token gives; None if it is unknown."""
        if _same(token, self._control_token):
            return "control"
        return "session" if self.expires(token) is not None else None

    def expires(self, token: str) -> float | None:
        """Return when the token of a signed-in page expires; None if it is unknown or expired."""
        if self._shared is not None:
            left = self._shared.left("token", token, self._control_token)
            return self._clock() + left if left is not None else None
        found = [until for known, until in self._tokens.items() if _same(token, known)]
        return found[0] if found and found[0] > self._clock() else None

    def new_code(self) -> str:
        """Make a code that signs in one browser."""
        if self._shared is not None:
            return self._shared.new_code(self._control_token)
        self._forget_old()
        while len(self._codes) >= MOST_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._clock() + CODE_SECONDS
        return code

    def sign_in(self, code: str) -> str | None:
        """Exchange a code for a token; None if the code is not valid. A code works once."""
        now = self._clock()
        self._forget_old()
        shared = self._shared
        if shared is not None:
            found = [code] if self._is_fresh(shared, code) else []
        else:
            found = [known for known in self._codes if _same(code, known)]
        if not found:
            # A valid code works all the same: a stranger's guesses lock no one out.
            if len(self._wrong) == GUESSES and now - self._wrong[0] < GUESS_SECONDS:
                raise TooManyGuesses
            self._wrong.append(now)
            return None
        if shared is not None:
            return shared.make("token", SESSION_SECONDS, self._control_token)
        del self._codes[found[0]]
        token = secrets.token_urlsafe(32)
        while len(self._tokens) >= MOST_SESSIONS:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[token] = now + SESSION_SECONDS
        return token

    def _is_fresh(self, shared: SharedSignIns, code: str) -> bool:
        return shared.left("code", code, self._control_token) is not None and shared.use(code)

    def _forget_old(self) -> None:
        now = self._clock()
        self._codes = {code: until for code, until in self._codes.items() if until > now}
        self._tokens = {token: until for token, until in self._tokens.items() if until > now}

    def __repr__(self) -> str:
        return f"<BrowserSessions of {len(self._tokens)} browsers>"


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), known.encode())


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
    ) -> None:
        self.operation = operation
        self.server = parameters.get("server", "")
        self.body = body
        self.until = until
        """When the access of its sender ends."""
        self._request = request

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


Handler: TypeAlias = Callable[[ApiRequest], Awaitable[ApiModel | Response]]


class ControlApi:
    """An ASGI application for everything below ``/api``."""

    def __init__(
        self, hub: Hub, views: Views, sessions: BrowserSessions, *, events: EventStream, logs: LogBuffer
    ) -> None:
        self._hub = hub
        self._views = views
        self._sessions = sessions
        self._events = events
        self._logs = logs
        self._logins = PendingLogins()
        self.reconnect_elsewhere: Callable[[str], Awaitable[object]] | None = None
        """Reconnects a server in the other workers too."""
        self._handlers: dict[str, Handler] = {one.name: getattr(self, f"_{one.name}") for one in OPERATIONS}

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
        until = self._check_token(found.operation, request)
        body = await _body(found.operation, request)
        result = await self._handlers[found.operation.name](
            ApiRequest(found.operation, found.parameters, request, body, until=until)
        )
        return result if isinstance(result, Response) else await _json_in_turns(result)

    def _check_token(self, operation: Operation, request: Request) -> float | None:
        """Check the access of a request; returns when it ends, for the token of a page."""
        if operation.needs == "nothing":
            return None
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        access = self._sessions.access(token.strip()) if kind.lower() == "bearer" else None
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
        return self._sessions.expires(token.strip()) if access == "session" else None

    # One method for each operation.

    async def _get_hub(self, request: ApiRequest) -> ApiModel:
        return self._views.hub()

    async def _list_servers(self, request: ApiRequest) -> ApiModel:
        return await self._views.servers()

    async def _get_server(self, request: ApiRequest) -> Server:
        return self._views.server(request.server)

    async def _reconnect(self, request: ApiRequest) -> Server:
        try:
            await self._hub.reconnect(request.server)
        finally:
            if self.reconnect_elsewhere is not None:
                await self.reconnect_elsewhere(request.server)
        return self._views.server(request.server)

    async def _enable(self, request: ApiRequest) -> Server:
        await self._hub.toggle(request.server, True)
        return await self._with_scope(request.server)

    async def _disable(self, request: ApiRequest) -> Server:
        await self._hub.toggle(request.server, False)
        return await self._with_scope(request.server)

    async def _with_scope(self, server: str) -> Server:
        scope = await self._hub.registry.scope(server)
        return self._views.server(server).model_copy(update={"scope": scope})

    async def _approve(self, request: ApiRequest) -> Server:
        assert isinstance(request.body, Approve)  # noqa: S101 - the table says so
        body = request.body
        self._hub.approve(request.server, body.tool, mark=body.mark, kind=body.kind)
        self._events.touched(request.server)
        return await self._with_scope(request.server)

    async def _login(self, request: ApiRequest) -> Response:
        spec = self._hub.registry.slot(request.server).spec
        helps, scope = self._views.login_scope(request.server)
        if not helps or spec.problems:
            hint = f"its row says what it needs; `{command_line('login')}` in a terminal logs in to any server"
            raise ApiRefused(409, f"`{request.server}` does not ask for a login", hint=hint)
        return LoginResponse(self._hub, spec, self._logins, scope=scope, headers=HEADERS)

    async def _answer_login(self, request: ApiRequest) -> Server:
        assert isinstance(request.body, LoginAnswer)  # noqa: S101 - the table says so
        if not self._logins.answer(request.server, request.body.address):
            raise ApiRefused(409, f"no login of `{request.server}` waits for an answer", hint="log in again")
        return self._views.server(request.server)

    async def _list_approvals(self, request: ApiRequest) -> ApiModel:
        return await self._views.approvals()

    async def _get_approved(self, request: ApiRequest) -> ApiModel:
        return await self._views.approved()

    async def _get_catalog(self, request: ApiRequest) -> ApiModel:
        return await self._views.catalog()

    async def _get_logs(self, request: ApiRequest) -> ApiModel:
        self._hub.registry.slot(request.server)
        most = request.number("lines", default=200, most=MOST_LINES)
        return Logs(server=request.server, lines=await self._logs.last(request.server, most))

    async def _follow_logs(self, request: ApiRequest) -> Response:
        self._hub.registry.slot(request.server)
        last = request.number("lines", default=0, most=MOST_LINES)
        return _StreamResponse(self._log_frames(request.server, last), until=request.until)

    async def _log_frames(self, server: str, last: int) -> AsyncGenerator[bytes, None]:
        numbers = count(1)
        async with aclosing(self._logs.follow(server, silence=KEEP_ALIVE_SECONDS, last=last)) as news:
            async for lines in news:
                yield b"".join(frame("line", line.model_dump_json(), next(numbers)) for line in lines) or KEEP_ALIVE

    async def _follow_events(self, request: ApiRequest) -> Response:
        return _StreamResponse(self._events.follow(), until=request.until)

    async def _get_targets(self, request: ApiRequest) -> ApiModel:
        return self._views.targets()

    async def _get_openapi(self, request: ApiRequest) -> Response:
        return JSONResponse(document(), headers=HEADERS)

    async def _new_code(self, request: ApiRequest) -> ApiModel:
        return SignInCode(code=self._sessions.new_code(), expires_in=CODE_SECONDS)

    async def _sign_in(self, request: ApiRequest) -> ApiModel:
        assert isinstance(request.body, SignIn)  # noqa: S101 - the table says so
        again = f"`{request.sign_in}` makes a new one"
        try:
            token = self._sessions.sign_in(request.body.code)
        except TooManyGuesses:
            raise ApiRefused(403, "too many wrong codes in the last minute", hint="wait a minute") from None
        if token is None:
            raise ApiRefused(401, "this code is not valid: it was used already, or it expired", hint=again)
        return Session(token=token)


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


class _StreamResponse(StreamingResponse):
    """Streams frames; it closes the generator as soon as the client disconnects, not at garbage collection.

    It ends when the access of its reader ends.
    """

    def __init__(self, frames: AsyncGenerator[bytes, None], *, until: float | None = None) -> None:
        super().__init__(frames, media_type="text/event-stream", headers={**HEADERS, "x-accel-buffering": "no"})
        self._frames = frames
        self._until = math.inf if until is None else until

    async def stream_response(self, send: Send) -> None:
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
