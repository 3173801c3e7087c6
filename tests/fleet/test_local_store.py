"""The store of the workers of one machine: whatever ends in the middle of an exchange does no harm to the next one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from holdfast.core import FleetExchange, FleetRecord
from holdfast.core.replicas.store import Claim
from holdfast.fleet import LocalEvents, LocalStore, LogWrite, local_store, serve_broker
from tests.harness.open_hubs import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-8")]


async def turns(count: int) -> None:
    """Let the event loop turn."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def loop_that_logs_nothing() -> AsyncIterator[None]:
    """Fail if a callback of the event loop fails in the block."""
    loop, said = asyncio.get_running_loop(), list[object]()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: said.append(context))
    try:
        yield
        await turns(5)
    finally:
        loop.set_exception_handler(before)
    assert said == []


async def test_an_exchange_that_is_cancelled_while_its_answer_comes_logs_nothing(tmp_path: Path) -> None:
    path, asked = tmp_path / "broker", anyio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        asked.set()
        await go.wait()
        writer.write(b"\0\0\0\2[]")
        await asyncio.sleep(0)  # the loop has seen the answer, and has told the exchange nothing yet
        exchange.cancel()
        writer.close()

    go = anyio.Event()
    server = await asyncio.start_unix_server(answer, path)
    async with loop_that_logs_nothing(), anyio.create_task_group() as tasks:
        store, exchange = LocalStore(path), anyio.CancelScope()

        async def ask() -> None:
            with exchange:
                await store.exchange(FleetExchange(replica="a", nonce="n"))

        tasks.start_soon(ask)
        await asked.wait()
        go.set()
    assert exchange.cancelled_caught
    server.close()


async def test_the_answer_to_a_question_that_was_cancelled_is_not_the_answer_to_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "broker"
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: serve_broker(path, task_status=task_status))
        events = LocalEvents(path)
        await events.append([LogWrite("theirs", b"private", 9), LogWrite("ours", b"own", 9)])
        for count in range(20):  # cancelled before, while and after the question is on its way
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as asking:
                    asking.start_soon(events.read, "theirs")
                    await turns(count)
                    scope.cancel()
            assert await events.read("ours") == [b"own"]
        await events.close()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("leaves", [True, False], ids=["the-worker-left", "the-worker-stays"])
async def test_a_broker_that_ends_ends_its_connections_and_logs_nothing(tmp_path: Path, leaves: bool) -> None:
    path = tmp_path / "broker"
    async with loop_that_logs_nothing():
        before = asyncio.all_tasks()
        async with anyio.create_task_group() as tasks:
            await tasks.start(lambda task_status: serve_broker(path, task_status=task_status))
            store = LocalStore(path)
            await store.exchange(FleetExchange(replica="a", nonce="n"))
            if leaves:
                await store.close()
                await turns(10)  # the broker looks whether the worker is alive
            tasks.cancel_scope.cancel()
        assert asyncio.all_tasks() == before
        await store.close()


@pytest.mark.requirement("FLEET-8", "PERF-8")
async def test_a_worker_is_told_once_of_what_the_others_change_until_it_asks(tmp_path: Path) -> None:
    path = tmp_path / "broker"
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await tasks.start(lambda task_status: serve_broker(path, task_status=task_status))
        one, other, earlier = (LocalStore(path) for _ in range(3))
        heard: list[str] = []
        one.on_change, other.on_change = (lambda: heard.append("one")), (lambda: heard.append("other"))
        for store in (one, other, earlier):
            stack.push_async_callback(store.close)

        async def asks(store: LocalStore, replica: str, *records: FleetRecord, leaving: bool = False) -> list[str]:
            """What the workers heard because of an exchange."""
            heard.clear()
            await store.exchange(FleetExchange(replica=replica, nonce="n", records=records, leaving=leaving))
            await turns(10)
            return list(heard)

        assert await asks(one, "one") == ["one"], "the first answer says that this broker tells"
        assert sorted(await asks(other, "other")) == ["one", "other"], "the first one learns who joined"
        assert await asks(earlier, "earlier") == ["other"], "an earlier release would take a notice for an answer"
        assert await asks(one, "one") == await asks(other, "other") == await asks(earlier, "earlier") == []
        assert await asks(one, "one", FleetRecord("a", "1", "{}")) == ["other"]
        assert await asks(earlier, "earlier", FleetRecord("a", "2", "{}")) == ["one"], "the other one knows already"
        assert await asks(earlier, "earlier", FleetRecord("a", "2", "{}")) == []
        assert await asks(other, "other") == await asks(one, "one") == []
        assert await asks(earlier, "earlier", leaving=True) == ["one", "other"]


WORKER = """
import signal, socket, sys
broker = socket.socket(socket.AF_UNIX)
broker.connect(sys.argv[1])
broker.sendall(bytes.fromhex(sys.argv[2]))
broker.recv(1)
print(flush=True)
sys.stdin.read()
broker.close()
print(flush=True)
signal.pause()
"""
"""A worker without its hub: it exchanges once, closes its connection when its stdin ends, and lives on."""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the process at the other end")
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "lives-on"])
async def test_the_right_of_a_killed_worker_ends_soon_and_that_of_one_that_lives_on_does_not(
    tmp_path: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged, is_alive = anyio.Event(), local_store._is_alive

    async def judge(pid: int) -> bool:
        try:
            return await is_alive(pid)
        finally:
            judged.set()

    monkeypatch.setattr(local_store, "_is_alive", judge)
    monkeypatch.setattr(local_store, "EXIT_SECONDS", 0.1)
    path, now = tmp_path / "broker", 0.0
    claim = Claim("probe/d/x", 100.0)
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await tasks.start(lambda task_status: serve_broker(path, clock=lambda: now, task_status=task_status))
        store = LocalStore(path)
        stack.push_async_callback(store.close)
        epoch = (await store.exchange(FleetExchange(replica="b", nonce="n"))).epoch
        asked = local_store._framed(msgspec.to_builtins(FleetExchange(replica="a", epoch=epoch, claims=(claim,)))).hex()
        worker = await anyio.open_process([sys.executable, "-I", "-S", "-c", WORKER, str(path), asked], stderr=None)
        stack.push_async_callback(worker.aclose)
        stack.callback(lambda: worker.returncode is None and worker.kill())
        assert worker.stdin is not None
        assert worker.stdout is not None
        await worker.stdout.receive(1)
        if killed:
            worker.kill()
            await worker.wait()
        else:
            await worker.stdin.aclose()
            await worker.stdout.receive(1)
        with anyio.fail_after(PATIENCE):
            await judged.wait()
            await turns(3)
            asked_again = FleetExchange(replica="b", epoch=epoch, claims=(claim,), roster=True)
            reply = await store.exchange(asked_again)
        (answer,) = reply.claims
        assert ("a" in (reply.replicas or {})) is not killed
        assert answer.granted is killed
