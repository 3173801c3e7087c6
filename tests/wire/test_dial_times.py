"""What a dial is given, how long each of its steps may take, and what is told of one that took longer."""

from __future__ import annotations

import errno
import logging
import math
import os
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.config import Limits, ServerSpec
from holdfast.core import Evidence, NetworkFailure, NetworkFault, OutOfDescriptors, ProcessExit, Redactor, TimedOut
from holdfast.errors import ServerFailure
from holdfast.wire import dial
from holdfast.wire.dial import Attempt, Dialer, Starting
from holdfast.wire.http.transport import HttpDispatcher, SseDispatcher
from holdfast.wire.stdio_transport import StdioDispatcher
from holdfast.wire.warden import Warden

pytestmark = pytest.mark.anyio

FAILURE = NetworkFailure(fault=NetworkFault.RESET)


class Opened:
    """A dialer whose transport and handshake note what they were given; the handshake fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *failures: Evidence) -> None:
        self.failures = [*failures]
        self.greeted: list[tuple[str | None, bool]] = []
        self.times: list[tuple[float, float]] = []
        self.log: list[str] = []
        self.dialer: Any = Dialer(warden=Warden(), limits=Limits())
        monkeypatch.setattr(self.dialer, "_open", self._open)
        monkeypatch.setattr(dial, "negotiate", self._negotiate)

    async def _open(self, stack: Any, spec: Any, redactor: Any, hooks: Any, times: Any) -> Any:
        self.times.append((round(times.deadline - anyio.current_time(), 1), times.within))

        async def close() -> None:
            self.log.append("closed")

        return SimpleNamespace(aclose=close, start=lambda: self.log.append("started"))

    async def _negotiate(self, wire: Any, *, era: Any, has_read: Any, fixed: bool) -> Any:
        self.greeted.append((era, fixed))
        raise ServerFailure(self.failures.pop(0))

    async def failure(self, spec: ServerSpec, **more: Any) -> Evidence:
        with pytest.raises(ServerFailure) as failed:
            async with self.dialer.connect(spec, redactor=Redactor(), **{"within": 20.0, **more}):
                pytest.fail("there is no connection")
        return failed.value.evidence


def spec(transport: Any = "http", **more: Any) -> ServerSpec:
    return ServerSpec(id="a", transport=transport, url="http://127.0.0.1:1/", command="x", **more)


@pytest.mark.parametrize(
    ("server", "known", "greeted"),
    [
        (spec(), None, (None, False)),
        (spec(), "legacy", ("legacy", False)),
        (spec(), "modern", ("modern", False)),
        (spec(era="legacy"), "modern", ("legacy", True)),
        (spec(era="modern"), "legacy", ("modern", True)),
        (spec("sse"), None, ("legacy", False)),
        (spec("sse"), "modern", ("legacy", False)),
    ],
)
async def test_a_handshake_is_of_the_era_of_the_definition_or_of_the_last_time(
    monkeypatch: pytest.MonkeyPatch, server: ServerSpec, known: Any, greeted: tuple[str | None, bool]
) -> None:
    opened = Opened(monkeypatch, FAILURE)
    assert await opened.failure(server, era=known) == FAILURE
    assert opened.greeted == [greeted]
    assert opened.log == ["started", "closed"]


@pytest.mark.parametrize(
    ("transport", "start", "times"),
    [("stdio", 60.0, (60.0, 20.0)), ("stdio", None, (20.0, 20.0)), ("http", 60.0, (20.0, 20.0))],
)
async def test_only_a_process_may_take_longer_for_its_first_answer(
    monkeypatch: pytest.MonkeyPatch, transport: str, start: float | None, times: tuple[float, float]
) -> None:
    opened = Opened(monkeypatch, FAILURE)
    await opened.failure(spec(transport), start_within=start)
    assert opened.times == [times]


@pytest.mark.parametrize(
    ("seen", "known", "again"),
    [
        (ProcessExit(code=1, heard=True), None, True),
        (ProcessExit(code=1, heard=True), "modern", False),
        (ProcessExit(code=1, heard=True), "legacy", False),
        (ProcessExit(code=1, heard=False), None, False),
        (ProcessExit(code=1, heard=True, stood=True), None, False),
        (FAILURE, None, False),
    ],
)
async def test_only_a_process_that_ended_by_the_probe_is_dialed_again_and_without_one(
    monkeypatch: pytest.MonkeyPatch, seen: Evidence, known: Any, again: bool
) -> None:
    opened = Opened(monkeypatch, seen, FAILURE)
    assert await opened.failure(spec("stdio"), era=known) == (FAILURE if again else seen)
    assert opened.greeted == [(known, False)] + [("legacy", False)] * again
    assert opened.log == ["started", "closed"] * (2 if again else 1)


async def test_the_first_answer_shortens_the_time_of_the_rest_and_never_makes_it_longer() -> None:
    times = dial._Times(deadline=0.0, within=5.0)
    times.first_message()  # no handshake has begun
    times.scope = scope = anyio.CancelScope()
    for deadline, left in ((60.0, 5.0), (2.0, 2.0)):
        scope.deadline = anyio.current_time() + deadline
        times.first_message()
        assert scope.deadline - anyio.current_time() == pytest.approx(left, abs=0.5)


def wire_of(kind: type, **parts: Any) -> Any:
    wire: Any = object.__new__(kind)
    vars(wire).update(parts)
    return wire


def test_a_handshake_that_took_too_long_says_what_was_waited_for() -> None:
    times = dial._Times(deadline=0.0, within=5.0)
    for kind in (HttpDispatcher, SseDispatcher):
        for connecting, seen in (
            (True, TimedOut(doing="a connection", after=7.3, sent=False)),
            (False, TimedOut(doing="its first answer", after=7.3)),
        ):
            assert dial._silence(wire_of(kind, peer=SimpleNamespace(connecting=connecting)), 7.26, times) == seen
    child = SimpleNamespace(stderr=SimpleNamespace(last_line="fetching"))
    for spoke, left, told in (
        (True, 7.26, TimedOut(doing="the end of the handshake", after=5.0)),
        (True, 3.26, TimedOut(doing="the end of the handshake", after=3.3)),
        (False, 7.26, TimedOut(doing="its first answer", after=7.3, setting="startTimeout", stderr="fetching")),
    ):
        wire = wire_of(StdioDispatcher, rpc=SimpleNamespace(spoke=spoke), child=child)
        assert dial._silence(wire, left, times) == told


# An attempt.


def attempt(server: ServerSpec, **more: Any) -> Attempt[str]:
    async def read(connection: Any, within: float) -> str:
        return f"listed within {within:.0f}"

    return Attempt(spec=server, redactor=Redactor(), read=read, **more)


class Free:
    """A limit with room, which notes what happens."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    @asynccontextmanager
    async def place(self) -> Any:
        self._log.append("place")
        yield
        self._log.append("free")


