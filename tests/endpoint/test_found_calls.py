"""Calls through ``call_tool`` are the inner calls (FIND-7): breaker, tasks, headers and denials."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core import State
from holdfast.errors import LoadFailed
from holdfast.testing import Fault, HttpServer
from tests.clients.raw import MODERN_META
from tests.endpoint.test_tasks import Legacy, TaskServer
from tests.fleet.test_homes import modern
from tests.harness.open_hubs import reaches
from tests.harness.served_hub import PATIENT, Era, Person, front, text_of
from tests.harness.web import serving
from tests.peers.modern_tasks import EXTENSION, ModernTasks

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FIND-7")]


async def test_an_open_breaker_refuses_the_inner_call_without_asking_the_server(client_era: Era, ada: Person) -> None:
    async with (
        HttpServer({"forecast": "sunny"}) as server,
        front({"w": server.definition}, breaker={"threshold": 1}) as served,
        ada.client(f"{served.all}?tools=find", client_era) as client,
    ):
        await server.fail(Fault.DIE)
        first = await client.call_tool("call_tool", {"name": "w__forecast"})
        reached = server.asked.count("tools/call")
        second = await client.call_tool("call_tool", {"name": "w__forecast"})
        assert server.asked.count("tools/call") == reached
    assert first.is_error
    assert second.is_error
    assert "MCP server 'w'" in text_of(second)


@pytest.mark.requirement("FIND-2")
async def test_tools_of_a_server_that_denies_access_are_no_hits_and_their_calls_say_why(
    client_era: Era, ada: Person
) -> None:
    async with (
        HttpServer({"forecast": "sunny"}) as server,
        HttpServer({"echo": "yes"}) as other,
        front({"w": server.definition, "e": other.definition}) as served,
        ada.client(f"{served.all}?tools=find", client_era) as client,
    ):
        await server.fail(Fault.DENY)
        with pytest.raises(LoadFailed):
            await served.hub.reconnect("w")
        assert served.hub.server_health("w").status == "denied"
        nothing = await client.call_tool("find_tools", {"query": "forecast", "server": "w"})
        hits = await client.call_tool("find_tools", {"query": "forecast echo"})
        called = await client.call_tool("call_tool", {"name": "w__forecast"})
        in_program = await served.hub.find_tools("forecast", server="w")
        await server.heal()
        await served.hub.reconnect("w")
        await reaches(served.hub, "w", State.CONNECTED)
        again = await client.call_tool("find_tools", {"query": "forecast"})
    assert "Access is denied at: w." in text_of(nothing)
    assert [hit["name"] for hit in (hits.structured_content or {})["tools"]] == ["e__echo"]
    assert called.is_error
    assert "denied" in text_of(called)
    assert in_program == ()
    assert "w__forecast" in text_of(again)


async def test_a_task_through_call_tool_is_the_task_of_the_inner_tool(tmp_path: Any) -> None:
    server = TaskServer(tmp_path)
    async with (
        front({"t": server.definition}, call=PATIENT) as served,
        httpx2.AsyncClient(timeout=30) as http,
    ):
        client = Legacy(http, f"{served.all}?tools=find", {})
        await client.begin()
        outer = {"name": "call_tool", "arguments": {"name": "t__required", "arguments": {}}}
        listed = (await client.ask("tools/list"))["result"]["tools"]
        task = (await client.ask("tools/call", **outer, task={"ttl": 60_000}))["result"]["task"]
        ended = await client.ask("tasks/result", taskId=task["taskId"])
    assert ended["result"]["content"][0]["text"] == "required did it"
    support = {tool["name"]: tool.get("execution", {}).get("taskSupport") for tool in listed}
    assert (support["call_tool"], support["call_readonly_tool"]) == ("optional", "optional")
    assert server.got("tools/call as a task") == 1


class Mirroring(ModernTasks):
    """A modern server that wants an argument as a header too, and records the headers of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: list[dict[str, str]] = []

    async def _post(self, request: Request) -> Response:
        if (await request.json())["method"] == "tools/call":
            self.headers.append(dict(request.headers))
        return await super()._post(request)

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        answer = super()._answer(method, params)
        if method == "tools/list" and answer is not None:
            region = {"type": "string", "x-mcp-header": "Region"}
            schema = {"type": "object", "properties": {"region": region}, "required": ["region"]}
            return {**answer, "tools": [{"name": "long", "inputSchema": schema}]}
        return answer


async def test_the_headers_to_a_server_are_those_of_the_inner_call_and_so_is_a_modern_task() -> None:
    server = Mirroring()
    async with (
        serving(server.app) as base,
        front({"m": {"url": f"{base}/mcp"}}) as served,
        httpx2.AsyncClient(timeout=30) as http,
    ):
        asked = {"name": "m__long", "arguments": {"region": "eu-1"}}
        body, headers = modern("call_tool", arguments=asked)
        extensions: dict[str, Any] = {"extensions": {EXTENSION: {}}}
        body["params"]["_meta"] = {**MODERN_META, "io.modelcontextprotocol/clientCapabilities": extensions}
        url = f"{served.all}?tools=find"
        made = (await http.post(url, json=body, headers=headers)).json()["result"]
        get = {"method": "tasks/get", "params": {"taskId": made["taskId"], "_meta": body["params"]["_meta"]}}
        headers = {**headers, "mcp-method": "tasks/get", "mcp-name": made["taskId"]}
        done = (await http.post(url, json={**body, **get}, headers=headers)).json()["result"]
    (sent,) = server.headers
    assert sent["mcp-name"] == "long"
    assert sent["mcp-param-region"] == "eu-1"
    ((_, params, _),) = [one for one in server.seen if one[0] == "tools/call"]
    assert (params["name"], params["arguments"]) == ("long", {"region": "eu-1"})
    assert made["resultType"] == "task"
    assert done["result"]["content"][0]["text"] == "in the end"
