from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from holdfast.wire.http.answer_parser import EventReader, ServerEvent

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


def _feed(reader: EventReader, piece: bytes) -> int:
    """How much of it is read before the reader gives up."""
    for start in range(0, len(piece), 10):
        reader.feed(piece[start : start + 10])
        if reader.too_large:
            return start
    return len(piece)


@pytest.mark.requirement("SEC-4")
@pytest.mark.parametrize("piece", [b"data: " + b"x" * 200, b"data: x\n" * 200, b"x" * 200])
def test_an_event_that_is_too_large_is_never_held_whole(piece: bytes) -> None:
    assert _feed(EventReader(100), piece) <= 100


def test_comments_that_come_in_parts_count_for_no_event() -> None:
    reader = EventReader(100)
    for _ in range(100):
        assert reader.feed(b": still he") == reader.feed(b"re\n") == []
    assert reader.feed(b"data: x\n\n") == [ServerEvent("message", b"x", "", None)]


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
    assert _feed(EventReader(100, skips=True), b"data: " + b"x" * 2_000) < 1_000


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
@given(WRITTEN)
def test_whole_events_in_one_piece_are_read_as_letter_by_letter(written: list[tuple[bytes, bytes]]) -> None:
    stream = b"".join(line + end for line, end in written)
    assert EventReader(1000).feed(stream) == _letter_by_letter(stream)
