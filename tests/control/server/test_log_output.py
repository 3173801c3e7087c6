"""The log as it is written: masked, folded, and as people or programs want it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, use_span

from holdfast.control.server.log_buffer import (
    MOST_COUNTED,
    WINDOW_SECONDS,
    ConsoleFormatter,
    JsonFormatter,
    LogHandler,
)
from holdfast.core.lifecycle.table import State
from holdfast.hub.journal import CallEnded, Transition, write_to_log

SECRET = "correct-horse-battery"


class Written:
    """A logger of our own with a handler on it, and a clock that stands still."""

    def __init__(self, lines: ConsoleFormatter | JsonFormatter, name: str = "holdfast.hub") -> None:
        self.now = 100.0
        self.stream = io.StringIO()
        self.handler = LogHandler(self.stream, lines, now=lambda: self.now)
        self.log = logging.getLogger(name)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    @property
    def objects(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def writing(request: pytest.FixtureRequest) -> Iterator[Written]:
    """The test says which lines it wants, and whose, by its parameter."""
    written = Written(*request.param)
    level = written.log.level
    written.log.addHandler(written.handler)
    written.log.setLevel(logging.DEBUG)
    yield written
    written.log.removeHandler(written.handler)
    written.log.setLevel(level)


console = pytest.mark.parametrize("writing", [(ConsoleFormatter(),)], indirect=True)
as_json = pytest.mark.parametrize("writing", [(JsonFormatter(),)], indirect=True)
both = pytest.mark.parametrize(
    "writing",
    [(lines(), name) for lines in (ConsoleFormatter, JsonFormatter) for name in ("holdfast.x", "other")],
    indirect=True,
)


def denied(server: str, seconds: float) -> CallEnded:
    return CallEnded(
        server=server,
        method="tools/call",
        outcome="denied",
        waited=0.0,
        seconds=seconds,
        at=1.0,
        error="CallDenied",
        reason="not you",
    )


@as_json
@pytest.mark.requirement("OBS-1")
def test_a_json_line_has_the_fields_of_its_record(writing: Written) -> None:
    write_to_log(
        Transition(server="a", old=State.CONNECTED, new=State.DENIED, cause="Denied", at=7.0, generation=2, reason="no")
    )
    [line] = writing.objects
    assert str(line.pop("time")).endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "holdfast.hub",
        "message": "a: denied: no",
        "event": "transition",
        "server": "a",
        "old": "connected",
        "new": "denied",
        "cause": "Denied",
        "generation": 2,
        "reason": "no",
    }


@both
@pytest.mark.requirement("MSG-6")
def test_no_line_of_any_logger_shows_a_secret(writing: Written) -> None:
    writing.handler.know([SECRET])
    writing.log.warning("sent %s to https://me:%s@host/?token=abcdef123456", SECRET, SECRET)
    writing.log.warning("Authorization: Bearer abcdefghijklmnop")
    try:
        raise ValueError(f"it was {SECRET}")
    except ValueError:
        writing.log.exception("failed")
    text = writing.stream.getvalue()
    assert "failed" in text
    assert "ValueError: it was ***" in text
    assert SECRET not in text
    assert "abcdef" not in text


@as_json
@pytest.mark.requirement("MSG-6")
def test_the_fields_of_a_record_are_masked_too(writing: Written) -> None:
    writing.handler.know([SECRET])
    write_to_log(
        Transition(
            server="a", old=State.IDLE, new=State.DENIED, cause="x", at=0.0, generation=1, reason=f"it is {SECRET}"
        )
    )
    assert writing.objects[0]["reason"] == "it is ***"


@as_json
@pytest.mark.requirement("OBS-2")
def test_a_line_that_is_written_in_a_trace_says_in_which(writing: Written) -> None:
    within = NonRecordingSpan(SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=True))
    with use_span(within):
        writing.log.info("within")
    writing.log.info("beside")
    first, second = writing.objects
    assert (first["trace_id"], first["span_id"]) == ("abc".zfill(32), "def".zfill(16))
    assert "trace_id" not in second


@console
def test_a_line_for_people_is_short_and_what_a_server_says_cannot_pass_for_another_line(writing: Written) -> None:
    writing.log.info("fine")
    writing.log.warning("it said: %s", "oh\n12:00:00 all is well")
    first, second, third = writing.lines
    assert first[8:] == " fine"
    assert second[8:] == " warning: it said: oh"
    assert third == "    12:00:00 all is well"


@pytest.mark.parametrize("writing", [(ConsoleFormatter(), "uvicorn.error")], indirect=True)
def test_a_line_of_another_library_says_whose_it_is(writing: Written) -> None:
    writing.log.warning("something odd")
    assert writing.lines[0][8:] == " warning: uvicorn.error: something odd"


@as_json
@pytest.mark.requirement("BRK-8", "OBS-1")
def test_errors_that_come_again_are_one_line_and_a_count(writing: Written) -> None:
    for number in range(41):
        write_to_log(denied("a", number / 10))
    write_to_log(denied("b", 0.1))
    assert [line["server"] for line in writing.objects] == ["a", "b"]
    writing.now += WINDOW_SECONDS
    writing.handler.tick()
    *_, last = writing.objects
    assert (last["server"], last["repeated"], last["within_seconds"]) == ("a", 40, 30.0)
    assert "… repeated 40 times in 30 s" in str(last["message"])
    assert len(writing.lines) == 3


@console
def test_a_count_is_written_before_the_next_line(writing: Written) -> None:
    for _ in range(3):
        writing.log.error("broken")
    writing.now += WINDOW_SECONDS + 1
    writing.log.error("broken")
    assert [line[9:] for line in writing.lines] == [
        "error: broken",
        "error: broken … repeated 2 times in 30 s",
        "error: broken",
    ]


@console
def test_what_is_still_counted_at_the_end_is_written_then(writing: Written) -> None:
    for _ in range(2):
        writing.log.error("broken")
    writing.now += 4
    writing.handler.close()
    assert writing.lines[-1][9:] == "error: broken … repeated 1 time in 4 s"


@console
def test_lines_that_are_no_errors_are_written_each_time(writing: Written) -> None:
    for _ in range(3):
        writing.log.info("attempt %d", 1)
    assert len(writing.lines) == 3


@console
def test_the_same_words_about_another_server_are_another_line(writing: Written) -> None:
    for server in ("web1", "web2", "web1"):
        writing.log.warning("%s: breaker open for %.0f s", server, 60.0)
    assert len(writing.lines) == 2


@console
def test_words_that_differ_are_another_line_though_they_are_no_text_yet(writing: Written) -> None:
    for path in (Path("a"), Path("b"), Path("a")):
        writing.log.error("%s cannot be read", path)
    assert len(writing.lines) == 2


@pytest.mark.parametrize("writing", [(ConsoleFormatter(), "holdfast.reload")], indirect=True)
def test_a_mistake_that_is_saved_twice_is_reported_twice(writing: Written) -> None:
    for _ in range(2):
        writing.log.error("the configuration was changed and cannot be used")
    assert len(writing.lines) == 2


def test_however_many_lines_differ_what_is_counted_is_bounded() -> None:
    stream = io.StringIO()
    handler = LogHandler(stream, ConsoleFormatter(), now=lambda: 0.0)
    for number in range(3 * MOST_COUNTED):
        for _ in range(2):
            handler.handle(logging.makeLogRecord({"msg": f"line {number}", "levelno": logging.WARNING, "name": "x"}))
    assert stream.getvalue().count("repeated 1 time in 0 s") >= 2 * MOST_COUNTED - 1
    handler.close()
    assert stream.getvalue().count("repeated 1 time in 0 s") == 3 * MOST_COUNTED
