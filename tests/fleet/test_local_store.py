"""The store of the workers of one machine: whatever ends in the middle of an exchange does no harm to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from holdfast.core import FleetExchange, SharedStore
from holdfast.core.replicas.store import Claim
from holdfast.fleet import LocalStore, LogWrite, serve_broker

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
        events = LocalStore(path)
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
                await turns(10)
            tasks.cancel_scope.cancel()
        assert asyncio.all_tasks() == before
        await store.close()


async def test_a_worker_that_died_is_not_present_and_has_no_right_any_more(tmp_path: Path) -> None:
    path, content, claim = tmp_path / "broker", SharedStore(), Claim("probe/d/x", 100.0)
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await tasks.start(lambda task_status: serve_broker(path, content, task_status=task_status))
        one, other = LocalStore(path), LocalStore(path)
        for store in (one, other):
            stack.push_async_callback(store.close)
        epoch = (await one.exchange(FleetExchange(replica="one", nonce="n", claims=(claim,)))).epoch
        asked = FleetExchange(replica="other", epoch=epoch, claims=(claim,), roster=True)
        await one.close()  # a late answer may end a connection too: that alone says nothing
        before = await other.exchange(asked)
        content.died("one")
        after = await other.exchange(asked)
    assert ([reply.claims[0].granted for reply in (before, after)]) == [False, True]
    assert [set(reply.replicas or ()) for reply in (before, after)] == [{"one", "other"}, {"other"}]
