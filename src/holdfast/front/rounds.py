"""A legacy server's questions to a modern client: the call stays open while the client fetches the answers.

A modern client cannot be asked; it is answered ``input_required`` and repeats its request with the answers.
Meanwhile the call to the server is parked here, under a handle that nobody can guess and that is good for one
use, for the same request, by the same principal. A parked call keeps its place at the server; its time does
not run, but a client that does not come back within ``ASK_SECONDS`` has given it up.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.abc
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from holdfast.front.calls import Call
from holdfast.front.clients import ASK_SECONDS, Channel, refuse_unasked

__all__ = ["OpenCall", "Parking", "identity_of"]

MOST_PARKED = 1_000
"""How many calls may be parked at a time; beyond that a server's question is refused."""


def identity_of(method: str, params: Mapping[str, Any], principal: str | None) -> str:
    """What a repeated request must have in common with the one that it goes on with."""
    same = {key: params.get(key) for key in ("name", "uri", "arguments")}
    return json.dumps([method, principal, same], sort_keys=True)


class _Question:
    """What a server asked, and the answer once it is there."""

    def __init__(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.method = method
        self.params = params
        self.answer: dict[str, Any] | None = None
        self.answered = anyio.Event()


class OpenCall(Call):
    """A modern client's call, which may be open over several of its requests."""

    identity = ""
    """Set by whoever starts it: what a request that goes on with it must be."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._questions: dict[str, _Question] = {}
        self._asked = 0
        self._changed = anyio.Event()
        self._result: Mapping[str, Any] | None = None
        self._failure: Exception | None = None
        self._scope = anyio.CancelScope()
        self.parked_at: float | None = None

    async def run(self, work: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        """Make the call, in a task of its own: it may outlive the request that began it."""
        try:
            with self._scope:
                self._result = await work()
        except Exception as exc:  # noqa: BLE001 - raised again in the request that waits for it
            self._failure = exc
        if self._result is None and self._failure is None:
            self._failure = MCPError(INTERNAL_ERROR, "the call was given up")
        self._note()

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Put a question to the client's next round, and wait for its answer."""
        refuse_unasked(self.client, method, params)
        self._asked += 1
        key, question = f"q{self._asked}", _Question(method, params)
        self._questions[key] = question
        self._note()
        try:
            await question.answered.wait()
        finally:
            self._questions.pop(key, None)
        assert question.answer is not None  # noqa: S101 - it was answered
        return question.answer

    async def advance(self, channel: Channel, token: str | int | None) -> Mapping[str, Any] | None:
        """Go on until there is a result, or a question (None); for the length of this, the client is there."""
        self._channel, self._token, self.parked_at = channel, token, None
        try:
            while self._result is None and self._failure is None and not self._questions:
                changed = self._changed
                await self.flush()
                await changed.wait()
            await self.flush()
        except BaseException:
            self.give_up()
            raise
        finally:
            self._channel = None
        if self._failure is not None:
            raise self._failure
        return self._result

    def questions(self) -> dict[str, Any]:
        """What is asked now, as the protocol writes it."""
        return {
            key: {"method": one.method} | ({"params": dict(one.params)} if one.params else {})
            for key, one in self._questions.items()
        }

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Take the client's answers; what it left out is asked again."""
        for key, answer in answers.items():
            question = self._questions.get(key)
            if question is not None and isinstance(answer, Mapping):
                question.answer = dict(answer)
                question.answered.set()
                del self._questions[key]

    def give_up(self) -> None:
        """Nobody waits for it any more: the server is told."""
        self._scope.cancel()

    def _note(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class Parking:
    """The calls whose client is away to fetch answers."""

    def __init__(self) -> None:
        self._mark = f"holdfast.{secrets.token_urlsafe(9)}."
        self._calls: dict[str, OpenCall] = {}

    def park(self, call: OpenCall) -> dict[str, Any]:
        """The answer that sends the client away with the server's questions."""
        self._sweep()
        if len(self._calls) >= MOST_PARKED:
            call.give_up()
            raise MCPError(INTERNAL_ERROR, "too many calls wait for their client's answers")
        handle = self._mark + secrets.token_urlsafe(32)
        self._calls[handle] = call
        call.parked_at = anyio.current_time()
        return {"resultType": "input_required", "inputRequests": call.questions(), "requestState": handle}

    def is_ours(self, state: object) -> bool:
        """Whether a state was made here; any other is the server's own, and none of our business."""
        return isinstance(state, str) and state.startswith(self._mark)

    def take(self, state: str, identity: str) -> OpenCall:
        """The call that a client comes back to."""
        call = self._calls.get(state)
        if call is None or call.identity != identity:
            raise MCPError(INVALID_PARAMS, "Invalid or expired requestState")
        del self._calls[state]
        return call

    async def watch(self) -> None:
        """Give up, in time, the calls that nobody comes back to."""
        while True:
            await anyio.sleep(ASK_SECONDS / 20)
            self._sweep()

    def _sweep(self) -> None:
        now = anyio.current_time()
        for handle, call in list(self._calls.items()):
            if call.parked_at is not None and now - call.parked_at > ASK_SECONDS:
                del self._calls[handle]
                call.give_up()

    def close(self) -> None:
        """Give all of them up."""
        for call in self._calls.values():
            call.give_up()
        self._calls.clear()
