"""On a real proxy: a cold, slow authorization service loses no server, and a denial stays a denial."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.gateway.model import OUTAGE_STATUS
from holdfast.types import LoadResult
from tests.gateway.authorized_servers import ALICE, DENIAL, MALLORY, PROTOCOLS, ROUTES, Protocol, Scene, load, scene
from tests.peers.authz import AuthzService, GrpcAuthzService
from tests.peers.envoy import envoy_gateway
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("protocol", PROTOCOLS)]


def counted(result: LoadResult) -> dict[str, int]:
    statuses = [outcome.status for outcome in result.outcomes]
    return {status: statuses.count(status) for status in sorted(set(statuses))}


@pytest.mark.requirement("GW-7")
async def test_with_the_proxys_default_servers_fail_and_with_the_shipped_one_none_does(
    tmp_path: Path, protocol: Protocol
) -> None:
    async with scene(tmp_path, protocol) as stage:
        before = await load(stage.urls(stage.as_it_comes), ALICE, attempts=1)
        assert ROUTES - len(before.available) >= 10, counted(before)
        for attempts in (1, 3):
            await stage.look_ups.forget()
            after = await load(stage.urls(stage.shipped), ALICE, attempts=attempts)
            assert counted(after) == {"available": ROUTES}
            assert {outcome.attempts for outcome in after.outcomes} == {1}
        await _denied_is_denied(stage)


async def _denied_is_denied(stage: Scene) -> None:
    for peer in stage.peers:
        peer.requests.clear()
    denied = await load(stage.urls(stage.shipped), MALLORY, attempts=3)
    assert counted(denied) == {"denied": ROUTES}
    assert {outcome.attempts for outcome in denied.outcomes} == {1}
    assert all(DENIAL in (outcome.error or "") for outcome in denied.outcomes)
    assert stage.upstream_requests == 0


@pytest.mark.requirement("GW-4", "GW-7")
async def test_an_outage_is_told_from_a_denial_and_no_request_passes_in_it(tmp_path: Path, protocol: Protocol) -> None:
    authz = GrpcAuthzService() if protocol == "grpc" else AuthzService()
    async with McpPeer() as peer, authz:
        proxy = envoy_gateway(
            {"/mcp/a": peer.port},
            authz_port=authz.port,
            folder=tmp_path,
            protocol=protocol,
            timeout_ms=200,
            status_on_error=OUTAGE_STATUS,
        )
        async with proxy as gateway:
            authz.hold()
            silent = await load([gateway.url("/mcp/a")], ALICE, attempts=2)
            await authz.stop()
            gone = await load([gateway.url("/mcp/a")], ALICE, attempts=1)
    for result, attempts in ((silent, 2), (gone, 1)):
        (outcome,) = result.outcomes
        assert (outcome.status, outcome.attempts) == ("transient", attempts)
        assert "503" in (outcome.error or "")
    assert peer.requests == []


@pytest.mark.requirement("GW-7")
async def test_a_service_that_comes_up_during_a_load_costs_no_server(tmp_path: Path, protocol: Protocol) -> None:
    authz = GrpcAuthzService() if protocol == "grpc" else AuthzService()
    async with McpPeer() as peer, authz:
        proxy = envoy_gateway(
            {"/mcp/a": peer.port},
            authz_port=authz.port,
            folder=tmp_path,
            protocol=protocol,
            timeout_ms=300,
            status_on_error=OUTAGE_STATUS,
        )
        async with proxy as gateway:
            authz.hold_first(2)
            result = await load([gateway.url("/mcp/a")], ALICE, attempts=6)
    (outcome,) = result.outcomes
    assert outcome.status == "available"
    assert outcome.attempts > 2  # a busy machine may be slow once more: that is retried too
