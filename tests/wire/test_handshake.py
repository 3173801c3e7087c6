"""The era of a server is found with as few requests as possible, for every answer to the probe."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from holdfast.config.settings import Limits
from holdfast.config.spec import ServerSpec
from holdfast.core.evidence import HttpStatus, NotMcp, NotMcpFault, ProcessExit, RpcError, TimedOut
from holdfast.core.redact import Redactor
from holdfast.errors import ServerFailure
from holdfast.wire import handshake
from holdfast.wire.dial import Dialer
from holdfast.wire.in_flight import Era
from holdfast.wire.session import Connection
from holdfast.wire.warden import Warden
from tests.peers.http_fault import Behaviour, FaultServer, respond
from tests.peers.mcp_http import McpPeer, Refusal
from tests.peers.mcp_sse import SsePeer
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio

PROBE = "server/discover"
GREETING = ["initialize", "notifications/initialized"]
SOON = 0.05


@asynccontextmanager
async def dialed(spec: ServerSpec, *, era: Era | None = None, within: float = 10.0) -> AsyncIterator[Connection]:
    async with Warden() as warden:
        dialer = Dialer(warden=warden, limits=Limits())
        async with dialer.connect(spec, within=within, redactor=Redactor(), era=era) as connection:
            yield connection


async def failure_of(spec: ServerSpec, *, era: Era | None = None, within: float = 10.0) -> Any:
    with pytest.raises(ServerFailure) as failed:
        async with dialed(spec, era=era, within=within):
            raise AssertionError("there is no connection to be had")
    return failed.value.evidence


def http(peer: McpPeer | FaultServer) -> ServerSpec:
    return ServerSpec(id="a", transport="http", url=peer.url if isinstance(peer, McpPeer) else peer.origin)


def pipe(peer: StdioPeer) -> ServerSpec:
    return ServerSpec(id="a", transport="stdio", command=peer.command, args=peer.args)


def program(source: str) -> ServerSpec:
    return ServerSpec(id="a", transport="stdio", command=sys.executable, args=("-I", "-S", "-c", source))


def rpc_error(code: int, **data: object) -> Behaviour:
    error = {"code": code, "message": "no", "data": data}
    return respond(400, json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}), content_type="application/json")


# Over HTTP


@pytest.mark.requirement("LOAD-8")
@pytest.mark.parametrize(
    ("era", "found", "methods"),
    [("legacy", "legacy", [PROBE, *GREETING]), ("modern", "modern", [PROBE]), ("both", "modern", [PROBE])],
)
async def test_the_era_of_a_server_is_found_with_one_probe(era: Any, found: str, methods: list[str]) -> None:
    async with McpPeer(era=era) as peer, dialed(http(peer)) as connection:
        assert connection.era == found
        assert peer.methods == methods
        assert connection.protocol_version == ("2026-07-28" if found == "modern" else "2025-11-25")


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(200, -32601),
        Refusal(400, -32600),
        Refusal(404),
        Refusal(404, None),
        Refusal(405, None),
        Refusal(400, None),
    ],
)
async def test_however_an_old_server_turns_the_probe_down_it_is_greeted(refusal: Refusal) -> None:
    async with McpPeer(refuse_discover=refusal) as peer:
        async with dialed(http(peer)) as connection:
            assert connection.era == "legacy"
        assert peer.methods[:3] == [PROBE, *GREETING]


@pytest.mark.requirement("LOAD-8")
@pytest.mark.parametrize("status", [401, 403, 407, 408, 429, 500, 502, 503, 504])
async def test_a_refusal_before_the_server_is_no_answer_about_its_era_and_ends_the_attempt(status: int) -> None:
    async with FaultServer(respond(status)) as peer:
        seen = await failure_of(http(peer))
    assert isinstance(seen, HttpStatus)
    assert seen.status == status
    assert len(peer.requests) == 1


@pytest.mark.requirement("LOAD-8")
async def test_a_server_known_to_be_legacy_is_not_probed() -> None:
    async with McpPeer() as peer, dialed(http(peer), era="legacy") as connection:
        assert connection.era == "legacy"
        assert peer.methods == GREETING


@pytest.mark.parametrize("code", [-32022, -32601])
async def test_a_server_that_was_legacy_and_has_moved_on_is_found_modern(code: int) -> None:
    async with McpPeer(era="modern", initialize_code=code) as peer, dialed(http(peer), era="legacy") as connection:
        assert connection.era == "modern"
        assert peer.methods == ["initialize", PROBE]


async def test_a_server_that_was_modern_and_has_gone_back_is_found_legacy() -> None:
    async with McpPeer() as peer, dialed(http(peer), era="modern") as connection:
        assert connection.era == "legacy"
        assert peer.methods == [PROBE, *GREETING]


async def test_a_server_that_names_older_versions_is_greeted() -> None:
    async with McpPeer(faults=[rpc_error(-32022, supported=["2025-06-18"], requested="2026-07-28")]) as peer:
        async with dialed(http(peer)) as connection:
            assert connection.era == "legacy"
        assert peer.methods[:3] == [PROBE, *GREETING]


@pytest.mark.parametrize("data", [{}, {"supported": "all"}, {"supported": [], "requested": "2026-07-28"}])
async def test_a_server_that_names_no_version_in_its_refusal_is_greeted(data: dict[str, object]) -> None:
    async with McpPeer(faults=[rpc_error(-32022, **data)]) as peer, dialed(http(peer)) as connection:
        assert connection.era == "legacy"


@pytest.mark.requirement("LOAD-3")
async def test_a_server_that_names_only_versions_of_the_future_does_not_speak_with_us() -> None:
    async with McpPeer(era="modern", handshake_fault="version") as peer:
        assert await failure_of(http(peer)) == NotMcp(fault=NotMcpFault.VERSION, detail="2099-01-01")
    assert peer.methods == [PROBE]


@pytest.fixture
def newer_than_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """We speak one modern version more than the peers do."""
    monkeypatch.setattr(handshake, "LATEST_MODERN_VERSION", "2027-01-01")
    monkeypatch.setattr(handshake, "MODERN_PROTOCOL_VERSIONS", ("2026-07-28", "2027-01-01"))


@pytest.mark.usefixtures("newer_than_the_peers")
async def test_a_probe_at_a_version_too_new_is_repeated_at_the_one_that_both_speak() -> None:
    async with McpPeer(era="modern") as peer, dialed(http(peer)) as connection:
        assert connection.era == "modern"
        assert connection.protocol_version == "2026-07-28"
        assert peer.methods == [PROBE, PROBE]


@pytest.mark.usefixtures("newer_than_the_peers")
async def test_a_server_that_refuses_the_version_it_named_is_greeted() -> None:
    async with McpPeer(faults=[rpc_error(-32022, supported=["2026-07-28"], requested="2027-01-01")]) as peer:
        async with dialed(http(peer)) as connection:
            assert connection.era == "legacy"
        assert peer.methods[:4] == [PROBE, PROBE, *GREETING]


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("error", RpcError(method="initialize", code=-32603, message="The database is on fire")),
        ("misfit", NotMcp(fault=NotMcpFault.BAD_RESULT)),
        ("version", NotMcp(fault=NotMcpFault.VERSION)),
    ],
)
async def test_a_handshake_that_fails_is_that_kind_of_failure(era: Any, fault: Any, seen: Any) -> None:
    async with McpPeer(era=era, handshake_fault=fault) as peer:
        found = await failure_of(http(peer))
    if era == "legacy" or fault == "version":
        assert type(found) is type(seen)
        assert getattr(found, "fault", None) == getattr(seen, "fault", None)
        assert getattr(found, "code", None) == getattr(seen, "code", None)
    else:  # what a modern server says wrongly is no answer, and it knows no greeting
        assert found == RpcError(method="initialize", code=-32022, message="Unsupported protocol version")


async def test_an_event_stream_that_names_no_endpoint_meets_the_deadline() -> None:
    async with SsePeer(endpoint=None) as peer:
        seen = await failure_of(ServerSpec(id="a", transport="sse", url=peer.url), within=SOON)
    assert isinstance(seen, TimedOut)


async def test_over_sse_nothing_is_probed() -> None:
    async with SsePeer() as peer, dialed(ServerSpec(id="a", transport="sse", url=peer.url)) as connection:
        assert connection.era == "legacy"
        assert [method for method in peer.methods if method != "GET"] == GREETING


# Over pipes


@pytest.mark.requirement("LOAD-8")
@pytest.mark.parametrize(("era", "methods"), [("legacy", [PROBE, *GREETING]), ("modern", [PROBE]), ("both", [PROBE])])
async def test_the_era_of_a_process_is_found_with_one_probe(
    era: str, methods: list[str], stdio_peer: Callable[..., StdioPeer]
) -> None:
    peer = stdio_peer("--era", era)
    async with dialed(pipe(peer)) as connection:
        assert connection.era == ("legacy" if era == "legacy" else "modern")
        await connection.list_tools(within=5)
    assert peer.methods == [*methods, "tools/list"]
    assert peer.starts == 1


async def test_a_process_that_ignores_the_probe_is_greeted_after_a_while(
    stdio_peer: Callable[..., StdioPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "IGNORED_SECONDS", SOON)
    peer = stdio_peer("--ignore-discover")
    async with dialed(pipe(peer)) as connection:
        assert connection.era == "legacy"
        await connection.list_tools(within=5)
    assert peer.methods == [PROBE, *GREETING, "tools/list"]
    assert peer.starts == 1


async def test_a_process_that_dies_of_the_probe_is_started_again_and_greeted(
    stdio_peer: Callable[..., StdioPeer],
) -> None:
    peer = stdio_peer("--die-on-discover")
    async with dialed(pipe(peer)) as connection:
        assert connection.era == "legacy"
        await connection.list_tools(within=5)
    assert peer.starts == 2
    async with dialed(pipe(peer), era="legacy"):
        assert peer.starts == 3


async def test_a_process_that_dies_without_listening_is_not_started_again(
    stdio_peer: Callable[..., StdioPeer],
) -> None:
    peer = stdio_peer("--exit-at-once", "3", "--stderr", "no API key")
    seen = await failure_of(pipe(peer))
    assert isinstance(seen, ProcessExit)
    assert (seen.code, seen.stood, seen.stderr) == (3, False, "no API key")
    assert peer.starts == 1


SLOW_BUT_MODERN = """
import json, sys
probe = json.loads(sys.stdin.readline())
greeting = json.loads(sys.stdin.readline())
assert (probe["method"], greeting["method"]) == ("server/discover", "initialize")
result = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}}
result |= {"ttlMs": 0, "cacheScope": "private"}
print(json.dumps({"jsonrpc": "2.0", "id": probe["id"], "result": result}), flush=True)
sys.stdin.read()
"""

NEITHER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    error = {"code": -32000, "message": "not " + message["method"]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
"""


