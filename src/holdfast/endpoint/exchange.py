"""The exchange of messages with one client, without a transport: messages in, messages out.

An ``Exchange`` is as long as what its transport calls a connection: a session of the legacy era over HTTP, a pipe, or
one request of the modern era over HTTP. The transports are shells around it. A shell reads messages, gives each to
``handle`` with the ``MessageReply`` that takes its answer, and writes what the reply is given. Sessions and event
streams are the HTTP shell's, lines and their bounds the stdio shell's.

What can happen. A client sends requests, notifications and answers, in any order and at the same time: ``handle`` runs
once for each of them, and several run at once. It may cancel a request, give the id of one in flight again, or leave.
A server may send progress and log messages, or ask the client, until its result is there.

What must hold:

- Each request gets exactly one answer on its own reply: a result or an error. A cancelled one gets none, unless its
  transport needs one (``MessageReply.cancelled``). Nothing follows the answer.
- An id names one request in flight: ``calls`` is the one table of them. A second request with that id is refused
  without an id, so that the answer to the first is not mistaken.
- A cancelled call ends at its server too, and its task goes on with what it has to do next.
- Every question has a deadline (``Questions``), and ends with the exchange.
- Nothing of a client outlives its exchange, except what its owner keeps (``Broker.detach``).

The era. Over HTTP a header says it, and the shell passes it on. On a pipe the first request decides for the whole
connection. ``server/discover`` is only a question: a client that got no answer in time (the Vercel AI SDK waits 1 s,
while the hub still starts) goes on with ``initialize``. A modern request is a client of its own, for as long as it
takes; the legacy client begins with its handshake and is attached by its next message.

``LivesElsewhere`` leaves ``handle`` before anything was sent or done for the message: another replica has to serve it,
and the shell knows the way.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from hashlib import blake2b
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from mcp import MCPError
from mcp.shared.inbound import (
    NAME_BEARING_METHODS,
    InboundLadderRejection,
    InboundModernRoute,
    classify_inbound_request,
)
from mcp_types import (
    CLIENT_INFO_META_KEY,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorData,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from holdfast.access import LOCAL, ClientKey, Principal, client_key_in
from holdfast.endpoint.clients import NO_HEADERS, Call, Client, LivesElsewhere, MessageReply, Outlet, Questions
from holdfast.endpoint.instructions import STAMP, initialize, program_in, protocol_error
from holdfast.endpoint.message import Message, error_message, error_of, read_message, result_for_client
from holdfast.endpoint.server import McpServer
from holdfast.endpoint.view import LIST_METHODS
from holdfast.errors import HoldfastError
from holdfast.turns import Turns
from holdfast.wire import LOG_LEVELS, SMALL_BYTES, BadJson, Bytes, Era, items, read_bytes, text_of, via_in

__all__ = [
    "CHANGES_CLIENT",
    "ROOTS_CHANGED",
    "ClientFolders",
    "Exchange",
    "RootFolder",
    "is_batch",
    "modern_route",
    "read_batch",
]

log = logging.getLogger("holdfast.front")

BATCH_VERSION: Final = "2025-03-26"
"""The only version with batches."""

MOST_MESSAGES: Final = 100
"""How many messages a batch may have."""

CHANGES_CLIENT: Final = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Requests after which something of the client is different that has to outlive the process."""

CLIENT_KEY_BYTES: Final = 18
"""Of the digest by which a hub behind this one recognises a client."""

ROOTS_CHANGED: Final = "notifications/roots/list_changed"

_KEPT: Final = CHANGES_CLIENT | LIST_METHODS.keys()

Keep = Callable[[str], Awaitable[None]]
"""Called with the method of a request that changed what is kept of the client, before its answer goes out."""


