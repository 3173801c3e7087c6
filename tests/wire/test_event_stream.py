from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from holdfast.wire.event_stream import EventReader, EventTooLarge, ServerEvent, only_event

STREAM = (
    b'\xef\xbb\xbf: hello\n\nid: 1\nretry: 500\ndata: \n\nevent: message\r\ndata: {"a":1}\r\n\r\n'
    b"data: one\ndata: two\n\nevent: other\rdata: x\r\rdata: cut"
)
EVENTS = [
    ServerEvent("message", b"", "1", 500),
    ServerEvent("message", b'{"a":1}', "1", None),
    ServerEvent("message", b"one\ntwo", "1", None),
    ServerEvent("other", b"x", "1", None),
]


@given(st.lists(st.integers(min_value=1, max_value=len(STREAM) - 1)))
def test_events_are_the_same_however_the_stream_is_cut(places: list[int]) -> None:
    reader, before = EventReader(1000), 0
    seen: list[ServerEvent] = []
    for place in [*sorted(set(places)), len(STREAM)]:
        seen += reader.feed(STREAM[before:place])
        before = place
    assert seen == EVENTS


def _feed(reader: EventReader, piece: bytes) -> None:
    for start in range(0, len(piece), 10):
        list(reader.feed(piece[start : start + 10]))


@pytest.mark.requirement("SEC-4")
@pytest.mark.parametrize("piece", [b"data: " + b"x" * 200, b"data: x\n" * 200, b"x" * 200])
def test_an_event_that_is_too_large_is_never_held_whole(piece: bytes) -> None:
    reader = EventReader(100)
    with pytest.raises(EventTooLarge):
        _feed(reader, piece)


LARGE = b"data: before\n\nid: 2\ndata: " + b"x" * 150 + b"\n\n" + b"data: y\ndata: " + b"z" * 150 + b"\ndata: more\n\n"


@pytest.mark.requirement("SEC-4", "LIFE-28")
@given(st.lists(st.integers(min_value=1, max_value=len(LARGE) + 10)))
def test_an_event_over_the_bound_is_cut_and_the_next_one_comes_however_the_stream_is_cut(places: list[int]) -> None:
    stream = LARGE + b"data: after\n\n"
    reader, before = EventReader(100, skips=True), 0
    seen: list[ServerEvent] = []
    for place in [*sorted(set(places)), len(stream)]:
        seen += reader.feed(stream[before:place])
        before = max(before, place)
    assert [(event.cut, event.data[:1], event.id) for event in seen] == [
        (False, b"b", ""),
        (True, b"x", "2"),
        (True, b"y", "2"),
        (False, b"a", "2"),
    ]


def test_an_event_without_an_end_is_given_up() -> None:
    reader = EventReader(100, skips=True)
    with pytest.raises(EventTooLarge):
        _feed(reader, b"data: " + b"x" * 2_000)


def test_whole_events_are_taken_at_once_until_one_is_not_taken() -> None:
    reader, taken = EventReader(1_000), []

    def consume(data: bytes) -> bool:
        taken.append(data)
        return data != b"stop"

    assert reader.take(b"data: too early\n\n", consume) == 0, "a byte order mark may come first"
    assert [event.data for event in reader.feed(b"data: 0\n\n")] == [b"0"]
    pieces = b"id: 7\nevent: message\ndata: 1\n\n", b"data: 2\n\n", b"data: stop\n\n", b"data: 4\n\n"
    assert reader.take(b"".join(pieces), consume) == len(pieces[0] + pieces[1])
    assert taken == [b"1", b"2", b"stop"]
    assert reader.last_id == "7"
    assert [(event.data, event.id) for event in reader.feed(b"".join(pieces[2:]))] == [(b"stop", "7"), (b"4", "7")]


@pytest.mark.parametrize("before", [b"data: half", b"data: a line\n", b"event: other\n", b"data: 0\r\n\r"])
def test_nothing_is_taken_in_the_middle_of_an_event(before: bytes) -> None:
    reader = EventReader(1_000)
    list(reader.feed(before))
    assert reader.take(b"data: 1\n\n", lambda _: True) == 0


def test_an_event_over_the_bound_is_not_taken() -> None:
    reader = EventReader(10)
    list(reader.feed(b": a comment\n\n"))
    assert reader.take(b"data: 12345678901\n\n", lambda _: True) == 0
    assert reader.take(b"data: 1234567890\n\n", lambda _: True) == len(b"data: 1234567890\n\n")


LINES = st.sampled_from(
    [
        b"id: 1",
        b"id: ",
        b"id:x",
        b"id: \0",
        b"event: message",
        b"event: other",
        b"data: x",
        b"data: ",
        b"data:y",
        b": c",
    ]
    + [b"data", b"retry: 5", b"data: \xef\xbb\xbf{}"]
    + [b""] * 6
)
WRITTEN = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=8)


def _letter_by_letter(stream: bytes) -> list[ServerEvent]:
    """The long way: no event is whole in one piece."""
    reader = EventReader(1000)
    return [event for at in range(len(stream)) for event in reader.feed(stream[at : at + 1])]


@settings(max_examples=100, deadline=None)
@given(WRITTEN, st.booleans())
def test_the_short_ways_see_what_the_long_way_sees(written: list[tuple[bytes, bytes]], begins: bool) -> None:
    stream = b"".join(line + end for line, end in written)
    events = _letter_by_letter(stream)
    assert list(EventReader(1000).feed(stream)) == events
    only = only_event(stream)
    assert only is None or [(event.name, event.data) for event in events] == [("message", only)]
    taken: list[bytes] = []
    reader = EventReader(1000)
    before = list(reader.feed(b": \n\n" if begins else b"data: first\n\n"))

    def takes(data: bytes) -> bool:
        taken.append(data)
        return True

    at = reader.take(stream, takes)
    rest = [event.data for event in reader.feed(stream[at:])]
    assert [*taken, *rest] == [event.data for event in events]
    assert len(before) == (not begins)
