"""What a call costs, in counts: tasks and timers, the same with one server as with many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.front.conftest import front
from tests.front.peer_server import running
from tests.front.raw_session import Session

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("PERF-4")]

CALLS = 20
MANY = 100


def _name(one: object) -> str:
    return str(getattr(one, "__qualname__", ""))


class Counter:
    """Counts the tasks and the timers of the event loop that are made in the hub's own code."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tasks: list[str] = []
        self.timers: list[str] = []
        loop: Any = asyncio.get_running_loop()
        self._count(monkeypatch, loop, "create_task", lambda coro, *_, **__: self.tasks.append(_name(coro)))
        self._count(monkeypatch, loop, "call_at", lambda _, call, *__, **___: self.timers.append(_name(call)))

    def _count(self, monkeypatch: pytest.MonkeyPatch, loop: Any, name: str, note: Callable[..., None]) -> None:
        real = getattr(loop, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return real(*args, **kwargs)

        monkeypatch.setattr(loop, name, counted)

    def of_the_hub(self) -> tuple[list[str], list[str]]:
        ours = ("HttpConnection.", "Pool.", "_Connection.", "Deadlines.", "Call.", "Forwarder.", "Slot.", "McpServer.")
        return [one for one in self.tasks if one.startswith(ours)], [one for one in self.timers if one.startswith(ours)]


async def _cost(servers: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    async with running("legacy") as origin, httpx2.AsyncClient() as http:
        fleet = {f"s{number}": {"url": origin.url, "lazy": number > 0} for number in range(servers)}
        async with front(fleet) as served, asyncio.timeout(60):
            session = Session(http, served.all)
            await session.begin()
            await _call(session)
            with monkeypatch.context() as patched:
                counter = Counter(patched)
                for _ in range(CALLS):
                    await _call(session)
                return counter.of_the_hub()


async def _call(session: Session) -> None:
    async with session.call("s0__echo", {"text": "x"}) as events:
        assert "x" in (await anext(events))["data"]


async def test_a_call_makes_no_task_and_no_timer_and_costs_the_same_with_many_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = await _cost(1, monkeypatch), await _cost(MANY, monkeypatch)
    assert few[0] == many[0] == []
    assert max(len(few[1]), len(many[1])) <= 2, "timers are shared, and set again now and then"
