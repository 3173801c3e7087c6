"""A call to a tool that was never listed answers with the state of the server that may own it (HUB-9)."""

from __future__ import annotations

import pytest

from holdfast import Hub, ServerUnavailable
from holdfast.errors import (
    ServerDisabled,
    ServerNotReady,
    ServerPermanentlyFailed,
    UnknownTool,
)
from holdfast.testing import Fault, HttpServer, StdioServer
from tests.harness.open_hubs import reaches, running, settled

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-9")]

MISSING = {"command": "holdfast-no-such-program"}


async def refusal(hub: Hub, name: str) -> ServerUnavailable:
    with pytest.raises(ServerUnavailable) as refused:
        await hub.call_tool(name)
    return refused.value


async def test_a_tool_of_a_server_that_never_came_up_answers_with_its_state_and_reason() -> None:
    async with running({"lost": MISSING}) as hub:
        await settled(hub)
        error = await refusal(hub, "lost__search")
        prompt = pytest.raises(ServerPermanentlyFailed)
        with prompt:
            await hub.get_prompt("lost__greeting")
    assert isinstance(error, ServerPermanentlyFailed)
    assert (error.server_id, error.state) == ("lost", "permanently_failed")
    assert "was not found" in error.reason


async def test_a_tool_of_a_server_that_is_starting_answers_that_it_is_not_ready() -> None:
    async with HttpServer({"a": "1"}) as server:
        await server.fail(Fault.HANG)
        async with running({"slow": server.definition}, call={"readyTimeout": "100ms"}) as hub:
            assert isinstance(await refusal(hub, "slow__a"), ServerNotReady)


async def test_a_tool_of_a_server_that_was_disabled_before_its_first_listing_answers_so() -> None:
    with StdioServer({"a": "1"}) as server:
        async with running({"off": {**server.definition, "enabled": False}}) as hub:
            assert isinstance(await refusal(hub, "off__a"), ServerDisabled)
        assert server.pids == []


async def test_a_call_to_a_server_with_a_bad_definition_answers_with_the_problem() -> None:
    async with running({"bad": {"comand": "x"}}) as hub:
        await settled(hub)
        assert "comand" in (await refusal(hub, "bad__a")).reason


@pytest.mark.parametrize("name", ["lazy", "my lazy.server"])
async def test_the_first_call_starts_a_lazy_server_that_was_never_listed(name: str) -> None:
    with StdioServer({"forecast": "sunny"}) as server:
        definition = {name: {**server.definition, "lazy": True}}
        async with running(definition, call={"readyTimeout": "20s"}) as first:
            await first.reconnect(name)
            (shown,) = (entry.name for entry in first.catalog.tools)
        async with running(definition, call={"readyTimeout": "20s"}) as hub:
            assert hub.catalog.tools == ()
            assert (await hub.call_tool(shown)).text == "sunny"


async def test_a_server_without_a_prefix_may_own_every_name_until_it_is_connected() -> None:
    async with HttpServer({"a": "1"}) as server:
        await server.fail(Fault.REFUSE)
        async with running({"bare": {**server.definition, "prefix": ""}}) as hub:
            await settled(hub)
            assert (await refusal(hub, "search")).server_id == "bare"
            await server.heal()
            await reaches(hub, "bare")
            assert (await hub.call_tool("a")).text == "1"
            with pytest.raises(UnknownTool):
                await hub.call_tool("search")


async def test_unknown_is_said_if_no_server_can_own_the_name_or_its_owner_does_not_list_it() -> None:
    with StdioServer({"a": "1"}) as server:
        servers = {"up": server.definition, "lost": {**MISSING, "tools": {"exclude": ["secret*"]}}}
        async with running(servers) as hub:
            await settled(hub)
            for name in ("up__b", "nothing__b", "lost", "lost__", "lost__secret_1"):
                with pytest.raises(UnknownTool):
                    await hub.call_tool(name)
            assert (await refusal(hub, "lost__open")).server_id == "lost"


async def test_the_longest_prefix_owns_a_name() -> None:
    async with running({"a": MISSING, "a__b": MISSING}) as hub:
        await settled(hub)
        assert (await refusal(hub, "a__b__c")).server_id == "a__b"
