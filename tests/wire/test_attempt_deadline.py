"""The attempt's own deadline decides how long a dial takes, on every transport; no limit of a library shortens it.

The servers hold their answer until they are told to give it, and the event loop's clock jumps meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.config import Config, Limits, LoadPolicy, ServerSpec, Settings
from holdfast.core import HttpStatus, Redactor, TimedOut
from holdfast.errors import ServerFailure
from holdfast.hub.lease import ServerCache
from holdfast.hub.loader import Loader
from holdfast.wire import Attempt
from holdfast.wire.dial import Dialer
from holdfast.wire.session import Connection
from holdfast.wire.warden import Warden
from tests.harness.waiting import PATIENCE, jump, until
from tests.peers.http_fault import Behaviour, Exchange, FaultServer, respond
from tests.peers.mcp_http import McpPeer
from tests.peers.mcp_sse import SsePeer
from tests.peers.tls import Certificates

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LOAD-9")]

LIMIT = 20.0
SLOW = 12.0
"""Longer than the 10 s that the SDK gives its probe, and than the connection of most clients."""


class Held:
    """Holds back what a server does next, until it is let go."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.let_go = anyio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await self.let_go.wait()

    def before(self, behaviour: Behaviour) -> Behaviour:
        async def act(exchange: Exchange) -> None:
            await self.wait()
            await behaviour.act(exchange)

        return Behaviour(f"held-{behaviour.name}", act)

    async def for_seconds(self, *seconds: float) -> None:
        """Let so much time pass while it is held."""
        await self.reached.wait()
        for step in seconds:
            await jump(step)
        self.let_go.set()


@asynccontextmanager
async def dialer() -> AsyncIterator[Dialer]:
    async with Warden() as warden:
        yield Dialer(warden=warden, limits=Limits())


async def dialed(spec: ServerSpec, *, within: float = LIMIT) -> str:
    """The protocol version that the dial agreed on."""
    async with (
        dialer() as one,
        one.connect(spec, within=within, start_within=within, redactor=Redactor()) as connection,
    ):
        return connection.protocol_version