@pytest.mark.parametrize(
    ("start_within", "listing_within", "start", "listed"),
    [(None, None, 33.0, 20.0), (44.0, 9.0, 44.0, 9.0), (0.0, 0.0, 0.0, 0.0)],
)
async def test_an_attempt_gives_its_times_to_the_dial_and_to_the_listing(
    start_within: float | None, listing_within: float | None, start: float, listed: float
) -> None:
    log: list[str] = []
    given: dict[str, Any] = {}
    child: Any = SimpleNamespace(
        process=SimpleNamespace(returncode=None), stderr=SimpleNamespace(last_line="fetching it")
    )
    connection: Any = SimpleNamespace(era="modern", protocol_version="", hub=None, wire=None)

    @asynccontextmanager
    async def connect(server: ServerSpec, **more: Any) -> Any:
        given.update(more)
        assert [one.starting] == [None]
        more["hooks"].on_start(child)
        assert one.child is child
        assert one.starting is not None
        assert one.starting.line == "fetching it"
        assert one.starting.seconds == pytest.approx(0.0, abs=5.0)
        log.append("dialed")
        yield connection
        log.append("closed")

    server = spec("stdio", start_timeout=33.0)
    one = attempt(server, within=20.0, start_within=start_within, listing_within=listing_within, era="legacy")
    notices: Any = print
    relay: Any = SimpleNamespace()
    dialer: Any = SimpleNamespace(connect=connect)
    async with one.connected(
        dialer, Free(log), on_connected=lambda made: log.append("told"), on_notice=notices, relay=relay
    ) as made:
        assert made is connection
        assert one.listing == f"listed within {listed:.0f}"
        log.append("used")
    assert log == ["place", "dialed", "free", "told", "used", "closed"]
    hooks = given.pop("hooks")
    assert (hooks.on_notice, hooks.relay) == (notices, relay)
    assert given == {"within": 20.0, "start_within": start, "redactor": one.redactor, "era": "legacy"}
    assert (one.era, one.version, one.noise) == ("modern", "modern", "")
    assert [one.starting] == [None], "it has answered"
    one.version = ""
    child.process.returncode = 0
    assert [one.starting] == [None], "it has ended"


