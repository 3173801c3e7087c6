"""Servers that live on one replica: the others forward their requests to it, over the link between replicas.

``HolderLink`` is the side that forwards: a ``RemoteServer`` for the wire. ``HeldServers`` is the side that runs the
server: it makes each request as its own, for the caller that the other replica names, and sends back what the server
says meanwhile. Failures travel as evidence or as the error of this hub, so that both sides say the same.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import fields as fields_of, is_dataclass
from enum import Enum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, get_args

import anyio
import anyio.to_thread

from holdfast import errors
from holdfast.config import ServerSpec
from holdfast.core import (
    CommandFault,
    Evidence,
    Kind,
    Listing,
    NameKey,
    NetworkFailure,
    NetworkFault,
    NotMcpFault,
    Outcome,
    Permit,
    RpcError,
    State,
    Statement,
    TlsFault,
    Unexpected,
)
from holdfast.errors import CallFailed, HoldfastError, ServerBusy, ServerFailure, ServerUnavailable
from holdfast.hub.call import is_repeatable
from holdfast.hub.fleet.peers import (
    PeerAnswer,
    PeerFailed,
    PeerRefused,
    PeerReply,
    PeerRequest,
    Peers,
    PeerUnreachable,
)
from holdfast.hub.lease import Lease
from holdfast.hub.slot import Slot
from holdfast.types import ProgressFn
from holdfast.wire import (
    BadJson,
    Caller,
    Era,
    Fields,
    ForwardedMessage,
    MessageKind,
    Relay,
    RpcRefusal,
    dumps,
    fields,
    loads,
    refusal,
    text_of,
)

if TYPE_CHECKING:
    from holdfast.hub.fleet.fleet import Fleet
    from holdfast.hub.registry import SlotRegistry

__all__ = ["HeldServers", "HolderLink", "RemoteCaller"]

ANSWER_SECONDS: Final = 10.0
"""How long the answer to a question may take to reach the replica that runs the server."""
ASK_SECONDS: Final = 600.0
"""How long a person or a model may take to answer a server's question."""
_FAILED: Final = 100
"""A message with the failure of a request or of the connection, beside those of ``MessageKind``."""

_WATCH, _CALL, _ANSWER, _NOTIFY = "server/watch", "server/call", "server/answer", "server/notify"

_LISTS: Mapping[str, tuple[Kind, str]] = {
    "tools/list": (Kind.TOOL, "tools"),
    "prompts/list": (Kind.PROMPT, "prompts"),
    "resources/list": (Kind.RESOURCE, "resources"),
    "resources/templates/list": (Kind.TEMPLATE, "resourceTemplates"),
}
_CHANGED = ("notifications/tools/list_changed", "notifications/prompts/list_changed")


# The side that forwards.


class HolderLink:
    """A server that runs on another replica, for the wire."""

    def __init__(self, peers: Peers, replica: str, server: str, *, own: Mapping[str, Any] | None = None) -> None:
        self._peers = peers
        self.replica = replica
        self._about: dict[str, Any] = {"server": server, "watch": secrets.token_hex(8)}
        if own is not None:
            self._about["own"] = dict(own)

    async def watch(self) -> _AnswerStream:
        """See ``RemoteServer``."""
        return await self._asked(_WATCH, self._about, b"")

    async def call(self, number: int, method: str, params: bytes, caller: Caller | None) -> _AnswerStream:
        """See ``RemoteServer``."""
        about = {**self._about, "method": method, "call": number, "caller": _caller(caller)}
        return await self._asked(_CALL, about, params)

    async def answer(self, call: int | None, question: int, answer: Mapping[str, Any]) -> None:
        """See ``RemoteServer``."""
        await self._tell(_ANSWER, {"call": call, "question": question}, dumps(answer))

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """See ``RemoteServer``."""
        try:
            await self._tell(_NOTIFY, {"method": method}, dumps(params))
        except ServerFailure:
            return  # as the protocol expects: a notification that cannot be sent is dropped

    async def _tell(self, operation: str, about: Mapping[str, Any], body: bytes) -> None:
        try:
            await self._peers.ask(self.replica, operation, {**self._about, **about}, body, within=ANSWER_SECONDS)
        except (PeerUnreachable, PeerRefused, PeerFailed) as exc:
            raise self._failure(exc) from exc

    async def _asked(self, operation: str, about: Mapping[str, Any], body: bytes) -> _AnswerStream:
        try:
            return _AnswerStream(await self._peers.begin(self.replica, operation, about, body), self._failure)
        except (PeerUnreachable, PeerRefused, PeerFailed) as exc:
            raise self._failure(exc) from exc

    def _failure(self, exc: Exception) -> ServerFailure:
        sent = isinstance(exc, PeerFailed)
        fault = NetworkFault.CLOSED if sent else NetworkFault.REFUSED
        return ServerFailure(
            NetworkFailure(fault=fault, stood=sent, sent=sent, detail=str(exc)[:300], replica=self.replica)
        )


