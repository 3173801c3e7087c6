"""One document over HTTP: bounded, and its credentials kept to their origin."""

from __future__ import annotations

import pytest

from holdfast.core.evidence import HttpStatus, OverBound, PlainHttpRefused, Redirected, TimedOut
from holdfast.errors import ServerFailure
from holdfast.gateway.bridge import AdminAddressWatch, GatewayDown, GatewayRunning
from holdfast.wire.http.client import fetch
from tests.peers.http_fault import Behaviour, FaultServer, accept_and_ignore, never_answer, oversized, redirect, respond
from tests.peers.leaks import no_leaks

pytestmark = pytest.mark.anyio

CREDENTIALS = {"authorization": "Bearer t0ken-that-must-stay-secret"}


async def test_a_document_is_fetched_with_its_credentials_and_nothing_is_left_open() -> None:
    async with FaultServer(respond(200, "{}")) as server, no_leaks():
        assert await fetch(server.origin, headers=CREDENTIALS) == b"{}"
        await server.all_closed()
    assert server.requests[0].headers["authorization"] == CREDENTIALS["authorization"]


@pytest.mark.parametrize("silence", [never_answer, accept_and_ignore])
async def test_a_server_that_says_nothing_is_given_up(silence: Behaviour) -> None:
    async with FaultServer(silence) as server:
        with pytest.raises(ServerFailure) as failed:
            await fetch(server.origin, within=0.2)
    assert isinstance(failed.value.evidence, TimedOut)


async def test_a_document_that_is_too_large_is_not_read_to_its_end() -> None:
    async with FaultServer(oversized(1 << 20)) as server:
        with pytest.raises(ServerFailure) as failed:
            await fetch(server.origin, largest=1000)
    assert isinstance(failed.value.evidence, OverBound)


async def test_an_error_status_is_no_document() -> None:
    async with FaultServer(respond(404, "gone")) as server:
        with pytest.raises(ServerFailure) as failed:
            await fetch(server.origin)
    assert isinstance(failed.value.evidence, HttpStatus)
    assert failed.value.evidence.status == 404


async def test_credentials_do_not_follow_a_redirect_to_another_origin() -> None:
    async with FaultServer(respond(200, "{}")) as other, FaultServer(redirect(f"{other.origin}/x")) as server:
        with pytest.raises(ServerFailure) as failed:
            await fetch(server.origin, headers=CREDENTIALS)
    assert isinstance(failed.value.evidence, Redirected)
    assert other.requests == []


async def test_credentials_do_not_go_in_the_clear_beyond_this_machine() -> None:
    with pytest.raises(ServerFailure) as failed:
        await fetch("http://hub.invalid/", headers=CREDENTIALS)
    assert isinstance(failed.value.evidence, PlainHttpRefused)


async def test_the_gateway_is_seen_at_its_admin_address_or_said_to_be_down() -> None:
    async with FaultServer(respond(200, '{"backends": [{"name": "holdfast-config-1"}]}')) as server:
        view = await AdminAddressWatch(server.origin).look()
        assert isinstance(view, GatewayRunning)
        assert view.runs("holdfast-config-1")
        assert not view.runs("holdfast-config-2")
        assert not view.runs("")
        assert server.requests[0].path == "/config_dump"
    assert isinstance(await AdminAddressWatch(server.origin).look(), GatewayDown)
