"""A refresh compares bytes: what a server lists again without a change is not read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.hub import Hub, Published
from holdfast.testing import FakeClock
from holdfast.wire import listing, raw_json
from tests.harness.open_hubs import running, settled, until
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("PERF-4")]

TOOLS, PAGE = 25, 10
LISTS = ["tools/list"] * 3 + ["prompts/list", "resources/list", "resources/templates/list"]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The items of lists that are read as values."""
    seen: list[str] = []
    real = raw_json.loads

    def counted(raw: Any) -> Any:
        value = real(raw)
        seen.append(str(value.get("name")))
        return value

    monkeypatch.setattr(listing, "loads", counted)
    return seen


async def _listed_again(hub: Hub, clock: FakeClock, peer: McpPeer) -> list[str]:
    """Let a refresh happen: what the server was asked."""
    peer.requests.clear()
    listed_at = hub.registry.slots["a"].machine.life.lease
    assert listed_at is not None
    before = listed_at.listed_at
    await clock.advance(60)
    await until(hub, "a", lambda: listed_at.listed_at > before and not listed_at.refreshing)
    return [method for method in peer.methods if method.endswith("/list")]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_listing_that_did_not_change_is_not_read(era: Any, read: list[str]) -> None:
    clock = FakeClock()
    async with (
        McpPeer(offers=True, era=era, tools=TOOLS, page_size=PAGE) as peer,
        running({"a": peer}, clock=clock) as hub,
    ):
        await settled(hub) if era == "modern" else await settled(hub, peer)
        shown = hub.catalog
        assert len(read) == TOOLS + 3
        read.clear()
        assert await _listed_again(hub, clock, peer) == LISTS
        assert read == []
        assert hub.catalog is shown


async def test_only_the_page_that_changed_is_read(read: list[str]) -> None:
    clock = FakeClock()
    async with McpPeer(tools=TOOLS, page_size=PAGE) as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        read.clear()
        peer.mind.names[-1] = "another"
        await _listed_again(hub, clock, peer)
        assert read == [*peer.mind.names[20:]]
        assert [entry.original for entry in hub.catalog.tools] == peer.mind.names
        read.clear()
        del peer.mind.names[20:]
        await _listed_again(hub, clock, peer)
        assert [entry.original for entry in hub.catalog.tools] == peer.mind.names
        assert read == []
        peer.mind.names.append("again")
        await _listed_again(hub, clock, peer)
        assert [entry.original for entry in hub.catalog.tools] == peer.mind.names


@pytest.mark.requirement("LIFE-14", "LIFE-26")
async def test_a_change_that_another_failing_list_came_with_is_not_lost() -> None:
    """What a listing read before it failed is not taken for what was published."""
    clock = FakeClock()
    async with McpPeer(offers=True, tools=TOOLS) as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        peer.mind.names[-1] = "another"
        prompts, peer.mind.prompts = peer.mind.prompts, [{"no": "name"}]  # type: ignore[list-item]
        await _listed_again(hub, clock, peer)
        assert [entry.original for entry in hub.catalog.tools] == peer.mind.names
        assert len(hub.catalog.prompts) == 1
        peer.mind.prompts = [*prompts, "more"]
        await _listed_again(hub, clock, peer)
        assert [entry.original for entry in hub.catalog.prompts] == peer.mind.prompts


@pytest.mark.requirement("LIFE-14")
async def test_a_listing_that_fails_half_way_is_read_by_the_next_one() -> None:
    clock = FakeClock()
    async with McpPeer(tools=TOOLS, page_size=PAGE) as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        before = list(peer.mind.names)
        peer.mind.names[0] = "another"
        peer.mind.list_fault = "repeating_cursor"
        await clock.advance(60)
        await until(hub, "a", lambda: hub.server_health("a").failures == 1)
        assert [entry.original for entry in hub.catalog.tools] == before
        peer.mind.list_fault = None
        with anyio.fail_after(10):
            await _listed_again(hub, clock, peer)
        assert [entry.original for entry in hub.catalog.tools] == peer.mind.names


@pytest.mark.requirement("LIFE-18", "LIFE-21")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_listing_from_before_a_restart_that_is_confirmed_is_told_to_no_client(era: Any, tmp_path: Path) -> None:
    async with McpPeer(offers=True, era=era, tools=TOOLS, page_size=PAGE) as peer:
        config = {"mcpServers": {"a": {"url": peer.url}}}
        async with Hub.from_config(config, state_file=tmp_path / "state.sqlite") as hub:
            assert await hub.ready(10)
        async with Hub.from_config(config, state_file=tmp_path / "state.sqlite") as hub:
            records = hub.events()
            assert {entry.verified for entry in hub.catalog.tools} == {False}
            assert await hub.ready(10)
            assert {entry.verified for entry in hub.catalog.tools} == {True}
            peer.mind.names.append("one_more")
            with anyio.fail_after(10):
                await hub.reconnect("a")
                first = await anext(one async for one in records if isinstance(one, Published))
            assert (first.kinds, first.own_kinds) == (("tools",), ("tools",)), "only the change is told"
