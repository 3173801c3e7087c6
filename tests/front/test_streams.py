"""Messages on their way to an HTTP client: what becomes an event, what is kept of it, and who is cut off (HUB-2)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mcp import MCPError
from mcp_types import ErrorData

from holdfast.fleet import SharedEvent
from holdfast.front import streams
from holdfast.front.request_parser import RequestHead, RequestParser
from holdfast.front.requests import OutputBuffer, Reply, Request
from holdfast.front.streams import CANCELLED, Backlog, EventId, EventLog, LogBounds, MessageStream
from holdfast.wire import RawObject, dumps

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2")]

NOTICE = b'{"n":1}'


class Transport:
    """Takes what is written; ``unread`` of it waits for the client."""

    def __init__(self) -> None:
        self.written = b""
        self.unread = 0
        self.asked = 0
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        self.asked += 1
        return self.unread

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.written += b"".join(parts)

    def abort(self) -> None:
        self.aborted = True


class Timer:
    """Rings when a test says so."""

    def __init__(self) -> None:
        self.ring: Callable[[], None] = lambda: None

    def arm(self, seconds: float, then: Callable[[], None]) -> None:
        self.ring = then

    def disarm(self) -> None:
        self.ring = lambda: None


class Client:
    """One connection of a client, and its reply."""

    def __init__(self, *, takes_streams: bool = True, out: OutputBuffer | None = None, headers: bytes = b"") -> None:
        self.transport, self.timer = Transport(), Timer()
        self.out = out or OutputBuffer(self.transport, sliced=False)
        parser, nothing = RequestParser(), cast("Any", SimpleNamespace(is_last=False))
        parser.receive(b"POST /mcp HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n")
        head = parser.next_event()
        assert isinstance(head, RequestHead)
        self.request = Request(nothing, head, nothing, nothing, head.headers, head.keep_alive)
        self.reply = Reply(nothing, self.request, self.out, cast("Any", self.timer))
        self.reply.streams = takes_streams

    @property
    def read(self) -> bytes:
        """What was written."""
        self.out.flush()
        return self.transport.written

    @property
    def status(self) -> int:
        return int(self.read.split(b" ")[1])

    @property
    def body(self) -> bytes:
        return self.read.partition(b"\r\n\r\n")[2]

    @property
    def events(self) -> list[tuple[str, bytes]]:
        """The id and the data of each event; the end of the stream is one without either."""
        assert b"content-type: text/event-stream" in self.read
        found, rest = [], self.body
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            chunk, rest = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
            fields = dict(line.partition(b": ")[::2] for line in chunk.splitlines() if line)
            found.append((fields.get(b"id", b"").decode(), fields.get(b"data", b"")))
        return found


class Session:
    """A session with its log, and a stream of notices that may be elsewhere."""

    def __init__(self, version: str = "2025-06-18", shared: Any = None) -> None:
        self.bounds = LogBounds(shared=shared)
        self.log = EventLog(self.bounds, b"session")
        self.ticket = SimpleNamespace(version=version)
        self.missed = False
        self.elsewhere: list[bytes] = []
        self.deliver_elsewhere = self.elsewhere.append
        self.has_stream = False
        self.notices = MessageStream(cast("Any", self), None, Backlog())

    async def is_listening_soon(self) -> bool:
        return self.has_stream

    def stream(self, client: Client | None, request: bytes = b"7") -> MessageStream:
        return MessageStream(cast("Any", self), client.reply if client else None, Backlog(), request)


# What clients do not read.


def _unread(size: int) -> Client:
    client = Client()
    client.transport.unread = size
    return client


@pytest.mark.requirement("HUB-17")
async def test_a_reader_is_not_cut_off_for_the_size_of_one_answer() -> None:
    backlog, client = Backlog(per_session=10, most=20), _unread(1_000)
    backlog.wrote(client.reply, "ada")
    assert not client.transport.aborted


@pytest.mark.requirement("HUB-17")
async def test_a_session_that_leaves_several_answers_unread_loses_the_last_one() -> None:
    backlog = Backlog(per_session=10, most=1_000)
    first, second, other = _unread(5), _unread(5), _unread(500)
    backlog.wrote(other.reply, "bob")
    for client in (first, second):
        backlog.wrote(client.reply, "ada")
    assert not second.transport.aborted, "at the bound, and not over it"
    second.transport.unread = 6
    backlog.wrote(second.reply, "ada")
    assert (first.transport.aborted, second.transport.aborted, other.transport.aborted) == (False, True, False)
    assert second.reply.done


@pytest.mark.requirement("HUB-17")
async def test_of_all_clients_together_the_one_that_reads_least_is_cut_off() -> None:
    backlog = Backlog(per_session=1_000, most=100)
    slow, slower, reading = _unread(40), _unread(50), _unread(10)
    for owner, client in enumerate((slower, slow, reading)):
        backlog.wrote(client.reply, owner)
    assert not slower.transport.aborted, "at the bound, and not over it"
    reading.transport.unread = 11
    backlog.wrote(reading.reply, 2)
    assert [one.transport.aborted for one in (slower, slow, reading)] == [True, False, False]
    backlog.wrote(reading.reply, 2)
    assert [one.transport.aborted for one in (slow, reading)] == [False, False]
    slow.transport.unread = 90
    backlog.wrote(slow.reply, 1)
    assert [one.transport.aborted for one in (slow, reading)] == [True, False], "two are enough"
    reading.transport.unread = 1_000
    backlog.wrote(reading.reply, 2)
    assert [one.transport.aborted for one in (slow, reading)] == [True, False], "one alone is not"


@pytest.mark.requirement("HUB-17")
async def test_what_was_read_or_lost_does_not_count() -> None:
    backlog = Backlog(per_session=10, most=30)
    read, lost, last = _unread(9), _unread(9), _unread(11)
    backlog.wrote(read.reply, "ada")
    read.transport.unread = 0
    backlog.wrote(lost.reply, "ada")
    lost.out.lost = True
    backlog.wrote(last.reply, "ada")
    assert not last.transport.aborted
    again = Client(out=last.out)
    backlog.wrote(again.reply, "ada")
    assert not last.transport.aborted, "one connection counts once"


@pytest.mark.requirement("HUB-17")
@pytest.mark.parametrize(
    ("owners", "most"), [(("ada", "bob", "bob"), 1_000), (("ada", "bob", "eve"), 34)], ids=["of a session", "of all"]
)
async def test_what_others_read_meanwhile_does_not_count(owners: tuple[str, ...], most: int) -> None:
    backlog = Backlog(per_session=20, most=most)
    clients = [_unread(1), _unread(1), _unread(1), _unread(1), *(_unread(10) for _ in owners)]
    for client, owner in zip(clients, (1, 2, 3, 4, *owners), strict=True):
        backlog.wrote(client.reply, owner)
    *_, slow, reading, last = clients
    reading.transport.unread, last.transport.unread = 1, 11  # with what was counted of the other, over a bound
    backlog.wrote(last.reply, owners[-1])
    assert not any(client.transport.aborted for client in clients)
    last.transport.unread = 29
    backlog.wrote(last.reply, owners[-1])
    assert (slow.transport.aborted, reading.transport.aborted, last.transport.aborted) == (False, False, True)


@pytest.mark.requirement("HUB-17")
async def test_what_a_connection_did_not_read_counts_for_the_session_that_used_it_last() -> None:
    backlog = Backlog(per_session=10, most=1_000)
    shared, other = _unread(9), _unread(9)
    backlog.wrote(shared.reply, "ada")
    backlog.wrote(Client(out=shared.out).reply, "bob")
    backlog.wrote(other.reply, "ada")
    assert not other.transport.aborted
    third = _unread(2)
    backlog.wrote(third.reply, "bob")
    assert [one.transport.aborted for one in (shared, other, third)] == [False, False, True]


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize("sessions", [1, 1_000])
async def test_an_event_for_a_thousand_clients_that_do_not_read_asks_each_of_them_a_few_times(sessions: int) -> None:
    backlog, clients = Backlog(), [_unread(1_000) for _ in range(1_000)]
    for _ in range(2):
        for number, client in enumerate(clients):
            client.transport.asked = 0
            backlog.wrote(client.reply, number % sessions)
    assert sum(client.transport.asked for client in clients) < 10 * len(clients)


@pytest.mark.requirement("PERF-8")
async def test_connections_of_clients_that_left_without_reading_are_not_held() -> None:
    backlog, staying = Backlog(), _unread(1)
    backlog.wrote(staying.reply, "ada")

    def leave() -> weakref.ref[OutputBuffer]:
        client = _unread(1)
        backlog.wrote(client.reply, client)
        client.out.drop()
        return weakref.ref(client.out)

    gone = [leave() for _ in range(100)]
    gc.collect()
    assert sum(one() is not None for one in gone) < 5


@pytest.mark.requirement("PERF-8")
async def test_a_connection_whose_client_caught_up_is_not_held() -> None:
    backlog, client = Backlog(), _unread(9)
    backlog.wrote(client.reply, "ada")
    client.transport.unread = 0
    backlog.wrote(client.reply, "ada")
    held = weakref.ref(client.out)
    del client
    gc.collect()
    assert held() is None


@pytest.mark.requirement("HUB-17")
@pytest.mark.parametrize("whole", [False, True])
async def test_the_streams_of_a_session_count_together_and_each_modern_request_by_itself(whole: bool) -> None:
    for session in (cast("Any", Session()), None):
        backlog, clients = Backlog(per_session=10), [_unread(6), _unread(6)]
        for client in clients:
            stream = MessageStream(session, client.reply, backlog, b"7")
            if whole:
                stream.result(b"7", b"{}")
            else:
                stream.send(NOTICE)
        assert [client.transport.aborted for client in clients] == [False, session is not None]


async def test_a_stream_ends_once_and_nothing_follows_its_end() -> None:
    client = Client()
    client.reply.event(NOTICE)
    client.reply.end()
    whole = client.read
    client.reply.end()
    client.reply.event(NOTICE)
    client.reply.result(NOTICE)
    assert client.read == whole
    assert whole.count(b"0\r\n\r\n") == 1


# What clients may ask for again.


def _read(log: EventLog, stream: MessageStream, number: int) -> EventId:
    found = EventId.read(log.event_id(stream, number).decode())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("request_id", "known"),
    [
        (b"7", b"7"),
        (b'"a b"', b'"a b"'),
        (b'"' + b"x" * 94 + b'"', b'"' + b"x" * 94 + b'"'),
        (b'"' + b"x" * 95 + b'"', None),
    ],
)
def test_the_id_of_an_event_names_its_request_unless_that_is_long(request_id: bytes, known: bytes | None) -> None:
    session = Session()
    stream = session.stream(None, request_id)
    number = session.log.add(stream, NOTICE)
    found = _read(session.log, stream, number)
    assert (found.number, found.request, found.tag) == (1, known, "")
    assert found.suffix, "it is an event of a request, and not of the notices"
    assert session.log.stream_of(found) is stream
    assert session.log.stream_of(found._replace(mark="0" * 8)) is None
    assert session.log.stream_of(found._replace(number=2)) is None


def test_the_id_of_a_notice_names_no_request() -> None:
    session = Session()
    found = _read(session.log, session.notices, session.log.add(session.notices, NOTICE))
    assert (found.suffix, found.request) == ("", None)


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("0123abcd.7", ("0123abcd", "", 7, "", None)),
        ("fffff0123abcd.7.Nw", ("fffff0123abcd", "fffff", 7, ".Nw", b"7")),
        ("0123abcd.7.", ("0123abcd", "", 7, ".", None)),
        ("0123abcd.7.bnVsbA", ("0123abcd", "", 7, ".bnVsbA", None)),
        ("0123abcd.7.A", ("0123abcd", "", 7, ".A", None)),
        ("0123abcd", None),
        ("0123abcd.7 ", None),
        ("0123ABCD.7", None),
        ("0123abcd.1234567890123456", None),
    ],
)
def test_the_id_of_an_event_is_read_in_its_parts(written: str, parts: tuple[Any, ...] | None) -> None:
    found = EventId.read(written)
    assert (found and (*found, found.request)) == parts


def test_a_session_keeps_its_last_events_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LOGGED_BYTES", 10)
    session = Session()
    log, stream = session.log, session.stream(None)
    numbers = [log.add(stream, b"12345") for _ in range(3)]
    assert [number for number, _ in log.after(stream, 0)] == numbers[1:], "ten bytes are kept, eleven are not"
    assert session.bounds.held == 10
    large = log.add(stream, b"x" * 100)
    assert [number for number, _ in log.after(stream, 0)] == [large]
    assert session.bounds.held == 100


def test_all_sessions_together_keep_their_last_events_up_to_a_size() -> None:
    bounds = LogBounds(10)
    one, other, stream = EventLog(bounds), EventLog(bounds, tag="abcde"), Session().stream(None)
    one.add(stream, b"12345")
    last = other.add(stream, b"12345")
    assert (len([*one.after(stream, 0)]), bounds.held) == (1, 10), "ten bytes are kept, eleven are not"
    other.add(stream, b"1")
    assert (len([*one.after(stream, 0)]), bounds.held) == (0, 6)
    assert _read(other, stream, last).tag == "abcde"


class SharedLog:
    """Notes what the replicas share."""

    tag = "abcde"

    def __init__(self) -> None:
        self.added: list[Any] = []

    def add(self, session: bytes, mark: str, event: Any) -> None:
        self.added.append((session, mark, event))


def test_the_replicas_share_all_events_but_questions() -> None:
    shared = SharedLog()
    session = Session(shared=shared)
    stream = session.stream(None)
    session.log.add(stream, b"told")
    session.log.add(stream, b"asked", private=True)
    found = _read(session.log, stream, session.log.add(stream, b"result", final=True))
    assert (found.tag, found.number) == ("abcde", 3)
    assert shared.added == [
        (b"session", found.mark, SharedEvent(1, found.suffix, False, b"told")),
        (b"session", found.mark, SharedEvent(3, found.suffix, True, b"result")),
    ]


# One stream.


def _numbers(*ids: str) -> list[int]:
    return [found.number for one in ids if (found := EventId.read(one)) is not None]


async def test_an_answer_is_plain_unless_something_precedes_it() -> None:
    session, plain, told = Session(), Client(), Client()
    session.stream(plain).result(b"7", b"{}")
    assert (plain.status, plain.body) == (200, b'{"jsonrpc":"2.0","id":7,"result":{}}')
    assert session.bounds.held == 0, "a plain answer is whole, or its client has no event to come back with"
    stream = session.stream(told)
    stream.send(NOTICE)
    stream.result(b"7", b"{}")
    stream.send(NOTICE)
    stream.result(b"7", b"{}")
    (first, notice), (second, result), end = told.events
    assert (notice, result, end) == (NOTICE, plain.body, ("", b""))
    assert _numbers(first, second) == [1, 2]
    assert stream.reply is None


async def test_an_error_on_a_stream_has_no_event_id() -> None:
    session, client = Session(), Client()
    stream = session.stream(client)
    stream.send(NOTICE)
    stream.error(b"7", ErrorData(code=-32600, message="no"))
    assert [bool(key) for key, _ in client.events] == [True, False, False]
    assert b'"message":"no"' in client.events[1][1]


async def test_a_modern_request_has_events_without_ids_and_a_status_for_its_error() -> None:
    told, refused, legacy = Client(), Client(), Client()
    stream = MessageStream(None, told.reply, Backlog())
    stream.send(NOTICE)
    stream.result(b"7", b"{}")
    assert [key for key, _ in told.events] == ["", "", ""]
    error = ErrorData(code=-32601, message="no such method")
    MessageStream(None, refused.reply, Backlog()).error(b"7", error)
    Session().stream(legacy).error(b"7", error)
    other = Client()
    MessageStream(None, other.reply, Backlog()).error(b"7", ErrorData(code=-1, message="of a server"))
    assert (refused.status, legacy.status, other.status) == (404, 200, 200)
    unreadable = Client()
    Session().stream(unreadable).error(None, error)
    assert unreadable.status == 400
    assert b'"id":null' in unreadable.body


async def test_a_client_without_event_streams_gets_the_result_alone() -> None:
    session, client = Session(), Client(takes_streams=False)
    stream = session.stream(client)
    stream.send(NOTICE)
    with pytest.raises(MCPError, match="takes no event stream"):
        await stream.reach("elicitation/create")
    stream.result(b"7", b"{}")
    assert (client.body, session.bounds.held) == (b'{"jsonrpc":"2.0","id":7,"result":{}}', 0)
    with pytest.raises(MCPError, match="takes no event stream"):
        await stream.reach("elicitation/create")


@pytest.mark.parametrize("told", [False, True])
async def test_a_large_result_goes_out_whole_also_as_an_event(told: bool) -> None:
    text = "x" * 300_000
    raw = RawObject.read(dumps({"text": text}))
    session, client = Session(), Client()
    stream = session.stream(client)
    if told:
        stream.send(NOTICE)
    stream.result(b"7", raw)
    whole = b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b"}}' % text.encode()
    assert (client.events[1][1] if told else client.body) == whole


@pytest.mark.parametrize("streams_taken", [True, False])
async def test_a_request_that_a_legacy_client_gave_up_ends_with_an_error(streams_taken: bool) -> None:
    session, client = Session(), Client(takes_streams=streams_taken)
    session.stream(client).cancelled(b"7")
    said = client.events[0][1] if streams_taken else client.body
    assert CANCELLED.message.encode() in said
    assert b"-32800" in said
    gone = Client()
    modern = MessageStream(None, gone.reply, Backlog())
    modern.cancelled(b"7")
    modern.result(b"7", b"{}")
    assert gone.read == b"", "its client closed the connection"


async def test_only_a_session_with_a_stream_can_be_asked() -> None:
    session = Session()
    modern = MessageStream(None, Client().reply, Backlog())
    with pytest.raises(MCPError, match="takes no event stream"):
        await modern.reach("roots/list")
    open_call, answered = session.stream(Client()), session.stream(Client())
    assert await open_call.reach("roots/list") is open_call
    answered.result(b"7", b"{}")
    with pytest.raises(MCPError, match="has no notification stream open"):
        await answered.reach("roots/list")
    session.has_stream = True
    assert await answered.reach("roots/list") is session.notices
    question = Client()
    asked = session.stream(question)
    asked.put_question(b'{"method":"roots/list"}')
    assert question.events[0][1] == b'{"method":"roots/list"}'


async def test_a_notice_without_a_stream_goes_to_the_replica_that_has_it() -> None:
    session = Session()
    session.notices.tell("notifications/message", {"level": "error"})
    assert (len(session.elsewhere), session.missed) == (1, False)
    session.notices.tell("notifications/tools/list_changed", None, everywhere=True)
    assert (len(session.elsewhere), session.missed) == (1, True)
    session.missed = False
    client = Client()
    session.notices.reply = client.reply
    assert session.notices.is_open
    session.notices.tell("notifications/tools/list_changed", None)
    assert (len(session.elsewhere), session.missed, len(client.events)) == (1, False, 1)
    call = session.stream(None)
    call.tell("notifications/resources/updated", {})
    assert (len(session.elsewhere), session.missed) == (1, False), "it is of a call, whose client comes back for it"
    client.out.lost = True
    assert not session.notices.is_open


@pytest.mark.parametrize(("version", "primed"), [("2025-06-18", False), ("2025-11-25", True), ("2026-01-01", True)])
async def test_a_stream_begins_with_an_event_without_data_for_clients_that_know_it(version: str, primed: bool) -> None:
    session, client = Session(version), Client()
    stream = session.stream(client)
    client.reply.wait_for_result(b"", stream.prime)
    stream.send(NOTICE)
    assert _numbers(*(key for key, _ in client.events)) == ([1, 2] if primed else [1])
    assert (b"retry: 1000\ndata: \n" in client.read) is primed
    assert MessageStream(None, Client().reply, Backlog()).prime() == b""


async def test_a_stream_that_broke_goes_on_with_what_followed() -> None:
    session, first, second, third = Session(), Client(), Client(), Client()
    stream, other = session.stream(first), session.stream(Client(), b"8")
    stream.send(b'"a"')
    other.send(b'"not mine"')
    stream.send(b'"b"')
    stream.resume(second.reply, 1)
    assert first.reply.done, "one connection has the stream"
    stream.send(b'"c"')
    assert [data for _, data in second.events] == [b'"b"', b'"c"']
    assert _numbers(*(key for key, _ in second.events)) == [3, 4]
    stream.resume(second.reply, 4)
    assert not second.reply.done
    stream.result(b"7", b"{}")
    stream.resume(third.reply, 4)
    assert [data for _, data in third.events] == [b'{"jsonrpc":"2.0","id":7,"result":{}}', b""]
    assert (third.reply.done, stream.reply) == (True, None)
