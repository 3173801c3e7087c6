"""The application: ``/mcp`` serves all servers, ``/servers/{id}/mcp`` serves one; ``?tools=find`` lists few tools.

A hub leaves in two steps, because a balancer needs a moment to see it. ``retire``: readiness says no, each answer is
the last one of its connection, and all is still served. ``refuse``: new requests get 503, streams and questions that
would stay open end, and calls in flight have their time (``drain``).

The MCP endpoints are served on the connection itself (``McpPaths``); every other path is an ASGI application.
An endpoint opens at its first request and closes when its server is removed. ``/healthz`` reports that the hub is
alive, ``/readyz`` that every server has an outcome. The trace context in the headers of a request becomes the parent of
the hub's spans.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.abc
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as AsgiRequest
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message

from holdfast.access import (
    KEY_SET_PATH,
    LOCAL,
    LOOPBACK_HOSTS,
    METADATA_PATH,
    AccessRules,
    AuditTrail,
    ClientKey,
    Guard,
    HubPrincipals,
    IdentityAssertions,
    Principal,
    ProtectedResource,
    Quotas,
    RefusalKind,
    TokenPolicy,
    is_endpoint,
)
from holdfast.endpoint import Broker, ClientFolders, EndpointAddress, LoginLinks, McpServer, RootFolder, View
from holdfast.fleet import ClientHomeFinder, Fleet
from holdfast.front.http import HttpEndpoint, McpPaths
from holdfast.front.peer_requests import PeerListener, PeerRequests
from holdfast.front.requests import BODY_SECONDS, BodyBudget, Reply, Request
from holdfast.front.session_id import SessionIds
from holdfast.front.session_store import HttpSessions
from holdfast.front.streams import ALL_LOGGED_BYTES, ALL_UNREAD_BYTES, Backlog, LogBounds
from holdfast.hub import AccessRefused, Hub

__all__ = ["Front", "create_app", "create_hub_app"]

log = logging.getLogger("holdfast.front")

USE_SECONDS = 0.5
"""How old the use that other replicas are told may be."""

ENDING_SECONDS = 5.0
"""How long the sessions of a removed server stay open, so that calls in flight get their answers."""


_WITH_SLASH = ("/mcp/", "/servers/{server}/mcp/")
"""People copy the slash from the addresses of other servers. A client follows to the endpoint."""


def create_app(  # noqa: PLR0913 - what an operator decides
    hub: Hub,
    *,
    tokens: TokenPolicy | None = None,
    allowed_hosts: Collection[str] = LOOPBACK_HOSTS,
    beside: Sequence[BaseRoute] = (),
    uids: Collection[int] | None = None,
    client_certificates: bool = False,
    ids: SessionIds | None = None,
    workers: int = 1,
    fleet: Fleet | None = None,
    audit: AuditTrail | None = None,
    folders: ClientFolders | None = None,
    links: LoginLinks | None = None,
    resource: ProtectedResource | None = None,
    assertions: IdentityAssertions | None = None,
) -> Starlette:
    """Return the application. Serve it by ``HttpConnections`` of its ``state.endpoint``.

    Create it before the hub is entered: servers then learn that clients can answer requests. Run it while the hub
    is open. Its ``state.front`` can be drained before a shutdown, its ``state.endpoint`` serves the MCP endpoints. The
    routes in ``beside`` check access themselves: a caller's token is not required there. ``uids`` are the users of this
    machine that may connect; None for all. It needs an ``Acceptor`` that knows them. With ``client_certificates`` a
    caller needs a certificate that TLS verified. ``workers`` processes share the memory that clients may use. With a
    ``resource`` clients without a token learn where they get one; the keys of ``assertions`` are published.
    """
    registry = hub.registry
    journal = registry.journal

    def report(kind: RefusalKind, source: str, principal: str, quota: str) -> None:
        at = journal.clock.now()
        journal.write(AccessRefused(kind=kind, source=source, principal=principal, quota=quota, at=at))

    quotas = Quotas(
        lambda: registry.config.settings.quotas,
        on_refused=lambda principal, exceeded: report("quota", "", principal, exceeded.quota),
    )
    rules = AccessRules(
        tokens,
        allowed_hosts,
        uids=uids,
        client_certificates=client_certificates,
        quotas=quotas,
        resource=resource,
        report=report,
    )
    front = Front(hub, ids, quotas, workers=workers, fleet=fleet, audit=audit, folders=folders, links=links)

    async def healthz(_: AsgiRequest) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def readyz(_: AsgiRequest) -> JSONResponse:
        ready = await front.is_ready()
        return JSONResponse({"ready": ready, "draining": front.retiring}, status_code=200 if ready else 503)

    async def metadata(request: AsgiRequest) -> JSONResponse:
        path = request.scope["raw_path"].decode("latin-1").partition("?")[0].removeprefix(METADATA_PATH)
        if resource is None or not (path in ("", "/") or is_endpoint(path)):
            return JSONResponse({"error": "there is nothing at this path"}, status_code=404)
        return JSONResponse(resource.metadata(path.rstrip("/")), headers={"cache-control": "max-age=300"})

    async def key_set(_: AsgiRequest) -> JSONResponse:
        keys = assertions.key_set() if assertions is not None else {"keys": []}
        return JSONResponse(keys, headers={"cache-control": "max-age=300"})

    async def without_slash(request: AsgiRequest) -> RedirectResponse:
        # Relative, so that it holds behind a gateway that takes a prefix away.
        query = request.scope["query_string"].decode("latin-1")
        return RedirectResponse(f"../mcp?{query}" if query else "../mcp", status_code=308)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(front.run)
            yield
            tasks.cancel_scope.cancel()

    app = Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            *(Route(path, without_slash, methods=["GET", "POST", "DELETE"]) for path in _WITH_SLASH),
            Route(KEY_SET_PATH, key_set),
            Route(f"{METADATA_PATH}{{rest:path}}", metadata),
            *beside,
        ],
        middleware=[Middleware(Guard, rules=rules, beside=beside)],
        lifespan=lifespan,
    )
    app.state.front = front
    app.state.endpoint = McpPaths(front, rules, AppRequests(app), folders)
    return app


def create_hub_app(front: Front, *, uids: Collection[int] | None = None) -> Starlette:
    """Return the application of the listener for other hubs: the MCP endpoints of the same front, and nothing else.

    Each of its peers is proven: by the kernel, where ``uids`` are the users of a Unix socket, else by a certificate of
    the fleet, which TLS has verified. So what they say about their clients is believed (SEC-18).
    """
    rules = AccessRules(HubPrincipals(), None, uids=uids, client_certificates=uids is None, quotas=front.quotas)
    app = Starlette(middleware=[Middleware(Guard, rules=rules)])
    app.state.endpoint = McpPaths(front, rules, AppRequests(app))
    return app


class Front:
    """All MCP endpoints of a hub over HTTP."""

    def __init__(  # noqa: PLR0913 - what a hub is served with
        self,
        hub: Hub,
        ids: SessionIds | None = None,
        quotas: Quotas | None = None,
        *,
        workers: int = 1,
        fleet: Fleet | None = None,
        audit: AuditTrail | None = None,
        folders: ClientFolders | None = None,
        links: LoginLinks | None = None,
    ) -> None:
        """``folders`` are those that its local clients may choose; None if they may choose none.

        ``links`` lead users to the pages where they log in; None if there are no such pages.
        """
        self.hub = hub
        self._fleet = fleet
        self.folders = folders
        self.quotas = quotas or Quotas()
        self._ids = ids or SessionIds()
        homes = ClientHomeFinder(hub, fleet, fleet.peers) if fleet is not None and fleet.peers is not None else None
        self.broker = Broker(hub, homes, keys=lambda: self._ids.keys.ring, audit=audit, links=links)
        self._endpoints: dict[EndpointAddress, HttpEndpoint] = {}
        """Those that are open."""
        self.accepted = False
        """Whether this hub was ready once, or took the place of another one: clients may be sent to it."""
        self.is_told_ready = False
        """Whether others decide when it is ready, and set ``accepted``."""
        self.retiring = False
        """Whether it leaves: readiness says so, and each answer is the last one of its connection."""
        self.refusing = False
        """Whether new requests are answered with 503."""
        self._peers = fleet.peers if fleet is not None else None
        self.sessions = HttpSessions(
            self.broker,
            self._ids,
            bounds=LogBounds(ALL_LOGGED_BYTES // workers, shared=self._ids.events),
            backlog=Backlog(most=ALL_UNREAD_BYTES // workers),
            quotas=self.quotas,
            has_peers=self._peers is not None,
        )
        self.bodies = BodyBudget(self.quotas, workers=workers)
        self._use_told: tuple[float, dict[str, list[int]]] = (-math.inf, {})
        if fleet is not None:
            self.quotas.share(self._ids.keys.label)
            fleet.presence.tell("use", self._tell_use)
            fleet.presence.watch(
                lambda: self.quotas.follow({name: about.get("use") for name, about in fleet.presence.others.items()})
            )
        self.peer_listener: PeerListener | None = None
        """Serves the other replicas; None if this hub has none."""
        if fleet is not None and self._peers is not None:
            # Each peer at that listener is proven before its first request.
            users = McpPaths(self, AccessRules(HubPrincipals(), None, quotas=self.quotas), AppRequests(Starlette()))
            presence = fleet.presence
            self.peer_listener = PeerListener(self, self._peers, users, lambda user: presence.user_home(user) is None)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with anyio.create_task_group() as tasks:
            try:
                await tasks.start(self.broker.run)
                tasks.start_soon(self._ids.store.run, self.sessions.ended, self.sessions.changed)
                if self._ids.events is not None:
                    tasks.start_soon(self._ids.events.run)
                if self.peer_listener is not None:
                    tasks.start_soon(self.peer_listener.run)
                changes = self.hub.events()
                task_status.started()
                async for _ in changes:
                    for address, endpoint in list(self._endpoints.items()):
                        if address.server is not None and address.server not in self.hub.registry.slots:
                            del self._endpoints[address]  # new requests get 404 at once
                            tasks.start_soon(self._end, endpoint)
                await anyio.sleep_forever()
            finally:
                # Streams of subscriptions end with a result, so that their clients listen again at another hub.
                for endpoint in self._endpoints.values():
                    endpoint.server.close()
                self.sessions.close()

    # Coming and leaving.

    async def is_ready(self) -> bool:
        """Whether clients may be sent to this hub: every server had an outcome, and the hub does not leave.

        A server that is added later does not count: a slow one would take every replica out of its balancer.
        """
        if not self.accepted and not self.is_told_ready:
            self.accepted = await self.hub.ready(0)
        return self.accepted and not self.retiring

    def retire(self) -> None:
        """Begin to leave. All is still served."""
        self.retiring = True

    def move_streams(self) -> None:
        """End the streams that would stay open, so that clients open them elsewhere; tell open questions."""
        for endpoint in self._endpoints.values():
            endpoint.server.close()
        for session in self.sessions.all():
            session.exchange.questions.end("the hub is shutting down")
            session.end_notices()

    def refuse(self) -> None:
        """Answer new requests with 503 from now on. Calls that wait for their client cannot be resumed any more."""
        self.retire()
        self.refusing = True
        if self._fleet is not None:
            self._fleet.presence.describe(leaving=True)  # the homes of clients move to other replicas
        self.broker.pending.close()  # their clients would come back to a hub that refuses them
        self.move_streams()

    async def drain(self, within: float) -> bool:
        """Refuse new requests and wait for those in flight; False if some are left after ``within`` seconds."""
        self.refuse()
        with anyio.move_on_after(within) as waited:
            for endpoint in list(self._endpoints.values()):
                await endpoint.in_flight.wait_until_idle()
        return not waited.cancelled_caught

    # Its endpoints.

    def endpoint_of(self, address: EndpointAddress) -> HttpEndpoint | None:
        """One endpoint, which opens now if needed; None if there is no such server."""
        if address.server is not None and address.server not in self.hub.registry.slots:
            return None
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            server = McpServer(self.broker, View(self.hub, address))
            peers = PeerRequests(self._peers, address.label, self.broker.start) if self._peers is not None else None
            endpoint = self._endpoints[address] = HttpEndpoint(self, server, self.sessions, peers)
        return endpoint

    def root_folder(
        self, address: EndpointAddress, principal: Principal, variables: Mapping[str, str] | None = None
    ) -> RootFolder | None:
        """Chooses the folder of a client by its roots; None for one that named its folder, or may choose none."""
        is_local = principal == LOCAL and principal.source == "local"  # another hub speaks for clients that are not
        if self.folders is None or not is_local or address.server is not None or address.folder is not None:
            return None

        def server_of(folder: str | None) -> McpServer:
            endpoint = self.endpoint_of(address._replace(folder=folder))
            assert endpoint is not None  # noqa: S101 - it names no server
            return endpoint.server

        return RootFolder(self.folders, server_of, variables)

    async def _end(self, endpoint: HttpEndpoint) -> None:
        """Close an endpoint; calls in flight get their answers first."""
        try:
            endpoint.server.close()
            with anyio.move_on_after(ENDING_SECONDS):
                await endpoint.in_flight.wait_until_idle()
        finally:
            self.sessions.close(endpoint)

    def release(self, owner: ClientKey) -> None:
        """A client ended its connections, here or at another replica."""
        self.hub.registry.clients.release(owner)

    def _tell_use(self) -> dict[str, list[int]]:
        """What principals use of this replica, for the others; the sessions are not counted for every exchange."""
        at, told = self._use_told
        if (now := time.monotonic()) - at >= USE_SECONDS:
            told = self.quotas.told(Counter(one.principal.name for one in self.sessions.all() if not one.idle))
            self._use_told = now, told
        return told

    def __repr__(self) -> str:
        state = "refusing" if self.refusing else "retiring" if self.retiring else "serving"
        return f"<Front {state} {[*self._endpoints.values()]}>"


# The application on a connection.

LARGEST_APP_BODY: Final = 64 * 1024
"""Bytes. A body for the application is read before its sender is known, and the control API takes less."""


class AppRequests:
    """Serves requests by an ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def serve(self, request: Request, reply: Reply) -> None:
        """Give a request to the application, and its answer to the client."""
        exchange = AppExchange(reply, await request.body(LARGEST_APP_BODY, within=BODY_SECONDS))
        try:
            with request.ending_with_client(exchange.gone.set):
                await self._app(_scope(request, reply), exchange.receive, exchange.send)
        except Exception:  # noqa: BLE001 - the application has logged it; its client gets an answer
            if not reply.started and not reply.done:
                reply.plain(500, b"Internal Server Error", b"content-type: text/plain\r\n")
        if not reply.done:
            request.keep_alive = False