def test_the_deadline_of_all_attempts_cuts_each_but_a_process() -> None:
    for server, deadline, now, left in (
        (spec(), math.inf, 103.0, 7.0),
        (spec(), 105.0, 103.0, 2.0),
        (spec(), 105.0, 106.0, 0.0),
        (spec("stdio"), 105.0, 103.0, 10.0),
    ):
        assert attempt(server, deadline=deadline, within=10.0, began=100.0)._left(now) == left


def test_an_attempt_that_was_cut_short_says_how_long_all_of_them_had() -> None:
    late, cut = TimedOut(doing="x", after=1.0), TimedOut(doing="x", after=30.0, setting="holdfast.load.totalTimeout")
    for server, deadline, total, seen, told in (
        (spec(), 105.0, 30.0, late, cut),
        (spec(), 110.0, 30.0, late, late),
        (spec(), 105.0, math.inf, late, late),
        (spec("stdio"), 105.0, 30.0, late, late),
        (spec(), 105.0, 30.0, FAILURE, FAILURE),
    ):
        one = attempt(server, deadline=deadline, within=10.0, total=total, began=100.0)
        assert one._whole(seen) == told


@pytest.mark.parametrize(("ahead", "after"), [(60.0, None), (0.0, 0.0), (-5.0, 0.0), (dial.SHORTEST_DIAL / 2, 0.0)])
async def test_a_place_that_comes_too_late_for_a_dial_is_given_back(ahead: float, after: float | None) -> None:
    log: list[str] = []
    one = attempt(spec(), deadline=anyio.current_time() + ahead, within=1.0)

    @asynccontextmanager
    async def connect(server: ServerSpec, **more: Any) -> Any:
        log.append("dialed")
        yield SimpleNamespace(era="modern", protocol_version="v", hub=None, wire=None)

    dialer: Any = SimpleNamespace(connect=connect)
    found = await one.run(dialer, Free(log))
    if after is None:
        assert (log, found.evidence, found.version) == (["place", "dialed", "free"], None, "v")
    else:
        assert found.evidence == TimedOut(doing="its turn", after=after, setting="holdfast.load.concurrency")
        assert "dialed" not in log
        assert log.count("place") >= log.count("free")


def test_a_start_is_told_in_seconds_and_with_the_last_line() -> None:
    assert Starting(12.4, "fetching it").words == 'starting for 12 s; stderr: "fetching it"'
    assert Starting(0.6, "").words == "starting for 1 s"


# Descriptors.


@pytest.mark.requirement("LIFE-30")
@pytest.mark.parametrize(
    ("limit", "most"), [(256, 223), (512, 447), (10_000, 9_935)], ids=["an eighth", "64 are an eighth", "64"]
)
def test_so_many_descriptors_are_kept_back_and_the_shortage_is_logged_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: int, most: int
) -> None:
    now, closed = [1_000.0], list[int]()
    lowest: list[Any] = [most]

    def dup(_: int) -> int:
        if isinstance(lowest[0], Exception):
            raise lowest[0]
        return int(lowest[0])

    caplog.set_level(logging.ERROR, "holdfast.hub")
    monkeypatch.setattr(dial, "_said_at", None)
    monkeypatch.setattr(dial, "_limit", lambda: limit)
    monkeypatch.setattr(dial, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(dial, "os", SimpleNamespace(dup=dup, close=closed.append, strerror=os.strerror))
    dial.require_descriptors()
    assert closed == [most]
    lowest[0] = OSError(errno.EBADF, "stdin is closed")
    dial.require_descriptors()
    assert caplog.messages == []
    for none_free in (most + 1, OSError(errno.EMFILE, "x"), OSError(errno.ENFILE, "x")):
        lowest[0] = none_free
        with pytest.raises(ServerFailure) as failed:
            dial.require_descriptors()
        assert failed.value.evidence == OutOfDescriptors(limit=limit)
    assert closed == [most, most + 1]
    now[0] += dial.SAY_AGAIN_SECONDS
    assert dial.descriptor_shortage(OSError(errno.EMFILE, "x")) == OutOfDescriptors(limit=limit)
    said = f"the hub has no free file descriptors (limit {limit}): it makes no new connections until some are"
    assert caplog.messages == [said]
    now[0] += 0.1
    dial.descriptor_shortage(OSError(errno.EMFILE, "x"))
    assert caplog.messages == [said, said]
    assert dial.descriptor_shortage(OSError(errno.EPIPE, "x")) is None
