"""One legacy client over HTTP: its requests in flight, its stream of notices, and the questions that it was asked."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mcp import MCPError
from mcp_types import INVALID_REQUEST

from holdfast.access import Principal
from holdfast.core import question_number
from holdfast.endpoint import ASK_SECONDS, Client, Message, request_message, settle
from holdfast.front.seal import SessionTicket
from holdfast.front.streams import Backlog, EventLog, LogBounds, MessageStream

__all__ = ["CallInFlight", "HttpSession"]

OPENING_SECONDS: Final = 5.0
LOOKING_SECONDS: Final = 0.5
"""How often the other replicas are asked meanwhile whether it opened its stream there."""
"""How long a client may take to open its stream of notices, before it counts as having none."""


class CallInFlight:
    """A request that is being served, and the task that serves it."""

    __slots__ = ("_task", "cancelled", "done")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = asyncio.current_task(loop)
        self.cancelled = False
        self.done = False

    def cancel(self) -> None:
        """End it; its task goes on with the next message."""
        if not self.done and not self.cancelled and self._task is not None:
            self.cancelled = True
            self._task.cancel()

    def absorb(self) -> bool:
        """Whether a cancellation was meant for the call; then the task is no longer cancelled."""
        if self.cancelled and self._task is not None:
            return self._task.uncancel() == 0
        return False


class HttpSession:
    """One legacy client. It is small: thousands of them may wait for clients that do not come back."""

    __slots__ = (
        "_asked", "_first_question", "_opened", "_questions", "attached", "calls", "client", "ended", "find_stream",
        "header", "id", "keeps_lists", "listening_since", "log", "missed", "noted_at", "notices", "post", "principal",
        "rebuilt", "serving", "stream_at", "ticket", "used_at", "version",
    )  # fmt: skip

    def __init__(
        self,
        session_id: str,
        ticket: SessionTicket,
        *,
        principal: Principal,
        bounds: LogBounds,
        backlog: Backlog,
        tag: str = "",
    ) -> None:
        self.id = session_id
        self.ticket = ticket
        self.header = b"mcp-session-id: " + session_id.encode("ascii") + b"\r\n"
        self.principal = principal
        self.version = ticket.version
        self.client: Client | None = None
        self.attached = False
        self.rebuilt = False
        """Whether it was rebuilt from its id, and its client has not been told yet what it may have missed."""
        self.missed = False
        """Whether a list or a resource changed while no stream was open here on which to tell it."""
        self.keeps_lists = False
        """Whether the store has the lists of its client, because it had a stream on which a change can be told."""
        self.noted_at = float(ticket.issued)
        """The time of last use that the store has."""
        self.log = EventLog(bounds, ticket.id, tag)
        self.notices = MessageStream(self, None, backlog)
        self.calls: dict[str | int, CallInFlight] = {}
        self.used_at = 0.0
        self.serving = 0
        self.ended = False
        # Another process, or this one before the session idled, may have asked the same client.
        # The tag says which replica asked.
        first = question_number(tag, secrets.randbits(31)) if tag else secrets.randbits(48)
        self._asked = self._first_question = first
        self._questions: dict[int, tuple[asyncio.Future[dict[str, Any]], MessageStream]] = {}
        self._opened: asyncio.Future[None] | None = None
        self.listening_since = 0.0
        """When the stream of notices was opened here, in seconds since the epoch."""
        self.stream_at = ""
        """The other replica that has the stream of notices, as far as it is known."""
        self.post: Callable[[bytes], object] = _kept
        """Takes a notice to the replica with the stream; a hub that is alone keeps it in the log."""
        self.find_stream: Callable[[], Awaitable[bool]] | None = None
        """Looks for the stream of notices on the other replicas."""

    async def ask(self, stream: MessageStream, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Put a question on a stream and wait for the client's answer."""
        if stream is self.notices and not await self._reachable():
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach the client: it has no notification stream open")
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer, stream
        stream.send(request_message(number, method, params), private=True)
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await answer
        except TimeoutError:
            stream.tell("notifications/cancelled", {"requestId": number, "reason": "it took too long"})
            raise MCPError(INVALID_REQUEST, f"the client did not answer {method} in time") from None
        except asyncio.CancelledError:
            stream.tell("notifications/cancelled", {"requestId": number, "reason": "the answer is no longer needed"})
            raise
        finally:
            del self._questions[number]

    def answered(self, message: Message) -> bool:
        """The client's answer to a question; False if no such question was asked here."""
        question, _ = self._questions.get(message.key, (None, None)) if isinstance(message.key, int) else (None, None)
        if question is not None and not question.done():
            settle(question, message)
        return isinstance(message.key, int) and self._first_question < message.key <= self._asked

    def serves(self, key: str | int, call: CallInFlight, here: bool) -> None:
        """A request is served here, or not: a cancellation has to find it."""
        if here:
            self.calls.setdefault(key, call)
        else:
            self.forget(key, call)

    def forget(self, key: str | int, call: CallInFlight) -> None:
        """A request is over; a later one with the same id stays."""
        if self.calls.get(key) is call:
            del self.calls[key]

    @property
    def idle(self) -> bool:
        """Whether nothing of it is under way: no request, no stream, no question."""
        return not self.serving and not self._questions

    def opened(self) -> None:
        """The stream of notices is open."""
        self.listening_since = time.monotonic()
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)

    @property
    def listening(self) -> bool:
        """Whether its stream of notices is open."""
        reply = self.notices.reply
        return reply is not None and not reply.done and not reply.lost

    async def _reachable(self) -> bool:
        """Whether the client has its stream of notices open, here or on another replica; it may take a moment."""
        loop = asyncio.get_running_loop()
        until = loop.time() + OPENING_SECONDS
        while not self.listening:
            if self.find_stream is not None and await self.find_stream():
                return True
            if loop.time() >= until:
                return False
            self._opened = loop.create_future()
            try:
                async with asyncio.timeout(LOOKING_SECONDS if self.find_stream is not None else OPENING_SECONDS):
                    await self._opened
            except TimeoutError:
                continue
        return True

    def end(self) -> None:
        """It is over: nothing of it goes on."""
        self.ended = True
        for call in list(self.calls.values()):
            call.cancel()
        self.end_questions("the session ended")
        self.end_notices()
        self.log.close()
        # Nothing refers back to it from here on, so its memory is free at once.
        self.notices.session = None
        self.post, self.find_stream = _kept, None
        if self.client is not None:
            self.client.stream_open = _closed

    def end_questions(self, why: str) -> None:
        """Tell the client that it need not answer, and the servers that no answer comes."""
        for number, (question, stream) in list(self._questions.items()):
            if not question.done():
                stream.tell("notifications/cancelled", {"requestId": number, "reason": why})
                question.set_exception(MCPError(INVALID_REQUEST, f"the client cannot answer: {why}"))

    def end_notices(self) -> None:
        """End the stream of notices; the client may open it again."""
        reply = self.notices.reply
        if reply is not None and not reply.done:
            reply.end()


def _kept(_: bytes) -> None:
    """No other replica can have the stream."""


def _closed() -> bool:
    return False