class AppExchange:
    """One request through the ASGI application."""

    def __init__(self, reply: Reply, body: bytes) -> None:
        self.gone = asyncio.Event()
        self._reply = reply
        self._status = 500
        self._headers = b""
        self._body: bytes | None = body
        """The body of the request; None once the application has it."""

    async def receive(self) -> Message:
        """What the application is told of the request."""
        if self._body is None:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """What the application answers."""
        reply = self._reply
        if message["type"] == "http.response.start":
            self._status = message["status"]
            given = message.get("headers", ())
            self._headers = b"".join(b"%b: %b\r\n" % one for one in given if one[0] != b"content-length")
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if not more and not reply.started:
            reply.plain(self._status, body, self._headers)
            return
        if not reply.started:
            reply.start(self._status, self._headers)
        reply.piece(body)
        if not more:
            reply.end()
        await reply.out.drained()


def _scope(request: Request, reply: Reply) -> dict[str, Any]:
    info = reply.out.transport.get_extra_info
    client, server = info("peername"), info("sockname")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.head.http_version,
        "server": tuple(server[:2]) if isinstance(server, tuple) else None,
        "client": tuple(client[:2]) if isinstance(client, tuple) else None,
        "scheme": "https" if info("sslcontext") else "http",
        "method": request.head.method,
        "root_path": "",
        "path": request.head.path,
        "raw_path": request.head.raw_path,
        "query_string": request.head.query,
        "headers": [*request.head.raw_headers],
        "state": {},
        "extensions": {
            "holdfast.admission": request.admission,
            "holdfast.client_verified": request.certificate.verified,
            "holdfast.client_names": request.certificate.names,
        },
    }
