"""Streamable HTTP, both eras: who sends a request, to which endpoint, and the shell of HTTP around its exchange.

``McpPaths`` admits a request: it finds the principal and the endpoint (``/mcp`` for all servers, ``/servers/{id}/mcp``
for one; ``?tools=``, ``?profile=`` and ``?folder=`` choose). ``HttpEndpoint`` answers it.

A request of the modern era stands alone: it has an exchange of its own, and ends when its client closes the connection.
A legacy client has a session, and the session has the exchange. A legacy request goes on when its connection is gone,
as its protocol has it, and its client can come back for the rest.

    POST    one message (or a batch, in one version), and the answer to it: plain JSON or an event stream
    GET     the stream of notices, or one that broke (``streams.StreamOpener``)
    DELETE  ends a session, or the connections of a client key

What belongs here: which status an answer has, which form a client takes (JSON alone or event streams), quotas, bodies
and their room, and the way to other replicas. In what order this is checked is part of the protocol: first the form of
the request, then its session, then its body, then its quota, and nothing of it reaches the exchange before that.

A client that takes JSON alone gets JSON: what precedes the result is left out, and it cannot be asked. An answer that
takes longer than 5 s becomes an event stream where the client takes one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias
from urllib.parse import parse_qsl, unquote

from mcp import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    decode_header_value,
    unsupported_protocol_version_rejection,
)
from mcp_types import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_REQUEST, ErrorData
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from opentelemetry.context import Context, attach
from opentelemetry.propagate import extract
from pydantic import ValidationError

from holdfast.access import (
    LOCAL,
    AccessRules,
    ClientPeer,
    Principal,
    PrincipalUse,
    QuotaExceeded,
    Refused,
    client_key_in,
    is_endpoint,
)
from holdfast.endpoint import (
    ROOTS_CHANGED,
    ClientFolders,
    EndpointAddress,
    Exchange,
    LivesElsewhere,
    McpServer,
    Message,
    View,
    error_message,
    error_of,
    initialize,
    is_batch,
    read_batch,
    read_message,
    result_message,
)
from holdfast.front.peer_requests import MOST_TRIES, UNKNOWN_QUESTION, PeerRequests, refuse_forwarded
from holdfast.front.requests import JSON_HEADER, BodyBudget, Reply, Request
from holdfast.front.session_store import HttpSession, HttpSessions
from holdfast.front.streams import CANCELLED, MessageStream, StreamOpener
from holdfast.hub import AccessRefused, is_tracing
from holdfast.wire import LEAVING_HEADER, Bytes, RawObject, dumps, text_of

if TYPE_CHECKING:
    from holdfast.front.app import Front
    from holdfast.front.listener import RequestHandler

__all__ = ["HttpEndpoint", "McpPaths"]

log = logging.getLogger("holdfast.front")

QUOTA_EXCEEDED: Final = -32029
"""A code of the hub's own, in the range of the protocol for servers; the data says when to try again."""

NO_WAY_TO_REPLICAS: Final = (
    "this question is not open here: it was asked before the hub was restarted, or by another replica. "
    "Without --fleet and --advertise this hub cannot pass the answer on"
)

LISTEN: Final = "subscriptions/listen"

LONGEST_QUERY: Final = 4_096
"""How many bytes of the query of an address are read."""

_LEAVING_HEADERS: Final = JSON_HEADER + f"retry-after: 1\r\n{LEAVING_HEADER}: 1\r\n".encode()
_LEAVING: Final = dumps({"error": "Holdfast is shutting down and takes no new requests; try again in a moment"})

_ROUTING: Final = (MCP_PROTOCOL_VERSION_HEADER, MCP_METHOD_HEADER, MCP_NAME_HEADER)
"""The headers by which a gateway may decide where a modern request goes."""

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"


