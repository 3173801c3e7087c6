"""A server that speaks both eras is spoken to in the client's era: a real one on the Python SDK 2.x."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from holdfast.core.lifecycle.table import State
from holdfast.hub import lease as leases
from holdfast.hub.hub import Hub
from tests.harness.open_hubs import reaches, running
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-18")]

PROGRAM = Path(__file__).parents[1] / "peers" / "sdk" / "python_v2.py"


class Client:
    """A caller of one era that answers what it is asked."""

    principal = ""
    log_level = None
    client_key = None
    via = ()
    trace_id = ""

    def __init__(self, era: Literal["modern", "legacy"], *, can_be_asked: bool = True) -> None:
        self.era = era
        self.asked: list[str] = []
        self.capabilities: Mapping[str, Any] = {"elicitation": {"form": {}}} if can_be_asked else {}

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        self.asked.append(method)
        return {"action": "accept", "content": {"name": "Ada"}}

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """It wants no notifications."""

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """It wants no progress."""


class ToCaller:
    """A relay that sends a server's request to the caller it belongs to."""

    capabilities: Mapping[str, Any] = {"elicitation": {"form": {}}}

    def __init__(self, client: Client) -> None:
        self._client = client

    async def asked(self, server: str, method: str, params: Mapping[str, Any] | None, caller: object) -> dict[str, Any]:
        return await self._client.ask(method, params)

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """It passes on no notifications."""