class _AnswerStream:
    """The messages in the answer of a replica."""

    def __init__(self, answer: PeerAnswer, failure: Callable[[Exception], ServerFailure]) -> None:
        self._answer = answer
        self._failure = failure
        self._unread: bytes | bytearray = b""

    async def next(self) -> ForwardedMessage | None:
        """See ``RemoteStream``."""
        unread, self._unread = self._unread, b""
        while not _is_whole(unread):
            try:
                piece = await self._answer.next_piece()
            except PeerFailed as exc:
                raise self._failure(exc) from exc
            if piece is None:
                return None
            if not unread:
                unread = piece
            else:
                unread = bytearray(unread) if isinstance(unread, bytes) else unread
                unread += piece
        end = 5 + int.from_bytes(unread[1:5], "big")
        self._unread, content = bytes(unread[end:]), bytes(unread[5:end])
        if unread[0] == _FAILED:
            raise _failure_in(loads(content))
        return ForwardedMessage(MessageKind(unread[0]), content)

    async def end(self) -> None:
        """See ``RemoteStream``."""
        with suppress(PeerFailed):
            while not self._answer.complete and await self._answer.next_piece() is not None:
                pass

    def close(self) -> None:
        """See ``RemoteStream``."""
        self._answer.close()


def _is_whole(unread: bytes | bytearray) -> bool:
    """Whether a message is here from its beginning to its end."""
    return len(unread) >= 5 and len(unread) >= 5 + int.from_bytes(unread[1:5], "big")


def _caller(caller: Caller | None) -> dict[str, Any] | None:
    if caller is None:
        return None
    owner = getattr(getattr(caller, "client", None), "owner", caller)
    return {
        "era": caller.era,
        "principal": caller.principal,
        "capabilities": dict(caller.capabilities),
        "owner": f"{hash(owner) & (2**64 - 1):x}",
    }


# The side that runs the server.


