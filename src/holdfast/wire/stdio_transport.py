"""The stdio transport: one line of JSON per message, over the pipes of a child process.

What can happen on a pipe, and what it means:

- A line that is no message: noise, as a program prints before it speaks. It is ignored, and its beginning is kept as
  evidence for the case that no message ever comes. Once the program speaks the protocol, noise may be a part of an
  answer, and is kept nowhere. Too much of it ends the connection.
- A line over the bound: the request that it answers fails, if its beginning shows which one; the rest is dropped.
- The process exits: what is left in its pipe is read for a moment. A grandchild may hold the pipe open without end.
- It closes its stdout, or its stdin, and lives on. What it had read before it may still answer; the rest fails, and is
  known to be unsent.

What must never happen: one server's output holds up the event loop, or fills our memory; a request whose message was
not written whole is said to have been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import anyio
import anyio.abc

from holdfast.config import Limits
from holdfast.core import Evidence, NetworkFailure, NetworkFault, NotMcp, NotMcpFault, ProcessExit, Redactor
from holdfast.errors import ServerFailure
from holdfast.turns import Turns
from holdfast.wire.dispatcher import NO_HOOKS, DialHooks, DuplexDispatcher
from holdfast.wire.http.answer_parser import BEGINNING_BYTES, LONGEST_SKIP
from holdfast.wire.http.connection import over_message_bound
from holdfast.wire.in_flight import until_cancelled
from holdfast.wire.process import LAST_WORDS_LOOKS, LAST_WORDS_SECONDS, Child
from holdfast.wire.raw_json import one_line
from holdfast.wire.rpc import answered_id

__all__ = ["StdioDispatcher"]

NOISE_KEPT = 400
"""How many characters of noise are kept to show."""

NOISE_LOOKED_AT = 8192
"""How much of a line is masked before it is cut."""

NOISE_BEFORE_SPEECH = 64 * 1024
"""A program that prints this much before its first message does not speak the protocol."""

NOISE_BOUND, NOISE_SECONDS = 4 * 1024 * 1024, 60.0
"""One that speaks it may print this much noise within so many seconds."""

READ_BYTES = 8 * 1024
"""How much of one server's output is read before other tasks run: a flood costs the calls of others little."""

EXIT_SECONDS = 3.0
"""A process that closed its stdout usually exits soon; its exit code is worth this wait."""


class OutputNoise:
    """What a program printed on stdout that is not the protocol."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._bytes = 0
        self._since = anyio.current_time()
        self.text = ""
        """The first of it, masked."""

    def take(self, line: bytes, *, spoke: bool) -> None:
        """A line that is no message; ``spoke``: a message came before. Raises ``ServerFailure`` for too much of it."""
        now = anyio.current_time()
        if now - self._since > NOISE_SECONDS:
            self._since, self._bytes = now, 0
        self._bytes += len(line) + 1  # an empty line takes time too
        # Once it has spoken the protocol, noise may be a part of an answer: it belongs to that caller alone.
        if not spoke and len(self.text) < NOISE_KEPT:
            # Masked before it is cut: a cut secret would not be recognised.
            text = self._redactor.mask(line[:NOISE_LOOKED_AT].decode("utf-8", "replace"))
            self.text = f"{self.text}\n{text}".strip()[:NOISE_KEPT]
        if self._bytes > (NOISE_BOUND if spoke else NOISE_BEFORE_SPEECH):
            said = f"it printed {self.text!r}" if self.text else "it printed too much that is no message"
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSON, detail=said))


class LineBuffer:
    """Cuts a stream into lines. One over the bound is cut to its beginning, and the rest of it is dropped."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._searched = 0
        self._skipped = 0
        """How much of a line over the bound was dropped so far; 0 outside of one."""

    @property
    def unended(self) -> bool:
        """Whether the beginning of a line came, and no more so far."""
        return bool(self._bytes)

    def feed(self, chunk: bytes) -> None:
        """Bytes came."""
        self._bytes += chunk

    def next_line(self, most: int) -> tuple[bytes, bool] | None:
        """The next line and whether it is over the bound; None until more bytes come.

        Raises ``OverflowError`` for a line that is many times the bound.
        """
        while (end := self._bytes.find(b"\n", self._searched)) >= 0:
            over, skipped = end > most, self._skipped
            with memoryview(self._bytes) as whole:
                line = bytes(whole[: BEGINNING_BYTES if over else end])
            del self._bytes[: end + 1]
            self._searched = self._skipped = 0
            if not skipped:
                return line, over
        self._searched = len(self._bytes)
        if not self._skipped and len(self._bytes) <= most:
            return None
        first = bytes(self._bytes[:BEGINNING_BYTES]) if not self._skipped else None
        self._skipped += len(self._bytes)
        self._bytes.clear()
        self._searched = 0
        if self._skipped > LONGEST_SKIP * most:
            raise OverflowError
        return (first, True) if first is not None else None


