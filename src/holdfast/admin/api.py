"""The control API over HTTP: who asks is checked, what is asked is done, and every refusal says why.

Host and Origin were checked before (``front/guard.py``). Nothing that a browser sends by itself is believed
here, no cookie and no address: a request acts only by the token in it.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from itertools import count
from typing import TypeAlias
from urllib.parse import quote, urlsplit

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.admin.feed import KEEP_ALIVE, KEEP_ALIVE_SECONDS, Feed, frame
from holdfast.admin.lines import Lines
from holdfast.admin.openapi import document
from holdfast.admin.operations import MOST_LINES, OPERATIONS, Operation, look_up
from holdfast.admin.sessions import CODE_SECONDS, Sessions, TooManyGuesses
from holdfast.admin.views import Views
from holdfast.control.models import ApiError, Approve, Code, Logs, Server, Session, Shape, SignIn
from holdfast.core.classify import classify
from holdfast.errors import (
    HoldfastError,
    LoadFailed,
    ServerDisabled,
    ServerUnavailable,
    ToolHeld,
    UnknownServer,
    UnknownTool,
)
from holdfast.hub.hub import Hub

__all__ = ["HEADERS", "ControlApi", "Refused"]

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""An answer is for the one who asked, once, and is never a page."""

LARGEST_BODY = 16 * 1024


class Refused(Exception):
    """A request that is not served; it never leaves this room."""

    def __init__(self, status: int, error: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.headers = dict(headers or {})
        self.body = ApiError(error=error, hint=hint)


class Asked:
    """One request that was let in, and what of it is needed to serve it."""

    def __init__(
        self, operation: Operation, parameters: Mapping[str, str], request: Request, body: Shape | None
    ) -> None:
        self.operation = operation
        self.server = parameters.get("server", "")
        self.body = body
        self._request = request

    def number(self, name: str, *, default: int, most: int) -> int:
        """A whole number of the query."""
        text = self._request.query_params.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most and len(text) < 9):
            raise Refused(422, f"`{name}` must be a whole number from 1 to {most}")
        return int(text)


Handler: TypeAlias = Callable[[Asked], Awaitable[Shape | Response]]


