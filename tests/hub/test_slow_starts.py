"""Starting is not failing: a process that is alive and silent is not ended before its ``startTimeout``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from holdfast.core.lifecycle.table import State
from holdfast.hub.loader import get_tools_with_resilience, load
from holdfast.wire import Starting
from tests.harness.open_hubs import defined, reaches, running
from tests.peers.leaks import no_leaks
from tests.peers.stdio import StdioPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LOAD-13")]

MakePeer: TypeAlias = Callable[..., StdioPeer]

HURRIED = {"attempts": 3, "attemptTimeout": "300ms", "totalTimeout": "900ms", "backoff": "10ms"}
"""Deadlines of a load that a slow process would pass many times over."""


async def test_the_hub_waits_for_a_process_that_starts_slowly_and_starts_it_once(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--read-after", "2")
    async with running({"slow": peer}, load=HURRIED) as hub:
        await reaches(hub, "slow")
        assert len(hub.catalog.tools) == 5
    assert peer.starts == 1


async def test_the_state_of_a_server_that_starts_shows_its_time_and_its_last_line(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--read-after", "60", "--stderr", "fetching packages")
    async with running({"slow": peer}) as hub:
        with anyio.fail_after(10):
            await peer.until(lambda: hub.server_health("slow").reason.endswith('stderr: "fetching packages"'))
        health = hub.server_health("slow")
        assert health.state is State.CONNECTING
        assert health.reason.startswith("starting for ")


async def test_the_state_of_a_lost_server_that_starts_again_says_why_it_was_lost(
    stdio_peer: MakePeer, tmp_path: Path
) -> None:
    peer, again = stdio_peer(), tmp_path / "again"
    once = f'test -e "{again}" && exec sleep 60; touch "{again}"; exec "$@"'
    server = {"command": "sh", "args": ["-c", once, "sh", peer.command, *peer.args]}
    async with running({"slow": server}) as hub:
        await reaches(hub, "slow")
        peer.kill()
        with anyio.fail_after(20):
            await peer.until(lambda: "starting for" in hub.server_health("slow").reason)
        assert hub.server_health("slow").reason.startswith("its process was killed by signal 9; starting for ")


async def test_a_load_waits_for_a_process_that_starts_slowly_and_starts_it_once(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--read-after", "2")
    with anyio.fail_after(20):
        result = await load({"mcpServers": {"slow": defined(peer)}, "holdfast": {"load": HURRIED}})
    assert result.available == ["slow"]
    assert (result.outcomes[0].attempts, peer.starts) == (1, 1)


async def test_a_load_says_how_a_start_goes_with_its_time_and_its_last_line(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--read-after", "3", "--stderr", "fetching packages with key-0123456789")
    seen: list[tuple[str, Starting]] = []
    server = defined(peer, env={"KEY": "key-0123456789"})
    with anyio.fail_after(20):
        await load(
            {"mcpServers": {"slow": server}}, on_starting=lambda server, starting: seen.append((server, starting))
        )
    assert {server for server, _ in seen} == {"slow"}
    times = [starting.seconds for _, starting in seen]
    assert times == sorted(times)
    assert seen[-1][1].line == "fetching packages with ***"
    assert seen[-1][1].words.startswith("starting for ")


async def test_a_process_that_never_speaks_is_given_up_at_its_start_timeout(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--never-answer", "--stderr", "waiting for a lock")
    server = {"transport": "stdio", "command": peer.command, "args": list(peer.args)}
    async with no_leaks():
        with anyio.fail_after(20):
            result = await get_tools_with_resilience({"mute": server}, max_attempts=1, start_timeout=0.5)
    assert result.status["mute"] == "transient"
    assert "no answer within 0." in result[2]["mute"]
    assert '; stderr: "waiting for a lock"' in result[2]["mute"]
    assert "startTimeout" in result.outcomes[0].hint
    assert (peer.starts, peer.living) == (1, [])


async def test_after_its_first_answer_a_process_has_the_time_of_an_attempt_and_no_more(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--stall-after-probe")
    with anyio.fail_after(20):
        result = await load({"mcpServers": {"stuck": defined(peer)}, "holdfast": {"load": {**HURRIED, "attempts": 1}}})
    assert result.status["stuck"] == "transient"
    assert "no answer within" in result[2]["stuck"]


async def test_a_cancelled_load_ends_a_process_that_still_starts(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--read-after", "60")
    async with no_leaks():
        with anyio.move_on_after(10) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(load, {"mcpServers": {"slow": defined(peer)}})
                await peer.until(lambda: peer.pids)
                scope.cancel()
    assert peer.living == []


async def test_disabling_ends_a_process_that_still_starts(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--read-after", "60")
    async with running({"slow": peer}) as hub:
        with anyio.fail_after(10):
            await peer.until(lambda: peer.pids)
            await hub.toggle("slow", False)
        assert hub.server_health("slow").state is State.DISABLED
        assert peer.living == []
