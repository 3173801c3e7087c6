"""A server's question to a client of another replica, after the answer to its call was sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from mcp import MCPError

from holdfast.hub.fleet.forwarding import HeldServers, RemoteCaller, _Out

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-5")]


@pytest.mark.parametrize("gone", [{"complete": True}, {"lost": True}])
async def test_a_question_that_comes_after_the_end_of_its_call_is_refused_at_once(gone: dict[str, bool]) -> None:
    reply: Any = SimpleNamespace(**{"begun": True, "complete": False, "lost": False, "write": lambda _: None} | gone)
    fleet: Any = SimpleNamespace(replica="a")
    registry: Any = SimpleNamespace()
    held = HeldServers(registry, lambda _: True, fleet)
    caller = RemoteCaller(_Out(reply, ("b", "watch", 1)), "b", {}, ask=held._ask)
    with anyio.fail_after(1), pytest.raises(MCPError, match="ended"):
        await caller.ask("elicitation/create", {})
