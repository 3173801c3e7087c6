"""One legacy client over HTTP: its requests in flight, its stream of notices, and the questions that it was asked."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any, Final

from mcp import MCPError
from mcp_types import INVALID_REQUEST

from holdfast.front.access.principals import Principal
from holdfast.front.clients import ASK_SECONDS, Client
from holdfast.front.inbound import Message, request_message, settle
from holdfast.front.seal import SessionTicket
from holdfast.front.streams import Backlog, EventLog, LogBounds, MessageStream

__all__ = ["CallInFlight", "HttpSession"]

OPENING_SECONDS: Final = 5.0
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
        "_asked", "_first_question", "_opened", "_questions", "attached", "calls", "client", "ended", "header", "id",
        "log", "noted_at", "notices", "principal", "rebuilt", "serving", "ticket", "used_at", "version",
    )  # fmt: skip

    def __init__(
        self, session_id: str, ticket: SessionTicket, *, principal: Principal, bounds: LogBounds, backlog: Backlog
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
        self.noted_at = float(ticket.issued)
        """The time of last use that the store has."""
        self.log = EventLog(bounds, ticket.id)
        self.notices = MessageStream(self, None, backlog)
        self.calls: dict[str | int, CallInFlight] = {}
        self.used_at = 0.0
        self.serving = 0
        self.ended = False
        # Another process, or this one before the session idled, may have asked the same client.
        self._asked = self._first_question = secrets.randbits(48)
        self._questions: dict[int, tuple[asyncio.Future[dict[str, Any]], MessageStream]] = {}
        self._opened: asyncio.Future[None] | None = None

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

    @property
    def idle(self) -> bool:
        """Whether nothing of it is under way: no request, no stream, no question."""
        return not self.serving and not self._questions

    def opened(self) -> None:
        """The stream of notices is open."""
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)

    @property
    def listening(self) -> bool:
        """Whether its stream of notices is open."""
        reply = self.notices.reply
        return reply is not None and not reply.done and not reply.lost

    async def _reachable(self) -> bool:
        if not self.listening:
            self._opened = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(OPENING_SECONDS):
                    await self._opened
            except TimeoutError:
                return False
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


def _closed() -> bool:
    return False
