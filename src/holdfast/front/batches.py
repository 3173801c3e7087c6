"""A batch of messages, which clients of the version 2025-03-26 may send: each is served like a request of its own.

The answers come together: as one array, plain or as the only event of a stream. What a server says before its result
goes to the stream of notices, or nowhere, as for any client that takes JSON alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from mcp import MCPError
from mcp_types import INVALID_REQUEST, ErrorData

from holdfast.endpoint import Message, error_message, read_small
from holdfast.front.parser import RequestHead
from holdfast.front.requests import Reply, Request, WholeRequests
from holdfast.wire import SMALL_BYTES, BadJson, Bytes, items, read_bytes

__all__ = ["BATCH_VERSION", "is_batch", "read_batch", "serve_batch"]

BATCH_VERSION: Final = "2025-03-26"
"""The only version with batches."""

MOST_MESSAGES: Final = 100
"""How many messages a batch may have."""

Take = Callable[[Message, Request, Reply], Coroutine[Any, Any, None] | None]
"""Takes one message; what is left to be done for it, if anything is."""


class BatchPart(WholeRequests):
    """What a message of a batch has for a connection: it keeps the answer."""

    def __init__(self, request: Request, reply: Reply, body: bytes) -> None:
        self._whole = reply
        self.admission = request.admission
        self.client_verified = request.client_verified
        self.client_names = request.client_names
        self.answer = b""
        head = RequestHead()
        head.method, head.path = request.method, request.path
        head.headers = {**request.headers, "accept": "application/json"}
        self.request = Request(self, head, body)
        self.request.whole = body

    @property
    def lost(self) -> bool:
        """Whether the client closed the connection of the batch."""
        return self._whole.lost

    @property
    def unread(self) -> int:
        """Nothing: what is written is kept."""
        return 0

    def write_plain(self, request: Request, status: int, body: bytes | list[Bytes], headers: bytes) -> None:
        """The answer."""
        self.answer = b"".join(body) if isinstance(body, list) else body

    def abort(self) -> None:
        """The client does not read: that ends the whole batch."""
        self._whole.abort()

    # Its answer is no stream.

    def write_head(self, request: Request, headers: bytes, status: int = 200) -> None:
        """Nothing."""

    def write_chunk(self, request: Request, data: bytes) -> None:
        """Nothing."""

    def write_end(self, request: Request) -> None:
        """Nothing."""

    async def drained(self) -> None:
        """Nothing waits."""

    def arm(self, seconds: float, then: Callable[[], None]) -> None:
        """Nothing is done later: the reply of the batch says that it is there."""

    def disarm(self) -> None:
        """Nothing is done later."""


def is_batch(body: bytes, version: str) -> bool:
    """Whether bytes that are no message are a batch, for a client of this version."""
    return version == BATCH_VERSION and body[:64].lstrip()[:1] == b"["


async def serve_batch(body: bytes, request: Request, reply: Reply, header: bytes, take: Take) -> None:
    """Serve the messages of a batch at the same time, and answer when all are done."""
    reply.wait_for_result(header)
    try:
        batch = read_batch(body)
    except MCPError as exc:
        reply.plain(400, error_message(None, exc.error))
        return
    parts = []
    async with asyncio.TaskGroup() as tasks:
        for raw, message in batch:
            part = BatchPart(request, reply, raw)
            parts.append(part)
            if isinstance(message, bytes):
                part.answer = message
            elif (served := take(message, part.request, Reply(part, part.request))) is not None:
                tasks.create_task(served)
    if answers := [part.answer for part in parts if part.answer]:
        reply.result(b"[" + b",".join(answers) + b"]")
    elif reply.started:
        reply.end()
    else:
        reply.plain(202, b"", b"")


def read_batch(body: bytes) -> list[tuple[bytes, Message | bytes]]:
    """Each message of a batch, with its bytes; a refusal in place of one that is none. Raises ``MCPError``."""
    try:
        batch = items(read_bytes(body)) if len(body) <= SMALL_BYTES else []
    except BadJson as exc:
        raise MCPError(INVALID_REQUEST, f"the batch cannot be read: {exc}") from None
    if not 0 < len(batch) <= MOST_MESSAGES:
        bound = f"a batch has 1 to {MOST_MESSAGES} messages, in at most {SMALL_BYTES // 1024} KiB"
        raise MCPError(INVALID_REQUEST, bound)
    return [(bytes(one), _read(bytes(one))) for one in batch]


def _read(raw: bytes) -> Message | bytes:
    try:
        message = read_small(raw)
    except MCPError as exc:
        return error_message(None, exc.error)
    if message.method == "initialize":
        error = ErrorData(code=INVALID_REQUEST, message="initialize may not be part of a batch")
        return error_message(message.id, error)
    return message