class McpPaths:
    """The paths of MCP: checks access, finds the sessions, and lets them answer."""

    def __init__(
        self, front: Front, rules: AccessRules, rest: RequestHandler, folders: ClientFolders | None = None
    ) -> None:
        """``rest`` serves all other paths, and checks access itself."""
        self._front = front
        self._rules = rules
        self._rest = rest
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

    async def admit(self, request: Request, reply: Reply) -> RequestHandler | None:
        """Find the principal and the endpoint of a request; None if it is refused, and has its answer."""
        if not is_endpoint(request.head.path):
            return self._rest
        if self._front.refusing:
            reply.plain(503, _LEAVING, _LEAVING_HEADERS)
            return None
        found = await self._rules.check(
            request.headers,
            client_verified=request.certificate.verified,
            client_names=request.certificate.names,
            admission=request.admission,
            path=request.head.raw_path.decode("ascii", "replace"),
        )
        if isinstance(found, Refused):
            headers = {"content-type": "application/json", **found.headers}
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            reply.plain(found.status, dumps(found.body), lines.encode("latin-1"))
            return None
        request.principal = found
        # In ``/servers/{id}/mcp`` a coded slash is part of the name: registries give such names.
        server = None if request.head.path == "/mcp" else unquote(request.head.raw_path.decode("ascii").split("/")[2])
        settings = self._front.hub.registry.config.settings
        address: EndpointAddress | str = EndpointAddress(server, settings.tools)
        if request.head.query:
            asked = dict(parse_qsl(request.head.query[:LONGEST_QUERY].decode("latin-1")))
            address = EndpointAddress.asked(settings, server, asked)
        if isinstance(address, EndpointAddress) and address.folder is not None:
            address = await _in_folder(address, address.folder, found, self._folders)
        endpoint = self._front.endpoint_of(address) if isinstance(address, EndpointAddress) else None
        if endpoint is not None and server is not None and not _is_there(endpoint.server.view, server, found):
            endpoint = None
        if endpoint is None:
            text = f"no server named {server!r} is configured" if isinstance(address, EndpointAddress) else address
            reply.plain(404, dumps({"error": text}))
        elif is_tracing():
            # The task of this connection has the context until its next request.
            attach(extract(request.headers, Context()))
        return endpoint


def _is_there(view: View, server: str, principal: Principal) -> bool:
    """Whether a server is there for a principal. One that she may not see answers as one that is not configured."""
    seen = view.seen_by(principal)
    return seen.grants is None or seen.covers(server)


async def _in_folder(
    address: EndpointAddress, named: str, principal: Principal, folders: ClientFolders | None
) -> EndpointAddress | str:
    """The address with the folder that it names as ``named``, whose servers run from now on; or what is wrong with it.

    Only programs of the hub's own user name a folder of its machine: a remote caller could start what is in it.
    """
    if principal.name != LOCAL.name or folders is None:
        return "`folder=` is for local clients of a hub that serves a file"
    folder = folders.of(named, "/") if named.startswith("/") else None
    if folder is None:
        return f"`folder={named}` names no folder: write its whole path"
    if not await folders.touch(folder):
        return "clients work in too many folders"
    return address._replace(folder=folder)


class RequestsInFlight:
    """Counts the requests of one endpoint that wait for their answers."""

    def __init__(self) -> None:
        self.number = 0
        """One more for each that begins, until ``end``."""
        self._idle = asyncio.Event()

    async def wait_until_idle(self) -> None:
        """Wait until every client has the answer to what it asked."""
        while self.number:
            self._idle.clear()
            await self._idle.wait()

    def end(self, use: PrincipalUse | None) -> None:
        """A request has its answer; ``use`` is what it counted of its principal's quota."""
        if use is not None:
            use.end_call()
        self.number -= 1
        if not self.number:
            self._idle.set()

    def __repr__(self) -> str:
        return f"<RequestsInFlight {self.number}>"


_Read: TypeAlias = tuple[Message, MessageStream, Exchange]
"""A request that the exchange answers on this stream."""