class Exchange:
    """All that one client and the hub say to each other. It is small: a hub may hold thousands of idle sessions."""

    __slots__ = (
        "_attached", "_by_message", "_era", "_keep", "_loop", "_outlet", "_owner", "_server", "calls", "client",
        "now", "principal", "program", "questions", "roots", "version",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - what a transport knows of its client
        self,
        server: McpServer,
        outlet: Outlet,
        *,
        era: Era | None = None,
        owner: Hashable = None,
        principal: Principal = LOCAL,
        first_question: int = 0,
        clock: Callable[[], float] | None = None,
        keep: Keep | None = None,
        roots: RootFolder | None = None,
    ) -> None:
        """``era`` is None where the first request decides it. ``owner`` is None for a modern request over HTTP.

        ``keep`` is None where nothing of the client outlives its connection. ``roots`` are for a legacy client that
        named no folder, and may choose one.
        """
        self._server = server
        self._outlet = outlet
        self._by_message = era is None
        self._era: Era | None = era
        self._owner = owner
        self.principal = principal
        self._loop = asyncio.get_running_loop()
        self.now = clock or self._loop.time
        self._keep = keep
        self.roots = roots
        """Choose the folder of a legacy client that named none; None if they may not."""
        self.questions = Questions(first_question)
        self.calls: dict[str | int, Call] = {}
        """The requests in flight, by their ids."""
        self.client: Client | None = None
        """The client of the legacy era, from its handshake on."""
        self.version = LATEST_HANDSHAKE_VERSION
        self.program = ""
        """What the client calls itself; empty until it has said so."""
        self._attached = False

    @property
    def server(self) -> McpServer:
        """The endpoint, as the principal of this client has it."""
        return self._server.of(self.principal.name)

    async def handle(
        self,
        message: Message,
        reply: MessageReply,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        sent_before: bool = False,
        identity: Principal | None = None,
    ) -> None:
        """Take one message of the client; a request has its answer when this returns.

        ``sent_before``: another hub got it and gave no answer, so a server may have acted on it already. ``identity``
        is who sent this message, where each message has a credential of its own: the same principal, perhaps with other
        groups and scopes than those that the exchange began with.
        """
        # Before the message is looked at: also an answer or a notification shows that the client is there.
        self._attach()
        if message.key is None or message.method is None or message.id is None:
            await self._take(message)
            return
        try:
            call = self._accepted(message, reply, headers, identity or self.principal)
        except Exception as exc:  # noqa: BLE001 - every request gets an answer
            reply.error(message.id, error_of(exc))
            return
        if call is None:
            return  # it has its answer
        self.calls[message.key], call.sent_before = call, sent_before
        try:
            if self.roots is not None:
                await self._at_roots(self.roots, call)
            # Asked for each request, after its roots: servers may have become per user, and its folder may have moved.
            server = self._server.of(self.principal.name)
            call.client.view = server.view  # a server may have become one that is per user
            audit = server.broker.audit
            result = await (server.answer(call) if audit is None else audit.answer(call, server.answer))
            if message.method in _KEPT and not call.client.modern and self._keep is not None:
                await self._keep(message.method)  # before the answer: a client that has it relies on it
            if result.is_large:
                await Turns().give()  # each pass over a large result takes milliseconds
            reply.result(message.id, result_for_client(call.method, result, modern=call.client.modern, stamp=STAMP))
        except asyncio.CancelledError:
            if not call.absorbs_cancellation():
                raise  # the task itself is cancelled: the hub ends, or its connection does
            reply.cancelled(message.id)
        except LivesElsewhere:
            raise  # nothing was done: the shell takes the message to the replica that has to serve it
        except Exception as exc:  # noqa: BLE001 - every request gets an answer
            own = protocol_error(exc, modern=call.client.modern) if isinstance(exc, HoldfastError) else exc
            reply.error(message.id, error_of(own))
        finally:
            call.done = True
            del self.calls[message.key]
            if call.client.modern:
                self._server.broker.detach(call.client)

    def cancel(self, key: str | int) -> bool:
        """End a request in flight; False if there is none with this id."""
        call = self.calls.get(key)
        if call is not None:
            call.cancel()
        return call is not None

    def close(self, why: str, *, lingering: bool = False) -> None:
        """The client left: end all that is under way. The connections of one that may come back linger."""
        for call in list(self.calls.values()):
            call.cancel()
        self.questions.end(why)
        self._keep = None  # it leads back to the session, which is free now
        if self.roots is not None:
            self.roots.leave()
        if self.client is not None:
            self._server.broker.detach(self.client, lingering=lingering)

    # The legacy client.

    def _initialize(self, request_id: Bytes, message: Message, reply: MessageReply) -> None:
        self._era = "legacy"
        settled = initialize(self.server.view.seen_by(self.principal), message.values())
        self.begin(settled.version, settled.capabilities, program=settled.program)
        reply.result(request_id, settled.result)

    def begin(
        self, version: str, capabilities: Mapping[str, Any], *, program: str = "", rebuilt: bool = False
    ) -> Client:
        """The handshake is done: this is the client. One that shakes hands again declares itself again."""
        self.version, self.program = version, program
        if self.client is None:
            self.client = self._new_client(self._outlet, capabilities, rebuilt=rebuilt)
        self.client.capabilities, self.client.program = capabilities, program
        if rebuilt:
            self._attach()
        return self.client

    def _new_client(self, outlet: Outlet, capabilities: Mapping[str, Any], *, rebuilt: bool = False) -> Client:
        return Client(
            view=self.server.view,
            outlet=outlet,
            capabilities=capabilities,
            modern=False,
            owner=self._owner,
            identity=self.principal,
            questions=self.questions,
            clock=self.now,
            persistent=self._by_message,
            rebuilt=rebuilt,
            key=_key_of(self._owner),
        )

    def _attach(self) -> None:
        """The client sent a message: it is there, and from its second message on servers may ask it."""
        if self.client is None:
            return
        self.client.seen_at = self.now()
        if not self._attached:
            self._attached = True
            self._server.broker.attach(self.client)

    async def _take(self, message: Message) -> None:
        """An answer or a notification."""
        if message.method is None:
            self.questions.answered(message)
        elif message.method == "notifications/cancelled":
            if (key := message.cancelled_key()) is not None:
                self.cancel(key)
        elif message.method == ROOTS_CHANGED and self.client is not None and self._era != "modern":
            if self.roots is not None:
                self.roots.forget()
            try:
                await self._server.roots_changed(self.client, self.version, message)
            except (MCPError, ValidationError, ValueError) as exc:
                log.debug("a notification of a client was dropped: %s", type(exc).__name__)

    async def _at_roots(self, roots: RootFolder, call: Call) -> None:
        """Go to the endpoint of the folder that the client's roots name. What it was given may be different there."""
        client = call.client
        server = await roots.server_for(call) if not client.modern else None
        if server is not None:
            self._server = server
            if client.listed:
                server.broker.start(self.server.own.tell_missed, client, dict(client.listed))

    # A request.

    def _accepted(
        self, message: Message, reply: MessageReply, headers: Mapping[str, str], identity: Principal
    ) -> Call | None:
        """The call of a request, for the client that its era gives it; None if it has its answer already.

        Raises ``MCPError``.
        """
        if message.key in self.calls:
            log.warning("the client sent a request with an id that is in flight already: %r", message.key)
            text = f"the id {json.dumps(message.key)} is in flight already"
            reply.error(None, ErrorData(code=INVALID_REQUEST, message=text))
            return None
        if message.method == "initialize" and self._era != "modern":
            self._initialize(message.id or b"", message, reply)
            return None
        era = self._era or ("modern" if _has_envelope(message) else "legacy")
        if message.method != "server/discover":
            self._era = era
        if era == "modern":
            route = self._modern_route(message, headers)
            client, version = self._modern_client(message, route, reply, headers), route.protocol_version
        elif self._by_message and _has_envelope(message):
            raise MCPError(
                INVALID_REQUEST,
                "this connection serves the handshake protocol era; "
                "requests carrying the 2026-07-28 envelope are not accepted on it",
            )
        elif self.client is None and message.method != "ping":
            raise MCPError(INVALID_PARAMS, "Invalid request parameters", "")
        else:
            client, version = self.client or self._new_client(self._outlet, {}), self.version
        task = asyncio.current_task(self._loop)  # without the loop it is searched, by a call of the system
        return Call(message, client, reply, client.view, version, headers, task, identity)

    def _modern_route(self, message: Message, headers: Mapping[str, str]) -> InboundModernRoute:
        if self._by_message and message.method == "initialize":
            asked = text_of(message.params.get("protocolVersion"))
            data: dict[str, Any] = {"supported": list(MODERN_PROTOCOL_VERSIONS)}
            raise MCPError(
                UNSUPPORTED_PROTOCOL_VERSION,
                "connection is serving the 2026-07-28 protocol; the initialize handshake is not accepted",
                data | ({"requested": asked} if asked is not None else {}),
            )
        return modern_route(message, None if self._by_message else headers)

    def _modern_client(
        self, message: Message, route: InboundModernRoute, reply: MessageReply, headers: Mapping[str, str]
    ) -> Client:
        """A client of one request. Its owner is the pipe, its client key, or nothing that outlives it."""
        key = client_key_in(headers, self.principal, message.meta) if self._owner is None else None
        level, can = message.meta.get(LOG_LEVEL_META_KEY), route.client_capabilities
        self.program = program_in(message.meta.get(CLIENT_INFO_META_KEY))
        return Client(
            view=self.server.view,
            outlet=reply,
            capabilities=can if isinstance(can, dict) else {},
            modern=True,
            owner=self._owner if self._owner is not None else key or object(),
            identity=self.principal,
            clock=self.now,
            persistent=self._owner is not None or key is not None,
            expires=key is not None,
            key=_key_of(self._owner if self._owner is not None else key),
            via=via_in(headers),
            log_level=level if isinstance(level, str) and level in LOG_LEVELS else None,
            program=self.program,
        )

    def __repr__(self) -> str:
        return f"<Exchange {self._era or 'no era yet'} {self.principal.name} calls={list(self.calls)} {self.questions}>"


