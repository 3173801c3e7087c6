"""Headers of a connection: given, or asked for before each request, and never shown."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from holdfast import CallFailed, get_tools_with_resilience
from tests.hub.loaders import http, loader
from tests.peers.http_fault import FaultServer, respond
from tests.peers.mcp_http import McpPeer

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("LOAD-7")
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_callable_is_asked_for_fresh_headers_before_each_request(*, asynchronous: bool) -> None:
    given: list[str] = []

    def fresh() -> dict[str, str]:
        given.append(f"Bearer token-{len(given)}")
        return {"Authorization": given[-1]}

    async def fresh_later() -> dict[str, str]:
        await anyio.lowlevel.checkpoint()
        return fresh()

    async with McpPeer() as peer:
        result = await get_tools_with_resilience({"a": http(peer.url, headers=fresh_later if asynchronous else fresh)})
        await peer.all_closed()
    assert result.available == ["a"]
    assert [request.headers["authorization"] for request in peer.requests] == given
    assert len(given) == 5


def raising(exc: Exception) -> Callable[[], dict[str, str]]:
    def give() -> dict[str, str]:
        raise exc

    return give


async def failing_later() -> dict[str, str]:
    raise ConnectionRefusedError(111, "the vault at hunter22")


BAD_HEADERS: list[tuple[Callable[[], Any], str]] = [
    (raising(KeyError("hunter22")), "permanent"),
    (raising(TimeoutError("hunter22")), "transient"),
    (failing_later, "transient"),
    (lambda: None, "permanent"),
    (lambda: "hunter22", "permanent"),
    (lambda: {"x": 5}, "permanent"),
    (lambda: {"x": "two\nlines hunter22"}, "permanent"),
    (lambda: {"bad name": "hunter22"}, "permanent"),
]


@pytest.mark.requirement("LOAD-7", "MSG-6")
@pytest.mark.parametrize(("headers", "status"), BAD_HEADERS)
async def test_headers_that_cannot_be_had_are_that_servers_failure_and_nothing_is_sent(
    headers: Callable[[], Awaitable[dict[str, str]]], status: str
) -> None:
    async with McpPeer() as peer, McpPeer() as other:
        result = await get_tools_with_resilience(
            {"a": http(peer.url, headers=headers), "b": http(other.url)}, base_backoff_s=0.001
        )
    assert result.status == {"a": status, "b": "available"}
    assert peer.requests == []
    assert "hunter22" not in repr(result.outcomes) + result.model_message


@pytest.mark.requirement("MSG-6")
async def test_what_a_server_tells_of_our_credentials_is_masked_in_outcomes_and_in_exceptions() -> None:
    echo = respond(400, '{"jsonrpc": "2.0", "id": 1, "error": {"code": -32600, "message": "bad hunter22 in it"}}')
    connection = http("", headers=lambda: {"x-key": "hunter22"})
    async with FaultServer(echo) as peer:
        connection["url"] = peer.origin
        result = await get_tools_with_resilience({"a": connection})
        (outcome,) = result.outcomes
        with pytest.raises(CallFailed) as failed:
            await loader({"a": connection}).call("a", "echo", {})
    shown = "".join(traceback.format_exception(failed.value)) + repr(failed.value.evidence) + repr(outcome)
    assert "hunter22" not in shown
    assert "bad *** in it" in shown
