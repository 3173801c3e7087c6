"""A connection after its handshake: what its requests say of a client, which of them it sends, and what it lists."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from mcp_types import CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION

from holdfast.config import Limits, ServerSpec
from holdfast.core import HttpStatus, NetworkFailure, NetworkFault, Redactor, TimedOut
from holdfast.wire import RawObject, session
from holdfast.wire.dial import Dialer
from holdfast.wire.http.transport import HttpDispatcher
from holdfast.wire.in_flight import Era, RequestInFlight
from holdfast.wire.request_form import routing_headers, stamp
from holdfast.wire.warden import Warden
from tests.peers.peer_server import running

pytestmark = pytest.mark.requirement("LIFE-28")

TASKS: dict[str, Any] = {"tasks": {}, "roots": {}}


class OneClient:
    """A ``Caller`` that only says what it can do."""

    log_level: str | None = None
    client_key = None
    via = ()
    trace_id = ""
    principal = ""

    def __init__(self, capabilities: dict[str, Any], era: Era = "modern") -> None:
        self.capabilities = capabilities
        self.era: Era = era

    async def ask(self, method: str, params: object) -> dict[str, Any]:
        raise NotImplementedError

    def tell(self, method: str, params: object) -> None:
        raise NotImplementedError

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        raise NotImplementedError


def said(version: str, client: OneClient | None) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads(stamp(version, client))
    return meta


def test_each_client_gets_its_own_capabilities_in_its_own_era_and_version() -> None:
    now = LATEST_MODERN_VERSION
    assert said(now, None)[CLIENT_CAPABILITIES_META_KEY] == {}
    assert said(now, OneClient({"roots": {}}))[CLIENT_CAPABILITIES_META_KEY] == {"roots": {}}
    assert said(now, OneClient(TASKS))[CLIENT_CAPABILITIES_META_KEY] == TASKS
    assert said(now, OneClient(TASKS, "legacy"))[CLIENT_CAPABILITIES_META_KEY] == {"roots": {}}
    assert said("2027-01-01", OneClient(TASKS))[PROTOCOL_VERSION_META_KEY] == "2027-01-01"


@pytest.mark.requirement("HUB-7")
def test_a_modern_server_is_asked_for_the_log_messages_that_a_legacy_client_expects() -> None:
    client = OneClient({}, "legacy")
    assert LOG_LEVEL_META_KEY not in said(LATEST_MODERN_VERSION, client)
    client.log_level = "warning"
    assert said(LATEST_MODERN_VERSION, client)[LOG_LEVEL_META_KEY] == "warning"


def test_a_modern_request_says_in_headers_what_it_is() -> None:
    assert routing_headers("2027-01-01", "tools/list", None) == {
        "mcp-protocol-version": "2027-01-01",
        "mcp-method": "tools/list",
    }
    assert routing_headers("2027-01-01", "tools/call", "echo")["mcp-name"] == "echo"


@pytest.mark.anyio
@pytest.mark.requirement("LIFE-26")
async def test_every_list_is_read_in_its_time_and_a_call_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    call = HttpDispatcher.call

    async def noted(self: HttpDispatcher, request: RequestInFlight, method: str, *args: Any, **options: Any) -> Any:
        sent.append(method)
        return await call(self, request, method, *args, **options)

    monkeypatch.setattr(HttpDispatcher, "call", noted)
    async with running("legacy") as origin, Warden() as warden:
        spec = ServerSpec(id="a", transport="http", url=origin.url)
        dialed = Dialer(warden=warden, limits=Limits()).connect(spec, within=10, redactor=Redactor())
        with anyio.fail_after(20):
            async with dialed as connection:
                sent.clear()
                await connection.call_tool("echo", {"text": "x"}, idle=10, within=10)
                assert sent == ["tools/call"], "a server without tasks needs no list to know how to call"
                offers = await connection.list_everything(within=10)
                assert offers.failures == {}
                assert {"tools", "prompts", "resources", "templates"} == offers.keys()
                assert {name for name, _ in await connection.list_tools(within=10)} == {
                    name for name, _ in offers["tools"]
                }


@pytest.mark.requirement("LIFE-10")
@pytest.mark.parametrize(
    ("params", "named"),
    [({"name": "add", "uri": "a://b"}, "add"), ({"uri": "a://b"}, "a://b"), ({}, "some/method")],
)
@pytest.mark.parametrize(
    ("hard", "idle", "within", "after", "setting"),
    [
        (False, 5.0, 9.0, 5.0, "timeout"),
        (True, 5.0, 9.0, 9.0, "holdfast.call.hardTimeout"),
        (True, 9.0, 9.0, 9.0, "timeout"),
    ],
)
def test_a_request_that_took_too_long_says_for_what_it_waited_and_which_setting_gives_more_time(
    params: dict[str, str], named: str, hard: bool, idle: float, within: float, after: float, setting: str
) -> None:
    request: Any = SimpleNamespace(hard=hard)
    seen = session._timed_out("some/method", RawObject.of(params).members, request, idle, within)
    assert seen == TimedOut(doing=f"the result of {named}", after=after, setting=setting)


def test_a_stream_is_asked_for_the_changes_that_its_server_offers() -> None:
    offered = {"tools": {"listChanged": True}, "prompts": {"listChanged": False}, "resources": {}, "logging": {}}
    assert session._offered(offered) == {"toolsListChanged": True}
    every = {kind: {"listChanged": True} for kind in ("tools", "prompts", "resources")}
    assert session._offered(every) == {f"{kind}ListChanged": True for kind in every}
    assert session._offered({}) == {}


def test_the_end_of_a_server_is_told_by_its_first_stream_and_by_one_that_was_lost() -> None:
    refused, late = NetworkFailure(fault=NetworkFault.REFUSED), TimedOut(doing="x", after=1.0)
    stream: Any = session._Stream(None, lambda: None)  # type: ignore[arg-type]  # nothing is asked of it
    for ever, now, ends in (
        (False, False, [refused, late]),
        (True, False, [refused, late, HttpStatus(status=404)]),
        (True, True, [HttpStatus(status=404)]),
    ):
        stream._ever_open, stream._open = ever, now
        for seen in (refused, late, HttpStatus(status=404), HttpStatus(status=500)):
            assert stream._tells_the_end(seen) is (seen in ends)
