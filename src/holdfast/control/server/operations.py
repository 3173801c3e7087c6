"""The operations of the control API, one function each. ``openapi`` says how each is reached, by its name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from itertools import count

from starlette.responses import JSONResponse, Response

from holdfast.control.models import ApiModel, Approve, LoginAnswer, Logs, Server, Session, SignIn, SignInCode
from holdfast.control.server.api import HEADERS, ApiContext, ApiRefused, ApiRequest, FrameStream, Handler
from holdfast.control.server.events import KEEP_ALIVE, KEEP_ALIVE_SECONDS, frame
from holdfast.control.server.login import LoginResponse
from holdfast.control.server.openapi import MOST_LINES, document
from holdfast.control.server.sign_ins import CODE_SECONDS, TooManyGuesses
from holdfast.core import command_line

__all__ = ["HANDLERS"]


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
        *(list_approvals, get_approved, get_catalog, get_logs, follow_logs, follow_events, get_targets),
        *(get_openapi, new_code, sign_in),
    )
}
"""Each operation of ``openapi.OPERATIONS`` by its name."""