class RemoteCaller:
    """The client of another replica whose request runs here; it is the ``Caller`` of the wire."""

    def __init__(self, out: _Out, sender: str, about: Mapping[str, Any], *, ask: Callable[..., Any]) -> None:
        self._out = out
        self._ask = ask
        era = about.get("era")
        self.era: Era | None = "modern" if era == "modern" else "legacy" if era == "legacy" else None
        self.principal = str(about.get("principal", ""))
        capabilities = about.get("capabilities")
        self.capabilities: Mapping[str, Any] = capabilities if isinstance(capabilities, dict) else {}
        self.owner = ("replica", sender, str(about.get("owner", "")))
        self.counted_by = sender

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Its answer to the server's question."""
        answer: dict[str, Any] = await self._ask(self._out, method, params)
        return answer

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send it a notification."""
        self._out.tell(method, params)


class _Out:
    """Writes the messages of one answer."""

    def __init__(self, reply: PeerReply, call: tuple[str, str, int | None]) -> None:
        self.reply = reply
        self.call = call
        """The replica, the connection, and the number of the call; None for the connection itself."""

    def put(self, kind: int, content: bytes) -> None:
        if not self.reply.begun:
            self.reply.begin()
        self.reply.write(_message(kind, content))

    def finish(self, kind: int, content: bytes) -> None:
        """The last message; if it is the only one, the answer is one frame."""
        end = self.reply.finish if self.reply.begun else partial(self.reply.answer, None)
        end(_message(kind, content))

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.put(MessageKind.TELL, dumps({"method": method, "params": params}))

    def fail(self, failure: Evidence | HoldfastError) -> None:
        self.finish(_FAILED, dumps(_failure_value(failure)))


def _message(kind: int, content: bytes) -> bytes:
    return bytes((kind,)) + len(content).to_bytes(4, "big") + content


class _Watched:
    """One connection of another replica to a server here."""

    def __init__(self, out: _Out, server: str, slot: Slot) -> None:
        self.out = out
        self.server = server
        self.slot = slot
        self.uris: set[str] = set()
        self.ended = anyio.Event()


class HeldServers:
    """The operations by which other replicas use the servers that run here."""

    def __init__(self, registry: SlotRegistry, runs: Callable[[str], bool], fleet: Fleet) -> None:
        self._registry = registry
        self._runs = runs
        self._fleet = fleet
        self._replica = fleet.replica
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._questions: dict[tuple[tuple[str, str, int | None], int], asyncio.Future[Mapping[str, Any]]] = {}
        self._numbers = count(1)

    def serve(self, peers: Peers) -> None:
        """Let other replicas ask."""
        for operation, handler in (
            (_WATCH, self._watch),
            (_CALL, self._call),
            (_ANSWER, self._answer),
            (_NOTIFY, self._notify),
        ):
            peers.handle(operation, handler)

    def hold(self, server: str) -> None:
        """The server moves soon: let other replicas send no more requests, and finish those in flight."""
        for watched in self._watched.values():
            if watched.server == server:
                watched.out.put(MessageKind.MOVING, b"{}")

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """A server sent a notification that belongs to no call: pass it on to the replicas that want it."""
        uri = (params or {}).get("uri")
        if method == "notifications/resources/updated":
            for watched in self._watched.values():
                if watched.server == server and uri in watched.uris:
                    watched.out.tell(method, params)

    # The connection of another replica.

    async def _watch(self, request: PeerRequest, reply: PeerReply) -> None:
        server, watch = str(request.about.get("server")), str(request.about.get("watch"))
        out = _Out(reply, (request.sender, watch, None))
        try:
            slot = self._slot_for(request, out, server)
        except ServerBusy as busy:
            reply.refuse(busy.message)
            return
        if slot is None:
            if self._fleet.leases.is_leaving(server):
                await self._fleet.leases.find_runner(server)  # the other replica learns it too, and asks there
            reply.refuse(f"{self._replica} does not run it")
            return
        reply.begin()
        key = request.sender, watch
        try:
            lease = await self._standing(slot)
            if not isinstance(lease, Lease) or lease.connection is None:
                out.fail(lease if not isinstance(lease, Lease) else self._closed(lease))
            else:
                self._watched[key] = _Watched(out, server, slot)
                out.put(MessageKind.HEAD, dumps(lease.connection.handshake))
                await self._stands(out, slot, lease)
                await self._fleet.leases.given_back(server)
                out.fail(lease.lost or self._closed(lease))
            await reply.drained()
        finally:
            await self._left(key, request)

    def _slot_for(self, request: PeerRequest, out: _Out, server: str) -> Slot | None:
        slot = self._registry.slots.get(server)
        own = request.about.get("own")
        if slot is None or not self._runs(server) or not isinstance(own, dict):
            return slot if slot is not None and self._runs(server) else None
        assert isinstance(slot.spec, ServerSpec)  # noqa: S101 - it runs here
        relay = _OneClientRelay(self, out, own)
        principal = str(own.get("principal", ""))
        owner = ("replica", request.sender, str(request.about.get("watch")))
        return self._registry.clients.of(owner, slot.spec, lambda: relay, principal=principal)

    async def _left(self, key: tuple[str, str], request: PeerRequest) -> None:
        watched = self._watched.pop(key, None)
        if watched is not None:
            watched.ended.set()
            for uri in watched.uris:
                watched.slot.desired_state.unwatch(uri)
        if isinstance(request.about.get("own"), dict):
            self._registry.clients.release(("replica", *key))

    async def _standing(self, slot: Slot) -> Lease | Evidence | HoldfastError:
        """The connection, once it stands; else why there is none."""
        if slot.state is State.IDLE:
            permit = slot.admit()
            if isinstance(permit, Permit):
                slot.settle(permit, Outcome.NEUTRAL)
        while slot.lease is None:
            if slot.machine.dialing is None and slot.state is not State.DISCONNECTED:
                failed = next(iter(slot.failed_dials.values()), None)
                health = slot.health()
                gone = NetworkFailure(fault=NetworkFault.CLOSED, detail=health.reason, replica=self._replica)
                return failed.evidence if failed is not None else gone
            await slot.changed()
        return slot.lease

    async def _stands(self, out: _Out, slot: Slot, lease: Lease) -> None:
        """Wait until this connection is not the current one any more."""
        listing = lease.listing
        while slot.standing is lease:
            await slot.changed()
            if lease.listing is not listing:
                listing = lease.listing
                for method in _CHANGED:
                    out.tell(method, None)

    def _closed(self, lease: Lease) -> Evidence:
        return NetworkFailure(fault=NetworkFault.CLOSED, stood=True, detail=lease.cut, replica=self._replica)

    # The requests of another replica.

    async def _call(self, request: PeerRequest, reply: PeerReply) -> None:
        about, server = request.about, str(request.about.get("server"))
        watch, number = str(about.get("watch")), about.get("call")
        watched = self._watched.get((request.sender, watch))
        if watched is not None and self._fleet.leases.is_leaving(server):
            await watched.ended.wait()  # it came after the server was held: it is made again where the server runs then
            watched = None
        if watched is None or watched.server != server or not self._runs(server) or not isinstance(number, int):
            reply.refuse(f"{self._replica} does not run it any more")
            return
        out = _Out(reply, (request.sender, watch, number))
        try:
            out.finish(MessageKind.RESULT, await self._made(watched, out, request))
        except RpcRefusal as exc:
            out.finish(MessageKind.RPC_ERROR, dumps({"code": exc.code, "message": exc.message, "data": exc.error.data}))
        except CallFailed as exc:
            seen = exc.evidence
            if isinstance(seen, RpcError):
                error = {"code": seen.code, "message": seen.message, "data": seen.data}
                out.finish(MessageKind.RPC_ERROR, dumps(error))
            else:
                out.fail(seen)
        except BadJson as exc:
            out.fail(Unexpected(type="BadJson", detail=str(exc)))
        except HoldfastError as exc:
            out.fail(exc)

    async def _made(self, watched: _Watched, out: _Out, request: PeerRequest) -> bytes:
        method, server, slot = str(request.about.get("method")), watched.server, watched.slot
        params = fields(request.body) if request.body else {}
        lease = slot.lease
        if method in _LISTS and lease is not None and lease.listing is not None:
            return await anyio.to_thread.run_sync(_page, lease.listing, method)
        if method == "ping":
            return b"{}"
        if method in ("resources/subscribe", "resources/unsubscribe"):
            return await self._subscribed(watched, method, params)
        told = request.about.get("caller")
        caller = RemoteCaller(out, request.sender, told if isinstance(told, dict) else {}, ask=self._ask)
        name = text_of(params.get("name")) or ""
        # A request of the other hub itself is no client's call: nothing that the server sends meanwhile is for it.
        with self._calling(server, caller) if isinstance(told, dict) else nullcontext(caller) as known:
            result = await self._registry.forward(
                server,
                method,
                params,
                repeatable=method != "tools/call" or self._is_repeatable(server, name),
                on_progress=_progress_to(out),
                caller=known,
                slot=slot if slot is not self._registry.slots.get(server) else None,
            )
        return result.written()

    def _calling(self, server: str, caller: RemoteCaller) -> AbstractContextManager[Caller]:
        known = getattr(self._registry.relay, "remote_call", None)
        found: AbstractContextManager[Caller] = known(server, caller) if known is not None else nullcontext(caller)
        return found

    def _is_repeatable(self, server: str, tool: str) -> bool:
        catalog = self._registry.catalog
        return is_repeatable(catalog, catalog.names.get(NameKey(Kind.TOOL, server, tool), ""))

    async def _subscribed(self, watched: _Watched, method: str, params: Fields) -> bytes:
        uri = text_of(params.get("uri")) or ""
        wanted = watched.slot.desired_state
        if method == "resources/subscribe":
            changes = uri not in watched.uris and wanted.watch(uri)
            watched.uris.add(uri)
        else:
            changes = uri in watched.uris and wanted.unwatch(uri)
            watched.uris.discard(uri)
        lease = watched.slot.lease
        if changes and lease is not None and lease.connection is not None and lease.connection.era == "legacy":
            await self._registry.forward(watched.server, method, params, repeatable=True, slot=watched.slot)
        return b"{}"

    # Questions of a server to a client of another replica.

    async def _ask(self, out: _Out, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        if out.reply.complete or out.reply.lost:
            raise refusal(f"{method} came after its call had ended")
        number = next(self._numbers)
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._questions[out.call, number] = future
        try:
            out.put(MessageKind.ASK, dumps({"id": number, "method": method, "params": params}))
            with anyio.fail_after(ASK_SECONDS):
                answer = await future
        except TimeoutError:
            raise refusal(f"{method} was not answered within {ASK_SECONDS:g} s") from None
        finally:
            self._questions.pop((out.call, number), None)
        error = answer.get("error")
        if isinstance(error, dict):
            raise refusal(str(error.get("message", "")), code=error.get("code"), data=error.get("data"))
        result = answer.get("result")
        return dict(result) if isinstance(result, dict) else {}

    async def _answer(self, request: PeerRequest, reply: PeerReply) -> None:
        about = request.about
        call = (request.sender, str(about.get("watch")), about.get("call"))
        future = self._questions.get((call, int(about.get("question", 0))))
        value = loads(request.body)
        if future is not None and not future.done() and isinstance(value, dict):
            future.set_result(value)

    async def _notify(self, request: PeerRequest, reply: PeerReply) -> None:
        watched = self._watched.get((request.sender, str(request.about.get("watch"))))
        lease = watched.slot.lease if watched is not None else None
        if lease is not None and lease.connection is not None:
            params = loads(request.body)
            await lease.connection.notify(
                str(request.about.get("method")), params if isinstance(params, dict) else None
            )


class _OneClientRelay(Relay):
    """The relay of a connection that belongs to one client of another replica."""

    def __init__(self, held: HeldServers, out: _Out, own: Mapping[str, Any]) -> None:
        self._held = held
        self._out = out
        capabilities = own.get("capabilities")
        self._capabilities: Mapping[str, Any] = capabilities if isinstance(capabilities, dict) else {}

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What that client declares."""
        return self._capabilities

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """Ask that client."""
        if caller is not None:
            return await caller.ask(method, params)
        return await self._held._ask(self._out, method, params)  # noqa: SLF001 - the same module

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """Tell that client."""
        self._out.tell(method, params)


