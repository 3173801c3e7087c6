"""The control server of a hub: its API, its event stream, its status page, its log buffer and its metrics, in one.

It reads the hub's records and gives commands. It is never on the path of a call.

``ControlApi`` is the API over HTTP: it checks the token, does what is asked, and gives a reason for every refusal.
``operations`` has what can be asked, in one table. The front checks Host and Origin before. Access has one of two
sources:

- The control token, or the token of a page that signed in with a code: they have every role. A code works once and for
  a short time. Codes and page tokens end with the hub; a page token ends after a day's work, and when the control token
  is changed.
- A principal: by her own token, by the headers of a trusted gateway, or by the session of her browser. She has the
  roles that ``access.roles`` gives her. A browser sends its cookie and its address by itself, so neither counts for a
  request that changes something unless a page of this hub sent it.

What must never happen: an operation runs before its access is checked; a known caller is refused an audited operation
without a record; a stream goes on after the access of its reader ended.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from urllib.parse import quote

import anyio
import anyio.lowlevel
import anyio.to_thread
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.types import Receive, Scope, Send

from holdfast.access import ALL_ROLES, AuditTrail, roles_of
from holdfast.config import UNIX
from holdfast.control.models import ApiError, ApiModel, DecideCall, FleetView, Session
from holdfast.control.server.browser_identity import BrowserIdentity
from holdfast.control.server.control_events import EventStream
from holdfast.control.server.log_buffer import LogBuffer
from holdfast.control.server.metrics import Metrics, metrics_route
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
from holdfast.control.server.server_logins import PrincipalLogins
from holdfast.control.server.status_page import BrowserSessions, page_routes, sign_in_command
from holdfast.control.server.views import History, HubInfo, Views
from holdfast.control.server.workers import SharedTotals, SpokenApi, WorkerGroup, asked, keep_switches, worker_routes
from holdfast.core import Transition, classify_evidence, command_line
from holdfast.endpoint import LoginLinks
from holdfast.errors import (
    HoldfastError,
    LoadFailed,
    ServerDisabled,
    ServerUnavailable,
    ToolHeld,
    UnknownServer,
    UnknownTool,
)
from holdfast.fleet import Fleet
from holdfast.hub import ANSWERED, CallEnded, ConfigApplied, ConfigRefused, Hub, HubRecord, UnknownQuestion

__all__ = ["ControlApi", "ControlServer", "page_name"]

AUDIT_SECONDS = 2.0
"""How soon a page shows that the audit cannot be written."""

RECONNECT_SECONDS = 10.0
"""How long the answer to a reconnect waits for the other workers."""


class ControlServer:
    """Create it before the hub is entered, so that it receives every record.

    Where callers need a token, the metrics need one too: that of a caller, or one of the control API. In a worker,
    ``workers`` are those that answer as one hub.
    """

    def __init__(  # noqa: PLR0913 - each part of a hub that it shows is given
        self,
        hub: Hub,
        about: HubInfo,
        *,
        sessions: BrowserSessions,
        browsers: BrowserIdentity,
        links: LoginLinks,
        workers: WorkerGroup | None = None,
        fleet: Fleet | None = None,
        audit: AuditTrail | None = None,
    ) -> None:
        self._hub = hub
        self._fleet = fleet
        self._about = about
        self.history = History()
        self.logs = LogBuffer()
        self.sessions = sessions
        self._metrics = Metrics(hub, fleet, audit)
        self.views = Views(hub, self.history, about, fleet, loop_lag=lambda: self._metrics.loop.largest)
        self.events = EventStream(self.views, wall=time.time)
        context = ApiContext(
            *(hub, self.views, sessions, self.events, self.logs, self._reconnect, browsers),
            own_logins=PrincipalLogins(hub, links),
            audit=audit,
        )
        self._api = ControlApi(context)
        self._browsers = browsers
        self._audit = audit
        self._workers = workers
        self._totals = SharedTotals(hub, workers, self.history, about, self.events) if workers is not None else None
        self._fleet_told: FleetView | None = None
        self._probers_told: dict[str, str] = {}
        if fleet is not None:
            fleet.presence.watch(self._fleet_changed)
        hub.registry.call_approvals.watch(self.events.hub_changed)
        hub.registry.journal.add_sink(self._happened, calls=self._called)
        hub.registry.journal.add_stderr_reader(self.logs.add_stderr)

    def __repr__(self) -> str:
        return f"<ControlServer of {len(self._hub.config.servers)} servers, {self._workers or 'alone'}>"

    async def _reconnect(self, server: str) -> None:
        """Reconnect a server here, and in the other workers: each has a connection of its own."""
        target = f"/workers/reconnect?server={quote(server, safe='')}"
        if self._workers is not None and self._workers.stdio is not None and self._runs_in_stdio(server):
            await asked(
                self._workers.stdio, "POST", target, within=RECONNECT_SECONDS
            )  # the workers show what came of it
        try:
            await self._hub.reconnect(server)
        finally:
            if self._workers is not None:
                await self._workers.ask_others("POST", target, within=RECONNECT_SECONDS)

    def _runs_in_stdio(self, server: str) -> bool:
        """Whether a server runs in the process of the stdio servers, and this hub has it behind that one."""
        slot = self._hub.registry.slots.get(server)
        return slot is not None and slot.spec.hub.startswith(UNIX)

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes beside the MCP endpoints; each one checks access itself."""
        read_by = self._may_read_metrics if self._browsers.tokens is not None else None
        metrics = metrics_route(self._metrics, self._workers, read_by=read_by)
        page = page_routes(by_issuer=self._browsers.by_issuer, is_known=partial(_is_known, self._browsers))
        pages = (*page, *self._browsers.routes())
        if self._workers is None or self._totals is None:
            return (Mount("/api", app=self._api), metrics, *pages)
        api = Mount("/api", app=SpokenApi(self._api, self._workers, self._runs_in_stdio))
        return (api, metrics, worker_routes(self._totals, self._hub), *pages)

    def _fleet_changed(self) -> None:
        """Tell the followers of what changed in the fleet, without the times and counts that always change."""
        fleet, view = self._fleet, self.views.hub().fleet
        if fleet is None or view is None:
            return
        said = view.model_copy(update={"events_lost": 0, "problem": ""})
        if said != self._fleet_told:
            self._fleet_told = said
            self.events.hub_changed()
        before, self._probers_told = self._probers_told, fleet.evidence.probers
        # The page shows on each server which replica tries it; no record of this hub reports that.
        for server in before.keys() | self._probers_told.keys():
            if before.get(server) != self._probers_told.get(server):
                self.events.touched(server)

    async def run(self) -> None:
        """Measure the event loop, and ask other workers for their calls, until cancelled."""
        async with anyio.create_task_group() as tasks:
            if self._totals is not None and self._workers is not None:
                tasks.start_soon(self._totals.run)
                tasks.start_soon(keep_switches, self._hub, self._workers, self._runs_in_stdio)
            if self._audit is not None:
                tasks.start_soon(_watch_audit, self._audit, self.events)
            await self._metrics.loop.run()

    async def _may_read_metrics(self, token: str) -> bool:
        if self.sessions.access(token) is not None:
            return True
        callers = self._browsers.tokens
        principal = await callers.principal(token) if callers is not None else None
        if principal is None:
            return False
        # Metrics name every server: a caller who may not see all of them needs the role.
        roles = roles_of(principal, self._hub.config.settings.access.roles)
        return "read" in roles or self._hub.registry.policy.grants(principal).is_unlimited

    # Called by the server.

    def drains(self) -> None:
        """The hub refuses new calls from now on."""
        self._about.draining = True
        self.events.hub_changed()

    def close(self) -> None:
        """End every stream, so that a shutdown does not wait for readers."""
        self.events.close()
        self.logs.close()

    def _called(self, ended: CallEnded) -> None:
        """One for each call: this is on its path."""
        self.history.called(ended)
        if ended.outcome not in ANSWERED:
            self.logs.handle(ended)
        self.events.called(ended.server)

    def _happened(self, record: HubRecord) -> None:
        if isinstance(record, Transition):
            self.history.moved(record)
        self.logs.handle(record)
        self.events.handle(record)
        # A server that was removed still reports the transitions of its end: each drops again what it left here.
        if isinstance(record, Transition) and record.server not in self._hub.config.servers:
            self.history.forget(record.server)
            self.logs.forget(record.server)
            self.events.gone(record.server)
        elif isinstance(record, ConfigApplied | ConfigRefused):
            self._config_changed(record)

    def _config_changed(self, record: ConfigApplied | ConfigRefused) -> None:
        problem = str(record) if isinstance(record, ConfigRefused) else ""
        if self._about.config_problem != problem:
            self._about.config_problem = problem
            self.events.hub_changed()
        for server in (*record.added, *record.changed) if isinstance(record, ConfigApplied) else ():
            self.events.touched(server)


