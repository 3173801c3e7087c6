"""Several clients at once behind one hub: what belongs to one reaches that one alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import mcp_types as types
import pytest

from tests.clients.programs import ClientEra
from tests.clients.recording_client import Companion, companion
from tests.conformance.fixture_hub import ServedHub, fixture_over_http, fixture_over_stdio, hub_over_http
from tests.conformance.inventory import WATCHED

pytestmark = [
    pytest.mark.anyio,
    # Sampling, logging and subscriptions as 2025 knew them are discouraged by now, and still about.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

USERS = ("ada", "bob", "cyd", "dan")
ROUNDS = 5
_ALL = 60.0


@pytest.fixture(scope="module", params=["legacy", "modern"])
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedHub]:
    """A hub in front of a shared server over HTTP, and of one that it spawns for each client."""
    folder: Path = tmp_path_factory.mktemp("together")
    async with fixture_over_http(folder=folder, era=request.param) as url:
        servers = {
            "shared": {"type": "http", "url": url},
            "own": {**fixture_over_stdio(era=request.param), "sharing": "per-client"},
        }
        async with hub_over_http(servers, folder=folder) as hub:
            yield hub


async def _crowd(stack: AsyncExitStack, served: ServedHub, server: str) -> list[Companion]:
    """Clients, each with a user of its own; of both eras, unless the server keeps something for each client.

    At 2026-07-28 there are no sessions: over HTTP nothing tells that two requests come from one client.
    """
    eras: tuple[ClientEra, ...] = ("legacy", "legacy") if server == "own" else ("legacy", "modern")
    users = USERS[:2] if server == "own" else USERS  # the hub starts a process for each client of that server
    url = served.one(server)
    return [
        await stack.enter_async_context(companion(url, eras[place % 2], user=user)) for place, user in enumerate(users)
    ]


@pytest.mark.requirement("HUB-10")
@pytest.mark.parametrize("server", ["shared", "own"])
async def test_each_client_is_asked_only_what_its_own_calls_ask(server: str, served: ServedHub) -> None:
    async def ask(client: Companion) -> None:
        for number in range(ROUNDS):
            question = f"{client.user} {number}"
            assert f'"username": "{client.user}"' in await client.call("test_elicitation", message=question)
            assert await client.call("test_sampling", prompt=question) == f"LLM response: {client.user}'s model"
            assert await client.call("test_list_roots") == f"file:///home/{client.user}"

    async with AsyncExitStack() as stack:
        crowd = await _crowd(stack, served, server)
        with anyio.fail_after(_ALL):
            async with anyio.create_task_group() as tasks:
                for client in crowd:
                    tasks.start_soon(ask, client)
        for client in crowd:
            others = [user for user in USERS if user != client.user]
            assert len(client.asked) == 2 * ROUNDS
            assert not [question for question in client.asked for other in others if other in question]


@pytest.mark.requirement("HUB-10")
@pytest.mark.parametrize("server", ["shared", "own"])
async def test_each_client_gets_the_progress_and_the_log_of_its_own_calls(server: str, served: ServedHub) -> None:
    seen: dict[str, list[tuple[float, str | None]]] = {}

    async def count(client: Companion, steps: int) -> None:
        seen[client.user] = await client.progress_of(steps)
        await client.call("test_tool_with_logging")

    async with AsyncExitStack() as stack:
        crowd = await _crowd(stack, served, server)
        with anyio.fail_after(_ALL):
            async with anyio.create_task_group() as tasks:
                for place, client in enumerate(crowd):
                    tasks.start_soon(count, client, 10 + place)
    for place, client in enumerate(crowd):
        assert seen[client.user] == [(step, f"step {step}") for step in range(1, 11 + place)]
        assert len(client.logged) == 3, client.user


@pytest.mark.requirement("HUB-10")
@pytest.mark.parametrize("server", ["shared", "own"])
async def test_cancelling_ones_call_leaves_the_calls_of_others_alone(server: str, served: ServedHub) -> None:
    async with AsyncExitStack() as stack:
        ada, bob, *_ = await _crowd(stack, served, server)
        with anyio.fail_after(_ALL):
            waiting = anyio.Event()

            async def begun(progress: float, total: float | None, message: str | None) -> None:
                waiting.set()

            async with anyio.create_task_group() as tasks:
                name = f"bob waits on {server} {served.base}"
                tasks.start_soon(_hold, bob, name, begun)
                await waiting.wait()
                await ada.give_up(f"ada waited on {server} {served.base}")
                assert await ada.call("test_echo", words="still here") == "still here"
                assert await bob.call("test_echo", words="me too") == "me too"
                tasks.cancel_scope.cancel()


@pytest.mark.requirement("HUB-2", "HUB-10")
async def test_only_a_subscriber_is_told_of_a_resource(served: ServedHub) -> None:
    async with AsyncExitStack() as stack:
        ada, bob, cyd, dan = await _crowd(stack, served, "shared")
        await ada.watch(WATCHED)
        await bob.watch(WATCHED)
        await ada.told_of("ResourceUpdated", cause=lambda: cyd.call("test_update_resource"))
        await bob.told_of("ResourceUpdated", cause=lambda: cyd.call("test_update_resource"))
        assert "ResourceUpdated" not in cyd.told | dan.told


@pytest.mark.requirement("HUB-3", "HUB-8")
async def test_all_servers_together_have_names_of_their_own_and_one_alone_keeps_its_names(served: ServedHub) -> None:
    async with companion(served.all, "modern") as client:
        names = {tool.name for tool in (await client.client.list_tools()).tools}
        assert {"shared__test_echo", "own__test_echo"} <= names
        assert await client.call("shared__test_echo", words="there") == "there"
        prompts = {prompt.name for prompt in (await client.client.list_prompts()).prompts}
        assert {"shared__test_simple_prompt", "own__test_simple_prompt"} <= prompts
    async with companion(served.one("shared"), "modern") as client:
        alone = {tool.name for tool in (await client.client.list_tools()).tools}
        assert "test_echo" in alone
        assert "shared__test_echo" not in alone


async def _hold(client: Companion, name: str, begun: object) -> types.CallToolResult:
    return await client.client.call_tool("test_wait", {"name": name}, progress_callback=begun)  # type: ignore[arg-type] # the SDK's protocol is spelled out by its user
