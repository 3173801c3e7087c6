"""What workers tell each other about their calls: each call counts once, also while workers are replaced."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.control.server.history import History
from holdfast.control.server.shared_history import SharedHistory
from holdfast.core import State, Transition
from holdfast.fleet import PeerRequest
from holdfast.hub import CallEnded

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-8")]


class Group:
    """The workers of a supervisor, as one of them knows them."""

    def __init__(self, own: str, workers: dict[str, Worker]) -> None:
        self.own = own
        self._workers = workers
        self.others: tuple[str, ...] = ()
        self.oldest: str | None = None
        self.is_known = True

    @property
    def present(self) -> frozenset[str]:
        return frozenset(self._workers)

    async def ask(self, replica: str, operation: str, about: dict[str, Any], *, within: float) -> bytes | None:
        return await self._workers[replica].asked(self.own, operation, about, b"")

    async def ask_all(self, operation: str, *, body: bytes) -> None:
        for replica in self.others:
            await self._workers[replica].asked(self.own, operation, {}, body)


class Worker:
    """A worker without its hub."""

    def __init__(self, name: str, workers: dict[str, Worker]) -> None:
        workers[name] = self
        self.group = Group(name, workers)
        self.handlers: dict[str, Any] = {}
        self.history = History(wall=lambda: 100.0)
        slots = {"s": SimpleNamespace(machine=SimpleNamespace(life=SimpleNamespace(calls=0)))}
        hub: Any = SimpleNamespace(config=SimpleNamespace(servers={"s": None}), registry=SimpleNamespace(slots=slots))
        peers: Any = SimpleNamespace(handle=self.handlers.__setitem__)
        group: Any = self.group
        logs: Any = None
        self.shared = SharedHistory(hub, group, peers, history=self.history, logs=logs, called=lambda _: None)

    async def asked(self, sender: str, operation: str, about: dict[str, Any], body: bytes) -> bytes:
        answers: list[bytes] = []
        reply = SimpleNamespace(answer=lambda about=None, body=b"": answers.append(body))
        await self.handlers[operation](PeerRequest(sender, operation, about, body), reply)
        return answers[0] if answers else b""

    def calls(self, number: int) -> None:
        for _ in range(number):
            record = CallEnded(
                server="s", method="tools/call", outcome="completed", waited=0.0, seconds=0.01, at=0.0, error="",
                reason="", principal="",
            )  # fmt: skip
            self.history.called(record)

    async def tell(self) -> None:
        await self.shared._tell(everything=False)

    @property
    def total(self) -> int:
        return self.history.of("s").calls


async def test_totals_and_timelines_go_on_when_all_workers_are_replaced() -> None:
    workers: dict[str, Worker] = {}
    old1, old2 = Worker("old1", workers), Worker("old2", workers)
    old1.group.others, old2.group.others = ("old2",), ("old1",)
    old2.history(Transition(server="s", old=State.CONNECTING, new=State.CONNECTED, cause="", at=0.0, generation=1))
    old1.calls(3)
    old2.calls(4)
    await old1.tell()
    new1 = Worker("new1", workers)
    new1.group.oldest = "old2"
    new1.calls(1)
    old1.group.others = old2.group.others = ("old2", "new1")
    old1.calls(5)
    await old1.tell()  # before the new one asks: it is in what the new one is told
    await new1.shared._take_past()
    old1.calls(2)
    await old1.tell()
    assert new1.total == 1 + 3 + 4 + 5 + 2
    del workers["old1"]
    old2.group.others = ("new1",)
    old2.calls(6)
    await old2.tell()
    assert new1.total == 1 + 10 + 10
    assert [change.new for change in new1.history.of("s").timeline] == ["connected"]
    activity = new1.history.of("s").tally.activity(100.0)
    assert activity is not None
    assert sum(activity.calls) == 10 + 10, "none twice; its own call in a step that both had is left out"


async def test_a_worker_that_is_being_replaced_counts_once() -> None:
    workers: dict[str, Worker] = {}
    old, other, new = (Worker(name, workers) for name in ("old", "other", "new"))
    old.group.others = new.group.others = ("other",)
    other.group.others = ("new",)  # the newest of each number
    old.calls(10)
    await old.tell()
    new.calls(1)
    await new.tell()
    old.calls(2)
    await old.tell()
    assert other.total == 13


async def test_the_first_worker_has_no_past() -> None:
    first = Worker("first", {})
    await first.shared._take_past()
    assert first.shared._no_past == set()
    assert json.loads(await first.asked("x", "past", {"server": "s"}, b""))["of"] == {"first": [0, 0]}
    assert await first.asked("x", "past", {"server": "gone"}, b"") == b""
