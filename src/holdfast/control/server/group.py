"""The workers of one supervisor, as one of them sees the others: one of them answers the control API for all.

The oldest worker speaks: so an answer does not depend on the connection that a request came on, and the speaker changes
only when it leaves. The others hand requests on to it. If it cannot be reached, a worker answers for itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.fleet import Fleet, PeerFailed, PeerRefused, PeerReply, PeerRequest, Peers, PeerUnreachable, ReplicaView

__all__ = ["SpokenApi", "WorkerGroup"]

log = logging.getLogger("holdfast.control")

ANSWER_SECONDS: Final = 660.0
"""How long the head of an answer may take: a login waits for a person."""
LARGEST_BODY: Final = 16 * 1024
GATHER_SECONDS: Final = 1.0
"""How long the others may take to answer a question to all of them."""
_TEXTS: Final = ("method", "path", "root_path", "scheme", "http_version")
_BYTES: Final = ("raw_path", "query_string")


class WorkerGroup:
    """The workers of one supervisor."""

    def __init__(self, fleet: Fleet, peers: Peers) -> None:
        self._fleet = fleet
        self._peers = peers
        self._own = next(one for one in fleet.replicas if one.here)
        self.leaving = False
        """Whether this worker leaves: it speaks no more."""

    @property
    def own(self) -> str:
        """The name of this worker among the replicas."""
        return self._own.replica

    @property
    def number(self) -> int:
        """The number of this worker."""
        return self._own.worker

    def leave(self) -> None:
        """Let another worker speak from now on."""
        self.leaving = True
        self._fleet.describe(leaving=True)

    @property
    def members(self) -> tuple[ReplicaView, ...]:
        """The workers that are present and stay, this one included; the newest of each number."""
        found: dict[int, ReplicaView] = {}
        for one in self._fleet.replicas:
            leaves = one.leaving or (one.here and self.leaving)
            known = found.get(one.worker)
            if one.group == self._own.group and not leaves and (known is None or known.started < one.started):
                found[one.worker] = one
        return tuple(found[number] for number in sorted(found))

    @property
    def is_known(self) -> bool:
        """Whether this worker has joined, and knows who else is there."""
        return self._own.replica in self._fleet.member.peers

    @property
    def present(self) -> frozenset[str]:
        """The names of all workers of this supervisor that are present, also of those that leave."""
        return frozenset(one.replica for one in self._fleet.replicas if one.group == self._own.group)

    @property
    def oldest(self) -> str | None:
        """The worker that has been here longest, also one that leaves; None if it is this one."""
        ours = [one for one in self._fleet.replicas if one.group == self._own.group]
        oldest = min(ours, key=lambda one: (one.started, one.worker), default=self._own)
        return None if oldest.here else oldest.replica

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the other members."""
        return tuple(one.replica for one in self.members if not one.here)

    @property
    def speaker(self) -> str | None:
        """The worker that answers for all; None if it is this one."""
        oldest = min(self.members, key=lambda one: (one.started, one.worker), default=self._own)
        return None if oldest.here else oldest.replica

    async def ask(self, replica: str, operation: str, about: Mapping[str, Any], *, within: float) -> bytes | None:
        """The answer of one member; None if it does not answer."""
        try:
            return (await self._peers.ask(replica, operation, about, within=within))[1]
        except (PeerFailed, PeerRefused, PeerUnreachable) as exc:
            log.debug("worker %s did not answer %s: %s", replica, operation, exc)
            return None

    async def ask_all(
        self,
        operation: str,
        about: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        within: float = GATHER_SECONDS,
    ) -> dict[str, bytes]:
        """Ask all other members at once; what came within the time."""
        answers: dict[str, bytes] = {}

        async def ask(replica: str) -> None:
            try:
                _, answers[replica] = await self._peers.ask(replica, operation, about, body, within=within)
            except (PeerFailed, PeerRefused, PeerUnreachable) as exc:
                log.debug("worker %s did not answer %s: %s", replica, operation, exc)

        async with anyio.create_task_group() as tasks:
            for replica in self.others:
                tasks.start_soon(ask, replica)
        return answers


