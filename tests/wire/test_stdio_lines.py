"""Lines on the stdout of a process: how they are cut, what is noise, and what is told of a pipe that closed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.config import Limits
from holdfast.core import (
    Evidence,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    OverBound,
    ProcessExit,
    Redactor,
)
from holdfast.core.redact import MASK
from holdfast.errors import ServerFailure
from holdfast.wire.http.answer_parser import LONGEST_SKIP
from holdfast.wire.process import LAST_WORDS_SECONDS
from holdfast.wire.stdio_transport import (
    EXIT_SECONDS,
    NOISE_BEFORE_SPEECH,
    NOISE_BOUND,
    NOISE_KEPT,
    NOISE_SECONDS,
    LineBuffer,
    OutputNoise,
    StdioDispatcher,
)

pytestmark = pytest.mark.anyio


def test_a_stream_is_cut_into_lines_up_to_a_bound_and_the_rest_of_a_longer_one_is_dropped() -> None:
    lines = LineBuffer()
    assert lines.next_line(4) is None
    assert [lines.unended] == [False]
    lines.feed(b"four\n\nfive")
    assert [lines.next_line(4), lines.next_line(4)] == [(b"four", False), (b"", False)]
    assert [lines.unended] == [True]
    assert lines.next_line(4) is None
    lines.feed(b"s\nab")
    beginning, over = lines.next_line(4) or (b"", False)
    assert (beginning[:5], over) == (b"fives", True), "it is one byte over the bound"
    assert lines.next_line(4) is None
    lines.feed(b"cde")
    assert lines.next_line(4) == (b"abcde", True)
    assert [lines.unended] == [False]
    lines.feed(b"more")
    assert lines.next_line(4) is None
    lines.feed(b" of it\nok\n")
    assert [lines.next_line(4), lines.next_line(4)] == [(b"ok", False), None]


def test_a_line_of_many_times_the_bound_is_not_waited_for() -> None:
    lines = LineBuffer()
    lines.feed(b"x" * 4 * LONGEST_SKIP)
    assert lines.next_line(4) == (b"x" * 4 * LONGEST_SKIP, True)
    lines.feed(b"x")
    with pytest.raises(OverflowError):
        lines.next_line(4)


async def test_the_first_of_the_noise_is_kept_masked_until_the_process_has_spoken() -> None:
    noise = OutputNoise(Redactor(["a-secret-of-ours"]))
    noise.take(b"", spoke=False)
    noise.take(b"  banner a-secret-of-ours", spoke=False)
    noise.take(b"second\xff", spoke=False)
    kept = f"banner {MASK}\nsecond\ufffd"
    assert noise.text == kept
    noise.take(b"a part of an answer", spoke=True)
    assert noise.text == kept
    noise.take(b"x" * 1_000, spoke=False)
    assert noise.text == f"{kept}\n{'x' * NOISE_KEPT}"[:NOISE_KEPT]


@pytest.mark.parametrize(("spoke", "most"), [(False, NOISE_BEFORE_SPEECH), (True, NOISE_BOUND)])
async def test_so_much_noise_is_passed_over_in_a_while_and_not_one_line_more(spoke: bool, most: int) -> None:
    noise = OutputNoise(Redactor())
    noise.take(b"x" * (most - 1), spoke=spoke)
    noise._since -= NOISE_SECONDS + 0.1
    noise.take(b"y" * (most - 1), spoke=spoke)
    with pytest.raises(ServerFailure) as failed:
        noise.take(b"", spoke=spoke)
    shown = "it printed too much that is no message" if spoke else f"it printed {'x' * NOISE_KEPT!r}"
    assert failed.value.evidence == NotMcp(fault=NotMcpFault.NOT_JSON, detail=shown)


class Process:
    """In place of a child."""

    def __init__(self, *, code: int | None = None, written: int = 5, read: bool = True) -> None:
        self.process = SimpleNamespace(returncode=code)
        self.written = written
        self.has_read = lambda: read
        self.stderr = SimpleNamespace(last_words=self._last_words)
        self.sent: list[bytes] = []
        self.closed: Exception | None = None

    async def _last_words(self) -> tuple[str, str]:
        return "whole", "recent"

    async def send(self, data: bytes) -> None:
        self.sent.append(data)
        if self.closed is not None:
            raise self.closed


def pipes(child: Process | None = None, **more: Any) -> Any:
    made: Any = child or Process()
    return StdioDispatcher(made, Limits(message_bytes=100), Redactor(), **more)


def closed(*, sent: bool) -> NetworkFailure:
    return NetworkFailure(fault=NetworkFault.CLOSED, stood=True, sent=sent, detail="it closed its stdin")


async def test_a_message_is_written_on_one_line_and_its_end_in_the_pipe_is_told() -> None:
    child = Process(written=7)
    assert await pipes(child)._write(b'{"a":\n1}', doing="x", headers={}) == 7
    (line,) = child.sent
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1


@pytest.mark.parametrize("failure", [BrokenPipeError(), anyio.ClosedResourceError()])
@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (ProcessExit(code=3), ProcessExit(code=3, sent=False)),
        (NetworkFailure(fault=NetworkFault.CLOSED), NetworkFailure(fault=NetworkFault.CLOSED, sent=False)),
        (NotMcp(fault=NotMcpFault.NOT_JSON), closed(sent=False)),
        (None, closed(sent=False)),
    ],
)
async def test_what_could_not_be_written_was_not_sent_and_the_end_of_the_process_says_why(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, ended: Evidence | None, told: Evidence
) -> None:
    child = Process()
    child.closed = failure
    wire = pipes(child)
    waits: list[float] = []

    def wait(seconds: float) -> anyio.CancelScope:
        waits.append(seconds)
        return anyio.CancelScope(deadline=anyio.current_time() + (0.01 if ended is None else 20.0))

    monkeypatch.setattr(anyio, "move_on_after", wait)
    if ended is not None:
        wire.in_flight.fail(ended)
        wire._over.set()
    with pytest.raises(ServerFailure) as failed:
        await wire._write(b"{}", doing="x", headers={})
    assert failed.value.evidence == told
    assert waits == [EXIT_SECONDS + 2 * LAST_WORDS_SECONDS]


async def test_a_process_without_an_answer_that_printed_something_else_is_no_server() -> None:
    wire = pipes()
    assert wire.unanswered() is None
    wire._lines.feed(b"x")
    assert wire.unanswered() == NotMcp(fault=NotMcpFault.NOT_JSON, detail="it printed a line without an end")
    wire.noise.take(b"banner", spoke=False)
    assert wire.unanswered() == NotMcp(fault=NotMcpFault.NOT_JSON, detail="it printed 'banner'")
    wire.rpc.spoke = True
    assert wire.unanswered() is None


async def test_why_the_pipe_ended_is_what_the_process_left() -> None:
    wire = pipes()
    lost = NetworkFailure(fault=NetworkFault.CLOSED, stood=True, detail="it closed its stdout")
    assert await wire._last_evidence() == lost
    wire._deaf = True
    assert await wire._last_evidence() == closed(sent=True)
    for child, heard in (
        (Process(code=3), True),
        (Process(code=3, written=0), False),
        (Process(code=3, read=False), False),
    ):
        wire = pipes(child)
        wire.stood = True
        wire.noise.text = "banner"
        assert await wire._last_evidence() == ProcessExit(
            code=3, stood=True, heard=heard, stderr="whole", recent="recent", noise="banner"
        )


async def test_each_line_is_a_message_or_noise_and_the_first_message_is_told_once() -> None:
    told: list[bool] = []
    wire = pipes(on_first_message=lambda: told.append(True))
    await wire._take_line(b" ", False)
    await wire._take_line(b"banner", False)
    assert (wire.noise.text, wire.noise._bytes, told) == ("banner", 9, [])
    answer = b'{"jsonrpc":"2.0","id":1,"result":{}}'
    request = wire.in_flight.start(idle=10, within=10)
    await wire._take_line(answer, False)
    assert (request.settled, told) == (True, [True])
    await wire._take_line(answer, False)
    assert told == [True]


async def test_a_line_over_the_bound_fails_its_own_request_or_the_connection() -> None:
    wire = pipes()
    over = OverBound(bound="the size of a message", limit=100, setting="holdfast.limits.messageBytes")
    request = wire.in_flight.start(idle=10, within=10)
    line = b'{"jsonrpc":"2.0","id":1,"result":{"text":"xxx'
    await wire._take_line(line, True)
    with pytest.raises(ServerFailure) as failed:
        request.answer()
    assert failed.value.evidence == over
    with pytest.raises(ServerFailure) as ended:
        await wire._take_line(line, True)
    assert ended.value.evidence == over


async def test_a_failure_that_is_not_about_the_line_ends_the_reading() -> None:
    wire = pipes()
    seen = OverBound(bound="x", limit=1, setting="")

    async def take(line: bytes) -> None:
        raise ServerFailure(seen)

    wire.rpc.take_shared = take
    with pytest.raises(ServerFailure) as failed:
        await wire._take_line(b"{}", False)
    assert failed.value.evidence is seen
    assert wire.noise.text == ""