def _key_of(owner: Hashable) -> str | None:
    """How a hub behind this one recognises a client: equal at every replica, and it tells nothing about the client.

    None for a client that is not known beyond its request.
    """
    known = f"{owner.principal}\0{owner.key}".encode() if isinstance(owner, ClientKey) else owner
    if not isinstance(known, bytes):
        return None
    return blake2b(known, digest_size=CLIENT_KEY_BYTES, person=b"holdfast client").hexdigest()


def modern_route(message: Message, headers: Mapping[str, str] | None) -> InboundModernRoute:
    """What a modern request says of itself. Raises ``MCPError`` if ``_meta`` and the headers do not agree.

    A gateway may decide by either of them.
    """
    params, method = message.params, message.method or ""
    read: dict[str, Any] = {"_meta": message.meta} if "_meta" in params else {}
    key = NAME_BEARING_METHODS.get(method)
    if key is not None and key in params:
        read[key] = text_of(params[key])
    found = classify_inbound_request({"method": method, "params": read}, headers=headers)
    if isinstance(found, InboundLadderRejection):
        raise MCPError(found.code, found.message, found.data)
    return found


def _has_envelope(message: Message) -> bool:
    """Whether a request says its protocol version itself, as the modern era has it."""
    try:
        return message.method != "initialize" and PROTOCOL_VERSION_META_KEY in message.meta
    except MCPError:
        return False


