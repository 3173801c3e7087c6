"""Durations and sizes are read as people write them, and errors say what to write."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from holdfast.config.fields import (
    InvalidValue,
    format_duration,
    parse_duration,
    parse_size,
    read_bare_timeout,
)
from holdfast.config.read import config_from_mapping, read_file
from holdfast.config.settings import CallPolicy
from holdfast.config.spec import ServerSpec


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("10s", 10), ("5m", 300), ("1h", 3600), ("1.5s", 1.5), (" 2 s ", 2), ("0s", 0), ("0.5m", 30)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        (10, "needs a unit", 'write "10s" for seconds or "10ms"'),
        (0.25, "needs a unit", 'write "0.25s"'),
        ("10", "needs a unit", 'write "10s"'),
        ("10 minutes", "unit that is not known", "ms, s, m, h and d"),
        ("-1s", "must be a duration", "units"),
        ("1h30m", "must be a duration", "units"),
        ("", "must be a duration", "units"),
        (None, "must be a duration", "units"),
        (True, "must be a duration", "units"),
        (["1s"], "must be a duration", "units"),
        ("999999999h", "longer than a year", "units"),
        ("9" * 400 + "s", "must be a duration", "units"),
        ("١s", "must be a duration", "units"),
    ],
)
def test_what_is_no_duration_is_told_what_to_write(value: object, message: str, hint: str) -> None:
    with pytest.raises(InvalidValue, match=message) as caught:
        parse_duration(value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("value", "size"),
    [("16MiB", 16 << 20), ("64KiB", 65536), ("1.5KiB", 1536), ("2MB", 2_000_000), ("10B", 10), ("1gib", 1 << 30)],
)
def test_a_size_is_read(value: object, size: int) -> None:
    assert parse_size(value) == size


def test_a_bare_number_is_a_size_in_bytes() -> None:
    assert parse_size(4096) == parse_size("4096") == 4096


@pytest.mark.parametrize("value", ["16 MegaBytes", "-1B", 0, "0B", "", None, True, 1.5, "9999GiB", "1e3B", 10**30])
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_size(value)
    assert "MiB" in caught.value.hint or "KiB" in caught.value.hint


@given(st.integers(0, 1000 * 3600 * 1000))
def test_a_duration_that_is_written_reads_back_as_the_same(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000, rel=1e-9)


@given(st.integers(1, 1 << 40))
def test_a_size_in_bytes_is_read_as_it_is_written(size: int) -> None:
    assert parse_size(f"{size}B") == parse_size(size) == size


@given(st.text() | st.integers() | st.floats() | st.none() | st.booleans())
def test_nothing_but_unfit_is_ever_raised(value: object) -> None:
    for parse in (parse_duration, parse_size):
        with contextlib.suppress(InvalidValue):
            parse(value)


@pytest.mark.parametrize(
    ("written", "seconds", "is_bare"),
    [
        (300, 300, True),
        (999, 999, True),
        (0.5, 0.5, True),
        ("60", 60, True),
        (1000, 1, True),
        (300_000, 300, True),
        ("30000", 30, True),
        ("5m", 300, False),
    ],
)
def test_a_limit_of_calls_without_a_unit_is_read_as_clients_mean_it(
    written: object, seconds: float, is_bare: bool
) -> None:
    config = config_from_mapping({"mcpServers": {"a": {"command": "x", "timeout": written}}})
    server = config.servers["a"]
    assert not server.problems
    assert server.timeout == seconds
    assert read_bare_timeout(written) == (seconds if is_bare else None)


@pytest.mark.parametrize("written", ["0", "-1", "true", "[]", '"soon"', '"0s"', "1e300", '"9999999h"', '"1 parsec"'])
def test_a_limit_of_calls_that_is_none_is_an_error_with_its_place(written: str, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(f'{{"mcpServers": {{"a": {{"command": "x",\n  "timeout": {written}}}}}}}')
    server = read_file(file, environ={}).config.servers["a"]
    assert server.problems
    (problem,) = server.problems
    assert (problem.file, problem.line, problem.column) == (file, 2, 14)
    assert problem.message.startswith("`timeout` ")
    assert problem.hint


def test_a_servers_own_limit_raises_a_hard_limit_that_is_shorter() -> None:
    policy = CallPolicy(timeout=60, hard_timeout=600)
    assert policy.of(ServerSpec(id="a", transport="stdio")) is policy
    short = policy.of(ServerSpec(id="a", transport="stdio", timeout=5))
    long = policy.of(ServerSpec(id="a", transport="stdio", timeout=1800))
    assert (short.timeout, short.hard_timeout) == (5, 600)
    assert (long.timeout, long.hard_timeout) == (1800, 1800)