async def while_held(held: Held, work: Callable[[], Coroutine[Any, Any, None]], *seconds: float) -> None:
    with anyio.fail_after(PATIENCE + sum(seconds)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await held.for_seconds(*seconds)


def http(peer: McpPeer | FaultServer) -> ServerSpec:
    return ServerSpec(id="a", transport="http", url=peer.url if isinstance(peer, McpPeer) else peer.origin)


@pytest.mark.parametrize(("era", "first"), [("modern", 0), ("legacy", 0), ("legacy", 1)])
async def test_a_server_that_answers_its_first_request_late_connects(era: str, first: int) -> None:
    """The probe and the greeting alike: a gateway in front of it may start it first."""
    held, versions = Held(), list[str]()
    async with McpPeer(era=era) as peer:  # type: ignore[arg-type]
        peer.script = [*[peer.healthy] * first, held.before(peer.healthy), peer.healthy]

        async def connect() -> None:
            versions.append(await dialed(http(peer)))

        await while_held(held, connect, SLOW)
    assert versions == ["2026-07-28" if era == "modern" else "2025-11-25"]


@pytest.mark.parametrize("at", ["stream", "greeting"])
async def test_so_does_one_over_the_older_transport(at: str) -> None:
    held, versions = Held(), list[str]()
    async with SsePeer() as peer:
        [usual] = peer.script  # type: ignore[misc]
        peer.script = [*[usual] * (at == "greeting"), held.before(usual), usual]

        async def connect() -> None:
            versions.append(await dialed(ServerSpec(id="a", transport="sse", url=peer.url)))

        await while_held(held, connect, SLOW)
    assert versions == ["2025-11-25"]


class HeldProcess:
    """A process that reads its input, and answers once it is let go."""

    def __init__(self, folder: Path) -> None:
        self._gate, self._read = folder / "gate", folder / "read"
        os.mkfifo(self._gate)
        source = (
            "import json, sys\n"
            "for line in sys.stdin:\n"
            "    asked = json.loads(line)\n"
            f"    open({str(self._read)!r}, 'w').close(); open({str(self._gate)!r}).close()\n"
            "    error = {'code': -32601, 'message': 'no'}\n"
            "    me = {'name': 'a', 'version': '1'}\n"
            "    info = {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}}, 'serverInfo': me}\n"
            "    results = {'initialize': info, 'tools/call': {'content': [{'type': 'text', 'text': 'hello'}]}}\n"
            "    found = results.get(asked['method'])\n"
            "    answer = {'result': found} if found else {'error': error}\n"
            "    if 'id' in asked: print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], **answer}), flush=True)\n"
        )
        self.spec = ServerSpec(id="a", transport="stdio", command=sys.executable, args=("-I", "-S", "-c", source))

    async def for_seconds(self, work: Callable[[], Coroutine[Any, Any, str]], *seconds: float) -> str:
        """Let so much time pass while it is held, then see what comes of the work."""
        came, done = list[str](), anyio.Event()

        async def wait() -> None:
            came.append(await work())
            done.set()

        with anyio.fail_after(PATIENCE + sum(seconds)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await until(self._read.exists, beside=self._read.parent)
                for step in seconds:
                    await jump(step)
                descriptor = os.open(self._gate, os.O_RDWR)
                try:
                    await done.wait()
                finally:
                    os.close(descriptor)
        return came[0]


async def test_so_does_a_process(tmp_path: Path) -> None:
    """After the time in which a probe that was read counts as ignored."""
    process = HeldProcess(tmp_path)
    assert await process.for_seconds(lambda: dialed(process.spec), 6.0, 6.0) == "2025-11-25"


@pytest.mark.requirement("LOAD-13")
async def test_a_process_that_is_started_for_one_call_may_start_as_slowly_as_in_a_load(tmp_path: Path) -> None:
    process = HeldProcess(tmp_path)
    loader = Loader(Config(servers={"a": process.spec}, settings=Settings()), memory=ServerCache())

    async def call() -> str:
        return (await loader.call("a", "hello", {})).text

    assert await process.for_seconds(call, 6.0, 20.0) == "hello"


async def test_a_connection_that_takes_long_to_stand_is_waited_for(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TLS handshake may take longer than a connection usually does, and than asyncio's own limit of a minute."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.write_ca(tmp_path)))
    held, versions = Held(), list[str]()
    async with McpPeer(era="modern", ssl=certificates.server_context()) as peer, _gateway(peer, held) as port:
        spec = ServerSpec(id="a", transport="http", url=f"https://localhost:{port}{peer.path}")

        async def connect() -> None:
            versions.append(await dialed(spec, within=90.0))

        await while_held(held, connect, SLOW, 60.0)
    assert versions == ["2026-07-28"]


@asynccontextmanager
async def _gateway(peer: McpPeer, held: Held) -> AsyncIterator[int]:
    """A gateway that passes bytes on, and begins late: the connection stands, and the TLS handshake does not."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        there, onward = await asyncio.open_connection("127.0.0.1", peer.port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 16):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, onward), pump(there, writer))

    listener = await asyncio.start_server(accepted, "127.0.0.1", 0)
    async with listener:
        yield listener.sockets[0].getsockname()[1]


async def test_a_late_refusal_of_a_later_attempt_is_heard_too() -> None:
    held, results = Held(), list[tuple[str, int, str]]()
    async with FaultServer([respond(502), held.before(respond(503))]) as peer:
        policy = LoadPolicy(attempts=2, backoff=0.001, attempt_timeout=LIMIT, total_timeout=2 * LIMIT)
        config = Config(servers={"a": http(peer)}, settings=Settings(load=policy))

        async def load() -> None:
            [outcome] = (await Loader(config, memory=ServerCache()).load()).outcomes
            results.append((outcome.status, outcome.attempts, outcome.error or ""))

        await while_held(held, load, 10.2)
    [(status, attempts, error)] = results
    assert (status, attempts) == ("transient", 2)
    assert "HTTP 503" in error


async def test_a_late_refusal_is_the_evidence_of_its_attempt() -> None:
    held, seen = Held(), list[object]()
    async with FaultServer(held.before(respond(503))) as peer:

        async def connect() -> None:
            with pytest.raises(ServerFailure) as failed:
                await dialed(http(peer))
            seen.append(failed.value.evidence)

        await while_held(held, connect, 10.2)
    [evidence] = seen
    assert isinstance(evidence, HttpStatus)
    assert evidence.status == 503


async def test_an_attempt_ends_by_its_own_deadline_and_says_how_long_that_was() -> None:
    held, seen = Held(), list[object]()
    async with FaultServer(held.before(respond(200))) as peer:

        async def connect() -> None:
            with pytest.raises(ServerFailure) as failed:
                await dialed(http(peer))
            seen.append(failed.value.evidence)

        await while_held(held, connect, SLOW, LIMIT - SLOW)
    [evidence] = seen
    assert isinstance(evidence, TimedOut)
    assert (evidence.doing, evidence.after, evidence.sent) == ("its first answer", LIMIT, True)


async def test_a_sign_of_life_may_take_as_long_as_its_caller_allows() -> None:
    """A modern server is asked by a probe, which the SDK limits."""
    held = Held()
    async with (
        McpPeer(era="modern") as peer,
        dialer() as one,
        one.connect(http(peer), within=LIMIT, redactor=Redactor()) as connection,
    ):
        peer.script = held.before(peer.healthy)

        async def ping() -> None:
            await connection.ping(within=LIMIT)

        await while_held(held, ping, SLOW)


async def test_the_list_of_tools_may_take_as_long_as_the_attempt() -> None:
    held, listed = Held(), list[int]()
    async with McpPeer(era="modern") as peer, dialer() as one:
        peer.script = [peer.healthy, held.before(peer.healthy), peer.healthy]

        async def read(connection: Connection, within: float) -> int:
            return len(await connection.list_tools(within=within))

        async def attempt() -> None:
            made = Attempt(spec=http(peer), redactor=Redactor(), read=read, within=LIMIT)
            listed.append((await made.run(one, _NoLimit())).listing or 0)

        await while_held(held, attempt, SLOW)
    assert listed == [5]


class _NoLimit:
    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        yield


async def test_the_time_for_the_start_of_a_process_is_none_for_a_server_over_http() -> None:
    held, seen = Held(), list[object]()
    async with McpPeer(era="modern") as peer:
        peer.script = [held.before(peer.healthy)]

        async def dial() -> None:
            async with dialer() as one:
                with pytest.raises(ServerFailure) as failed:
                    async with one.connect(http(peer), within=LIMIT, start_within=4 * LIMIT, redactor=Redactor()):
                        pass
                seen.append(failed.value.evidence)
                held.let_go.set()

        with anyio.fail_after(PATIENCE + 2 * LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(dial)
                await held.reached.wait()
                await jump(LIMIT)
    assert seen == [TimedOut(doing="its first answer", after=LIMIT)]
