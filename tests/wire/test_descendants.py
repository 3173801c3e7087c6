"""The descendants of a child end with its connection, also those that left its process group."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from holdfast.config.settings import Limits
from holdfast.config.spec import ServerSpec
from holdfast.core.redact import Redactor
from holdfast.wire import process
from holdfast.wire.dial import Dialer
from holdfast.wire.session import Connection
from holdfast.wire.warden import Warden
from tests.harness.open_hubs import reaches, running, until
from tests.peers.leaks import alive
from tests.peers.stdio import StdioPeer
from tests.wire.processes import gone, journal

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requirement("LIFE-27"),
    pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show the environment of a process"),
]


@asynccontextmanager
async def dialed(spec: ServerSpec) -> AsyncIterator[Connection]:
    async with Warden() as warden:
        dialer = Dialer(warden=warden, limits=Limits())
        async with dialer.connect(spec, within=20, redactor=Redactor()) as connection:
            yield connection
        # Here the connection is closed and the warden lives: nothing but the close can have ended a descendant.


def command(peer: StdioPeer) -> ServerSpec:
    return ServerSpec(id="a", transport="stdio", command=peer.command, args=peer.args)


async def test_a_daemon_ends_with_the_connection_and_not_with_the_hub(stdio_peer: Callable[..., StdioPeer]) -> None:
    peer, calm = stdio_peer("--grandchild-daemon"), stdio_peer("--grandchild-daemon")
    async with Warden() as warden:
        dialer = Dialer(warden=warden, limits=Limits())
        async with dialer.connect(command(calm), within=20, redactor=Redactor()):
            async with dialer.connect(command(peer), within=20, redactor=Redactor()):
                (daemon,) = peer.grandchildren
                assert alive(daemon)
            assert not alive(daemon)
            assert all(map(alive, calm.grandchildren)), "another child's daemon is not touched"


async def test_a_crash_loop_leaves_no_daemons(stdio_peer: Callable[..., StdioPeer]) -> None:
    peer = stdio_peer("--grandchild-daemon", "--die-after-list")
    async with running({"a": peer}, reconnect={"backoff": ["10ms", "10ms", "10ms"]}) as hub:
        await until(hub, "a", lambda: peer.starts >= 4)
        with anyio.fail_after(20):
            await peer.until(lambda: sum(map(alive, peer.grandchildren)) <= 1)


async def test_disabling_a_server_ends_its_daemon(stdio_peer: Callable[..., StdioPeer]) -> None:
    peer = stdio_peer("--grandchild-daemon")
    async with running({"a": peer}) as hub:
        await reaches(hub, "a")
        await hub.toggle("a", False)
        assert peer.living == []


CLEARED = r"""
import os, subprocess, sys, json
def clear():
    if os.fork():
        os._exit(0)
    os.setsid()
daemon = "import os, sys, time; os.write(os.open(sys.argv[1], 1), b'daemon %d\\n' % os.getpid()); time.sleep(60)"
nothing = subprocess.DEVNULL
subprocess.Popen([sys.executable, "-S", "-c", daemon, sys.argv[1]],
    env={}, preexec_fn=clear, stdin=nothing, stdout=nothing, stderr=nothing)
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}}
        result |= {"ttlMs": 0, "cacheScope": "private"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


@pytest.fixture
def adopting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process adopts orphans, as ``holdfast serve`` does."""
    monkeypatch.setattr(process, "_ADOPTS", False)
    assert process.adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


@pytest.mark.usefixtures("adopting")
async def test_a_daemon_that_cleared_its_environment_is_adopted_and_ends_with_the_connection(tmp_path: Path) -> None:
    with journal(tmp_path) as heard:
        args = ("-S", "-c", CLEARED, str(heard.path))
        async with dialed(ServerSpec(id="a", transport="stdio", command=sys.executable, args=args)):
            daemon = int(await heard.line("daemon"))
            assert alive(daemon)
            assert os.getpgid(daemon) != os.getpgid(0)
        await gone(daemon)
    with pytest.raises(ProcessLookupError):
        os.kill(daemon, 0)  # a dead orphan is collected