class HttpEndpoint:
    """Serves one view of the hub to HTTP clients of either era."""

    def __init__(
        self,
        front: Front,
        server: McpServer,
        sessions: HttpSessions,
        peers: PeerRequests | None,
    ) -> None:
        """``peers`` is the way to other replicas; None if there are none."""
        self._front = front
        self.server = server
        self.label = server.view.address.label
        """Its address, as session ids and other replicas name it."""
        self.sessions = sessions
        self.peers = peers
        self.roots_of = partial(front.root_folder, server.view.address)
        """Chooses the folder of a client by its roots."""
        self._streams = StreamOpener(self)
        self.in_flight = RequestsInFlight()

    async def serve(self, request: Request, reply: Reply) -> None:
        """Answer one HTTP request: first all that HTTP has to say of it, then the exchange, within its quota."""
        headers = request.headers
        if "content-encoding" in headers and headers["content-encoding"].strip().lower() not in ("identity", ""):
            text = "Unsupported Media Type: send the body without a Content-Encoding"
            _refuse(reply, 415, text, b"accept-encoding: identity\r\n")
            return
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
        # Without a version header, or with one of the legacy era, it is a legacy request (its clients of before
        # 2025-06-18 send no such header).
        if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS:
            read = await self._read_legacy(request, reply)
        else:
            read = await self._read_modern(request, reply, version)
        if read is None:
            return
        message, stream, exchange = read
        session = stream.session
        # The replica that a forwarded request came in at counts it. A stream for long is a connection, and no call.
        counted = not request.forwarded and not (session is None and message.method == LISTEN)
        use = self._front.quotas.begin_call(request.principal.name) if counted else None
        own = b"" if session is None else session.header
        if isinstance(use, QuotaExceeded):
            _over_quota(reply, message, use, own)
            return
        if session is not None:
            session.serving += 1
        self.in_flight.number += 1
        reply.wait_for_result(own, stream.prime)
        try:
            await exchange.handle(message, stream, headers, identity=request.principal)
        except LivesElsewhere as found:
            await self._answer_elsewhere(found, read, request, reply)
        finally:
            self.in_flight.end(use)
            if session is not None:
                session.serving -= 1
                session.used_at = exchange.now()

    async def _answer_elsewhere(self, found: LivesElsewhere, read: _Read, request: Request, reply: Reply) -> None:
        """Let the replica answer that has to. It may have left: then the exchange is asked again."""
        if self.peers is None:
            raise found
        message, stream, exchange = read
        for _ in range(MOST_TRIES):
            if request.forwarded:  # two replicas that disagree would send it to and fro
                refuse_forwarded(reply, 421, "the connections of this client are on another replica now")
                return
            try:
                stream.done = await self.peers.answer(found, request, reply)
            except MCPError as exc:
                self._lose(message, stream, request, exc.error)
            if stream.done:
                return
            try:
                await exchange.handle(message, stream, request.headers, identity=request.principal)
            except LivesElsewhere as again:
                found = again
            else:
                return
        text = "the replica with the connections of this client was not found; try again"
        self._lose(message, stream, request, ErrorData(code=INTERNAL_ERROR, message=text))

    def _lose(self, message: Message, stream: MessageStream, request: Request, why: ErrorData) -> None:
        """Answer that no replica answered a request; the audit has it here, as a refusal."""
        if (audit := self._front.broker.audit) is not None:
            audit.not_passed_on(request.principal.name, message.method or "", why.message)
        assert message.id is not None  # noqa: S101 - it is a request
        stream.error(message.id, why)

    # The legacy era.

    async def _read_legacy(self, request: Request, reply: Reply) -> _Read | None:
        """The request in a POST of a session; all else has its answer."""
        headers, principal = request.headers, request.principal
        if (named := headers.get("mcp-session-id")) is None:
            await self._serve_without_session(request, reply)
            return None
        session = await self.sessions.find(self, named, principal)
        if isinstance(session, QuotaExceeded):
            _over_quota(reply, None, session)
            return None
        if session is None:
            _refuse(reply, 404, "Session not found")
            return None
        session.serving += 1
        try:
            if request.head.method != "POST":
                await self._serve_session(request, reply, session)
                return None
            message = await self._read_post(request, reply, session)
        finally:
            session.serving -= 1  # nothing waits from here to ``serve``, which counts it again
            session.used_at = session.exchange.now()
        if message is None:
            return None
        # By the credential of this request: another token of the principal may see less of its stream.
        policy = self._front.hub.registry.policy
        rights = "" if policy.is_open else policy.grants(principal).key
        stream = MessageStream(session, reply, self.sessions.backlog, bytes(message.id or b""), rights)
        return message, stream, session.exchange

    async def _serve_without_session(self, request: Request, reply: Reply) -> None:
        """Only a handshake needs no session."""
        if request.head.method == "DELETE" and self._forget(request):
            reply.plain(204, b"", b"")
        elif request.head.method in ("GET", "DELETE"):
            _refuse(reply, 400, "Bad Request: Missing session ID")
        elif request.head.method != "POST":
            _refuse(reply, 405, "Method Not Allowed", b"allow: GET, POST, DELETE\r\n")
        else:
            await self._read_post(request, reply, None)

    def _initialize(self, message: Message, reply: Reply, principal: Principal) -> None:
        """The handshake; no server behind the hub is waited for.

        A client that shakes hands again declares itself again, in a new session: its earlier id stays what it was.
        """
        assert message.id is not None  # noqa: S101 - it is a request
        try:
            params = message.values()
            settled = initialize(self.server.of(principal.name).view.seen_by(principal), params)
        except (MCPError, ValidationError, ValueError) as exc:
            reply.plain(200, error_message(message.id, error_of(exc)))
            return
        session = self.sessions.begin(self, principal, settled.version, settled.capabilities, params.get("clientInfo"))
        if isinstance(session, QuotaExceeded):
            _over_quota(reply, message, session)
        else:
            reply.plain(200, result_message(message.id, settled.result), JSON_HEADER + session.header)

    async def _serve_session(self, request: Request, reply: Reply, session: HttpSession) -> None:
        """All but messages: the stream of notices, and the end."""
        if request.head.method == "GET":
            if not _accepted(request.headers.get("accept"))[1]:
                _refuse(reply, 406, "Not Acceptable: Client must accept text/event-stream", session.header)
            elif not await self._streams.open(request, reply, session):
                _refuse(reply, 409, "Conflict: Only one SSE stream is allowed per session")
        elif request.head.method == "DELETE":
            await self.sessions.end(session)
            reply.plain(200, b"", session.header)
        else:
            _refuse(reply, 405, "Method Not Allowed", b"allow: GET, POST, DELETE\r\n" + session.header)

    async def _read_post(self, request: Request, reply: Reply, session: HttpSession | None) -> Message | None:
        """The request in a POST of a session; None if it is refused, or is no such request: then it has its answer.

        So have a notification, a batch, and the handshake, which is all that is taken without a session.
        """
        headers = session.header if session is not None else b""
        takes_json, reply.streams = _accepted(request.headers.get("accept"))
        if not takes_json:
            _refuse(reply, 406, "Not Acceptable: Client must accept application/json", headers)
            return None
        if _kind_of(request.headers.get("content-type", "")) != _JSON:
            _refuse(reply, 415, "Unsupported Media Type: Content-Type must be application/json", headers)
            return None
        limits = self._front.hub.registry.config.settings.limits
        body = await request.body(limits.message_bytes, room=self._front.bodies)
        is_routed = MCP_METHOD_HEADER in request.headers or MCP_NAME_HEADER in request.headers
        try:
            message = await read_message(body)
            if is_routed:
                _check_routing(message, request)
        except MCPError as exc:
            if session is not None and is_batch(body, session.ticket.version) and not is_routed:
                await self._batch(body, request, reply, session)
            else:
                reply.plain(400, error_message(None, exc.error), JSON_HEADER + headers)
            return None
        if message.method == "initialize" and message.is_request:
            self._initialize(message, reply, request.principal)
        elif session is None:
            _refuse(reply, 400, "Bad Request: Missing session ID")
        elif not message.is_request:
            await self._take(message, request, reply, session)
        else:
            return message
        return None

    async def _take(self, message: Message, request: Request, reply: Reply, session: HttpSession) -> None:
        """A notification or an answer of a client: it may concern another replica."""
        exchange, peers = session.exchange, self.peers
        if message.method is None and not exchange.questions.answered(message):
            why: str | None = NO_WAY_TO_REPLICAS if self.sessions.ids.keys.shared else UNKNOWN_QUESTION
            if peers is not None:
                why = await peers.pass_answer(message, request, reply)
            if why is not None:
                _refuse(reply, 400, why, session.header)
            return
        reply.plain(202, b"", session.header)
        if peers is not None and message.method == "notifications/cancelled":
            key = message.cancelled_key()
            if key is not None and key not in exchange.calls:
                self.server.broker.start(peers.cancel, session, key)
        await exchange.handle(message, _KeptReply())  # an answer was settled above; that it came shows who is there
        if peers is not None and message.method == ROOTS_CHANGED and not request.forwarded:
            homes = self.server.broker.homes
            if homes is not None and (home := homes.known_elsewhere(session.client)) is not None:
                await peers.pass_notice(home, request)

    async def _batch(self, body: bytes, request: Request, reply: Reply, session: HttpSession) -> None:
        """Serve the messages of a batch at the same time. The answers come together, when all are done."""
        try:
            batch = await read_batch(body)
        except MCPError as exc:
            reply.plain(400, error_message(None, exc.error), JSON_HEADER + session.header)
            return
        reply.wait_for_result(session.header)
        answers: list[_KeptReply] = []
        async with asyncio.TaskGroup() as tasks:
            for message in batch:
                part = _KeptReply()
                answers.append(part)
                if isinstance(message, bytes):
                    part.answer = message
                elif not message.is_request:
                    tasks.create_task(session.exchange.handle(message, part))
                else:
                    tasks.create_task(self._answer_part(message, request, part, session))
        if given := [part.answer for part in answers if part.answer]:
            reply.result(b"[" + b",".join(given) + b"]")
        elif reply.started:
            reply.end()
        else:
            reply.plain(202, b"", b"")

    async def _answer_part(self, message: Message, request: Request, part: _KeptReply, session: HttpSession) -> None:
        """A request in a batch. One of another replica is refused: the HTTP request of a batch cannot go there."""
        assert message.id is not None  # noqa: S101 - it is a request
        # Counted by the replica that it came in at, and only once its task runs: one that never does counts nothing.
        use = None if request.forwarded else self._front.quotas.begin_call(session.principal.name)
        if isinstance(use, QuotaExceeded):
            part.answer = _quota_error(message, use)
            return
        self.in_flight.number += 1
        try:
            await session.exchange.handle(message, part, request.headers, identity=request.principal)
        except LivesElsewhere:
            text = "this request belongs to another replica: send it by itself, not in a batch"
            part.error(message.id, ErrorData(code=INVALID_REQUEST, message=text))
        finally:
            self.in_flight.end(use)

    # The modern era.

    async def _read_modern(self, request: Request, reply: Reply, version: str) -> _Read | None:
        """The request in a POST; None if it is refused, and for a notification: then it has its answer."""
        takes_json, reply.streams = _accepted(request.headers.get("accept"))
        if request.head.method != "POST":
            if request.head.method == "DELETE" and self._forget(request):
                reply.plain(204, b"", b"")
            else:
                reply.plain(405, b"", b"allow: POST\r\n")
            return None
        if not takes_json:
            _refuse(reply, 406, "Not Acceptable: Client must accept application/json")
            return None
        limits = self._front.hub.registry.config.settings.limits
        body = await request.body(limits.message_bytes, room=self._front.bodies)
        try:
            message = await read_message(body)
            if message.method is None:
                raise MCPError(INVALID_REQUEST, "Body must be a single JSON-RPC request or notification object")
        except MCPError as exc:
            reply.plain(400, error_message(None, exc.error))
            return None
        if not message.is_request:
            _acknowledge(reply, version)
        elif (twice := next((one for one in request.head.repeated if one in _ROUTING), None)) is not None:
            error = ErrorData(code=HEADER_MISMATCH, message=f"{twice} header appears more than once")
            reply.plain(400, error_message(message.id, error))
        elif message.method == LISTEN and not reply.streams:
            _refuse(reply, 406, "Not Acceptable: Client must accept text/event-stream")
        elif message.key is not None and not reply.out.lost:  # a client that left meanwhile gave it up
            stream = MessageStream(None, reply, self.sessions.backlog)
            exchange = Exchange(self.server, stream, era="modern", principal=request.principal)
            request.end_with_client(partial(exchange.cancel, message.key))
            return message, stream, exchange
        return None

    # Both eras.

    def _forget(self, request: Request) -> bool:
        """A client without a session that sent a key of its own can end its connections by DELETE."""
        try:
            key = client_key_in(request.headers, request.principal)
        except MCPError:
            return False
        if key is not None:
            self._front.release(key)
            if self.peers is not None:
                self.server.broker.start(self.peers.forget_client, key)
        return key is not None

    def __repr__(self) -> str:
        return f"<HttpEndpoint of {self.server.view!r} {self.in_flight}>"