async def test_a_late_answer_to_the_probe_counts_where_initialize_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "IGNORED_SECONDS", SOON)
    async with dialed(program(SLOW_BUT_MODERN)) as connection:
        assert connection.era == "modern"


async def test_where_both_questions_are_answered_with_no_the_greetings_refusal_is_the_reason() -> None:
    assert await failure_of(program(NEITHER)) == RpcError(method="initialize", code=-32000, message="not initialize")


async def test_a_process_that_stays_silent_meets_the_deadline(
    stdio_peer: Callable[..., StdioPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "IGNORED_SECONDS", SOON)
    peer = stdio_peer("--never-answer")
    with anyio.fail_after(10):
        seen = await failure_of(pipe(peer), within=1.5)
    assert isinstance(seen, TimedOut)
    assert peer.methods == [PROBE, "initialize"]


async def test_a_process_that_prints_something_else_is_no_mcp_server(stdio_peer: Callable[..., StdioPeer]) -> None:
    seen = await failure_of(pipe(stdio_peer("--garbage")), within=1.5)
    assert isinstance(seen, NotMcp)
    assert seen.fault is NotMcpFault.NOT_JSON
    assert "this is no protocol" in seen.detail


async def test_a_server_of_the_modern_era_may_give_caches_an_odd_hint() -> None:
    source = SLOW_BUT_MODERN.replace('"ttlMs": 0', '"ttlMs": -1').replace("greeting = json", "greeting = probe # json")
    source = source.replace('"initialize")', '"server/discover")')
    async with dialed(program(source)) as connection:
        assert connection.era == "modern"