# Batches, which one version of the legacy era has. Each message is served like one that came alone.


def is_batch(body: bytes, version: str) -> bool:
    """Whether bytes that are no message are a batch, for a client of this version."""
    return version == BATCH_VERSION and body[:64].lstrip()[:1] == b"["


async def read_batch(body: bytes) -> list[Message | bytes]:
    """The messages of a batch; in place of one that is none, the refusal of it. Raises ``MCPError``."""
    try:
        batch = items(read_bytes(body)) if len(body) <= SMALL_BYTES else []
    except BadJson as exc:
        raise MCPError(INVALID_REQUEST, f"the batch cannot be read: {exc}") from None
    if not 0 < len(batch) <= MOST_MESSAGES:
        bound = f"a batch has 1 to {MOST_MESSAGES} messages, in at most {SMALL_BYTES // 1024} KiB"
        raise MCPError(INVALID_REQUEST, bound)
    return [await _part(bytes(one)) for one in batch]


async def _part(raw: bytes) -> Message | bytes:
    try:
        message = await read_message(raw)
    except MCPError as exc:
        return error_message(None, exc.error)
    if message.method == "initialize":
        error = ErrorData(code=INVALID_REQUEST, message="initialize may not be part of a batch")
        return error_message(message.id, error)
    return message


