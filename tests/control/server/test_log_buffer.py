"""Following a server's lines: the last ones and those that come, none lost between and none twice."""

from __future__ import annotations

import anyio
import pytest

from holdfast.control.server.log_buffer import MOST_LINES, LogBuffer
from holdfast.core.redact import Redactor

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-5")]


async def test_a_follower_gets_the_last_lines_and_then_each_that_comes_once() -> None:
    lines = LogBuffer(wall=lambda: 1.0)
    for number in range(5):
        lines.add_stderr("x", b"%d" % number, Redactor())
    follow = lines.follow("x", silence=60, last=2)
    seen: list[str] = []
    with anyio.fail_after(10):
        async for some in follow:
            seen += [line.text for line in some]
            if len(seen) == 2:
                lines.add_stderr("x", b"5", Redactor())
            elif len(seen) == 3:
                lines.close()
    assert seen == ["3", "4", "5"]


async def test_a_follower_gets_what_a_server_wrote_just_before_it_was_removed() -> None:
    lines = LogBuffer(wall=lambda: 1.0)
    follow = lines.follow("x", silence=60)
    with anyio.fail_after(10):
        assert await anext(follow) == []
        lines.add_stderr("x", b"the last", Redactor())
        lines.forget("x")
        assert [line.text async for some in follow for line in some] == ["the last"]
    assert await lines.last("x", 10) == ()


async def test_a_follower_that_asks_for_no_last_lines_gets_none() -> None:
    lines = LogBuffer(wall=lambda: 1.0)
    lines.add_stderr("x", b"old", Redactor())
    lines.add_stderr("x", b"older", Redactor())
    follow = lines.follow("x", silence=60)
    with anyio.fail_after(10):
        assert await anext(follow) == []
        lines.add_stderr("x", b"new", Redactor())
        assert [line.text for line in await anext(follow)] == ["new"]
        lines.close()
        assert [some async for some in follow] == [[]]


async def test_a_follower_that_is_slow_loses_the_oldest_lines_and_sees_none_twice() -> None:
    lines = LogBuffer(wall=lambda: 1.0)
    follow = lines.follow("x", silence=60)
    with anyio.fail_after(10):
        assert await anext(follow) == []
        for number in range(MOST_LINES + 5):
            lines.add_stderr("x", b"%d" % number, Redactor())
        lines.close()
        seen = [int(line.text) async for some in follow for line in some]
    assert seen == list(range(5, MOST_LINES + 5))
