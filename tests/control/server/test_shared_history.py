"""What workers tell each other about their calls: totals that both count once, and nothing of what they were told."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.control.server import shared_history
from holdfast.control.server.history import History
from holdfast.control.server.shared_history import SharedHistory
from holdfast.fleet import PeerRequest
from holdfast.hub import CallOutcome

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-8", "HUB-5")]


class Worker:
    """One of two workers; what it tells reaches the other one at once."""

    def __init__(self, name: str) -> None:
        self.name = self.own = name
        self.history = History(wall=lambda: 1.0)
        self.slot = SimpleNamespace(machine=SimpleNamespace(life=SimpleNamespace(calls=0)), redactor=None)
        self.others: tuple[str, ...] = ()
        self.present = frozenset({"one", "other"})
        self.other: Worker
        self.told: list[dict[str, Any]] = []
        hub: Any = SimpleNamespace(
            registry=SimpleNamespace(slots={"x": self.slot}), config=SimpleNamespace(servers={"x": None})
        )
        peers: Any = SimpleNamespace(handle=lambda name, handler: setattr(self, name, handler))
        group: Any = self
        logs: Any = None
        self.touched: list[str] = []
        self.shared = SharedHistory(hub, group, peers, history=self.history, logs=logs, called=self.touched.append)

    async def ask_all(self, operation: str, *, body: bytes) -> None:
        """As the group has it."""
        self.told.append(json.loads(body)["servers"])
        seen: Any = vars(self.other)["seen"]
        await seen(PeerRequest(self.name, operation, {}, body), None)

    def calls(self, outcome: CallOutcome, *seconds: float, reason: str = "") -> None:
        for each in seconds:
            ended: Any = SimpleNamespace(server="x", outcome=outcome, seconds=each, reason=reason)
            self.history.called(ended)

    async def tells(self, *, everything: bool = False) -> dict[str, Any] | None:
        """What it told; None if it had nothing to tell."""
        self.told.clear()
        await self.shared._tell(everything=everything)
        return self.told[0] if self.told else None

    @property
    def total(self) -> tuple[int, int]:
        seen = self.history.of("x")
        return seen.calls, seen.errors

    @property
    def recent(self) -> tuple[int, int]:
        """As the bars of the page have them."""
        activity = self.history.of("x").tally.activity(1.0)
        return (sum(activity.calls), sum(activity.errors)) if activity else (0, 0)


@pytest.fixture
def workers() -> tuple[Worker, Worker]:
    one, other = Worker("one"), Worker("other")
    one.other, other.other = other, one
    one.others, other.others = ("other",), ("one",)
    return one, other


async def test_each_worker_counts_all_calls_once_and_tells_its_own(workers: tuple[Worker, Worker]) -> None:
    one, other = workers
    one.calls("completed", 0.1, 0.2)
    other.calls("failed", 0.3, reason="it broke")
    for _ in range(2):
        for worker in workers:
            await worker.tells()
    assert one.total == other.total == (3, 1)
    assert await one.tells() is None
    assert await other.tells() is None, "what it was told is not its own"
    one.calls("completed", 0.4)
    told = await one.tells()
    assert told == {"x": {"calls": 3, "errors": 0, "times": [0.4], "error": "", "in_flight": 0}}
    assert other.total == one.total == (4, 1)
    error = one.history.of("x").last_error
    assert error is not None
    assert error.text == "it broke"
    assert other.touched == ["x", "x"]


async def test_a_worker_that_joined_is_told_everything_and_counts_nothing_twice(
    workers: tuple[Worker, Worker],
) -> None:
    one, other = workers
    one.calls("completed", 0.1)
    await one.tells()
    assert await one.tells() is None
    told = await one.tells(everything=True)
    assert told is not None
    assert told["x"]["calls"] == 1
    assert other.total == (1, 0)


async def test_calls_under_way_are_told_and_once_more_when_they_are_at_rest(workers: tuple[Worker, Worker]) -> None:
    one, other = workers
    one.calls("completed", 0.1)
    one.slot.machine.life.calls = 2
    for _ in range(2):
        assert await one.tells() is not None
        assert other.shared.in_flight("x") == 2
    one.slot.machine.life.calls = 0
    assert await one.tells() is not None
    assert other.shared.in_flight("x") == 0
    assert await one.tells() is None


async def test_only_some_durations_are_told_and_none_twice(workers: tuple[Worker, Worker]) -> None:
    one, _ = workers
    one.calls("completed", *(number / 100 for number in range(40)))
    told = await one.tells()
    assert told is not None
    assert told["x"]["times"] == [number / 100 for number in range(40 - shared_history.TOLD_TIMES, 40)]
    one.calls("failed", 0.5, reason="why")
    told = await one.tells()
    assert told is not None
    assert told["x"]["times"] == []


async def test_a_server_that_was_removed_and_added_again_is_counted_from_its_new_beginning(
    workers: tuple[Worker, Worker],
) -> None:
    one, other = workers
    one.calls("completed", 0.1, 0.1, 0.1)
    await one.tells()
    for worker in workers:
        worker.history.forget("x")
    one.calls("completed", 0.1)
    await one.tells()
    assert other.total == one.total == (1, 0)


async def past_of(worker: Worker) -> dict[str, Any]:
    """What a worker tells a new one."""
    bodies: list[bytes] = []
    reply: Any = SimpleNamespace(answer=lambda about=None, body=b"": bodies.append(body))
    asked: Any = vars(worker)["past"]
    await asked(PeerRequest("other", "past", {"server": "x"}, b""), reply)
    told: dict[str, Any] = json.loads(bodies[0])
    return told


async def test_a_new_worker_that_told_its_calls_before_it_took_over_the_past_counts_them_once(
    workers: tuple[Worker, Worker],
) -> None:
    one, other = workers
    one.calls("completed", 0.1, 0.2, 0.3)
    other.calls("failed", 0.4, 0.5)
    await other.tells()  # the oldest worker did not answer when it was asked for the past
    assert one.total == (5, 2)
    other.shared._inherit("x", await past_of(one))
    assert other.total == (5, 2)
    assert other.recent == one.recent == (5, 2)
    for worker in (one, other, one):
        await worker.tells(everything=True)
    assert one.total == other.total == (5, 2)


async def test_calls_of_a_third_worker_that_the_oldest_one_has_not_heard_of_are_not_lost(
    workers: tuple[Worker, Worker],
) -> None:
    one, other = workers
    seen: Any = vars(other)["seen"]
    told = {"servers": {"x": {"calls": 7, "errors": 1, "times": [], "error": "", "in_flight": 0}}, "stderr": []}
    third = PeerRequest("third", "seen", {}, json.dumps(told).encode())
    one.present = other.present = frozenset({"one", "other", "third"})
    await seen(third, None)
    other.shared._inherit("x", await past_of(one))
    await seen(third, None)
    assert other.total == (7, 1)
