"""The client of the control API says in plain words what is at the other end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.abc
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.control import control_client as clients
from holdfast.control.control_client import ControlClient
from holdfast.control.hub_finder import RunningHub
from holdfast.errors import NoHub
from tests.harness.web import serving
from tests.peers.http_fault import closed_port

pytestmark = pytest.mark.anyio


async def refusal(url: str) -> NoHub:
    with pytest.raises(NoHub) as refused:
        async with ControlClient(RunningHub(url=url, token="a-secret-token")) as hub:
            await hub.hub()
    assert "a-secret-token" not in refused.value.message + refused.value.hint
    return refused.value


@pytest.mark.requirement("HUB-5")
async def test_without_a_listener_there_is_no_hub() -> None:
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}"
        error = await refusal(url)
    assert error.message == f"no hub answers at {url}"
    assert "holdfast serve" in error.hint


@pytest.mark.requirement("SEC-3")
async def test_the_token_does_not_travel_unencrypted() -> None:
    error = await refusal("http://hub.example.com")
    assert "unencrypted" in error.message


@pytest.mark.requirement("HUB-5")
async def test_what_is_no_hub_is_said_to_be_none() -> None:
    async def page(_: Request) -> Response:
        return PlainTextResponse("<h1>hello</h1>")

    async with serving(Starlette(routes=[Route("/api/hub", page)])) as base:
        assert "is not that of a hub" in (await refusal(base)).message
    async with serving(Starlette()) as base:
        assert "is not that of a hub (HTTP 404)" in (await refusal(base)).message


@pytest.mark.requirement("HUB-5")
async def test_a_stream_that_went_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SILENCE_SECONDS", 0.05)
    ended = anyio.Event()

    async def silent(_: Request) -> Response:
        async def frames() -> AsyncIterator[bytes]:
            yield b"event: hello\ndata: {}\n\n"
            await ended.wait()

        return StreamingResponse(frames(), media_type="text/event-stream")

    async with serving(Starlette(routes=[Route("/api/events", silent)])) as base:
        async with ControlClient(RunningHub(url=base, token="t")) as hub:
            with anyio.fail_after(20), pytest.raises(NoHub):
                _ = [event async for event in hub.events()]
        ended.set()


@pytest.mark.requirement("HUB-5")
@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\n"])
async def test_a_stream_that_does_not_begin_is_given_up(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SILENCE_SECONDS", 0.05)

    async def says_no_more(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            if begun:
                await stream.send(begun)
            await anyio.sleep_forever()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, says_no_more)
        async with ControlClient(RunningHub(url=f"http://127.0.0.1:{port}", token="t")) as hub:
            with anyio.fail_after(20), pytest.raises(NoHub, match="cannot be reached"):
                _ = [event async for event in hub.events()]
        tasks.cancel_scope.cancel()