class SpokenApi:
    """The control API of a worker: an ASGI application that lets the speaker answer."""

    def __init__(self, api: ASGIApp, group: WorkerGroup, peers: Peers) -> None:
        self._api = api
        self._group = group
        self._peers = peers
        peers.handle("control", self._asked)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        speaker = self._group.speaker
        if speaker is None or scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        body = await _body(receive)
        if body is None:
            return
        begun = _Begun(send)
        try:
            await self._hand_on(speaker, scope, body, receive, begun)
        except (PeerUnreachable, PeerRefused) as exc:
            log.debug("the worker that answers for all does not: %s", exc)
            await self._api(scope, _Replayed(body, receive), send)
        except PeerFailed:
            if begun.yes:
                return
            if scope["method"] in ("GET", "HEAD"):
                await self._api(scope, _Replayed(body, receive), send)
            else:  # whether it was done is not known
                await _failed(send)

    async def _hand_on(self, speaker: str, scope: Scope, body: bytes, receive: Receive, send: _Begun) -> None:
        about: dict[str, Any] = {name: scope.get(name, "") for name in _TEXTS}
        about |= {name: (scope.get(name) or b"").decode("latin-1") for name in _BYTES}
        about["headers"] = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]]
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
            try:
                await self._relay(speaker, about, body, send)
            except (PeerFailed, PeerRefused, PeerUnreachable) as exc:  # a task group would wrap it
                failure = exc
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _relay(self, speaker: str, about: Mapping[str, Any], body: bytes, send: _Begun) -> None:
        async with self._peers.request(speaker, "control", about, body, within=ANSWER_SECONDS) as answer:
            headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.about["headers"]]
            await send({"type": "http.response.start", "status": int(answer.about["status"]), "headers": headers})
            while (piece := await answer.next_piece()) is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _asked(self, request: PeerRequest, reply: PeerReply) -> None:
        """Another worker hands a request on."""
        if self._group.leaving:
            reply.refuse("this worker leaves")
            return
        about = request.about
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "extensions": {},
            "client": None,
            "server": None,
            **{name: str(about[name]) for name in _TEXTS},
            **{name: str(about[name]).encode("latin-1") for name in _BYTES},
            "headers": [
                (str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in about["headers"]
            ],
        }

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: Sequence[tuple[bytes, bytes]] = message.get("headers", ())
                told = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]
                reply.begin({"status": message["status"], "headers": told})
            elif message["type"] == "http.response.body" and message.get("body"):
                reply.write(message["body"])
                await reply.drained()

        await self._api(scope, _Replayed(request.body), send)


class _Begun:
    """Passes messages on, and knows whether an answer began."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.yes = False

    async def __call__(self, message: Message) -> None:
        self.yes = True
        await self._send(message)


class _Replayed:
    """Gives a body that was read already; then what comes after it."""

    def __init__(self, body: bytes, rest: Receive | None = None) -> None:
        self._body: bytes | None = body
        self._rest = rest

    async def __call__(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if self._rest is not None:
            return await self._rest()
        await anyio.sleep(math.inf)  # the handler is cancelled when the asker leaves
        raise AssertionError  # pragma: no cover - never reached


async def _body(receive: Receive) -> bytes | None:
    """The body, up to a byte more than the API takes; None if the client left."""
    data = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        data += message.get("body", b"")
        if not message.get("more_body") or len(data) > LARGEST_BODY:
            return bytes(data[: LARGEST_BODY + 1])


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    with suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
    scope.cancel()


async def _failed(send: Send) -> None:
    body = b'{"error":"the worker that answers for all ended meanwhile","hint":"look at the state, then try again"}'
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 502, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
