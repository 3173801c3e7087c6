"""What the worker that answers for all knows of the others: totals that count each call once."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from starlette.types import Message, Receive, Scope, Send

from holdfast.control.server.views import History, HubInfo
from holdfast.control.server.workers import SharedTotals, SpokenApi, Worker, WorkerGroup
from holdfast.hub import CallOutcome
from tests.harness.web import serving

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-8", "HUB-5")]

ONE, OTHER = Worker(1, "1.sock"), Worker(2, "2.sock")


class Counting:
    """One of two workers."""

    def __init__(self, own: Worker) -> None:
        self.own = own
        self.history = History(wall=lambda: 1.0)
        self.slot = SimpleNamespace(machine=SimpleNamespace(life=SimpleNamespace(calls=0)))
        hub: Any = SimpleNamespace(
            registry=SimpleNamespace(slots={"x": self.slot}), config=SimpleNamespace(servers={"x": None})
        )
        self.touched: list[str] = []
        events: Any = SimpleNamespace(called=self.touched.append)
        group = WorkerGroup(own, lambda: (ONE, OTHER))
        self.totals = SharedTotals(hub, group, self.history, HubInfo(endpoint=""), events)

    def calls(self, outcome: CallOutcome, *seconds: float, reason: str = "") -> None:
        for each in seconds:
            ended: Any = SimpleNamespace(server="x", outcome=outcome, seconds=each, reason=reason)
            self.history.called(ended)

    def learns_from(self, other: Counting) -> None:
        self.totals.answered({other.own: other.totals.told()})

    @property
    def total(self) -> tuple[int, int]:
        seen = self.history.servers["x"]
        return seen.calls, seen.errors


async def test_the_calls_of_another_worker_count_once_and_are_not_told_as_its_own() -> None:
    one, other = Counting(ONE), Counting(OTHER)
    one.calls("completed", 0.1, 0.2)
    other.calls("failed", 0.3, reason="it broke")
    for _ in range(2):
        one.learns_from(other)
    assert one.total == (3, 1)
    assert one.totals.own()["x"][:2] == (2, 0), "what it was told is not its own"
    assert one.touched == ["x"]
    error = one.history.servers["x"].last_error
    assert error is not None
    assert error.text == "it broke"
    other.calls("completed", 0.4)
    one.learns_from(other)
    assert one.total == (4, 1)


async def test_calls_under_way_elsewhere_are_shown_until_they_are_at_rest() -> None:
    one, other = Counting(ONE), Counting(OTHER)
    other.calls("completed", 0.1)
    other.slot.machine.life.calls = 2
    one.learns_from(other)
    assert one.history.in_flight_elsewhere == {"x": 2}
    other.slot.machine.life.calls = 0
    one.learns_from(other)
    assert one.history.in_flight_elsewhere == {"x": 0}
    assert one.touched == ["x", "x"], "its readers are told when it is at rest"


async def test_a_server_that_was_removed_and_added_in_another_worker_counts_from_its_beginning() -> None:
    one, before, after = Counting(ONE), Counting(OTHER), Counting(OTHER)
    before.calls("completed", 0.1, 0.1, 0.1)
    one.learns_from(before)
    after.calls("completed", 0.1)
    one.learns_from(after)
    assert one.total == (4, 0)


async def test_what_an_ended_worker_left_counts_once() -> None:
    one, other = Counting(ONE), Counting(OTHER)
    other.calls("completed", 0.1)
    one.learns_from(other)
    other.calls("failed", 0.1)
    for _ in range(2):
        one.totals.worker_ended(json.dumps([(OTHER, other.totals.own())]).encode())
    assert one.total == (2, 1)


async def test_an_answer_that_comes_after_the_end_of_its_worker_counts_nothing_again() -> None:
    one, other = Counting(ONE), Counting(OTHER)
    other.calls("completed", 0.1, 0.1)
    under_way = {OTHER: other.totals.told()}
    other.calls("completed", 0.1)
    one.totals.worker_ended(json.dumps([(OTHER, other.totals.own())]).encode())
    one.totals.answered(under_way)
    assert one.total == (3, 0)


async def test_what_many_ended_workers_left_is_handed_on_as_one_sum() -> None:
    speaker, sizes = Counting(ONE), list[int]()
    for number in range(2, 40):
        leaving = Counting(Worker(number, f"{number}.sock"))
        leaving.calls("completed", 0.1)
        leaving.calls("failed", 0.1)
        speaker.learns_from(leaving)
        speaker.totals.worker_ended(leaving.totals.left())
        sizes.append(len(speaker.totals.left()))
    assert speaker.total == (76, 38)
    assert max(sizes) - min(sizes) <= 4, "no more than the digits of the counts"
    crashed = Counting(Worker(90, "90.sock"))
    crashed.calls("completed", 0.1)
    speaker.learns_from(crashed)
    speaker.calls("completed", 0.1)
    successor = Counting(OTHER)
    another = Counting(Worker(91, "91.sock"))
    another.calls("completed", 0.1)
    successor.totals.worker_ended(another.totals.left())
    successor.totals.worker_ended(speaker.totals.left())
    assert successor.total == (79, 38), "its own, those that ended before, and one that said nothing at its end"


async def test_the_end_of_one_worker_hides_no_call_under_way_in_another() -> None:
    one, other, leaving = Counting(ONE), Counting(OTHER), Counting(Worker(3, "3.sock"))
    other.calls("completed", 0.1)
    other.slot.machine.life.calls = 2
    one.learns_from(other)
    one.totals.worker_ended(leaving.totals.left())
    assert one.history.in_flight_elsewhere == {"x": 2}


async def test_what_a_third_worker_says_of_one_that_ended_counts_nothing_again() -> None:
    one, other, third = Counting(ONE), Counting(OTHER), Counting(Worker(3, "3.sock"))
    other.calls("completed", 0.1)
    third.totals.answered({Worker(4, "4.sock"): other.totals.told()})
    last = json.loads(other.totals.left())
    last[-1][0] = [4, "4.sock"]
    one.totals.worker_ended(json.dumps(last).encode())
    one.totals.worker_ended(third.totals.left())
    assert one.total == (1, 0)


async def test_the_oldest_worker_speaks_and_one_that_leaves_does_not_count() -> None:
    assert WorkerGroup(ONE, lambda: (ONE, OTHER)).speaker is None
    assert WorkerGroup(OTHER, lambda: (ONE, OTHER)).speaker == ONE
    leaving = WorkerGroup(ONE, lambda: (OTHER,))
    assert (leaving.speaker, leaving.is_member) == (OTHER, False)
    assert WorkerGroup(ONE, lambda: ()).speaker is None, "alone, it answers for itself"
    assert repr(leaving) == "<WorkerGroup 1 of [2]>"


async def test_a_request_that_is_sent_on_keeps_headers_and_cookies_that_are_repeated(tmp_path: Path) -> None:
    got, sent = dict[bytes, bytes](), list[Message]()

    async def speaker(scope: Scope, _: Receive, send: Send) -> None:
        got.update(scope["headers"])
        headers = [(b"set-cookie", b"a=1; Path=/"), (b"set-cookie", b"b=2; Path=/")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Message:
        if asked:
            return asked.pop()
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    asked: list[Message] = [{"type": "http.request", "body": b""}]
    headers = [(b"host", b"x"), (b"cookie", b"a=1"), (b"cookie", b"b=2"), (b"x-seen", b"1"), (b"x-seen", b"2")]
    scope: Scope = {"type": "http", "method": "GET", "raw_path": b"/api", "query_string": b"", "headers": headers}
    path = tmp_path / "1.sock"
    group = WorkerGroup(OTHER, lambda: (Worker(1, str(path)), OTHER))
    async with serving(speaker, unix=path):
        await SpokenApi(speaker, group, lambda _: False)({**scope, "client": ("127.0.0.1", 1)}, receive, send)
    assert (got[b"cookie"], got[b"x-seen"]) == (b"a=1; b=2", b"1, 2")
    cookies = [value for name, value in sent[0]["headers"] if name == b"set-cookie"]
    assert cookies == [b"a=1; Path=/", b"b=2; Path=/"]
