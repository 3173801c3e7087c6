"""A fault in the hub itself costs one line of log, however deep it is (SEC-7)."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator

import pytest

from holdfast.control.server.log_buffer import LONGEST_TRACE, ConsoleFormatter
from holdfast.core import fault_line
from holdfast.serve.telemetry import log_faults_in_lines

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-7")]


def _nested(depth: int) -> None:
    """Fails, and fails again while it handles that."""
    try:
        raise ValueError("x" * 5_000 + "\nsecond line")
    except ValueError:
        if depth:
            _nested(depth - 1)
        raise


@pytest.fixture
def fault() -> Iterator[BaseException]:
    try:
        _nested(300)
    except ValueError as exc:
        yield exc


class _Fails(asyncio.Protocol):
    def __init__(self, fault: BaseException) -> None:
        self._fault = fault

    def data_received(self, data: bytes) -> None:
        raise self._fault


async def test_a_fault_in_a_callback_of_a_connection_is_one_bounded_line(
    fault: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    log_faults_in_lines()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Fails(fault), "127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"x")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
    finally:
        server.close()
        loop.set_exception_handler(None)
    (line,) = [ConsoleFormatter().format(record) for record in caplog.records if record.name == "holdfast.loop"]
    assert "\n" not in line
    assert len(line) < 600
    assert "ValueError" in line
    assert "test_loop_faults.py" in line


def test_the_trace_of_a_fault_is_bounded(fault: BaseException) -> None:
    record = logging.LogRecord("holdfast", logging.ERROR, "", 1, "failed", (), (type(fault), fault, None))
    text = ConsoleFormatter().format(record)
    assert len(text) <= LONGEST_TRACE + 1_000
    assert "ValueError" in text


def test_a_fault_that_cannot_say_what_it_is_still_has_a_line() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert fault_line(Mute()) == "Mute"
    assert fault_line(RecursionError("a\n b")) == "RecursionError: a b"
    assert len(fault_line(ValueError("y" * sys.maxunicode))) < 300
