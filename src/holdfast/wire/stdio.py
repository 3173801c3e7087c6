"""The stdio transport: one line of JSON per message, over the pipes of a child process.

Lines on stdout that are not the protocol are noise. They are ignored, and kept as evidence for the case that no
message ever comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import anyio
import anyio.abc
import anyio.lowlevel

from holdfast.config import Limits
from holdfast.core import Evidence, NetworkFailure, NetworkFault, NotMcp, NotMcpFault, ProcessExit, Redactor
from holdfast.errors import ServerFailure
from holdfast.wire.dispatcher import DuplexDispatcher
from holdfast.wire.http.client import over_message_bound
from holdfast.wire.process import LAST_WORDS_LOOKS, LAST_WORDS_SECONDS, Child
from holdfast.wire.raw_json import one_line
from holdfast.wire.relay import until_cancelled
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

FAIR_BYTES, FAIR_LINES = 8 * 1024, 200
"""How much of one server's output is read before other tasks run: a line that is no message costs 30 µs."""

LONGEST_SKIP = 8
"""A line that is over the bound is read to its end, unless it is this many times the bound."""

EXIT_SECONDS = 3.0
"""A process that closed its stdout usually exits soon; its exit code is worth this wait."""


class StdioDispatcher(DuplexDispatcher):
    """The SDK's dispatcher over a child's stdin and stdout."""

    def __init__(self, child: Child, limits: Limits, redactor: Redactor) -> None:
        super().__init__("stdio", limits)
        self._child = child
        self._redactor = redactor
        self._noise = ""
        self._noise_bytes = 0
        self._noise_since = anyio.current_time()
        self._ended = anyio.Event()
        self._deaf = False
        """Whether it closed its stdin and lives on."""
        self._skipped = 0
        self._unended = False
        """Whether it printed the beginning of a line, and no more so far."""
        self.on_first_message: Callable[[], None] | None = None
        """Called once, for the first message of the protocol."""

    @property
    def noise(self) -> str:
        """The first noise on its stdout, masked."""
        return self._noise

    @property
    def spoke(self) -> bool:
        """Whether it has sent a message of the protocol."""
        return self._rpc.spoke

    @property
    def last_line(self) -> str:
        """The last line of its stderr so far, masked."""
        return self._child.last_line

    def has_read(self) -> bool | None:
        """Whether the process has read all that was written to it; None where the system does not tell."""
        return self._child.has_read()

    def unanswered(self) -> Evidence | None:
        """A program that printed only noise is no MCP server."""
        if self._noise and not self._rpc.spoke:
            return NotMcp(fault=NotMcpFault.NOT_JSON, detail=f"it printed {self._noise!r}")
        if self._unended and not self._rpc.spoke:
            return NotMcp(fault=NotMcpFault.NOT_JSON, detail="it printed a line without an end")
        return None

    async def _write(self, data: bytes, *, doing: str, headers: Mapping[str, str]) -> int | None:
        try:
            await self._child.send(one_line(data) + b"\n")
        except (OSError, anyio.ClosedResourceError):
            # The reader learns the reason in a moment; it says more than a broken pipe.
            with anyio.move_on_after(EXIT_SECONDS + 2 * LAST_WORDS_SECONDS):
                await self._ended.wait()
            raise ServerFailure(self._not_sent()) from None
        return self._child.written

    def _not_sent(self) -> Evidence:
        """Why a message was not written whole: a process cannot act on a part of a line."""
        seen = self._rpc.pending.ended.evidence if self._rpc.pending.ended is not None else None
        if isinstance(seen, ProcessExit | NetworkFailure):
            return replace(seen, sent=False)
        return _closed_stdin(sent=False)

    async def _read(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        """Read lines until the process exits or closes its stdout."""
        broken: Evidence | None = None
        try:
            tasks.start_soon(until_cancelled, self._child.drain_stderr)
            async with anyio.create_task_group() as reading:
                reading.start_soon(until_cancelled, self._end_on_exit, reading.cancel_scope)
                reading.start_soon(until_cancelled, self._end_on_closed_stdin, reading.cancel_scope)
                broken = await self._take_lines()
                if broken is None:
                    await self._exit_or_timeout()
                reading.cancel_scope.cancel()
            return broken or await self._last_evidence()
        finally:
            self._ended.set()

    async def _end_on_exit(self, scope: anyio.CancelScope) -> None:
        """End the reading soon after the exit, also while a grandchild holds the pipe open."""
        await self._child.exited()
        for _ in range(LAST_WORDS_LOOKS):
            await anyio.sleep(LAST_WORDS_SECONDS / LAST_WORDS_LOOKS)
        scope.cancel()

    async def _end_on_closed_stdin(self, scope: anyio.CancelScope) -> None:
        """End the reading when it has closed its stdin, and has answered what it had read before."""
        await self._child.stdin_closed()
        await self._exit_or_timeout()
        if self._child.exit_code is not None:
            return  # a process that exits closes it too, and its exit says more
        self._rpc.pending.fail_unread(self._child.bytes_read(), lambda sent: _closed_stdin(sent=sent))
        await self.deadlines.empty()
        self._deaf = True
        scope.cancel()

    async def _exit_or_timeout(self) -> None:
        with anyio.move_on_after(EXIT_SECONDS):
            await self._child.exited()

    async def _last_evidence(self) -> Evidence:
        code = self._child.exit_code
        if code is None and self._deaf:
            return _closed_stdin(sent=True)
        if code is None:
            return NetworkFailure(fault=NetworkFault.CLOSED, stood=True, detail="it closed its stdout")
        whole, recent = await self._child.last_words()
        return ProcessExit(
            code=code,
            stood=self.stood,
            heard=bool(self._child.written and self._child.has_read()),  # one that got nothing heard nothing
            stderr=whole,
            recent=recent,
            noise=self._noise,
        )

    async def _take_lines(self) -> Evidence | None:
        """Read lines until there are no more, or until one is over a bound; returns the evidence for that."""
        buffer = bytearray()
        try:
            while True:
                searched = len(buffer)
                chunk = await self._child.receive(FAIR_BYTES)
                buffer += chunk
                await self._take_whole_lines(buffer, searched)
                self._unended = bool(buffer)
                if len(chunk) == FAIR_BYTES:
                    await anyio.lowlevel.checkpoint()
        except ServerFailure as failure:
            return failure.evidence
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return None

    async def _take_whole_lines(self, buffer: bytearray, searched: int) -> None:
        lines = 0
        while (end := buffer.find(b"\n", searched)) >= 0:
            if self._skipped:
                self._skipped = 0
            elif end > self._limits.message_bytes:
                self._refuse_large(buffer)
            else:
                with memoryview(buffer) as whole:
                    line = bytes(whole[:end])
                await self._take_line(line)
            del buffer[: end + 1]
            searched = 0
            lines += 1
            if lines % FAIR_LINES == 0:
                await anyio.lowlevel.checkpoint()
        if self._skipped:
            self._skip(buffer)
        elif len(buffer) > self._limits.message_bytes:
            self._refuse_large(buffer)
            self._skip(buffer)

    def _refuse_large(self, buffer: bytearray) -> None:
        """Fail the request that a line over the bound answers; the connection, if it is not known which."""
        over = over_message_bound(self._limits)
        if not self._rpc.refuse(answered_id(bytes(buffer[:1024])), over):
            raise ServerFailure(over)

    def _skip(self, buffer: bytearray) -> None:
        """Drop a line that is over the bound; one without an end ends the connection."""
        self._skipped += len(buffer)
        buffer.clear()
        if self._skipped > LONGEST_SKIP * self._limits.message_bytes:
            raise ServerFailure(over_message_bound(self._limits))

    async def _take_line(self, line: bytes) -> None:
        if not line.strip():
            return
        self._rpc.received += len(line)
        try:
            await self._rpc.take_shared(line)
            self._spoken()
        except ServerFailure as failure:
            if not isinstance(failure.evidence, NotMcp):
                raise
            self._take_noise(line)

    def _spoken(self) -> None:
        if self.on_first_message is not None and self._rpc.spoke:
            self.on_first_message()
            self.on_first_message = None

    def _take_noise(self, line: bytes) -> None:
        now = anyio.current_time()
        if now - self._noise_since > NOISE_SECONDS:
            self._noise_since, self._noise_bytes = now, 0
        self._noise_bytes += len(line)
        # Once it has spoken the protocol, noise may be a part of an answer: it belongs to that caller alone.
        if not self._rpc.spoke and len(self._noise) < NOISE_KEPT:
            # Masked before it is cut: a cut secret would not be recognised.
            text = self._redactor.mask(line[:NOISE_LOOKED_AT].decode("utf-8", "replace"))
            self._noise = f"{self._noise}\n{text}".strip()[:NOISE_KEPT]
        if self._noise_bytes > (NOISE_BOUND if self._rpc.spoke else NOISE_BEFORE_SPEECH):
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSON, detail=f"it printed {self._noise!r}"))


def _closed_stdin(*, sent: bool) -> NetworkFailure:
    return NetworkFailure(fault=NetworkFault.CLOSED, stood=True, sent=sent, detail="it closed its stdin")
