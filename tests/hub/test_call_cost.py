"""What `Hub.call_tool` adds to a bare connection, in counts: functions entered, and records made."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest

import holdfast
from holdfast.hub import slot_call
from holdfast.hub.hub import Hub
from holdfast.hub.journal import CallEnded, HubRecord
from tests.harness.open_hubs import running, settled
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("PERF-7")]

CALLS = 20
MOST_STEPS = 28
"""How many functions of `hub` and `core` one call may enter; a coroutine that goes on after a wait counts again."""

_HUB = tuple(str(Path(holdfast.__file__).parent / part) for part in ("hub", "core"))


async def _steps(hub: Hub) -> Counter[str]:
    steps: Counter[str] = Counter()

    def entered(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_HUB):
            steps[frame.f_code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(entered)
    try:
        for _ in range(CALLS):
            await hub.call_tool("a__echo", {"text": "x"})
    finally:
        sys.setprofile(before)
    return steps


async def test_a_call_enters_few_functions_of_the_hub() -> None:
    async with McpPeer() as peer, running({"a": peer}) as hub:
        await settled(hub, peer)
        with anyio.fail_after(10):
            await hub.call_tool("a__echo", {"text": "x"})
            steps = await _steps(hub)
    assert steps.total() <= MOST_STEPS * CALLS, steps.most_common(50)


async def test_a_call_is_recorded_for_those_who_listen_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(**values: Any) -> CallEnded:
        made.append(values["outcome"])
        return CallEnded(**values)

    monkeypatch.setattr(slot_call, "CallEnded", counted)
    heard: list[HubRecord] = []
    async with McpPeer() as peer, running({"a": peer}) as hub:
        await settled(hub, peer)
        with anyio.fail_after(10):
            await hub.call_tool("a__echo", {"text": "x"})
            assert made == []
            end = hub.listen(heard.append)
            await hub.call_tool("a__echo", {"text": "x"})
            end()
            await hub.call_tool("a__echo", {"text": "x"})
    assert made == ["completed"]
    assert [record.outcome for record in heard if isinstance(record, CallEnded)] == ["completed"]