class _KeptReply:
    """Keeps the answer to one message of a batch. A batch takes no event stream."""

    is_open = False

    def __init__(self) -> None:
        self.answer = b""

    def tell(self, method: str, params: Mapping[str, Any] | None, *, everywhere: bool = False) -> None:
        """Leave it out."""

    async def reach(self, method: str) -> NoReturn:
        """Refuse a question."""
        raise MCPError(INVALID_REQUEST, f"{method} cannot reach the client: it takes no event stream")

    def put_question(self, message: bytes) -> None:
        """Nothing is asked: ``reach`` refuses."""

    def result(self, request_id: Bytes, result: RawObject | bytes) -> None:
        """The result."""
        self.answer = result_message(request_id, result)

    def error(self, request_id: Bytes | None, error: ErrorData) -> None:
        """The error."""
        self.answer = error_message(request_id, error)

    def cancelled(self, request_id: Bytes) -> None:
        """The client gave it up."""
        self.answer = error_message(request_id, CANCELLED)


# What the headers say.


@lru_cache(maxsize=64)
def _accepted(accept: str | None) -> tuple[bool, bool]:
    """Whether a client takes JSON, and whether it takes event streams, by its header; wildcards count.

    A client that does not say what it takes gets the form that needs no reader of event streams.
    """
    if accept is None:
        return True, False
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    every = "*/*" in kinds
    return every or bool(kinds & {_JSON, "application/*"}), every or bool(kinds & {_EVENTS, "text/*"})