@contextmanager
def http_server() -> Iterator[dict[str, object]]:
    """The program over streamable HTTP, as an entry of ``mcpServers``."""
    with subprocess.Popen([sys.executable, str(PROGRAM), "http"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield {"type": "http", "url": f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"}
        finally:
            process.kill()


async def call(hub: Hub, tool: str, client: Client, arguments: Mapping[str, Any] | None = None) -> str:
    params = {"name": tool, "arguments": dict(arguments or {})}
    with anyio.fail_after(30):
        result = await hub.registry.request("dual", "tools/call", params, caller=client)
    assert not result.get("isError"), result
    return str(result["content"][0]["text"])


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_tool_that_asks_the_old_way_reaches_a_legacy_client(transport: str) -> None:
    legacy, modern = Client("legacy"), Client("modern")
    with http_server() as over_http:
        server = over_http if transport == "http" else {"command": sys.executable, "args": [str(PROGRAM), "0"]}
        async with running({"dual": server}) as hub:
            hub.registry.attach(ToCaller(legacy))
            await reaches(hub, "dual")
            lease = hub.registry.slots["dual"].lease
            assert lease is not None
            assert lease.connection is not None
            assert lease.connection.era == "modern"
            assert await call(hub, "hello", modern) == "hello"
            assert lease.other is not None
            assert lease.other.connection is None, "nothing is opened before a legacy client needs it"
            assert await call(hub, "ask", legacy) == "hello Ada"
            assert legacy.asked == ["elicitation/create"]
            assert lease.other.connection.era == "legacy"  # type: ignore[attr-defined]  # it is there by now
            assert hub.server_health("dual").generation == 1, "both are one lease, with one health"
            assert await call(hub, "hello", modern) == "hello"


DUAL = {"command": sys.executable, "args": [str(PROGRAM), "0"]}


async def test_a_legacy_client_that_cannot_be_asked_uses_the_process_that_runs() -> None:
    plain = Client("legacy", can_be_asked=False)
    async with running({"dual": DUAL}) as hub:
        await reaches(hub, "dual")
        first = await call(hub, "process", Client("modern"))
        assert [await call(hub, "process", plain) for _ in range(3)] == [first] * 3
        lease = hub.registry.slots["dual"].lease
        assert lease is not None
        assert lease.other is not None
        assert lease.other.connection is None, "there is no second process"


async def test_the_calls_of_a_client_reach_one_process_from_the_first_on() -> None:
    client = Client("legacy")
    async with running({"dual": DUAL}) as hub:
        await reaches(hub, "dual")
        reached = [await call(hub, "process", client) for _ in range(3)]
        assert len(set(reached)) == 1, "what a call did in one process is not known in another"
        assert await call(hub, "process", Client("modern")) not in reached


async def test_a_second_process_that_is_not_there_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "OTHER_PROCESS_SECONDS", 0.0)
    client = Client("legacy")
    async with running({"dual": DUAL}) as hub:
        await reaches(hub, "dual")
        first = await call(hub, "process", Client("modern"))
        assert await call(hub, "process", client) == first
        monkeypatch.setattr(leases, "OTHER_PROCESS_SECONDS", 20.0)
        assert await call(hub, "process", client) == first, "a client stays where its first call was"


async def test_a_second_process_that_fails_is_not_started_again(tmp_path: Path) -> None:
    """As a server with a lock on its database: only one process of it can run."""
    lock, starts = tmp_path / "lock", tmp_path / "starts"
    once = f'echo start >> "{starts}"; mkdir "{lock}" || exit 1; exec "{sys.executable}" "{PROGRAM}" 0'
    client = Client("legacy")
    async with running({"dual": {"command": "sh", "args": ["-c", once]}}) as hub:
        await reaches(hub, "dual")
        assert len({await call(hub, "process", client) for _ in range(3)}) == 1
        lease = hub.registry.slots["dual"].lease
        assert lease is not None
        assert lease.other is not None
        assert lease.other.absent
    assert starts.read_text() == "start\n" * 2


async def test_a_server_of_the_modern_era_alone_is_asked_once_and_used_as_it_is() -> None:
    async with McpPeer(era="modern") as peer, running({"dual": peer}) as hub:
        await reaches(hub, "dual")
        for _ in range(3):
            assert await call(hub, "echo", Client("legacy"), {"text": "x"}) == "x"
        assert peer.methods.count("initialize") == 1
        assert hub.server_health("dual").state is State.CONNECTED


async def test_the_second_connection_is_opened_again_after_it_was_lost() -> None:
    async with McpPeer(era="both") as peer, running({"dual": peer}) as hub:
        await reaches(hub, "dual")
        assert await call(hub, "echo", Client("legacy"), {"text": "one"}) == "one"
        peer.sessions.clear()
        assert await call(hub, "echo", Client("legacy"), {"text": "two"}) == "two"
        assert peer.methods.count("initialize") == 2
        assert hub.server_health("dual").generation == 1


@pytest.mark.requirement("SEC-14")
async def test_a_call_is_judged_again_if_it_waited_for_a_connection_of_its_era() -> None:
    judged: list[str] = []
    async with McpPeer(era="both") as peer, running({"dual": peer}) as hub:
        await reaches(hub, "dual")
        eras: tuple[Literal["modern", "legacy"], ...] = ("modern", "legacy", "legacy")
        for era in eras:
            with anyio.fail_after(30):
                await hub.registry.slots["dual"].call(
                    "tools/call",
                    {"name": b'"echo"', "arguments": b'{"text":"x"}'},
                    caller=Client(era),
                    check=partial(judged.append, era),
                )
    assert judged == ["legacy"], "only the first legacy call waits: the others find their connections open"


@pytest.mark.parametrize(("era", "spoken"), [("legacy", "legacy"), ("modern", "modern"), ("auto", "modern")])
async def test_the_era_in_the_config_decides(era: str, spoken: str, stdio_peer: Callable[..., StdioPeer]) -> None:
    peer = stdio_peer("--era", "both")
    server = {"command": peer.command, "args": list(peer.args), "era": era}
    async with running({"dual": server}) as hub:
        await reaches(hub, "dual")
        lease = hub.registry.slots["dual"].lease
        assert lease is not None
        assert lease.connection is not None
        assert lease.connection.era == spoken
        assert (lease.other is None) is (era != "auto")
    assert ("server/discover" in peer.methods) is (era != "legacy")
    assert ("initialize" in peer.methods) is (era == "legacy")


async def test_an_era_that_the_server_does_not_speak_is_its_permanent_failure(
    stdio_peer: Callable[..., StdioPeer],
) -> None:
    peer = stdio_peer("--era", "legacy")
    async with running({"old": {"command": peer.command, "args": list(peer.args), "era": "modern"}}) as hub:
        await hub.ready()
        assert "it does not speak the modern era" in hub.server_health("old").reason