class ControlApi:
    """An ASGI application for everything below ``/api``."""

    def __init__(self, hub: Hub, views: Views, sessions: Sessions, *, feed: Feed, lines: Lines) -> None:
        self._hub = hub
        self._views = views
        self._sessions = sessions
        self._feed = feed
        self._lines = lines
        self._handlers: dict[str, Handler] = {one.name: getattr(self, f"_{one.name}") for one in OPERATIONS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        try:
            response = await self._served(request)
        except ClientDisconnect:
            return
        except Refused as refusal:
            response = _json(refusal.body, refusal.status, refusal.headers)
        except HoldfastError as error:
            response = _json(_explained(error), _status(error))
        await response(scope, receive, send)

    async def _served(self, request: Request) -> Response:
        found = look_up(request.method, _raw_path(request.scope))
        if found.operation is None:
            raise _nothing_there(found.allowed)
        _check_origin(request)
        self._check_token(found.operation, request)
        body = await _body(found.operation, request)
        result = await self._handlers[found.operation.name](Asked(found.operation, found.parameters, request, body))
        return result if isinstance(result, Response) else _json(result)

    def _check_token(self, operation: Operation, request: Request) -> None:
        if operation.needs == "nothing":
            return
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        access = self._sessions.access(token.strip()) if kind.lower() == "bearer" else None
        if access is None:
            raise Refused(
                401,
                "the control token, or a signed-in page's own, is needed",
                hint="`holdfast status --open` signs a browser in; commands find the token of a hub here by themselves",
                headers={"www-authenticate": "Bearer"},
            )
        if operation.needs == "control" and access != "control":
            raise Refused(403, "this needs the control token itself", hint="`holdfast status --open` has it")

    # One function for each operation.

    async def _get_hub(self, asked: Asked) -> Shape:
        return self._views.hub()

    async def _list_servers(self, asked: Asked) -> Shape:
        return await self._views.servers()

    async def _get_server(self, asked: Asked) -> Server:
        return self._views.server(asked.server)

    async def _reconnect(self, asked: Asked) -> Server:
        await self._hub.reconnect(asked.server)
        return self._views.server(asked.server)

    async def _enable(self, asked: Asked) -> Server:
        await self._hub.toggle(asked.server, True)
        return self._views.server(asked.server)

    async def _disable(self, asked: Asked) -> Server:
        await self._hub.toggle(asked.server, False)
        return self._views.server(asked.server)

    async def _approve(self, asked: Asked) -> Server:
        assert isinstance(asked.body, Approve)  # noqa: S101 - the table says so
        self._hub.approve(asked.server, asked.body.tool, mark=asked.body.mark)
        self._feed.touched(asked.server)
        return self._views.server(asked.server)

    async def _list_approvals(self, asked: Asked) -> Shape:
        return self._views.approvals()

    async def _get_catalog(self, asked: Asked) -> Shape:
        return self._views.catalog()

    async def _get_logs(self, asked: Asked) -> Shape:
        self._hub.registry.slot(asked.server)
        most = asked.number("lines", default=200, most=MOST_LINES)
        return Logs(server=asked.server, lines=self._lines.last(asked.server, most))

    async def _follow_logs(self, asked: Asked) -> Response:
        self._hub.registry.slot(asked.server)
        last = asked.number("lines", default=0, most=MOST_LINES)
        return _EventStream(self._log_frames(asked.server, last))

    async def _log_frames(self, server: str, last: int) -> AsyncGenerator[bytes, None]:
        numbers = count(1)
        async with aclosing(self._lines.follow(server, silence=KEEP_ALIVE_SECONDS, last=last)) as news:
            async for lines in news:
                yield b"".join(frame("line", line.model_dump_json(), next(numbers)) for line in lines) or KEEP_ALIVE

    async def _follow_events(self, asked: Asked) -> Response:
        return _EventStream(self._feed.follow())

    async def _get_targets(self, asked: Asked) -> Shape:
        return self._views.targets()

    async def _get_openapi(self, asked: Asked) -> Response:
        return JSONResponse(document(), headers=HEADERS)

    async def _new_code(self, asked: Asked) -> Shape:
        return Code(code=self._sessions.new_code(), expires_in=CODE_SECONDS)

    async def _sign_in(self, asked: Asked) -> Shape:
        assert isinstance(asked.body, SignIn)  # noqa: S101 - the table says so
        again = "`holdfast status --open` makes another"
        try:
            token = self._sessions.sign_in(asked.body.code)
        except TooManyGuesses:
            raise Refused(403, "too many wrong codes came just now", hint="wait a minute") from None
        if token is None:
            raise Refused(401, "this code is not valid: it was used already, or is too old", hint=again)
        return Session(token=token)


def _raw_path(scope: Scope) -> str:
    """The path as it was sent: decoded, an id with a slash in it could not be told from two segments."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if isinstance(raw, bytes) else quote(scope["path"])


def _nothing_there(allowed: tuple[str, ...]) -> Refused:
    if not allowed:
        return Refused(404, "there is nothing at this path", hint="GET /api/openapi.json tells what there is")
    return Refused(405, f"this path takes {' and '.join(allowed)} alone", headers={"allow": ", ".join(allowed)})


def _check_origin(request: Request) -> None:
    """Only our own page asks from a browser: one that another program serves on this machine has another port."""
    origin = request.headers.get("origin")
    if origin is not None and _authority(origin) != request.headers.get("host", "").lower():
        raise Refused(403, "this Origin may not use the control API", hint="open the status page of this hub")


def _authority(origin: str) -> str | None:
    """None for what is no origin."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


async def _body(operation: Operation, request: Request) -> Shape | None:
    if operation.body is None:
        return None
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > LARGEST_BODY:
            raise Refused(422, f"the body has more than {LARGEST_BODY} bytes")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(422, "the body must be JSON", hint="send `content-type: application/json`")
    try:
        return operation.body.model_validate_json(data)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(422, f"the body is not what it must be: {f'{where}: ' if where else ''}{first['msg']}") from None


class _EventStream(StreamingResponse):
    """Frames as they come; whoever leaves is forgotten at once, and not when somebody collects what is left."""

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        super().__init__(frames, media_type="text/event-stream", headers={**HEADERS, "x-accel-buffering": "no"})
        self._frames = frames

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._frames):
            await super().stream_response(send)


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
            return classify(error.evidence).hint
        case ServerDisabled():
            return f"switch it on first: `holdfast enable {shlex.quote(error.server_id)}`"
    return ""


def _json(shape: Shape, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    content = shape.model_dump_json()
    return Response(content, status, media_type="application/json", headers={**HEADERS, **(headers or {})})
