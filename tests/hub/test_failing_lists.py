"""One list that fails takes no other kind with it, and every command gives the same verdict (LIFE-26)."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

from holdfast import load
from holdfast.config import config_from_mapping
from holdfast.control.server.views import History, HubInfo, Views
from holdfast.core import State, to_milliseconds
from holdfast.errors import ServerNotReady
from holdfast.hub import findings
from holdfast.hub.hub import Hub
from holdfast.hub.journal import ListFailed
from holdfast.testing import FakeClock
from holdfast.wire import listing
from tests.doctor.examination import Examination, clinic
from tests.harness.eras import ada
from tests.harness.open_hubs import reaches, records, running, settled, until
from tests.harness.served_hub import Person, front, text_of

__all__ = ["ada", "clinic"]

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LIFE-26")]

SERVER = """
import json, sys
LISTS = {
    "tools/list": {"tools": [{"name": "a", "inputSchema": {"type": "object"}}]},
    "prompts/list": {"prompts": [{"name": "p"}]},
    "resources/list": {"resources": [{"uri": "note://one", "name": "one"}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "note://{id}", "name": "notes"}]},
}
ABOUT = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "s", "version": "1"},
         "capabilities": {"tools": {}, "prompts": {}, "resources": {}}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, fault = message["method"], json.load(open(sys.argv[1]))
    answer = {"error": {"code": -32601, "message": "Method not found"}}
    if method == "initialize":
        answer = {"result": ABOUT}
    elif method in LISTS:
        answer = {"result": LISTS[method]}
    if method in fault and fault[method] == "silence":
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **fault.get(method, answer)}), flush=True)
"""

FAULTS = {
    "error": ('{"resources/list": {"error": {"code": -32603, "message": "the disk is gone"}}}', "the disk is gone"),
    "nonsense": ('{"resources/list": {"result": {"resources": [{"name": "no uri"}]}}}', "uri: Field required"),
    "no list": ('{"resources/list": {"result": {}}}', "resources: Field required"),
    "silence": ('{"resources/list": "silence"}', "resources/list"),
    "depth": (
        '{"resources/list": {"result": {"resources": [{"uri": "a:b", "name": "b", "_meta": {"a": '
        + "[" * 99
        + "]" * 99
        + "}}]}}}",
        "nested too deep",
    ),
}


class Broken:
    """A server whose lists follow a file."""

    def __init__(self, folder: Path) -> None:
        self._script, self._faults = folder / "server.py", folder / "faults.json"
        self._script.write_text(SERVER)
        self.breaks("{}")

    def breaks(self, faults: str) -> None:
        self._faults.write_text(faults)

    @property
    def definition(self) -> dict[str, object]:
        return {"command": sys.executable, "args": ["-I", "-S", str(self._script), str(self._faults)]}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broken:
    monkeypatch.setattr(listing, "OTHER_LIST_SECONDS", 0.3)
    return Broken(tmp_path)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_server_is_up_with_its_other_kinds_when_one_list_fails(server: Broken, fault: str) -> None:
    faults, reason = FAULTS[fault]
    server.breaks(faults)
    async with running({"s": server.definition}) as hub:
        told = records(hub)
        await settled(hub)
        assert hub.server_health("s").state is State.CONNECTED
        catalog = hub.catalog
        assert [entry.name for entry in (*catalog.tools, *catalog.prompts)] == ["s__a", "s__p"]
        assert (len(catalog.resources), len(catalog.templates)) == (0, 1)
        assert reason in findings(hub.registry.catalog)["s"]
        failed = [record for record in told if isinstance(record, ListFailed)]
        assert [(record.server, record.kind) for record in failed] == [("s", "resources")]


def _refreshing(hub: Hub) -> bool:
    lease = hub.registry.slots["s"].machine.life.lease
    return lease is not None and lease.refreshing


async def test_a_list_that_fails_later_keeps_its_last_good_items_until_it_works_again(server: Broken) -> None:
    clock = FakeClock()
    async with running({"s": server.definition}, clock=clock, refresh="60s") as hub:
        await settled(hub)
        assert len(hub.catalog.resources) == 1
        server.breaks(FAULTS["error"][0])
        told = records(hub)
        await clock.advance(60)
        await until(hub, "s", lambda: findings(hub.registry.catalog))
        assert (len(hub.catalog.resources), hub.server_health("s").state) == (1, State.CONNECTED)
        await clock.advance(300)
        await until(hub, "s", lambda: not _refreshing(hub))
        assert hub.server_health("s").generation == 1
        server.breaks("{}")
        await clock.advance(60)
        await until(hub, "s", lambda: not findings(hub.registry.catalog))
        assert len([record for record in told if isinstance(record, ListFailed)]) == 1, "it is reported once"


async def test_without_its_tools_a_server_is_not_up(server: Broken) -> None:
    server.breaks('{"tools/list": {"error": {"code": -32603, "message": "the disk is gone"}}}')
    (outcome,) = (await load({"mcpServers": {"s": server.definition}})).outcomes
    async with running({"s": server.definition}) as hub:
        await settled(hub)
        health = hub.server_health("s")
    assert outcome.status != "available"
    assert health.state is not State.CONNECTED
    assert "the disk is gone" in (outcome.error or "")
    assert "the disk is gone" in health.reason


async def test_tools_serve_and_doctor_give_the_same_verdict(server: Broken, clinic: Examination) -> None:
    server.breaks(FAULTS["error"][0])
    config = config_from_mapping({"mcpServers": {"s": server.definition}})
    (outcome,) = (await load(config)).outcomes
    assert (outcome.status, len(outcome.tools)) == ("available", 1)
    examined = await clinic.one(server.definition)
    assert (examined.health, examined.tools) == ("warned", 1)
    clinic.matches("list_failed", examined.findings)
    async with running({"s": server.definition}) as hub:
        await reaches(hub, "s")


@pytest.mark.requirement("HUB-11")
async def test_the_status_tool_tells_the_finding(server: Broken, ada: Person) -> None:
    server.breaks(FAULTS["error"][0])
    async with front({"s": server.definition}) as served, ada.client(served.all, "legacy") as client:
        result = await client.call_tool("holdfast_status", {})
        contents = (await client.read_resource("holdfast://status")).contents
    assert "connected" in text_of(result)
    assert "its resources could not be listed: " in text_of(result), "a model reads the text"
    assert "the disk is gone" in text_of(result)
    assert "the disk is gone" in str(result.structured_content)
    assert "the disk is gone" in str(contents)


async def test_the_control_api_and_the_page_tell_the_finding(server: Broken) -> None:
    server.breaks(FAULTS["error"][0])
    async with running({"s": server.definition}) as hub:
        await settled(hub)
        shown = Views(hub, History(), HubInfo(endpoint="")).server("s")
    assert shown.status == "available"
    assert shown.finding.startswith("its resources could not be listed: ")
    assert "the disk is gone" in shown.finding
    assert shown.summary.endswith(f"I{shown.finding[1:]}.")


async def test_no_number_of_seconds_has_digits_that_mean_nothing(ada: Person) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        down = {"url": f"http://127.0.0.1:{bound.getsockname()[1]}/mcp"}
        async with front({"down": down}) as served, ada.client(served.all, "legacy") as client:
            refused = await client.call_tool("down__x", {})
            status = await client.call_tool("holdfast_status", {})
            contents = (await client.read_resource("holdfast://status")).contents
            shown = Views(served.hub, History(), HubInfo(endpoint="")).server("down")
    for text in (refused.model_dump_json(), status.model_dump_json(), str(contents), str(shown.retry_in)):
        assert not re.search(r"\d\.\d{4}", text), text
    assert to_milliseconds(0.23300000000017462) == 0.233
    error = ServerNotReady("x", server_id="s", state="y", retry_in=0.23300000000017462)
    assert error.retry_in == 0.233
