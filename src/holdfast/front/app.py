"""The application: ``/mcp`` serves all servers, ``/servers/{id}/mcp`` serves one; ``?tools=find`` lists few tools.

The MCP endpoints are served on the connection itself (``HttpConnection``); every other path is an ASGI application.
Each endpoint has its own sessions. It opens at its first request and closes when its server is removed.
``/healthz`` reports that the hub is alive, ``/readyz`` that every server has an outcome. The trace context in the
headers of a request becomes the parent of the hub's spans.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import parse_qsl

import anyio
import anyio.abc
from mcp import MCPError
from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as AsgiRequest
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from holdfast.access import (
    KEY_SET_PATH,
    LOCAL,
    LOOPBACK_HOSTS,
    METADATA_PATH,
    AccessRules,
    AuditTrail,
    ClientKey,
    ClientPeer,
    Guard,
    HubPrincipals,
    IdentityAssertions,
    Principal,
    ProtectedResource,
    Quotas,
    RefusalKind,
    Refused,
    TokenPolicy,
    client_key_in,
    is_endpoint,
)
from holdfast.config import Settings
from holdfast.endpoint import (
    TOOLS_MODES,
    Broker,
    ClientFolders,
    EndpointAddress,
    LoginLinks,
    McpServer,
    RootFolder,
    View,
)
from holdfast.fleet import ClientHomeFinder, Fleet
from holdfast.front.http import HttpEndpoint
from holdfast.front.peer_listener import PeerListener
from holdfast.front.peer_requests import PeerRequests
from holdfast.front.requests import ALL_BODY_BYTES, UNKNOWN_BYTES, BodyBudget, Reply, Request
from holdfast.front.session_id import SessionIds
from holdfast.front.session_store import SessionRecord
from holdfast.front.sessions import HttpSessions
from holdfast.front.streams import ALL_LOGGED_BYTES, ALL_UNREAD_BYTES, Backlog, LogBounds
from holdfast.hub import AccessRefused, Hub, is_tracing
from holdfast.wire import LEAVING_HEADER, dumps

__all__ = ["Front", "McpEndpoint", "create_app", "create_hub_app", "root_folder"]

log = logging.getLogger("holdfast.front")

_LEAVING_HEADERS = f"content-type: application/json\r\nretry-after: 1\r\n{LEAVING_HEADER}: 1\r\n".encode()
_LEAVING = dumps({"error": "Holdfast is shutting down and takes no new requests; try again in a moment"})

EVICTED_SHARE = 10
"""One in so many idle sessions gives way at once where room is needed: they are not sorted for each new one."""

USE_SECONDS = 0.5
"""How old the use that other replicas are told may be."""

LONGEST_QUERY = 4_096
"""How many bytes of the query of an address are read."""

ENDING_SECONDS = 5.0
"""How long the sessions of a removed server stay open, so that calls in flight get their answers."""


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
    """Return the application, to be served by uvicorn with ``http=HttpConnection``.

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
            Route(KEY_SET_PATH, key_set),
            Route(f"{METADATA_PATH}{{rest:path}}", metadata),
            *beside,
        ],
        middleware=[Middleware(Guard, rules=rules, beside=beside)],
        lifespan=lifespan,
    )
    app.state.front = front
    app.state.endpoint = McpEndpoint(front, rules, folders)
    return app


def create_hub_app(front: Front, *, uids: Collection[int] | None = None) -> Starlette:
    """Return the application of the listener for other hubs: the MCP endpoints of the same front, and nothing else.

    Each of its peers is proven: by the kernel, where ``uids`` are the users of a Unix socket, else by a certificate of
    the fleet, which TLS has verified. So what they say about their clients is believed (SEC-18).
    """
    rules = AccessRules(HubPrincipals(), None, uids=uids, client_certificates=uids is None, quotas=front.quotas)
    app = Starlette(middleware=[Middleware(Guard, rules=rules)])
    app.state.endpoint = McpEndpoint(front, rules)
    return app


