from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.programs import CLIENTS, ClientEra, Program, inspect
from tests.clients.scenario import difference
from tests.conformance.fixture_hub import ServedHub

pytestmark = pytest.mark.anyio

ERAS: tuple[ClientEra, ...] = ("legacy", "modern")


@pytest.fixture(params=CLIENTS, ids=str)
def client(request: pytest.FixtureRequest) -> Program:
    program: Program = request.param
    return program


async def test_client_runs_the_scenario_directly(client: Program, fixture_url: str, tmp_path: Path) -> None:
    assert difference(await client.run(fixture_url, folder=tmp_path)) == {}


@pytest.mark.requirement("HUB-1", "HUB-2", "HUB-15")
@pytest.mark.parametrize("server", ["web", "child"])
async def test_client_runs_the_scenario_through_the_hub(
    client: Program, server: str, hub: ServedHub, tmp_path: Path
) -> None:
    assert difference(await client.run(hub.one(server), folder=tmp_path)) == {}


@pytest.mark.field  # it says nothing of the hub: only that Inspector and the server agree
@pytest.mark.parametrize("era", ERAS)
async def test_inspector_lists_and_uses_directly(era: ClientEra, fixture_url: str, tmp_path: Path) -> None:
    await _inspects(fixture_url, era, folder=tmp_path)


@pytest.mark.requirement("HUB-1", "HUB-15")
@pytest.mark.parametrize("era", ERAS)
async def test_inspector_lists_and_uses_through_the_hub(era: ClientEra, hub: ServedHub, tmp_path: Path) -> None:
    await _inspects(hub.one("web"), era, folder=tmp_path)


async def _inspects(url: str, era: ClientEra, *, folder: Path) -> None:
    """Its command line neither elicits, samples, shows progress nor cancels: it lists, calls, gets and reads."""
    tools = await inspect(url, era, "tools/list", folder=folder)
    prompts = await inspect(url, era, "prompts/list", folder=folder)
    resources = await inspect(url, era, "resources/list", folder=folder)
    templates = await inspect(url, era, "resources/templates/list", folder=folder)
    named = ("--prompt-name", "test_prompt_with_arguments", "--prompt-args", "arg1=one", "arg2=two")
    prompt = await inspect(url, era, "prompts/get", *named, folder=folder)
    resource = await inspect(url, era, "resources/read", "--uri", "test://static-text", folder=folder)
    arguments = ("--tool-name", "test_echo", "--tool-arg", "words=hello")
    echo = await inspect(url, era, "tools/call", *arguments, folder=folder)
    report = {
        "tools": sorted(tool["name"] for tool in tools["tools"]),
        "prompts": sorted(item["name"] for item in prompts["prompts"]),
        "resources": sorted(item["uri"] for item in resources["resources"]),
        "templates": sorted(item["uriTemplate"] for item in templates["resourceTemplates"]),
        "prompt": prompt["messages"][0]["content"]["text"],
        "resource": resource["contents"][0]["text"],
        "echo": echo["content"][0]["text"],
    }
    assert difference(report, only=frozenset(report)) == {}
