"""The protocol era is found at any start-up delay, of real servers on the SDKs and of one that ignores the probe."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
import pytest

from holdfast.config import Limits, ServerSpec
from holdfast.core import Redactor
from holdfast.wire import handshake
from holdfast.wire.dial import Dialer
from holdfast.wire.warden import Warden
from tests.peers.stdio import StdioPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LOAD-14")]

SDK = Path(__file__).parents[1] / "peers" / "sdk"
NODE = Path(__file__).parents[2] / ".tools" / "node" / "node_modules"

SLOW = 4.0
"""Longer than any pause before ``initialize`` was once sent beside the probe."""

SERVERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "typescript-v1": (("node", str(SDK / "typescript_v1.cjs")), "legacy"),
    "typescript-v2": (("node", str(SDK / "typescript_v2.cjs")), "modern"),
    "python-v2": ((sys.executable, str(SDK / "python_v2.py")), "modern"),
}


def server(name: str, command: tuple[str, ...]) -> ServerSpec:
    program, *args = command
    return ServerSpec(id=name, transport="stdio", command=program, args=tuple(args), env={"NODE_PATH": str(NODE)})


async def eras(servers: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, str]]:
    """The era of each server, and what its tool answers; all are started together."""
    found: dict[str, tuple[str, str]] = {}
    async with Warden() as warden, anyio.create_task_group() as tasks:
        dialer = Dialer(warden=warden, limits=Limits())

        async def dial(name: str, command: tuple[str, ...]) -> None:
            async with dialer.connect(server(name, command), within=60, redactor=Redactor()) as connection:
                await connection.list_tools(within=20)
                result = await connection.call_tool("hello", {}, idle=10, within=10)
                found[name] = (connection.era, result.text)

        for name, command in servers.items():
            tasks.start_soon(dial, name, command)
    return found


@pytest.mark.parametrize("delay", [0.0, SLOW])
async def test_a_server_that_starts_slowly_comes_up_in_its_own_era(delay: float) -> None:
    found = await eras({name: (*command, str(delay)) for name, (command, _) in SERVERS.items()})
    assert found == {name: (era, "hello") for name, (_, era) in SERVERS.items()}


async def test_a_server_behind_a_program_that_reads_for_it_comes_up_in_an_era_that_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with ``docker run -i``: the probe is read at once, and the server sees it later, beside ``initialize``."""
    monkeypatch.setattr(handshake, "IGNORED_SECONDS", 0.5)
    piped = {name: ("sh", "-c", f"cat | exec {shlex.join((*command, '2'))}") for name, (command, _) in SERVERS.items()}
    found = await eras(piped)
    assert {name: text for name, (_, text) in found.items()} == dict.fromkeys(SERVERS, "hello")
    assert found["python-v2"][0] == "modern", "it refuses initialize after it has answered the probe"
    assert found["typescript-v1"][0] == "legacy"


@pytest.mark.parametrize("delay", [0.0, 2.0])
async def test_a_server_that_ignores_unknown_methods_comes_up_once_it_has_read_the_probe(
    delay: float, stdio_peer: Callable[..., StdioPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "IGNORED_SECONDS", 0.5)
    peer = stdio_peer("--ignore-discover", "--read-after", str(delay))
    async with Warden() as warden:
        spec = server("quiet", (peer.command, *peer.args))
        async with Dialer(warden=warden, limits=Limits()).connect(spec, within=30, redactor=Redactor()) as connection:
            assert connection.era == "legacy"
            assert await connection.list_tools(within=5)
    assert peer.methods == ["server/discover", "initialize", "notifications/initialized", "tools/list"]
    assert peer.starts == 1


async def test_initialize_is_not_sent_beside_a_probe_that_was_not_read(
    stdio_peer: Callable[..., StdioPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "IGNORED_SECONDS", 0.2)
    peer = stdio_peer("--era", "both", "--read-after", "2")
    async with Warden() as warden:
        spec = server("slow", (peer.command, *peer.args))
        async with Dialer(warden=warden, limits=Limits()).connect(spec, within=30, redactor=Redactor()) as connection:
            assert connection.era == "modern"
    assert peer.methods == ["server/discover"]