class StdioDispatcher(DuplexDispatcher):
    """The stdin and the stdout of a child. ``on_first_message`` is called once, for its first message."""

    def __init__(
        self,
        child: Child,
        limits: Limits,
        redactor: Redactor,
        on_first_message: Callable[[], None] | None = None,
        *,
        server: str = "",
        hooks: DialHooks = NO_HOOKS,
    ) -> None:
        super().__init__(limits, server, hooks)
        self.child = child
        self.noise = OutputNoise(redactor)
        """What it printed on stdout that is no message."""
        self._lines = LineBuffer()
        self._deaf = False
        """Whether it closed its stdin and lives on."""
        self._on_first_message = on_first_message

    def unanswered(self) -> Evidence | None:
        """A program that printed only noise is no MCP server."""
        if self.noise.text and not self.rpc.spoke:
            return NotMcp(fault=NotMcpFault.NOT_JSON, detail=f"it printed {self.noise.text!r}")
        if self._lines.unended and not self.rpc.spoke:
            return NotMcp(fault=NotMcpFault.NOT_JSON, detail="it printed a line without an end")
        return None

    async def _write(self, data: bytes, *, doing: str, headers: Mapping[str, str]) -> int | None:
        try:
            await self.child.send(one_line(data) + b"\n")
        except (OSError, anyio.ClosedResourceError):
            # The reader learns the reason in a moment; it says more than a broken pipe.
            with anyio.move_on_after(EXIT_SECONDS + 2 * LAST_WORDS_SECONDS):
                await self._over.wait()
            # A process cannot act on a part of a line.
            seen = self.in_flight.ended
            unsent = replace(seen, sent=False) if isinstance(seen, ProcessExit | NetworkFailure) else None
            raise ServerFailure(unsent or _closed_stdin(sent=False)) from None
        return self.child.written

    async def _read(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        """Read lines until the process exits or closes its stdout."""
        broken: Evidence | None = None
        tasks.start_soon(until_cancelled, self.child.stderr.drain)
        async with anyio.create_task_group() as reading:
            reading.start_soon(until_cancelled, self._end_on_exit, reading.cancel_scope)
            reading.start_soon(until_cancelled, self._end_on_closed_stdin, reading.cancel_scope)
            broken = await self._take_lines()
            if broken is None:
                await self._exit_or_timeout()
            reading.cancel_scope.cancel()
        return broken or await self._last_evidence()

    async def _end_on_exit(self, scope: anyio.CancelScope) -> None:
        """End the reading soon after the exit, also while a grandchild holds the pipe open."""
        await self.child.process.wait()
        for _ in range(LAST_WORDS_LOOKS):
            await anyio.sleep(LAST_WORDS_SECONDS / LAST_WORDS_LOOKS)
        scope.cancel()

    async def _end_on_closed_stdin(self, scope: anyio.CancelScope) -> None:
        """End the reading when it has closed its stdin, and has answered what it had read before."""
        await self.child.stdin_closed()
        await self._exit_or_timeout()
        if self.child.process.returncode is not None:
            return  # a process that exits closes it too, and its exit says more
        read = self.child.bytes_read()
        self.in_flight.fail_unread(read, _closed_stdin(sent=read is None))
        await self.in_flight.empty()
        self._deaf = True
        scope.cancel()

    async def _exit_or_timeout(self) -> None:
        with anyio.move_on_after(EXIT_SECONDS):
            await self.child.process.wait()

    async def _last_evidence(self) -> Evidence:
        code = self.child.process.returncode
        if code is None and self._deaf:
            return _closed_stdin(sent=True)
        if code is None:
            return NetworkFailure(fault=NetworkFault.CLOSED, stood=True, detail="it closed its stdout")
        whole, recent = await self.child.stderr.last_words()
        return ProcessExit(
            code=code,
            stood=self.stood,
            heard=bool(self.child.written and self.child.has_read()),  # one that got nothing heard nothing
            stderr=whole,
            recent=recent,
            noise=self.noise.text,
        )

    async def _take_lines(self) -> Evidence | None:
        """Read lines until there are no more, or until one is over a bound; returns the evidence for that."""
        turns = Turns()
        try:
            while True:
                chunk = await self.child.stdout.receive(READ_BYTES)
                self._lines.feed(chunk)
                while (found := self._lines.next_line(self.rpc.limits.message_bytes)) is not None:
                    await self._take_line(*found)
                    await turns.offer()
                if len(chunk) == READ_BYTES:
                    await turns.give()  # a pipe that is never empty never waits, and other servers have their calls
        except ServerFailure as failure:
            return failure.evidence
        except OverflowError:
            return over_message_bound(self.rpc.limits)
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return None

    async def _take_line(self, line: bytes, over: bool) -> None:
        """One line; of a line that is ``over`` the bound, its beginning."""
        if over:
            # It fails the request that it answers; the connection, if it is not known which.
            too_large = over_message_bound(self.rpc.limits)
            if not self.in_flight.refuse(answered_id(line), too_large):
                raise ServerFailure(too_large)
            return
        if not line.strip():
            self.noise.take(line, spoke=self.rpc.spoke)
            return
        try:
            await self.rpc.take_shared(line)
        except ServerFailure as failure:
            if not isinstance(failure.evidence, NotMcp):
                raise
            self.noise.take(line, spoke=self.rpc.spoke)
        if self.rpc.spoke and self._on_first_message is not None:
            self._on_first_message()
            self._on_first_message = None


def _closed_stdin(*, sent: bool) -> NetworkFailure:
    return NetworkFailure(fault=NetworkFault.CLOSED, stood=True, sent=sent, detail="it closed its stdin")
