"""Input that a server needs during a call, between any two protocol eras.

A legacy server sends requests to its client. A modern client cannot receive one: it gets an ``input_required`` result
and repeats its own request with the answers. Meanwhile the call to the server is pending here (``OpenCall``), under a
random handle that is valid once, for the same request, by the same principal. A pending call keeps its place at the
server and its timeout does not run. A call whose client does not return within ``ASK_SECONDS`` is cancelled. The handle
names the replica that has the call, so that another one can send the client's request there.

What must never happen: another principal, or another request, goes on with a pending call; an answer reaches a question
that it was not given to; a result is given twice; a call waits for ever for a client that left. The handle is looked up
and not sealed: the call exists in this process alone, so a sealed token would carry nothing (ADR 0007).

A modern server gives an ``input_required`` result. A legacy client does not know it: ``next_round`` sends it the
server's questions as requests, and the hub repeats the call with the answers, at most ``MAX_ROUNDS`` times.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.abc
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, InputRequest
from pydantic import TypeAdapter, ValidationError

from holdfast.endpoint.clients import (
    ASK_SECONDS,
    CALL_LOST,
    Call,
    LivesElsewhere,
    Outlet,
    RequestHomes,
    require_capability,
)
from holdfast.endpoint.message import canonical
from holdfast.wire import (
    CLIENT_REQUESTS,
    Fields,
    LoadedObject,
    RawObject,
    dump_object,
    dumps,
    join_fields,
    load_members,
)

__all__ = ["EXPIRED", "MAX_ROUNDS", "OpenCall", "PendingCalls", "next_round", "request_identity"]

MAX_ROUNDS = 10
"""How often a modern server may ask for input during one call of a legacy client."""

ROUND_PAUSE_SECONDS = 0.2
"""The pause before a call is repeated, if the server asked only for another round."""

OUTBOX = 4_096
"""How many notifications may wait for a client that fetches answers; then the oldest are dropped."""

MAX_PENDING = 1_000
"""How many calls may be pending at a time; beyond that a server's request is refused."""

MOST_OF_PRINCIPAL = 250
"""The same for one principal. The quota of calls in flight does not see them: each has its answer, a question."""


_MARK = "holdfast."

EXPIRED = (
    "Invalid or expired requestState: the hub no longer holds this call. It took too long, was resumed already, or the "
    "hub was restarted since. Make the call again, without requestState."
)


def request_identity(call: Call) -> str:
    """What a repeated request must share with the original one."""
    digest = hashlib.sha256(f"{call.method}\0{call.principal}".encode("utf-8", "surrogatepass"))
    for key in ("name", "uri", "arguments"):
        digest.update(b"\0" + canonical(call.params[key]) if key in call.params else b"\1")
    return digest.hexdigest()


_QUESTION: TypeAdapter[object] = TypeAdapter(InputRequest)


class OpenCall:
    """A modern client's call to a legacy server, which may last over several requests of the client."""

    def __init__(self, call: Call) -> None:
        self.call = call
        """The request that began it."""
        self.identity = request_identity(call)
        """What a request that resumes this call must match."""
        self.token = call.progress_token
        """What progress is reported under in the request that waits now."""
        self._outlet: Outlet | None = call.reply
        """The stream of the request that waits; None between two requests."""
        self._questions: dict[str, tuple[bytes, asyncio.Future[dict[str, Any]]]] = {}
        """The open requests of the server, as the protocol writes them, and what waits for each answer."""
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
            # A scope of its own: ``cancel`` ends the call at its server, and not the task group of the broker.
            with self._scope:
                self._result = await work()
        except Exception as exc:  # noqa: BLE001 - raised in the request that waits for it
            self._failure = exc
        if self._result is None and self._failure is None:
            self._failure = MCPError(INTERNAL_ERROR, "the call was cancelled")
        self._notify()

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Add a request to the next ``input_required`` result, and wait for its answer.

        One that the protocol does not know would make the whole result unreadable for the client's library. The server
        that asked is told instead. A large one is not read, and passes as it came.
        """
        if not isinstance(params, LoadedObject):
            asked = {"method": method} if params is None else {"method": method, "params": dict(params)}
            try:
                _QUESTION.validate_python(asked, by_name=False)
            except ValidationError:
                raise MCPError(INVALID_PARAMS, f"{method}: its parameters are not those of the protocol") from None
        self._asked += 1
        key, written = f"q{self._asked}", dump_object({"method": method} | ({"params": params} if params else {}))
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._questions[key] = written, answer
        self._notify()
        try:
            return await answer
        finally:
            self._questions.pop(key, None)

    async def advance(self, request: Call) -> RawObject | None:
        """Wait for the result, or for a request of the server (None); the stream of ``request`` is open meanwhile."""
        self._outlet, self.token, self.pending_since = request.reply, request.progress_token, None
        while self._outbox:
            request.reply.tell(*self._outbox.popleft())
        try:
            while self._result is None and self._failure is None and not self._questions:
                await self._changed.wait()
        except BaseException:
            self.cancel()  # the client left, or cancelled this request: no later one has a handle to go on with
            raise
        finally:
            self._outlet = None
        if self._failure is not None:
            raise self._failure
        result = self._result
        if result is not None:
            # Connections that were opened in this call keep it alive, and it may be large. It is given once.
            self._result, self._failure = None, MCPError(INTERNAL_ERROR, "the call has its answer already")
        return result

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification now, or when the client comes back."""
        if self._outlet is not None:
            self._outlet.tell(method, params)
        else:
            self._outbox.append((method, params))

    def questions(self) -> bytes:
        """Return the open requests, as the protocol writes them."""
        return join_fields({key: written for key, (written, _) in self._questions.items()})

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Take the client's answers; a missing one is requested again."""
        for key, answer in answers.items():
            if key in self._questions and isinstance(answer, Mapping):
                # Taken out at once: until the server's request goes on, the client must not be asked again.
                _, waiting = self._questions.pop(key)
                if not waiting.done():
                    waiting.set_result(dict(answer))

    def cancel(self) -> None:
        """Cancel the call at the server too."""
        self._scope.cancel()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def __repr__(self) -> str:
        state = "has its answer" if self._failure is not None else "is at its server"
        return f"<OpenCall {state}, questions={list(self._questions)}>"


