"""The control API over HTTP: it checks the token, does what is asked, and gives a reason for every refusal.

The front checks Host and Origin before. Access has one of two sources:

- The control token, or the token of a page that signed in with a code: they have every role. A code works once and for
  a short time. Codes and page tokens end with the hub; a page token ends after a day's work, and when the control token
  is changed.
- A principal: by her own token, by the headers of a trusted gateway, or by the session of her browser. She has the
  roles that ``access.roles`` gives her. A browser sends its cookie and its address by itself, so neither counts for a
  request that changes something unless a page of this hub sent it.

``operations`` has what can be asked, in one table.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from functools import partial
from urllib.parse import quote

import anyio
import anyio.lowlevel
import anyio.to_thread
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.access import ALL_ROLES, roles_of
from holdfast.control.models import ApiError, ApiModel, DecideCall, Session
from holdfast.control.server.operations import (
    HEADERS,
    LARGEST_BODY,
    OPERATIONS,
    ApiAccess,
    ApiContext,
    ApiRefused,
    ApiRequest,
    Operation,
    look_up,
)
from holdfast.control.server.page import sign_in_command
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
from holdfast.hub import UnknownQuestion

__all__ = ["ControlApi"]

ITEMS_IN_A_TURN = 25
"""How many items of an answer are written in one step of the event loop."""


def page_name(token: str) -> str:
    """What the audit calls a page that signed in: a mark of its token."""
    return f"page:{hashlib.sha256(token.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


class ControlApi:
    """An ASGI application for everything below ``/api``."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def __repr__(self) -> str:
        return f"<ControlApi of {len(OPERATIONS)} operations>"

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
            result = await found.operation.handler(self._context, asked)
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
        if self._context.audit is None or not asked.operation.audited:
            return
        named = getattr(asked.body, "tool", None) or asked.call
        if isinstance(asked.body, DecideCall) and outcome == "done":
            outcome, reason = "approved" if asked.body.approve else "refused", asked.body.reason
        self._context.audit.event(
            asked.operation.audited,
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


def _status(error: HoldfastError) -> int:
    match error:
        case UnknownServer() | UnknownTool() | UnknownQuestion():
            return 404
        case ServerUnavailable() | ToolHeld():
            return 409
    return 502


def _explained(error: HoldfastError) -> ApiError:
    hint = error.hint
    match error:
        case LoadFailed() if not hint:
            hint = classify_evidence(error.evidence).hint
        case ServerDisabled() if not hint:
            hint = f"switch it on first: `{command_line('enable', server=error.server_id)}`"
    return ApiError(error=error.message, hint=hint)


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
