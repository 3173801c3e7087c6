"""Bytes on their way to one client: in slices where TLS would take all at once, and none lost at the end (HUB-17)."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from holdfast.front.requests import SLICE_BYTES, TOGETHER_BYTES, OutputBuffer
from tests.harness.waiting import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-17")]


class Transport:
    """Takes what is written, and tells its writer to pause after each piece if a test says so."""

    def __init__(self, *, pauses: bool = False) -> None:
        self.pauses = pauses
        self.waiting = 7
        self.out = OutputBuffer(self, sliced=pauses)
        self.written: list[bytes] = []
        self.ends: list[str] = []

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))
        if self.pauses:
            self.out.pause()

    def writelines(self, parts: list[bytes]) -> None:
        self.written.append(b"".join(parts))

    def close(self) -> None:
        self.ends.append("closed")

    def abort(self) -> None:
        self.ends.append("aborted")


async def test_pieces_of_one_turn_go_out_together_and_before_what_follows() -> None:
    client = Transport()
    client.out.put(b"a")
    client.out.put(b"b")
    assert client.written == []
    await asyncio.sleep(0)
    assert client.written == [b"ab"]
    client.out.put(b"c")
    client.out.write(b"d", b"e")
    assert client.written == [b"ab", b"c", b"de"]
    client.out.put(b"x" * TOGETHER_BYTES)
    assert len(client.written) == 4, "it is enough for one write"
    client.out.put(b"f")
    client.out.close()
    assert (client.written[-1], client.ends) == (b"f", ["closed"])


async def test_a_large_answer_is_given_to_tls_as_its_client_reads_it() -> None:
    client = Transport(pauses=True)
    client.out.write(b"head", b"x" * (2 * SLICE_BYTES + 1))
    assert [len(one) for one in client.written] == [4]
    assert client.out.unread == 7 + 2 * SLICE_BYTES + 1
    client.out.close()
    waiting = [asyncio.create_task(client.out.drained()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    for left in (SLICE_BYTES + 1, 1):
        client.out.resume()
        await asyncio.sleep(0)
        assert (client.out.unread, client.ends, waiting[1].done()) == (7 + left, [], False)
    client.out.resume()
    assert (client.out.unread, client.ends) == (7, ["closed"]), "a close waits for what was written"
    assert b"".join(client.written) == b"head" + b"x" * (2 * SLICE_BYTES + 1)
    client.out.resume()
    with anyio.fail_after(PATIENCE):
        await waiting[1]


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("sliced", [False, True], ids=["plain", "tls"])
async def test_a_large_answer_counts_whole_until_its_last_byte_is_out(sliced: bool) -> None:
    """It is in memory for so long: forty answers of which a third was unread took three times their count."""
    client, large = Transport(pauses=sliced), 3 * SLICE_BYTES
    client.waiting = 0
    client.out.write(b"x" * large)
    client.waiting = 5
    assert client.out.held == large
    client.out.write(b"y" * large)
    client.waiting = 9
    assert client.out.held == min(2 * large, client.out.unread + large)
    while client.out.unread > 9:
        client.out.resume()
    client.waiting = 0
    assert client.out.held == 0
    client.out.write(b"small")
    client.waiting = 2
    assert client.out.held == client.out.unread, "what was read counts no more"


@pytest.mark.parametrize("end", ["abort", "drop"])
async def test_what_waits_for_a_client_that_is_gone_is_forgotten(end: str) -> None:
    client = Transport(pauses=True)
    client.out.write(b"x" * (3 * SLICE_BYTES))
    client.out.put(b"more")
    drained = asyncio.create_task(client.out.drained())
    await asyncio.sleep(0)
    getattr(client.out, end)()
    assert client.out.unread == 7
    client.out.drop()
    with anyio.fail_after(PATIENCE):
        await drained
    client.out.resume()
    client.out.close()
    client.out.abort()
    assert client.ends == (["aborted"] if end == "abort" else [])
    assert len(client.written) == 1
