"""A server that is removed takes its own endpoint with it: those who wait for an answer hear why, then sessions end."""

from __future__ import annotations

import anyio
import httpx2
import pytest

from holdfast.config.read import config_from_mapping
from tests.harness.raw_session import Session
from tests.harness.served_hub import Person, Served, front, text_of
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-8", "LIFE-20")]

NOTHING = config_from_mapping({"mcpServers": {}})


async def test_a_call_to_a_removed_server_is_answered_and_its_session_goes_on_when_the_server_is_back(
    ada: Person,
) -> None:
    answers: list[str] = []
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.one("o"), "legacy") as client,
    ):
        config = served.hub.config

        async def call() -> None:
            answers.append(text_of(await client.call_tool("wait", {})))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await origin.waiting.wait()
                await _removed(served)
            async with httpx2.AsyncClient() as http:
                gone = await http.get(served.one("o"))
            await served.hub.apply(config)
            assert text_of(await client.call_tool("echo", {"text": "hi"})) == "hi"
    assert len(answers) == 1
    assert gone.status_code == 404


async def test_a_listener_of_a_removed_server_sees_the_stream_end(ada: Person) -> None:
    async with (
        running() as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.one("o"), "modern") as client,
    ):
        with anyio.fail_after(20):
            async with client.listen(tools_list_changed=True) as events:
                await served.hub.apply(NOTHING)
                assert [type(event).__name__ async for event in events] in ([], ["ToolsListChanged"])


async def test_the_endpoint_of_a_removed_server_that_never_came_up_ends_too() -> None:
    async with front({"o": {"command": "no-such-command-at-all"}}) as served:
        with anyio.fail_after(10):
            await _removed(served)


async def _removed(served: Served) -> None:
    """Remove the server, and wait until a session that only waits for notices has seen its end."""
    async with httpx2.AsyncClient() as http:
        session = Session(http, served.one("o"))
        await session.begin()
        async with session.notices() as events:
            await served.hub.apply(NOTHING)
            async for _ in events:
                pass
