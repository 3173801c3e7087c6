"""What clients leave unread, and what is kept should their streams break: bounds, from both sides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.access.quotas import Quotas
from holdfast.config.settings import QuotaSettings
from holdfast.front import streams
from holdfast.front.requests import SMALL_BODY, UNCOUNTED, BodyBudget, NoRoom, event
from holdfast.front.streams import Backlog, EventId, EventLog, LogBounds

pytestmark = pytest.mark.requirement("HUB-17")


class Out:
    """A connection with so much unread."""

    def __init__(self, unread: int) -> None:
        self.unread = self.held = unread
        self.lost = self.aborted = False
        self.out = self

    def abort(self) -> None:
        self.aborted = self.lost = True


def test_a_bound_of_what_is_unread_is_one_that_may_be_reached() -> None:
    for backlog, same_owner in (
        (Backlog(per_session=100, most=1000), True),
        (Backlog(per_session=1000, most=100), False),
    ):
        first, second = Out(50), Out(50)
        for out in (first, second):
            backlog.wrote(cast("Any", out), "session" if same_owner else out)
        assert (first.aborted, second.aborted) == (False, False)
        second.unread = second.held = 51
        backlog.wrote(cast("Any", second), "session" if same_owner else second)
        assert (first.aborted, second.aborted) == (False, True)
        assert (backlog._all.connections, backlog._all.size) == (1, 50)


def test_a_connection_whose_client_has_read_all_is_counted_no_more() -> None:
    backlog, out, other = Backlog(per_session=100, most=1000), Out(90), Out(20)
    backlog.wrote(cast("Any", out), "session")
    out.unread = out.held = 0
    backlog.wrote(cast("Any", out), "session")
    assert (backlog._held, backlog._owners, backlog._all.connections, backlog._all.size) == ({}, {}, 0, 0)
    backlog.wrote(cast("Any", other), "session")
    assert not other.aborted


def test_what_was_read_meanwhile_and_connections_that_are_gone_cut_off_no_other() -> None:
    backlog, reader, gone, last = Backlog(per_session=100, most=1000), Out(60), Out(60), Out(31)
    backlog.wrote(cast("Any", reader), "session")
    reader.unread = reader.held = 10
    backlog.wrote(cast("Any", gone), "session")
    assert not gone.aborted
    gone.lost = True
    backlog.wrote(cast("Any", last), "session")
    assert (reader.aborted, gone.aborted, last.aborted) == (False, False, False)
    assert (backlog._all.connections, backlog._all.size) == (2, 41)


def stream(request: bytes | None = None) -> Any:
    return SimpleNamespace(request=request)


def test_a_log_keeps_as_many_events_and_bytes_as_it_may_and_always_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LOGGED_EVENTS", 3)
    monkeypatch.setattr(streams, "LOGGED_BYTES", 10)
    bounds, one = LogBounds(), stream()
    log = EventLog(bounds)
    assert [log.add(one, b"12") for _ in range(4)] == [1, 2, 3, 4]
    assert [number for number, _ in log.after(one, 0)] == [2, 3, 4]
    assert (bounds.held, [number for number, _ in log.after(one, 2)]) == (6, [3, 4])
    log.add(one, b"123456")
    assert ([number for number, _ in log.after(one, 0)], bounds.held) == ([3, 4, 5], 10), "all that it may hold"
    log.add(one, b"1")
    assert ([number for number, _ in log.after(one, 0)], bounds.held) == ([4, 5, 6], 9)
    log.add(one, b"x" * 11)
    assert ([number for number, _ in log.after(one, 0)], bounds.held) == ([7], 11)
    log.close()
    assert ([*log.after(one, 0)], bounds.held) == ([], 0)


def test_the_logs_of_all_sessions_hold_so_much_and_the_oldest_event_of_all_gives_way() -> None:
    bounds, one = LogBounds(10), stream()
    first, second = EventLog(bounds), EventLog(bounds)
    first.add(one, b"12345")
    second.add(one, b"12345")
    assert (len([*first.after(one, 0)]), bounds.held) == (1, 10)
    second.add(one, b"1")
    assert (len([*first.after(one, 0)]), len([*second.after(one, 0)]), bounds.held) == (0, 2, 6)
    second.add(one, b"x" * 50)
    assert ([number for number, _ in second.after(one, 0)], bounds.held) == ([3], 50), "the last one is kept"


def test_an_event_is_found_by_its_id_in_its_own_log_and_followed_on_its_own_stream() -> None:
    one, other = stream(b"7"), stream()
    log = EventLog(LogBounds())
    log.add(one, b"")
    log.add(other, b"b")
    log.add(one, b"c")
    written = log.event_id(one, 1).decode()
    found = EventId.read(written)
    assert found is not None
    assert (found.number, found.tag, found.request) == (1, "", b"7")
    assert (log.stream_of(found) is one) is True
    assert log.stream_of(found._replace(number=9)) is None
    assert log.stream_of(found._replace(mark="00000000")) is None
    assert ([*log.after(one, 0)], [*log.after(one, 3)]) == ([(3, b"c")], [])
    assert [*log.after(other, 0)] == [(2, b"b")]
    for wrong in ("", "xyz", f"{written} ", "00000000", "00000000.", "0000000.1"):
        assert EventId.read(wrong) is None
    notice = EventId.read(log.event_id(other, 2).decode())
    assert notice is not None
    assert (notice.suffix, notice.request) == ("", None)


def test_an_event_is_written_as_its_format_has_it() -> None:
    assert event(b"{}") == b"event: message\ndata: {}\n\n"
    assert event(b"{}", b"a.1") == b"id: a.1\nevent: message\ndata: {}\n\n"
    assert event(b"{\n}", b"a.1") == b"id: a.1\nevent: message\ndata: {\ndata: }\n\n"
    assert event(b"{\r}") == b"event: message\ndata: {\ndata: }\n\n"


# The room for bodies.


def budget(own: int = 32 << 20, **more: Any) -> BodyBudget:
    return BodyBudget(Quotas(lambda: QuotaSettings(body_bytes=own)), **more)


def held(of: BodyBudget, principal: str, size: int) -> Any:
    request = SimpleNamespace(principal=SimpleNamespace(name=principal), held=0)
    of.hold(cast("Any", request), size)
    return request


@pytest.mark.requirement("SEC-11")
def test_the_room_of_bodies_is_right_to_the_byte() -> None:
    room = budget()
    assert (held(room, "ada", UNCOUNTED).held, held(room, "ada", UNCOUNTED + 1).held) == (0, UNCOUNTED + 1)
    room = budget(20_000)
    held(room, "ada", 10_000)
    assert held(room, "ada", 10_000).held == 10_000, "the quota may be used up"
    with pytest.raises(NoRoom) as refused:
        held(room, "ada", UNCOUNTED + 1)
    assert (refused.value.status, refused.value.text) == (
        429,
        "the requests of this caller that are under way use up `holdfast.quotas.bodyBytes`; try again in 1 s",
    )
    room = budget(most=100_000)
    held(room, "ada", 40_000)
    held(room, "bob", 60_000)
    with pytest.raises(NoRoom) as full:
        held(room, "eve", 5_000)
    assert (full.value.status, full.value.text) == (
        503,
        "the requests under way use up the memory for them; try again in 1 s",
    )
    assert room.held == 100_000


@pytest.mark.requirement("SEC-11")
def test_a_large_body_has_half_of_what_others_leave_and_a_small_one_all_of_it() -> None:
    large = SMALL_BODY + 1
    for left, fits in ((2 * large, True), (2 * large - 1, False)):
        room = budget(most=left + 10_000)
        held(room, "bob", 10_000)
        if fits:
            assert held(room, "ada", large).held == large
        else:
            with pytest.raises(NoRoom):
                held(room, "ada", large)
    room = budget(most=SMALL_BODY + 10_000)
    held(room, "bob", 10_000)
    assert held(room, "ada", SMALL_BODY).held == SMALL_BODY


@pytest.mark.requirement("SEC-11")
def test_workers_share_the_room_among_them() -> None:
    room = budget(40_000, workers=2, most=200_000, unknown=20_000)
    held(room, "ada", 20_000)
    with pytest.raises(NoRoom) as own:
        held(room, "ada", 5_000)
    held(room, "bob", 20_000)
    assert (own.value.status, room._most) == (429, 100_000)
    assert room.wait(0, 10_000)
    assert not room.wait(0, 10_001)
    assert room.wait(0, UNCOUNTED), "a request of this size is always taken"
    assert not room.wait(0, UNCOUNTED + 1)
    assert room.waiting == 20_001 + 2 * UNCOUNTED + 1
