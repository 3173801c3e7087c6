"""Clients and servers of either era, in every combination, and what can go on between them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
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

# Each takes a fraction of a second; one that does not work must not wait for the hub's own patience.
_MATTER = 20.0

ERAS: tuple[ClientEra, ...] = ("legacy", "modern")


async def _call(client: Companion) -> None:
    assert await client.call("test_echo", words="hello") == "hello"


async def _progress(client: Companion) -> None:
    assert await client.progress_of(20) == [(step, f"step {step}") for step in range(1, 21)]


async def _cancel(client: Companion) -> None:
    name = str(uuid.uuid4())
    await client.give_up(name)
    assert await client.call("test_cancelled", name=name) == f"{name} was cancelled"


async def _elicitation(client: Companion) -> None:
    said = await client.call("test_elicitation", message="Who are you?")
    assert said == 'User response: action: accept, content: {"username": "ada", "email": "ada@example.com"}'
    assert client.asked == ["Who are you?"]


async def _sampling(client: Companion) -> None:
    assert await client.call("test_sampling", prompt="What is the answer?") == "LLM response: ada's model"
    assert "What is the answer?" in client.asked[0]


async def _rounds(client: Companion) -> None:
    said = await client.call("test_input_required_result_multiple_inputs")
    assert said == "ada's model, None, in file:///home/ada"


async def _subscribe(client: Companion) -> None:
    await client.watch(WATCHED)
    await client.told_of("ResourceUpdated", cause=lambda: client.call("test_update_resource"))


async def _list_changed(client: Companion) -> None:
    await client.watch_tools()
    await client.told_of("ToolsListChanged", cause=lambda: client.call("test_trigger_tool_change"))


async def _log(client: Companion) -> None:
    if client.era == "legacy":
        await client.client.set_logging_level("info")
    await client.call("test_tool_with_logging")
    await client.until(lambda: len(client.logged) >= 3)
    assert sorted(client.logged) == ["Tool execution completed", "Tool execution started", "Tool processing data"]


MATTERS: dict[str, Callable[[Companion], Awaitable[None]]] = {
    "call": _call,
    "progress": _progress,
    "cancel": _cancel,
    "elicitation": _elicitation,
    "sampling": _sampling,
    "several-questions": _rounds,
    "subscribe": _subscribe,
    "list-changed": _list_changed,
    "log": _log,
}


@pytest.fixture(scope="module", params=ERAS)
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, str]]:
    """The era and the URL of a server that knows no other era."""
    async with fixture_over_http(folder=tmp_path_factory.mktemp("server"), era=request.param) as url:
        yield request.param, url


@pytest.fixture(scope="module")
async def hub(server: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedHub]:
    """A hub in front of that server, and of one of the same era that it spawns."""
    era, url = server
    servers = {"web": {"type": "http", "url": url}, "child": fixture_over_stdio(era=era)}  # type: ignore[arg-type] # pytest has no types for parameters
    async with hub_over_http(servers, folder=tmp_path_factory.mktemp("hub")) as served:
        yield served


@pytest.mark.parametrize("matter", MATTERS)
async def test_client_and_server_of_one_era_agree_directly(matter: str, server: tuple[str, str]) -> None:
    era, url = server
    async with companion(url, "legacy" if era == "legacy" else "modern") as client:
        with anyio.fail_after(_MATTER):
            await MATTERS[matter](client)


@pytest.mark.requirement("HUB-2", "HUB-7")
@pytest.mark.parametrize("matter", MATTERS)
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("behind", ["web", "child"])
async def test_client_of_any_era_agrees_with_a_server_of_any_era_through_the_hub(
    matter: str, era: ClientEra, behind: str, hub: ServedHub
) -> None:
    async with companion(hub.one(behind), era) as client:
        with anyio.fail_after(_MATTER):
            await MATTERS[matter](client)