class PendingCalls:
    """The calls that wait for answers of their clients."""

    def __init__(self, homes: RequestHomes | None, start: Callable[..., None]) -> None:
        """``homes`` knows the other replicas; ``start`` runs a task in the background."""
        self._homes = homes
        self._start = start
        self._prefix = f"{_MARK}{homes.tag if homes is not None else ''}.{secrets.token_urlsafe(9)}."
        self._calls: dict[str, OpenCall] = {}

    async def begin(self, call: Call, work: Callable[[], Awaitable[RawObject]]) -> RawObject:
        """Make a call in a task of its own; its result, or what the server asks first."""
        call.open = OpenCall(call)
        self._start(call.open.run, work)
        return await self._advance(call, call.open)

    async def resume(self, request: Call, state: str) -> RawObject:
        """Go on with the call that a client repeats with answers; its result, or what the server asks next."""
        given = {key: one for key, one in request.params.items() if key == "inputResponses"}
        answers = (await load_members(RawObject(given))).get("inputResponses", {})
        call = self._take(state, request_identity(request))
        call.answer(answers if isinstance(answers, Mapping) else {})
        try:
            return await self._advance(request, call)
        finally:
            request.judged = call.call.judged  # what was decided about the call, for the audit

    async def check(self, state: str) -> None:
        """Raise ``LivesElsewhere`` if a state is of a call that is pending on another replica."""
        tag, _, rest = state.removeprefix(_MARK).partition(".")
        if self._homes is None or not self.is_of_a_hub(state) or not tag or "." not in rest:
            return
        if (there := await self._homes.replica_of(tag)) is not None:
            raise LivesElsewhere(there, CALL_LOST)

    async def _advance(self, request: Call, call: OpenCall) -> RawObject:
        result = await call.advance(request)
        return result if result is not None else self._keep(call)

    def _keep(self, call: OpenCall) -> RawObject:
        """Keep a call and return the ``input_required`` result for its client."""
        self.sweep()  # those whose clients are late count no more, also if ``expire`` has not come round
        of_principal = sum(one.call.principal == call.call.principal for one in self._calls.values())
        if len(self._calls) >= MAX_PENDING or of_principal >= MOST_OF_PRINCIPAL:
            call.cancel()
            raise MCPError(INTERNAL_ERROR, "too many calls wait for answers of their clients")
        handle = self._prefix + secrets.token_urlsafe(32)
        self._calls[handle] = call
        call.pending_since = anyio.current_time()
        members = {"inputRequests": call.questions(), "requestState": dumps(handle)}
        return RawObject({"resultType": dumps("input_required"), **members})

    def is_ours(self, state: str) -> bool:
        """Whether the hub made this state; any other one belongs to the server."""
        return state.startswith(self._prefix)

    def is_of_a_hub(self, state: str) -> bool:
        """Whether a hub made this state: this one, its predecessor, or another one."""
        return state.startswith(_MARK)

    def _take(self, state: str, identity: str) -> OpenCall:
        """Remove and return the call that a client resumes."""
        call = self._calls.get(state)
        # A wrong request does not use the handle up: else a stranger who learned it could end the call of its owner.
        if call is None or call.identity != identity:
            raise MCPError(INVALID_PARAMS, EXPIRED)
        del self._calls[state]
        return call

    async def expire(self) -> None:
        """Cancel the calls whose clients do not return in time."""
        while True:
            await anyio.sleep(ASK_SECONDS / 20)
            self.sweep()

    def sweep(self) -> None:
        """Cancel the calls whose clients are late."""
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

    def __repr__(self) -> str:
        return f"<PendingCalls {len(self._calls)}>"


# A legacy client and a modern server.


async def next_round(call: Call, params: Fields, result: Mapping[str, Any]) -> Fields:
    """Send all of the server's requests to the client at once; return the parameters with the answers."""
    questions = result.get("inputRequests") or {}
    answers: dict[str, Any] = {}
    failures: list[MCPError] = []

    async def ask(key: str, question: Mapping[str, Any]) -> None:
        try:
            method = str(question.get("method"))
            if method not in CLIENT_REQUESTS:
                raise MCPError(INTERNAL_ERROR, f"the server asked for {method}, which is not a request to a client")
            require_capability(call.client, method, question.get("params"))
            answers[key] = await call.ask(method, question.get("params"))
        except MCPError as exc:
            failures.append(exc)
            tasks.cancel_scope.cancel()

    # All at once: a person may take minutes for each, and the server waits for all of them.
    async with anyio.create_task_group() as tasks:
        for key, question in questions.items():
            tasks.start_soon(ask, key, question)
    if failures:
        raise failures[0]
    if not questions:
        await anyio.sleep(ROUND_PAUSE_SECONDS)
    following = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
    if answers:
        following["inputResponses"] = dumps(answers)
    if result.get("requestState") is not None:
        following["requestState"] = dumps(result["requestState"])
    return following