class Endpoints:
    """The endpoints that are open, by the labels of their addresses; None is the endpoint of all servers."""

    def __init__(self, hub: Hub, ids: SessionIds, make: Callable[[EndpointAddress], HttpEndpoint]) -> None:
        self._hub = hub
        self._ids = ids
        self._make = make
        self._open: dict[str | None, HttpEndpoint] = {}

    def of(self, label: str | None) -> HttpEndpoint | None:
        """One endpoint, which opens now if needed; None if there is no such server."""
        endpoint = self._open.get(label)
        server = endpoint.server.view.server if endpoint is not None else EndpointAddress.of_label(label).server
        if server is not None and server not in self._hub.registry.slots:
            return None
        if endpoint is None:
            endpoint = self._open[label] = self._make(EndpointAddress.of_label(label))
        return endpoint

    def all(self) -> list[HttpEndpoint]:
        """The open ones."""
        return list(self._open.values())

    def removed(self) -> list[HttpEndpoint]:
        """Take out the endpoints of servers that are no longer configured; new requests get 404 at once."""
        known = self._hub.registry.slots
        servers = {label: EndpointAddress.of_label(label).server for label in self._open}
        gone = [label for label, server in servers.items() if server is not None and server not in known]
        return [self._open.pop(label) for label in gone]

    def make_room(self, principal: str) -> None:
        """Drop the sessions of a principal that are idle longest, of all endpoints."""
        idle = [
            (one, endpoint.sessions)
            for endpoint in self._open.values()
            for one in endpoint.sessions.all()
            if one.idle and one.principal.name == principal
        ]
        idle.sort(key=lambda found: found[0].used_at)
        for one, sessions in idle[: len(idle) // EVICTED_SHARE + 1]:
            sessions.drop(one)

    def busy_principals(self) -> Counter[str]:
        """How many sessions of each principal have something under way."""
        every = (one for endpoint in self._open.values() for one in endpoint.sessions.all())
        return Counter(one.principal.name for one in every if not one.idle)

    def ended(self, session: bytes) -> None:
        """Another hub ended a session."""
        self._ids.ended(session)
        self._hub.registry.clients.release(session)
        for endpoint in self._open.values():
            endpoint.sessions.ended_elsewhere(session)

    def changed(self, session: bytes, record: SessionRecord) -> None:
        """Another replica changed what a session has."""
        for endpoint in self._open.values():
            endpoint.sessions.changed(session, record)


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
        homes = ClientHomeFinder(hub, fleet) if fleet is not None and fleet.peers is not None else None
        self.broker = Broker(hub, homes, keys=lambda: self._ids.keys.ring, audit=audit, links=links)
        self.endpoints = Endpoints(hub, self._ids, self._opened)
        self.accepted = False
        """Whether this hub was ready once, or took the place of another one: clients may be sent to it."""
        self.is_told_ready = False
        """Whether others decide when it is ready, and set ``accepted``."""
        self.retiring = False
        """Whether it leaves: readiness says so, and each answer is the last one of its connection."""
        self.refusing = False
        """Whether new requests are answered with 503."""
        self._bounds = LogBounds(ALL_LOGGED_BYTES // workers, shared=self._ids.events)
        self._backlog = Backlog(most=ALL_UNREAD_BYTES // workers)
        self.bodies = BodyBudget(
            most=ALL_BODY_BYTES // workers,
            of_principal=lambda: self.quotas.limits.body_bytes // workers,
            unknown=UNKNOWN_BYTES // workers,
            on_refused=self._no_room,
        )
        self._use_told: tuple[float, dict[str, list[int]]] = (-math.inf, {})
        if fleet is not None:
            self.quotas.share(self._ids.keys.label)
            fleet.presence.tell("use", self._tell_use)
            fleet.presence.watch(
                lambda: self.quotas.follow({name: about.get("use") for name, about in fleet.presence.others.items()})
            )
        self._tasks: anyio.abc.TaskGroup | None = None
        peers = fleet.peers if fleet is not None else None
        self._peers = PeerRequests(peers) if peers is not None else None
        self.peer_listener: PeerListener | None = None
        """Serves the other replicas; None if this hub has none."""
        if fleet is not None and peers is not None:
            # Each peer at that listener is proven before its first request.
            users = McpEndpoint(self, AccessRules(HubPrincipals(), None, quotas=self.quotas))
            presence = fleet.presence
            self.peer_listener = PeerListener(self, peers, users, lambda user: presence.user_home(user) is None)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                await tasks.start(self.broker.run)
                tasks.start_soon(self._ids.store.run, self.endpoints.ended, self.endpoints.changed)
                if self._ids.events is not None:
                    tasks.start_soon(self._ids.events.run)
                if self.peer_listener is not None:
                    tasks.start_soon(self.peer_listener.run)
                changes = self.hub.events()
                task_status.started()
                async for _ in changes:
                    for endpoint in self.endpoints.removed():
                        tasks.start_soon(self._end, endpoint)
                await anyio.sleep_forever()
            finally:
                self._tasks = None
                for endpoint in self.endpoints.all():
                    endpoint.server.close()
                    endpoint.sessions.close()

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
        for endpoint in self.endpoints.all():
            endpoint.server.close()
            for session in endpoint.sessions.all():
                session.exchange.questions.end("the hub is shutting down")
                session.end_notices()

    def refuse(self) -> None:
        """Answer new requests with 503 from now on. Calls that wait for their client cannot be resumed any more."""
        self.retire()
        self.refusing = True
        if self._fleet is not None:
            self._fleet.presence.describe(leaving=True)  # the homes of clients move to other replicas
        self.broker.pending.close()
        self.move_streams()

    async def drain(self, within: float) -> bool:
        """Refuse new requests and wait for those in flight; False if some are left after ``within`` seconds."""
        self.refuse()
        with anyio.move_on_after(within):
            for endpoint in self.endpoints.all():
                await endpoint.in_flight.wait_until_idle()
        return all(endpoint.in_flight.is_idle for endpoint in self.endpoints.all())

    # Its endpoints.

    def endpoint_of(self, label: str | None) -> HttpEndpoint | None:
        """One endpoint, by the label of its address; None if there is no such server."""
        return self.endpoints.of(label)

    def _opened(self, address: EndpointAddress) -> HttpEndpoint:
        mcp_server = McpServer(
            self.broker,
            View(self.hub, address.server, tools=address.tools, profile=address.profile, folder=address.folder),
        )
        self.broker.announcer.listeners.append(mcp_server.listeners)
        sessions = HttpSessions(
            mcp_server,
            self._ids,
            bounds=self._bounds,
            backlog=self._backlog,
            quotas=self.quotas,
            make_room=self.endpoints.make_room,
            peers=self._fleet.peers if self._fleet is not None else None,
            roots_of=partial(root_folder, self, address),
        )
        return HttpEndpoint(
            mcp_server,
            sessions,
            self._ids,
            backlog=self._backlog,
            bodies=self.bodies,
            quotas=self.quotas,
            largest=lambda: self.hub.registry.config.settings.limits.message_bytes,
            forget=self._forget,
            peers=self._peers,
        )

    async def _end(self, endpoint: HttpEndpoint) -> None:
        """Close an endpoint; calls in flight get their answers first."""
        try:
            endpoint.server.close()
            with anyio.move_on_after(ENDING_SECONDS):
                await endpoint.in_flight.wait_until_idle()
        finally:
            endpoint.sessions.close()
            self.broker.announcer.listeners.remove(endpoint.server.listeners)

    def _forget(self, headers: Mapping[str, str], principal: Principal) -> bool:
        """A client without a session that sent a key of its own can end its connections by DELETE."""
        try:
            key = client_key_in(headers, principal)
        except MCPError:
            return False
        if key is not None:
            self.release(key)
            if self._peers is not None and self._tasks is not None:
                self._tasks.start_soon(self._peers.forget_client, key)
        return key is not None

    def release(self, owner: ClientKey) -> None:
        """A client ended its connections, here or at another replica."""
        self.hub.registry.clients.release(owner)

    def _no_room(self, principal: str, own: bool) -> None:
        """A body found no room."""
        if own:
            self.quotas.refuse_body(principal)
        else:
            log.warning("the bodies of requests use up the memory for them: one was refused")

    def _tell_use(self) -> dict[str, list[int]]:
        """What principals use of this replica, for the others; the sessions are not counted for every exchange."""
        at, told = self._use_told
        if (now := time.monotonic()) - at >= USE_SECONDS:
            told = self.quotas.told(self.endpoints.busy_principals())
            self._use_told = now, told
        return told

    def __repr__(self) -> str:
        state = "refusing" if self.refusing else "retiring" if self.retiring else "serving"
        return f"<Front {state} {self.endpoints.all()}>"


def root_folder(
    front: Front, address: EndpointAddress, principal: Principal, variables: Mapping[str, str] | None = None
) -> RootFolder | None:
    """Chooses the folder of a client by its roots; None for one that named its folder, or may choose none."""
    is_local = principal == LOCAL and principal.source == "local"  # another hub speaks for clients that are not
    if front.folders is None or not is_local or address.server is not None or address.folder is not None:
        return None

    def server_of(folder: str | None) -> McpServer:
        endpoint = front.endpoint_of(address._replace(folder=folder).label)
        assert endpoint is not None  # noqa: S101 - it names no server
        return endpoint.server

    return RootFolder(front.folders, server_of, variables)


class McpEndpoint:
    """The paths of MCP: checks access, finds the sessions, and lets them answer."""

    def __init__(self, front: Front, rules: AccessRules, folders: ClientFolders | None = None) -> None:
        self._front = front
        self._rules = rules
        self._folders = folders

    @property
    def retiring(self) -> bool:
        """Whether each answer is the last one of its connection."""
        return self._front.retiring

    @property
    def bodies(self) -> BodyBudget:
        """The room for bodies."""
        return self._front.bodies

    def certificate_refused(self, peer: ClientPeer, reason: str) -> None:
        """A client certificate does not verify."""
        journal = self._front.hub.registry.journal
        journal.write(AccessRefused(kind="certificate", source=peer.name, reason=reason, at=journal.clock.now()))

    def claims(self, path: str) -> bool:
        """Whether a path is an MCP endpoint."""
        return is_endpoint(path)

    async def serve(self, request: Request, reply: Reply) -> None:
        """Answer one request."""
        if self._front.refusing:
            reply.plain(503, _LEAVING, _LEAVING_HEADERS)
            return
        found = await self._rules.check(
            request.headers,
            client_verified=request.client_verified,
            client_names=request.client_names,
            admission=request.admission,
            path=request.head.raw_path.decode("ascii", "replace"),
        )
        if isinstance(found, Refused):
            headers = {"content-type": "application/json", **found.headers}
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            reply.plain(found.status, dumps(found.body), lines.encode("latin-1"))
            return
        server = None if request.path == "/mcp" else request.path[len("/servers/") : -len("/mcp")]
        address = _address(server, request.head.query, self._front.hub.registry.config.settings)
        if isinstance(address, EndpointAddress) and address.folder is not None:
            address = await _in_folder(address, found, self._folders)
        endpoint = self._front.endpoints.of(address.label) if isinstance(address, EndpointAddress) else None
        if endpoint is not None and server is not None and not _is_there(endpoint.server.view, server, found):
            endpoint = None
        if endpoint is None:
            text = f"no server named {server!r} is configured" if isinstance(address, EndpointAddress) else address
            reply.plain(404, dumps({"error": text}))
            return
        token = attach(extract(request.headers)) if is_tracing() else None
        try:
            await endpoint.serve(request, reply, found)
        finally:
            if token is not None:
                detach(token)


def _is_there(view: View, server: str, principal: Principal) -> bool:
    """Whether a server is there for a principal. One that she may not see answers as one that is not configured."""
    seen = view.seen_by(principal)
    return seen.grants is None or seen.covers(server)


async def _in_folder(
    address: EndpointAddress, principal: Principal, folders: ClientFolders | None
) -> EndpointAddress | str:
    """The address with the folder that it names, whose servers run from now on; or what is wrong with it.

    Only programs of the hub's own user name a folder of its machine: a remote caller could start what is in it.
    """
    if principal.name != LOCAL.name or folders is None:
        return "`folder=` is for local clients of a hub that serves a file"
    named = address.folder or ""
    folder = folders.of(named, "/") if named.startswith("/") else None
    if folder is None:
        return f"`folder={named}` names no folder: write its whole path"
    if not await folders.touch(folder):
        return "clients work in too many folders"
    return address._replace(folder=folder)


def _address(server: str | None, query: bytes, settings: Settings) -> EndpointAddress | str:
    """The endpoint that an address means, or what is wrong with it. Other parameters mean nothing."""
    if not query:
        return EndpointAddress(server, settings.tools)
    asked = dict(parse_qsl(query[:LONGEST_QUERY].decode("latin-1")))
    tools, profile = asked.get("tools", settings.tools), asked.get("profile")
    mode = next((one for one in TOOLS_MODES if one == tools), None)
    if mode is None:
        return f"there is no endpoint with `tools={tools}`: write {' or '.join(f'tools={one}' for one in TOOLS_MODES)}"
    known = [name for name, _ in settings.profiles]
    if profile is not None and profile not in known:
        return f"there is no profile {profile!r}; known: {', '.join(known) or 'none'}"
    return EndpointAddress(server, mode, profile, asked.get("folder") or None)
