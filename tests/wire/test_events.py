"""The one reader of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import anyio
import httpx2
import pytest

from holdfast.config.spec import Limits
from holdfast.core.evidence import NetworkFailure, NetworkFault, OverBound
from holdfast.errors import ServerFailure
from holdfast.wire.http.client import read_events

pytestmark = pytest.mark.anyio

STREAM = b': \n\nid: 1\nevent: line\ndata: {"a":"\xc3\xbc"}\n\n: \n\ndata: x\r\ndata: y\r\n\r\n'


class Chunks(httpx2.AsyncByteStream):
    """A response's body in pieces; then it ends, or stays silent."""

    def __init__(self, pieces: Sequence[bytes], *, ends: bool = True) -> None:
        self._pieces = pieces
        self._ends = ends

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if not self._ends:
            await anyio.sleep_forever()


def answer(pieces: Sequence[bytes], *, ends: bool = True) -> httpx2.Response:
    request = httpx2.Request("GET", "http://127.0.0.1/")
    return httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, stream=Chunks(pieces, ends=ends), request=request
    )


@pytest.mark.requirement("HUB-5")
async def test_events_are_read_whole_however_they_are_cut() -> None:
    for size in range(1, len(STREAM)):
        pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
        events = [(event.event, event.data) async for event in read_events(answer(pieces), Limits())]
        assert events == [("line", '{"a":"ü"}'), ("message", "x\ny")]


async def test_a_stream_that_falls_silent_is_lost_and_its_events_stand() -> None:
    events = read_events(answer([b"data: one\n\n: alive\n\n"], ends=False), Limits(), silence=0.05)
    assert (await anext(events)).data == "one"
    with pytest.raises(ServerFailure) as failed:
        await anext(events)
    assert failed.value.evidence == NetworkFailure(fault=NetworkFault.CLOSED, stood=True)


@pytest.mark.requirement("SEC-4")
async def test_an_event_over_the_bound_on_a_message_is_an_error_with_its_setting() -> None:
    with pytest.raises(ServerFailure) as failed:
        async for _ in read_events(answer([b"data: " + b"x" * 2000]), Limits(message_bytes=1000)):
            pass
    assert isinstance(failed.value.evidence, OverBound)
    assert failed.value.evidence.setting == "holdfast.limits.messageBytes"
