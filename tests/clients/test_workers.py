"""The same scenario through ``serve --workers 2``: requests of one client arrive at different workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.clients.programs import CLIENTS, Program
from tests.clients.scenario import difference
from tests.conformance.fixture_hub import ServedHub, fixture_over_stdio, hub_over_http

pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.requirement("FLEET-5", "FLEET-8")]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """The workers start a connection, and a stdio server, for each era when it is first used."""


@pytest.fixture(scope="module")
async def workers(fixture_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedHub]:
    servers = {"web": {"type": "http", "url": fixture_url}, "child": fixture_over_stdio()}
    async with hub_over_http(servers, "--workers", "2", folder=tmp_path_factory.mktemp("workers")) as hub:
        yield hub


@pytest.mark.parametrize("server", ["web", "child"])
@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_client_runs_the_scenario_through_workers(
    client: Program, server: str, workers: ServedHub, tmp_path: Path
) -> None:
    assert difference(await client.run(workers.one(server), folder=tmp_path)) == {}
