"""The one reader of server-sent events."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.config.settings import Limits
from holdfast.core.evidence import NetworkFailure, NetworkFault, OverBound
from holdfast.errors import ServerFailure
from holdfast.wire.http.answer_parser import AnswerHead, ServerEvent
from holdfast.wire.http.connection import PooledConnection, Response, ServerEvents
from holdfast.wire.http.pool import HttpOrigin, Pool

pytestmark = pytest.mark.anyio

HEAD = AnswerHead(200, {"content-type": "text/event-stream"}, keep_alive=True, length=None, chunked=True)
STREAM = b': \n\nid: 1\nevent: line\ndata: {"a":"\xc3\xbc"}\n\n: \n\ndata: x\r\ndata: y\r\n\r\n'


def answer(pieces: Sequence[bytes], *, ends: bool = True) -> Response:
    """A response whose body came in these pieces; then it ends, or stays silent."""
    pool = Pool(HttpOrigin("127.0.0.1", 1, tls=False))
    response = Response(PooledConnection(pool), HEAD, HEAD.status, HEAD.headers, pool)
    for piece in pieces:
        response.feed(piece)
    if ends:
        response.end()
    return response


@pytest.mark.requirement("HUB-5")
async def test_events_are_read_whole_however_they_are_cut() -> None:
    for size in range(1, len(STREAM)):
        pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
        stream, events = ServerEvents(answer(pieces), Limits()), []
        while (event := await stream.next()) is not None:
            events.append((event.name, event.data))
        assert events == [("line", '{"a":"ü"}'.encode()), ("message", b"x\ny")]


async def test_a_stream_that_falls_silent_is_lost_and_its_events_stand() -> None:
    events = ServerEvents(answer([b"data: one\n\n: alive\n\n"], ends=False), Limits(), silence=0.05)
    assert await events.next() == ServerEvent("message", b"one", "", None)
    with pytest.raises(ServerFailure) as failed:
        await events.next()
    assert failed.value.evidence == NetworkFailure(fault=NetworkFault.CLOSED, stood=True)


@pytest.mark.requirement("SEC-4")
async def test_an_event_over_the_bound_on_a_message_is_an_error_with_its_setting() -> None:
    events = ServerEvents(answer([b"data: before\n\ndata: " + b"x" * 2000]), Limits(message_bytes=1000))
    assert await events.next() == ServerEvent("message", b"before", "", None), "what came before it stands"
    with pytest.raises(ServerFailure) as failed:
        await events.next()
    assert isinstance(failed.value.evidence, OverBound)
    assert failed.value.evidence.setting == "holdfast.limits.messageBytes"
