"""A legacy server's requests to a modern client: the call stays open while the client collects the answers.

A modern client cannot receive a request. It gets an ``input_required`` result and repeats its own request with the
answers. Meanwhile the call to the server is pending here, under a random handle that is valid once, for the same
request, by the same principal. A pending call keeps its place at the server and its timeout does not run. A call
whose client does not return within ``ASK_SECONDS`` is cancelled.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.abc
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from holdfast.endpoint.clients import ASK_SECONDS, Call, Channel, require_capability
from holdfast.wire import SMALL_BYTES, BadJson, Bytes, Fields, RawObject, dump_object, dumps, join_fields, loads

__all__ = ["EXPIRED", "OpenCall", "PendingCalls", "request_identity"]

OUTBOX = 4_096
"""How many notifications may wait for a client that fetches answers; then the oldest are dropped."""

MAX_PENDING = 1_000
"""How many calls may be pending at a time; beyond that a server's request is refused."""


_MARK = "holdfast."

EXPIRED = (
    "Invalid or expired requestState: the hub no longer holds this call. It took too long, was resumed already, or the "
    "hub was restarted since. Make the call again, without requestState."
)


def request_identity(method: str, params: Fields, principal: str) -> str:
    """Return what a repeated request must share with the original one."""
    digest = hashlib.sha256(f"{method}\0{principal}".encode("utf-8", "surrogatepass"))
    for key in ("name", "uri", "arguments"):
        digest.update(b"\0" + _canonical(params[key]) if key in params else b"\1")
    return digest.hexdigest()


def _canonical(raw: Bytes) -> bytes:
    """The same bytes for the same value, however it is written; what is large must be written the same."""
    if len(memoryview(raw)) > SMALL_BYTES:
        return bytes(raw)
    try:
        return json.dumps(loads(raw), sort_keys=True).encode()
    except BadJson:
        return bytes(raw)


class _Question:
    """A server's request, and its answer."""

    def __init__(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.method = method
        self.params = params
        self.answer: dict[str, Any] | None = None
        self.answered = anyio.Event()


class OpenCall(Call):
    """A modern client's call, which may last over several requests of the client."""

    identity = ""
    """Set by the forwarder: what a request that resumes this call must match."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._questions: dict[str, _Question] = {}
        self._asked = 0
        self._changed = anyio.Event()
        self._result: RawObject | None = None
        self._outbox: deque[tuple[str, Mapping[str, Any] | None]] = deque(maxlen=OUTBOX)
        self._failure: Exception | None = None
        self._scope = anyio.CancelScope()
        self.pending_since: float | None = None

    async def run(self, work: Callable[[], Awaitable[RawObject]]) -> None:
        """Make the call in a task of its own: it may outlive the request that started it."""
        try:
            with self._scope:
                self._result = await work()
        except Exception as exc:  # noqa: BLE001 - raised in the request that waits for it
            self._failure = exc
        if self._result is None and self._failure is None:
            self._failure = MCPError(INTERNAL_ERROR, "the call was cancelled")
        self._notify()

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Add a request to the next ``input_required`` result, and wait for its answer."""
        require_capability(self.client, method, params)
        self._asked += 1
        key, question = f"q{self._asked}", _Question(method, params)
        self._questions[key] = question
        self._notify()
        try:
            await question.answered.wait()
        finally:
            self._questions.pop(key, None)
        assert question.answer is not None  # noqa: S101 - it was answered
        return question.answer

    async def advance(self, channel: Channel, token: str | int | None) -> RawObject | None:
        """Wait for the result, or for a request of the server (None); the client's stream is open meanwhile."""
        self._channel, self._token, self.pending_since = channel, token, None
        while self._outbox:
            channel.tell(*self._outbox.popleft())
        try:
            while self._result is None and self._failure is None and not self._questions:
                await self._changed.wait()
        except BaseException:
            self.cancel()
            raise
        finally:
            self._channel = None
        if self._failure is not None:
            raise self._failure
        result = self._result
        if result is not None:
            # Connections that were opened in this call keep it alive, and it may be large. It is given once.
            self._result, self._failure = None, MCPError(INTERNAL_ERROR, "the call has its answer already")
        return result

    def _send(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send now, or when the client comes back."""
        if self._channel is not None:
            self._channel.tell(method, params)
        else:
            self._outbox.append((method, params))

    def questions(self) -> bytes:
        """Return the open requests, as the protocol writes them."""
        return join_fields(
            {
                key: dump_object({"method": one.method} | ({"params": one.params} if one.params else {}))
                for key, one in self._questions.items()
            }
        )

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Take the client's answers; a missing one is requested again."""
        for key, answer in answers.items():
            question = self._questions.get(key)
            if question is not None and isinstance(answer, Mapping):
                question.answer = dict(answer)
                question.answered.set()
                del self._questions[key]

    def cancel(self) -> None:
        """Cancel the call at the server too."""
        self._scope.cancel()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class PendingCalls:
    """The calls that wait for answers of their clients."""

    def __init__(self, tag: str = "") -> None:
        self._prefix = f"{_MARK}{tag}.{secrets.token_urlsafe(9)}."
        self._calls: dict[str, OpenCall] = {}

    def add(self, call: OpenCall) -> RawObject:
        """Keep a call and return the ``input_required`` result for its client."""
        self._sweep()
        if len(self._calls) >= MAX_PENDING:
            call.cancel()
            raise MCPError(INTERNAL_ERROR, "too many calls wait for answers of their clients")
        handle = self._prefix + secrets.token_urlsafe(32)
        self._calls[handle] = call
        call.pending_since = anyio.current_time()
        members = {"inputRequests": call.questions(), "requestState": dumps(handle)}
        return RawObject({"resultType": dumps("input_required"), **members})

    def is_ours(self, state: object) -> bool:
        """Whether the hub made this state; any other one belongs to the server."""
        return isinstance(state, str) and state.startswith(self._prefix)

    def is_of_a_hub(self, state: object) -> bool:
        """Whether a hub made this state: this one, its predecessor, or another one."""
        return isinstance(state, str) and state.startswith(_MARK)

    def tag_of(self, state: object) -> str:
        """The tag of the replica that made this state; empty if it has none."""
        if not isinstance(state, str) or not state.startswith(_MARK):
            return ""
        tag, _, rest = state.removeprefix(_MARK).partition(".")
        return tag if "." in rest else ""

    def take(self, state: str, identity: str) -> OpenCall:
        """Remove and return the call that a client resumes."""
        call = self._calls.get(state)
        if call is None or call.identity != identity:
            raise MCPError(INVALID_PARAMS, EXPIRED)
        del self._calls[state]
        return call

    async def expire(self) -> None:
        """Cancel the calls whose clients do not return in time."""
        while True:
            await anyio.sleep(ASK_SECONDS / 20)
            self._sweep()

    def _sweep(self) -> None:
        now = anyio.current_time()
        for handle, call in list(self._calls.items()):
            if call.pending_since is not None and now - call.pending_since > ASK_SECONDS:
                del self._calls[handle]
                call.cancel()

    def close(self) -> None:
        """Cancel all of them."""
        for call in self._calls.values():
            call.cancel()
        self._calls.clear()
