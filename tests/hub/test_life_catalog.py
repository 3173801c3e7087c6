"""The published catalog: apart from connectivity, refreshed by notices in both eras, changed by configuration alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from holdfast.config.read import config_from_mapping
from holdfast.core.catalog import Catalog, Item, Listing
from holdfast.core.lifecycle.table import State
from holdfast.errors import ServerDisabled, ServerPermanentlyFailed
from holdfast.hub import findings
from holdfast.hub.hub import Hub
from holdfast.testing import FakeClock
from holdfast.wire.session import Connection
from tests.harness.open_hubs import config, defined, reaches, records, running, settled, until
from tests.peers.http_fault import Behaviour, Exchange, respond
from tests.peers.mcp_http import McpPeer
from tests.peers.rpc import encode
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio
MakePeer = Callable[..., StdioPeer]
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


def names(catalog: Catalog) -> set[str]:
    return {entry.name for entry in catalog.tools}


@pytest.mark.requirement("LIFE-4")
async def test_a_snapshot_stays_as_it_is_and_the_next_one_has_a_higher_version() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        before = hub.catalog
        held = names(before)
        peer.mind.names.append("newcomer")
        await clock.advance(60)
        await until(hub, "a", lambda: hub.catalog is not before)
        assert hub.catalog.version > before.version
        assert names(before) == held
        assert names(hub.catalog) == held | {"a__newcomer"}


@pytest.mark.requirement("LIFE-4")
async def test_a_refresh_that_changed_nothing_publishes_nothing() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        before, listed = hub.catalog, peer.methods.count("tools/list")
        await clock.advance(60)
        await until(hub, "a", lambda: hub.registry.slots["a"].machine.life.timers.earliest() == 120)
        assert peer.methods.count("tools/list") == listed + 1
        assert hub.catalog is before


@pytest.mark.requirement("LIFE-4", "LIFE-14")
@pytest.mark.parametrize("fault", ["error", "misfit", "repeating_cursor"])
async def test_a_failed_refresh_drops_no_tools_and_harms_nobody_else(fault: Any) -> None:
    clock = FakeClock()
    async with McpPeer() as peer, McpPeer() as other, running({"a": peer, "b": other}, clock=clock) as hub:
        await settled(hub, peer, other)
        before = names(hub.catalog)
        peer.mind.list_fault = fault
        await clock.advance(60)
        await until(hub, "a", lambda: hub.server_health("a").failures == 1)
        assert names(hub.catalog) == before
        assert hub.server_health("b").failures == 0
        peer.mind.list_fault = None
        await clock.advance(60)
        await until(hub, "a", lambda: hub.server_health("a").failures == 0)


@pytest.mark.requirement("LIFE-4", "LIFE-14", "LIFE-26")
async def test_nonsense_in_another_list_keeps_its_last_good_items_and_no_server_fails() -> None:
    clock = FakeClock()
    async with McpPeer(offers=True) as peer, McpPeer() as other, running({"a": peer, "b": other}, clock=clock) as hub:
        await settled(hub, peer, other)
        prompts = hub.catalog.prompts
        assert len(prompts) == 1
        peer.mind.prompts = [{"no": "name"}]  # type: ignore[list-item]
        await clock.advance(60)
        await until(hub, "a", lambda: findings(hub.registry.catalog))
        assert [(entry.name, entry.item) for entry in hub.catalog.prompts] == [(one.name, one.item) for one in prompts]
        assert hub.server_health("a").failures == 0
        assert (await hub.call_tool("b__echo", {"text": "whole"})).text == "whole"


@pytest.mark.requirement("LIFE-14")
async def test_a_fault_of_a_library_while_it_lists_is_that_servers_failure_and_no_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stumble(connection: Connection, *, within: float) -> None:
        raise RuntimeError("an unexpected fault")

    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        monkeypatch.setattr(Connection, "list_everything", stumble)
        await clock.advance(60)
        await until(hub, "a", lambda: hub.server_health("a").failures == 1)
        assert (await hub.call_tool("a__echo", {"text": "whole"})).text == "whole"


@pytest.mark.requirement("LIFE-4", "LIFE-8")
async def test_the_tools_of_a_server_that_is_down_parked_or_disabled_answer_with_its_state() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock, reconnect={"backoff": ["1s"]}) as hub:
        await settled(hub, peer)
        before = names(hub.catalog)
        peer.script = respond(410, "mending")
        with pytest.raises(Exception, match="410"):
            await hub.reconnect("a")
        await clock.advance(1)
        await reaches(hub, "a", State.PERMANENTLY_FAILED)
        assert names(hub.catalog) == before
        with pytest.raises(ServerPermanentlyFailed, match="mending") as refusal:
            await hub.call_tool("a__echo")
        assert refusal.value.retry_in == 60
        await hub.toggle("a", False)
        assert names(hub.catalog) == set()
        with pytest.raises(ServerDisabled):  # and not: no such tool
            await hub.call_tool("a__echo")


@pytest.mark.requirement("LIFE-15")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_tools_prompts_resources_and_templates_behave_alike(era: Any) -> None:
    clock = FakeClock()
    async with McpPeer(offers=True, era=era) as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub) if era == "modern" else await settled(hub, peer)
        catalog = hub.catalog
        assert len(catalog.tools) == 5
        assert [entry.name for entry in catalog.prompts] == ["a__greet"]
        assert [entry.name for entry in catalog.resources] == ["note://1"]
        assert [entry.name for entry in catalog.templates] == ["note://{id}"]
        prompt = await hub.get_prompt("a__greet", {"who": "Ann"})
        assert prompt["messages"][0]["content"]["text"] == "Greet Ann!"
        assert "note://1" in (await hub.read_resource("note://1"))["contents"][0]["text"]
        assert "note://7" in (await hub.read_resource("note://7", server="a"))["contents"][0]["text"]
        ref = {"type": "ref/prompt", "name": "a__greet"}
        completed = await hub.complete(ref, {"name": "who", "value": "Al"})
        assert completed["completion"]["values"] == ["Alice"]
        template = {"type": "ref/resource", "uri": "note://{id}"}
        assert await hub.complete(template, {"name": "id", "value": "Al"}) == completed
        await peer.stop()
        await hub.toggle("a", True)
        after = hub.catalog
        assert (after.prompts, after.resources, after.templates) == (
            catalog.prompts,
            catalog.resources,
            catalog.templates,
        )
        await hub.toggle("a", False)
        assert not hub.catalog.prompts
        assert not hub.catalog.resources
        assert not hub.catalog.templates


@pytest.mark.requirement("LIFE-18")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_burst_of_128_notices_over_http_coalesces_and_its_last_change_is_seen(era: Any) -> None:
    async with McpPeer(get_stream=True, era=era) as peer, running({"a": peer}) as hub:
        await hub.ready()
        with anyio.fail_after(5):
            await peer.streaming()
        listed = peer.methods.count("tools/list")
        for number in range(128):
            peer.mind.names.append(f"late_{number}")
            await peer.push(CHANGED)
        await until(hub, "a", lambda: "a__late_127" in names(hub.catalog))
        assert peer.methods.count("tools/list") - listed <= 3


@pytest.mark.requirement("LIFE-18")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_burst_of_128_notices_over_stdio_coalesces_and_its_last_change_is_seen(
    era: str, stdio_peer: MakePeer
) -> None:
    peer = stdio_peer("--grow", "128", "--era", era)
    async with running({"a": peer}) as hub:
        await hub.ready()
        if era == "modern":
            with anyio.fail_after(5):
                await peer.until(lambda: "subscriptions/listen" in peer.methods)
        listed = peer.methods.count("tools/list")
        grown = (await hub.call_tool("a__grow")).text
        await until(hub, "a", lambda: f"a__{grown}" in names(hub.catalog))
        assert peer.methods.count("tools/list") - listed <= 3


@pytest.mark.requirement("LIFE-18")
async def test_a_notice_that_comes_while_the_slot_is_busy_listing_is_not_lost() -> None:
    """The listing that is under way was read before the change: there has to be another."""
    clock = FakeClock()
    async with McpPeer(get_stream=True) as peer, running({"a": peer}, clock=clock) as hub:
        await hub.ready()
        with anyio.fail_after(5):
            await peer.streaming()
        await clock.advance(2)  # the listing that follows the opening of the stream
        await until(hub, "a", lambda: not _refreshing(hub))
        listed = peer.methods.count("tools/list")
        held, peer.script = peer.script, _listing_waits(peer)
        await peer.push(CHANGED)
        await clock.advance(2)
        with anyio.fail_after(5):
            await peer.slow_started.wait()
        peer.script = held
        await peer.push(CHANGED)
        peer.mind.names.append("late")  # the answer that waits was made before
        await anyio.wait_all_tasks_blocked()
        peer.release.set()
        await until(hub, "a", lambda: not _refreshing(hub))
        assert "a__late" not in names(hub.catalog)
        await clock.advance(2)
        await until(hub, "a", lambda: "a__late" in names(hub.catalog))
        assert peer.methods.count("tools/list") == listed + 2


def _refreshing(hub: Hub) -> bool:
    lease = hub.registry.slots["a"].machine.life.lease
    return lease is not None and lease.refreshing


def _listing_waits(peer: McpPeer) -> Behaviour:
    """Make the answer to a listing at once, and send it when it is released."""

    async def act(exchange: Exchange) -> None:
        answer = peer.mind.answer(json.loads(exchange.request.body))
        assert answer is not None
        peer.slow_started.set()
        await peer.release.wait()
        await exchange.respond(200, encode(answer))

    return Behaviour("listing-waits", act)


@pytest.mark.requirement("LIFE-18")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_stream_that_ends_is_opened_again_and_what_was_missed_is_listed(era: Any) -> None:
    async with McpPeer(get_stream=True, era=era) as peer, running({"a": peer}) as hub:
        await hub.ready()
        with anyio.fail_after(5):
            await peer.streaming()
        peer.mind.names.append("missed")  # and no notification is sent
        peer.end_streams()
        with anyio.fail_after(5):
            await peer.streaming(2)
        await until(hub, "a", lambda: "a__missed" in names(hub.catalog))
        assert hub.server_health("a").generation == 1
        peer.mind.names.append("told")
        await peer.push(CHANGED)
        await until(hub, "a", lambda: "a__told" in names(hub.catalog))


@pytest.mark.requirement("LIFE-20")
async def test_a_config_change_touches_only_the_servers_whose_definition_changed(stdio_peer: MakePeer) -> None:
    same, changed, gone, new = (stdio_peer() for _ in range(4))
    before = config({"same": same, "changed": changed, "gone": gone})
    async with Hub(before) as hub:
        await hub.ready()
        told = records(hub)
        after = config({"same": same, "changed": defined(changed, env={"LEVEL": "7"}), "new": new})
        await hub.apply(after)
        assert list(hub.servers) == ["same", "changed", "new"]
        await until(hub, "changed", lambda: hub.server_health("changed").generation == 2)
        await reaches(hub, "new")
        with anyio.fail_after(10):
            await gone.until(lambda: not gone.living)
        assert (same.starts, changed.starts, gone.starts, new.starts) == (1, 2, 1, 1)
        assert hub.server_health("same").generation == 1
        assert not [record for record in told if getattr(record, "server", "") == "same"]
        assert {entry.server for entry in hub.catalog.tools} == {"same", "changed", "new"}


@pytest.mark.requirement("LIFE-20", "LIFE-19")
async def test_a_config_change_mends_a_bad_definition_and_brings_a_parked_server_back(stdio_peer: MakePeer) -> None:
    peer = stdio_peer()
    async with Hub(config({"a": {"url": 7}, "b": {"command": "no-such-command-anywhere"}})) as hub:
        await hub.ready()
        assert {health.state for health in hub.servers.values()} == {State.PERMANENTLY_FAILED}
        await hub.apply(config({"a": peer, "b": peer}))
        await reaches(hub, "a")
        await reaches(hub, "b")


@pytest.mark.requirement("LIFE-20")
async def test_a_config_change_can_switch_a_server_off_and_on_and_rename_its_tools(stdio_peer: MakePeer) -> None:
    peer = stdio_peer()
    async with Hub(config({"a": peer})) as hub:
        await hub.ready()
        await hub.apply(config({"a": defined(peer, enabled=False)}))
        await reaches(hub, "a", State.DISABLED)
        assert names(hub.catalog) == set()
        await hub.apply(config({"a": defined(peer, prefix="files")}))
        await reaches(hub, "a")
        assert "files__echo" in names(hub.catalog)
        assert (await hub.call_tool("files__echo", {"text": "x"})).text == "x"


@pytest.mark.requirement("LIFE-20")
async def test_a_filter_shows_only_the_tools_that_it_names() -> None:
    async with McpPeer() as peer, running({"a": defined(peer, tools={"include": ["e*", "add"]})}) as hub:
        await hub.ready()
        assert names(hub.catalog) == {"a__echo", "a__add"}


@pytest.mark.requirement("PERF-8")
async def test_the_listings_of_many_servers_that_wait_together_are_published_together() -> None:
    servers = {f"s{number}": {"url": "http://127.0.0.1:9/mcp", "enabled": False} for number in range(60)}
    async with Hub(config_from_mapping({"mcpServers": servers})) as hub:
        before = hub.catalog.version
        for server in servers:
            tools = tuple(Item(f"tool_{number}") for number in range(100))
            hub.registry.publisher.publish(Listing(server=server, generation=1, tools=tools))
        with anyio.fail_after(20):
            while len(hub.catalog.tools) < 6_000:
                await anyio.lowlevel.checkpoint()
        one_by_one = 30  # up to 3,000 items each listing is published at once
        assert hub.catalog.version - before <= one_by_one + 3, "the rest comes in one step, or in few"