def _progress_to(out: _Out) -> ProgressFn:
    async def tell(progress: float, total: float | None, message: str | None) -> None:
        out.put(MessageKind.PROGRESS, dumps([progress, total, message]))

    return tell


def _page(listing: Listing, method: str) -> bytes:
    kind, key = _LISTS[method]
    return json.dumps({key: [dict(item.raw) for item in listing.of(kind)]}).encode()


# Failures as JSON.

_EVIDENCE: Mapping[str, type] = {kind.__name__: kind for kind in get_args(Evidence)}
_FAULTS: Mapping[str, type[Enum]] = {
    "NetworkFailure": NetworkFault,
    "TlsFailure": TlsFault,
    "NotMcp": NotMcpFault,
    "CommandUnusable": CommandFault,
}
_ERRORS: Mapping[str, type[HoldfastError]] = {
    kind.__name__: kind
    for kind in (
        errors.BreakerOpen,
        errors.HubClosed,
        errors.ServerBusy,
        errors.ServerDenied,
        errors.ServerDisabled,
        errors.ServerNotReady,
        errors.ServerPermanentlyFailed,
        errors.ToolHeld,
        errors.UnknownTool,
    )
}


def _failure_value(failure: Evidence | HoldfastError) -> dict[str, Any]:
    if isinstance(failure, HoldfastError):
        told: dict[str, Any] = {"error": type(failure).__name__, "message": failure.message, "hint": failure.hint}
        if isinstance(failure, ServerUnavailable):
            told |= {"server_id": failure.server_id, "state": failure.state, "reason": failure.reason}
            told["retry_in"] = failure.retry_in
        return told
    plain = {one.name: getattr(failure, one.name) for one in fields_of(failure)}
    kept = {name: _plain(value) for name, value in plain.items() if not is_dataclass(value)}
    return {"evidence": type(failure).__name__, "fields": kept}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _failure_in(told: Any) -> HoldfastError:
    """What the other replica raised, or saw."""
    try:
        if "evidence" in told:
            name, values = told["evidence"], dict(told["fields"])
            if name in _FAULTS:
                values["fault"] = _FAULTS[name](values["fault"])
            if values.get("stated") is not None:
                values["stated"] = Statement(values["stated"])
            if isinstance(values.get("problems"), list):
                values["problems"] = tuple(map(str, values["problems"]))
            return ServerFailure(_EVIDENCE[name](**values))
        kind, message = _ERRORS.get(told["error"], HoldfastError), str(told["message"])
        if not issubclass(kind, ServerUnavailable):
            return kind(message, hint=str(told.get("hint", "")))
        return kind(
            message,
            server_id=str(told["server_id"]),
            state=str(told["state"]),
            reason=str(told["reason"]),
            retry_in=told.get("retry_in"),
        )
    except (KeyError, TypeError, ValueError) as exc:
        return ServerFailure(Unexpected(type=type(exc).__name__, detail="the answer of a replica cannot be used"))