async def _is_known(browsers: BrowserIdentity, request: Request) -> bool:
    """Whether a browser is signed in. The user of the machine is not, by the connection alone."""
    found = await browsers.identify(request)
    return found is not None and found.by != "connection"


async def _watch_audit(audit: AuditTrail, events: EventStream) -> None:
    """Tell the followers when the audit fails, and when it is written again."""
    told = ""
    while True:
        if audit.failing != told:
            told = audit.failing
            events.hub_changed()
        await anyio.sleep(AUDIT_SECONDS)


# The API over HTTP.

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
        # The path as it was sent: after decoding, an id with a slash looks like two segments.
        found = look_up(request.method, request.scope["raw_path"].decode("latin-1"))
        if found.operation is None:
            raise _nothing_there(found.allowed)
        # Before the credential: a page of another origin must not learn from the answer whether it has one.
        # A page that another program serves on this machine has another port, and so another origin.
        browsers = self._context.browsers
        if request.headers.get("origin") is not None and not browsers.is_own_page(request):
            raise ApiRefused(403, "this Origin may not use the control API", hint="open the status page of this hub")
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
        # A browser sends its cookie with requests of any page. A token in a header is sent by those who mean it.
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
        # Item by item: one dump of a thousand servers takes longer than a call may wait (SEC-7).
        for number, item in enumerate(value):
            if number % ITEMS_IN_A_TURN == 0:
                await anyio.lowlevel.checkpoint()
            pieces += (b"," if number else b"[", item.model_dump_json().encode())
        pieces.append(b"]")
    # The answer for a thousand servers has megabytes: the copy would hold up the loop.
    content = await anyio.to_thread.run_sync(b"".join, (*pieces, b"}"))
    return Response(content, media_type="application/json", headers=HEADERS)


def _json(shape: ApiModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    content = shape.model_dump_json()
    return Response(content, status, media_type="application/json", headers={**HEADERS, **(headers or {})})
