"""Many clients on several servers: every answer comes, to the one who asked, and nothing stays behind."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.clients.programs import ClientEra
from tests.clients.recording_client import Companion, companion
from tests.conformance.fixture_hub import ServedHub, fixture_over_http, fixture_over_stdio, hub_over_http
from tests.harness.waiting import came_true

pytestmark = pytest.mark.anyio

CLIENTS = 16
CALLS = 12
SERVERS = ("web", "legacy", "modern", "child")
_ALL = 90.0
_SETTLE = 10.0


@asynccontextmanager
async def _hub(folder: Path) -> AsyncIterator[ServedHub]:
    async with (
        fixture_over_http(folder=folder) as web,
        fixture_over_http(folder=folder, era="legacy") as legacy,
        fixture_over_http(folder=folder, era="modern") as modern,
    ):
        servers = {
            "web": {"type": "http", "url": web},
            "legacy": {"type": "http", "url": legacy},
            "modern": {"type": "http", "url": modern},
            "child": fixture_over_stdio(),
        }
        async with hub_over_http(servers, folder=folder) as hub:
            yield hub


@pytest.mark.requirement("HUB-1", "HUB-10")
async def test_every_call_of_many_clients_is_answered_to_its_caller_and_nothing_stays_behind(tmp_path: Path) -> None:
    async with _hub(tmp_path) as hub:
        assert await _crowd(hub, clients=CLIENTS, calls=CALLS) == CLIENTS * CALLS
        before = _descriptors(hub)
        assert await _crowd(hub, clients=CLIENTS, calls=CALLS) == CLIENTS * CALLS
        # Connections to servers are kept for the next call, and how many were needed at once is a matter of chance;
        # a leak per client is as large as the number of clients.
        await came_true(lambda: _descriptors(hub) < before + CLIENTS)


@pytest.mark.requirement("HUB-1")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_calls_under_way_when_the_hub_is_told_to_end_are_answered(era: ClientEra, tmp_path: Path) -> None:
    answers: list[str] = []
    begun: list[str] = []
    all_begun = anyio.Event()

    async def call(client: Companion) -> None:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            if client.user not in begun:
                begun.append(client.user)
            if len(begun) == CLIENTS:
                all_begun.set()

        result = await client.client.call_tool("test_slow", {"seconds": 2}, progress_callback=note)
        answers.append(result.model_dump(mode="json")["content"][0]["text"])

    async with _hub(tmp_path) as hub, AsyncExitStack() as stack:
        crowd = [
            await stack.enter_async_context(companion(hub.one(SERVERS[place % 4]), era, user=f"user {place}"))
            for place in range(CLIENTS)
        ]
        with anyio.fail_after(_ALL):
            for client in crowd:
                # Else the SDK lists the tools after the call, to check the answer, when the hub is gone.
                await client.client.list_tools()
            async with anyio.create_task_group() as tasks:
                for client in crowd:
                    tasks.start_soon(call, client)
                await all_begun.wait()
                os.kill(hub.process.pid, signal.SIGTERM)
            assert await hub.process.ended() == 0
    assert answers == ["Slept for 2 s."] * CLIENTS


async def _crowd(hub: ServedHub, *, clients: int, calls: int) -> int:
    answered: list[str] = []

    async def work(place: int) -> None:
        async with companion(hub.all, "legacy" if place % 2 else "modern") as client:
            for number in range(calls):
                words = f"client {place}, call {number}"
                server = SERVERS[(place + number) % len(SERVERS)]
                assert await client.call(f"{server}__test_echo", words=words) == words
                answered.append(words)

    with anyio.fail_after(_ALL):
        async with anyio.create_task_group() as tasks:
            for place in range(clients):
                tasks.start_soon(work, place)
    return len(set(answered))


def _descriptors(hub: ServedHub) -> int:
    return len(list(Path(f"/proc/{hub.process.pid}/fd").iterdir()))