# The folder that a client works in.

ROOTS_SECONDS: Final = 2.0
"""How long a request waits for the client's roots."""


class ClientFolders(Protocol):
    """The folders that clients work in."""

    @property
    def matter(self) -> bool:
        """Whether the folder of a client makes a difference: some server runs once for each, or may come from one."""

    def of(self, named: str, working: str) -> str | None:
        """The folder of a client that names one and works in another; None if it works in none."""

    async def enter(self, folder: str, variables: Mapping[str, str]) -> bool:
        """A client works there, until ``leave``; False if there are too many folders."""

    def leave(self, folder: str) -> None:
        """A client left."""

    async def touch(self, folder: str) -> bool:
        """A request names the folder; False if there are too many."""


class RootFolder:
    """The folder of a legacy client that named none: its first root (DX-9).

    Theory of operation. A desktop program starts its servers in ``/`` or in the home folder, but many of them know the
    folder that their person opened: it is the first of their roots. The hub asks for the roots with the first request
    of the client, on the way back of that request, so that a client over HTTP needs no open stream. From the answer on
    the client is served as if it had named that folder: its exchange moves to the endpoint of the folder. A client
    whose roots change is asked again with its next request. Where no folder makes a difference, no client is asked.

    What must hold. Only a shell whose clients are the hub's own user passes a ``RootFolder``: a remote caller could
    start what is in a folder of this machine. A request waits for the answer no longer than for a server that is not
    ready (HUB-13). A client that gives no root, or one that is no project, is served as before.
    """

    def __init__(
        self,
        folders: ClientFolders,
        server_of: Callable[[str | None], McpServer],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """``server_of`` is the endpoint of a folder, and of none; ``variables`` are those of the client."""
        self._folders = folders
        self._server_of = server_of
        self._variables = variables or {}
        self._turn = asyncio.Lock()
        self._is_known = False
        self.folder = ""
        """Empty if it is not known, or no project."""

    def forget(self) -> None:
        """The roots of the client changed."""
        self._is_known = False

    async def server_for(self, call: Call) -> McpServer | None:
        """The endpoint that serves the client from now on; None if that is the same as before."""
        if self._is_known or call.method == "ping" or "roots" not in call.client.capabilities:
            return None
        if not self._folders.matter:
            return None
        async with self._turn:  # the first of several requests asks
            return await self._moved(call)

    async def _moved(self, call: Call) -> McpServer | None:
        if self._is_known:
            return None
        try:
            async with asyncio.timeout(ROOTS_SECONDS):
                root = first_root(await call.ask("roots/list", None))
        except (MCPError, TimeoutError):
            root = ""
        self._is_known = True
        before, folder = self.folder, (self._folders.of("", root) if root else None) or ""
        if folder == before or (folder and not await self._folders.enter(folder, self._variables)):
            return None
        self.folder = folder
        if before:
            self._folders.leave(before)
        return self._server_of(folder or None)

    def leave(self) -> None:
        """The client left."""
        if self.folder:
            self._folders.leave(self.folder)
        self.folder, self._is_known = "", False

    def __repr__(self) -> str:
        return f"<RootFolder {self.folder or ('none' if self._is_known else 'not asked')}>"


def first_root(answer: Mapping[str, Any]) -> str:
    """The path of the first root of an answer; empty if it names no folder of this machine."""
    roots = answer.get("roots")
    first = roots[0] if isinstance(roots, list) and roots else None
    uri = first.get("uri") if isinstance(first, Mapping) else None
    try:
        parts = urlsplit(uri) if isinstance(uri, str) else None
    except ValueError:
        return ""
    if parts is None or parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return ""
    path = unquote(parts.path)
    return path if path.startswith("/") and "\0" not in path else ""
