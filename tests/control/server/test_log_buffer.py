"""Following a server's lines: the last ones and those that come, none lost between and none twice."""

from __future__ import annotations

import anyio
import pytest

from holdfast.control.server.log_buffer import LogBuffer
from holdfast.core.lifecycle.effects import Transition
from holdfast.core.lifecycle.table import State
from holdfast.core.redact import Redactor
from holdfast.hub.journal import transition_text

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


@pytest.mark.requirement("OBS-1")
@pytest.mark.parametrize(
    ("old", "new", "cause", "reason", "text"),
    [
        ("connected", "reconnecting", "TransportLost", "its process exited with code 3", "lost: {}; reconnecting"),
        ("connecting", "reconnecting", "DialFailed", "it is not ready", "connect failed: {}; reconnecting"),
        ("connected", "reconnecting", "SessionExpired", "", "its session expired; reconnecting"),
        ("reconnecting", "permanently_failed", "Parked", "connection refused", "parked: {}"),
        ("connecting", "denied", "Denied", "HTTP 403", "denied: {}"),
        ("reconnecting", "connected", "DialSucceeded", "", "connected"),
        ("connected", "disconnected", "RemoveRequested", "", "removed from the configuration"),
        ("connected", "disabling", "DisableRequested", "", "disabling"),
    ],
)
def test_a_transition_is_logged_as_what_happened(old: str, new: str, cause: str, reason: str, text: str) -> None:
    record = Transition(server="x", old=State(old), new=State(new), cause=cause, at=0, generation=1, reason=reason)
    assert transition_text(record) == text.format(reason)