@lru_cache(maxsize=64)
def _kind_of(content_type: str) -> str:
    """The kind of a body by its header, without parameters."""
    return content_type.partition(";")[0].strip().lower()


def _check_routing(message: Message, request: Request) -> None:
    """Refuse a legacy request whose headers name another method or tool than its body: a gateway may decide by them."""
    key = NAME_BEARING_METHODS.get(message.method or "")
    name = text_of(message.params.get(key)) if key is not None else None
    said = request.headers.get(MCP_METHOD_HEADER, message.method), request.headers.get(MCP_NAME_HEADER)
    if said[0] != message.method or (said[1] is not None and decode_header_value(said[1]) != name):
        raise MCPError(HEADER_MISMATCH, "the Mcp-Method or Mcp-Name header does not match the request body")


# Answers that the shell makes itself.


def _refuse(reply: Reply, status: int, text: str, headers: bytes = b"") -> None:
    error = error_message(None, ErrorData(code=INVALID_REQUEST, message=text))
    reply.plain(status, error, JSON_HEADER + headers)


def _quota_error(message: Message | None, exceeded: QuotaExceeded) -> bytes:
    data = {"retryAfter": exceeded.retry_after, "quota": exceeded.quota}
    error = ErrorData(code=QUOTA_EXCEEDED, message=exceeded.message, data=data)
    return error_message(message.id if message is not None else None, error)


def _over_quota(reply: Reply, message: Message | None, exceeded: QuotaExceeded, headers: bytes = b"") -> None:
    """Refuse a request over a quota, with the time to wait."""
    later = b"retry-after: %d\r\n" % exceeded.retry_after
    reply.plain(429, _quota_error(message, exceeded), JSON_HEADER + later + headers)


def _acknowledge(reply: Reply, version: str) -> None:
    """A notification of the modern era: it is accepted, and there is nothing that it could change."""
    if (rejected := unsupported_protocol_version_rejection(version)) is not None:
        error = ErrorData(code=rejected.code, message=rejected.message, data=rejected.data)
        reply.plain(400, error_message(None, error))
    else:
        reply.plain(202, b"", b"")
