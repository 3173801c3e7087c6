"""Large messages: read without holding up the event loop (SEC-7).

A small message is split at once. A large one that is mostly text, such as a document or an image, is split at once
too: that takes a few milliseconds. One that is large and dense, such as a table of small objects, is read by another
process, which says where its parts are: a thread would hold the interpreter meanwhile. Only the reader of
that message waits. The parts stay the bytes that they came in.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from msgspec import Raw

from holdfast.wire.envelope import (
    LOADED_BYTES,
    SMALL_BYTES,
    BadJson,
    Fields,
    RawObject,
    SplitBytes,
    fields,
    is_dense,
    loads_stepwise,
    one_line,
    read_bytes,
)
from holdfast.wire.spawn import helper_environment

__all__ = ["Scanner", "load_members", "scanning", "split", "split_answer"]

PROGRAM = Path(__file__).with_name("scanner_process.py")

SCAN_SECONDS = 15.0
"""How long the other process may take for one message; 16 MiB take it a second or two at the worst."""

END_SECONDS = 10.0
"""How long a killed process may take to be gone: the system frees its memory, which takes seconds on a busy machine."""

STEP_BYTES = 1 << 20
"""How much is looked at in one step of the event loop."""


async def split(data: bytes | bytearray) -> Fields:
    """The members of a message of any size; raises ``BadJson``."""
    if len(data) <= SMALL_BYTES:
        return fields(read_bytes(bytes(data)))
    if is_dense(data):
        return await _scanned(data)
    await _check_utf8(data)
    members = fields(data)
    await asyncio.sleep(0)
    return members


_LEAD = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(?P<id>-?\d{1,18})|'
    rb'"id"\s*:\s*(?P<first>-?\d{1,18})\s*,\s*"jsonrpc"\s*:\s*"2\.0")\s*,\s*"result"\s*:\s*(?=\{)'
)
_END = re.compile(rb"\}\s*\Z")
_END_BYTES = 16


async def split_answer(data: bytes | bytearray) -> tuple[Fields, RawObject | None]:
    """The members of an answer of any size, and its result with its own members if they are known already.

    A large answer in the usual form is read once. Around its result only some bytes are looked at: if what lies between
    them is one object, all of it is JSON.
    """
    if len(data) <= SMALL_BYTES or is_dense(data):
        return await split(data), None
    lead, end = _LEAD.match(data), _END.search(data, len(data) - _END_BYTES)
    if lead is None or end is None:
        return await split(data), None
    await _check_utf8(data)
    raw = Raw(memoryview(data)[lead.end() : end.start()])
    try:
        result = RawObject.read(raw)
    except BadJson:
        return await split(data), None  # other members follow the result, or it is no JSON at all
    await asyncio.sleep(0)
    return {"jsonrpc": b'"2.0"', "id": lead["id"] or lead["first"], "result": raw}, result


async def _check_utf8(data: bytes | bytearray) -> None:
    if data.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(data)
    try:
        for start in range(0, len(data), STEP_BYTES):
            decoder.decode(view[start : start + STEP_BYTES], final=start + STEP_BYTES >= len(data))
            await asyncio.sleep(0)
    except UnicodeDecodeError:
        raise BadJson("it is not UTF-8") from None


async def load_members(result: RawObject) -> dict[str, Any]:
    """The Python value of an object of any size; raises ``BadJson``. A large one is read in a thread, step by step."""
    if result.size <= LOADED_BYTES:
        return result.value()
    return await anyio.to_thread.run_sync(
        lambda: {key: loads_stepwise(one) for key, one in result.members.items()}, abandon_on_cancel=True
    )


class Scanner:
    """The other process, while there is one. It reads one message at a time, and ends with its owner."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None

    async def scan(self, data: bytes | bytearray) -> Mapping[str, Any]:
        """Where the parts of a message are; raises ``BadJson``."""
        async with self._turn:
            try:
                async with asyncio.timeout(SCAN_SECONDS):
                    return await self._exchange(data)
            except TimeoutError:
                raise BadJson("it takes too long to read") from None
            except OSError:
                raise BadJson("it could not be read: the process that reads large messages ended") from None
            finally:
                if sys.exc_info()[0] is not None:
                    await self._end()

    async def _exchange(self, data: bytes | bytearray) -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        if self._link is None:
            await self._start()
        link = self._link
        assert link is not None  # noqa: S101 - it was started
        await loop.sock_sendall(link, struct.pack(">Q", len(data)))
        await loop.sock_sendall(link, data)
        (size,) = struct.unpack(">Q", await _received(link, 8))
        answer: Mapping[str, Any] = json.loads(await _received(link, size))
        return answer

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            # Starting a process takes a moment in the system: a thread waits for it.
            self._process = await anyio.to_thread.run_sync(_started, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._link = ours

    async def aclose(self) -> None:
        """End the process."""
        with anyio.CancelScope(shield=True):
            async with self._turn:
                await self._end()

    async def _end(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # it may be in the middle of a message; there is nothing to save
            with anyio.CancelScope(shield=True), suppress(subprocess.TimeoutExpired):
                await anyio.to_thread.run_sync(process.wait, END_SECONDS)

    def __repr__(self) -> str:
        return f"<Scanner pid={self._process.pid if self._process is not None else None}>"


def _started(descriptor: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-I", str(PROGRAM), str(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        cwd="/",
        env=helper_environment(),
    )


async def _received(link: socket.socket, size: int) -> bytes:
    loop, parts = asyncio.get_running_loop(), []
    while size:
        part = await loop.sock_recv(link, min(size, STEP_BYTES))
        if not part:
            raise ConnectionResetError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


_current: Scanner | None = None


@asynccontextmanager
async def scanning() -> AsyncIterator[None]:
    """In the block, one process is kept for all large messages; without an owner, each message starts its own."""
    global _current  # noqa: PLW0603 - one for the process, since messages of all connections share it
    if _current is not None:
        yield
        return
    scanner = _current = Scanner()
    try:
        yield
    finally:
        _current = None
        await scanner.aclose()


async def _on_one_line(data: bytes | bytearray) -> bytes | bytearray:
    """The same JSON without line ends, which can only stand between its tokens: every way on wants it so."""
    if b"\n" not in data and b"\r" not in data:
        return data
    parts = []
    for start in range(0, len(data), STEP_BYTES):
        parts.append(one_line(bytes(data[start : start + STEP_BYTES])))
        await asyncio.sleep(0)
    return b"".join(parts)


async def _scanned(data: bytes | bytearray) -> Fields:
    data = await _on_one_line(data)
    scanner = _current
    if scanner is not None and scanner.loop is asyncio.get_running_loop():
        found = await scanner.scan(data)
    else:
        alone = Scanner()
        try:
            found = await alone.scan(data)
        finally:
            await alone.aclose()
    if "error" in found:
        raise BadJson(str(found["error"]))
    return await _cut(memoryview(data), found["members"], lone=bool(found["lone"]))


async def _cut(data: memoryview, parts: Mapping[str, Any], *, lone: bool) -> Fields:
    """The members as bytes, with what is known of them."""
    members: Fields = {}
    for key, part in parts.items():
        start, end = part["at"]
        members[key] = one = SplitBytes(data[start:end])
        one.lone_surrogates = lone
        if end - start > STEP_BYTES:
            await asyncio.sleep(0)  # each copy of a large part is a step of its own
        if "members" in part:
            one.members = await _cut(data, part["members"], lone=lone)
        elif "items" in part:
            one.parts = []
            taken = 0
            for place, size in part["items"]:
                one.parts.append(bytes(data[place : place + size]))
                taken += size + 200
                if taken > STEP_BYTES:
                    taken = 0
                    await asyncio.sleep(0)
    return members
