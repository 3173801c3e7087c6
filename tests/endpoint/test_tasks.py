"""Tools that run as tasks: each can be called by each client, and a task leads back to its server and its owner."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.access.principals import TokenPolicy
from holdfast.endpoint.tasks import LONGEST_TASK, MOST_OPEN, ServerTask, TaskIds, renamed
from holdfast.hub import call_tool
from holdfast.keys import KeyRing
from holdfast.wire import RawObject
from tests.clients.raw import MODERN_META, initialize
from tests.harness.served_hub import PATIENT, Era, Person, Served, front, text_of
from tests.harness.waiting import until
from tests.harness.web import serving
from tests.peers.everything import node
from tests.peers.modern_tasks import EXTENSION, ModernTasks
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-16")]

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "tests/peers/sdk/typescript_tasks.cjs"
TOOLS = {"plain", "optional", "required", "endless", "asking"}
ADA, BOB = ({"Authorization": f"Bearer {name}-{'x' * 16}"} for name in ("ada", "bob"))


class TaskServer:
    """A real server with a tool of each kind, and the methods that reached it."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "methods.log"
        self._log.touch()
        modules = str(ROOT / ".tools/node/node_modules")
        self.definition = {"command": str(node()), "args": [str(SERVER), str(self._log)], "env": {"NODE_PATH": modules}}

    def got(self, method: str) -> int:
        return self._log.read_text().splitlines().count(method)

    async def gets(self, method: str) -> None:
        await until(lambda: self.got(method), beside=self._log.parent)


@pytest.fixture
def server(tmp_path: Path) -> TaskServer:
    return TaskServer(tmp_path)


async def test_a_tool_of_each_kind_is_listed_and_called_by_clients_that_know_no_tasks(
    server: TaskServer, client_era: Era, ada: Person
) -> None:
    async with (
        front({"t": server.definition}, call=PATIENT) as served,
        ada.client(served.all, client_era) as client,
    ):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {f"t__{name}" for name in TOOLS} <= tools.keys()
        for name in ("plain", "optional", "required"):
            assert text_of(await client.call_tool(f"t__{name}", {})) == f"{name} did it"
        assert text_of(await client.call_tool("t__asking", {})) == "asking got ada's blue"
        assert ada.asked == ["elicit"]
        supports = {name: tools[f"t__{name}"].execution for name in ("optional", "required")}
        if client_era == "modern":
            assert supports == {"optional": None, "required": None}
        else:
            assert {one.task_support for one in supports.values() if one is not None} == {"optional"}
    assert server.got("tools/call as a task") == 2
    assert server.got("tools/call") == 2


async def test_a_program_calls_a_tool_that_needs_a_task_like_any_other(server: TaskServer) -> None:
    assert (await call_tool({"mcpServers": {"t": server.definition}}, "t", "required", {})).text == "required did it"
    async with front({"t": server.definition}, call=PATIENT) as served:
        assert (await served.hub.call_tool("t__required", {})).text == "required did it"


async def test_a_call_that_its_client_cancels_cancels_the_task(server: TaskServer, ada: Person) -> None:
    async with (
        front({"t": server.definition}, call=PATIENT) as served,
        ada.client(served.all, "legacy") as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(client.call_tool, "t__endless", {})
        await server.gets("tasks/result")
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await server.gets("tasks/cancel")


async def test_a_task_that_takes_longer_than_a_call_may_is_cancelled_and_its_caller_told(
    server: TaskServer, ada: Person
) -> None:
    limits = {**PATIENT, "timeout": "1s", "hardTimeout": "2s"}
    async with front({"t": server.definition}, call=limits) as served, ada.client(served.all, "legacy") as client:
        result = await client.call_tool("t__endless", {})
        await server.gets("tasks/cancel")
    assert result.is_error
    assert "no answer within 2 s (waiting for the result of endless)" in text_of(result)
    assert "hardTimeout" in text_of(result)


class Legacy:
    """A legacy session by hand."""

    def __init__(self, http: httpx2.AsyncClient, url: str, headers: dict[str, str]) -> None:
        self._http, self._url = http, url
        self._headers = {"accept": "application/json, text/event-stream", **headers}

    async def begin(self) -> dict[str, Any]:
        answer = await self._http.post(self._url, json=initialize(), headers=self._headers)
        self._headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        return dict(answer.json()["result"])

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        answer = await self._http.post(self._url, json=body, headers=self._headers)
        return dict(answer.json())


@asynccontextmanager
async def two_principals(definition: dict[str, Any]) -> AsyncIterator[tuple[Served, httpx2.AsyncClient]]:
    tokens = TokenPolicy(tokens={"ada": ADA["Authorization"][7:], "bob": BOB["Authorization"][7:]})
    async with (
        front({"t": definition}, call=PATIENT, tokens=tokens) as served,
        httpx2.AsyncClient(timeout=30) as http,
    ):
        yield served, http


@pytest.mark.parametrize("alone", [False, True])
async def test_a_client_that_knows_tasks_runs_one_and_no_other_principal_can_reach_it(
    server: TaskServer, alone: bool
) -> None:
    async with two_principals(server.definition) as (served, http):
        url, prefix = (served.one("t"), "") if alone else (served.all, "t__")
        ada, bob = Legacy(http, url, ADA), Legacy(http, url, BOB)
        can = (await ada.begin())["capabilities"]["tasks"]
        await bob.begin()
        created = await ada.ask("tools/call", name=f"{prefix}required", arguments={}, task={"ttl": 60000})
        task = created["result"]["task"]
        ended = await ada.ask("tasks/result", taskId=task["taskId"])
        got = await ada.ask("tasks/get", taskId=task["taskId"])
        foreign = [await bob.ask(method, taskId=task["taskId"]) for method in ("tasks/get", "tasks/cancel")]
        endless = (await ada.ask("tools/call", name=f"{prefix}endless", arguments={}, task={}))["result"]["task"]
        cancelled = await ada.ask("tasks/cancel", taskId=endless["taskId"])
        listed = await ada.ask("tasks/list")
    assert can == {"cancel": {}, "requests": {"tools": {"call": {}}}}
    assert ended["result"]["content"][0]["text"] == "required did it"
    assert ended["result"]["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": task["taskId"]}
    assert (got["result"]["taskId"], got["result"]["status"]) == (task["taskId"], "completed")
    assert [one["error"]["code"] for one in foreign] == [-32602, -32602]
    assert cancelled["result"]["status"] == "cancelled"
    assert listed["error"]["code"] == -32601
    assert server.got("tasks/get") == 1
    assert server.got("tasks/cancel") == 1


async def test_a_wish_for_a_task_is_ignored_by_a_server_that_runs_none(ada: Person) -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        httpx2.AsyncClient(timeout=30) as http,
    ):
        client = Legacy(http, served.all, {})
        await client.begin()
        answer = await client.ask("tools/call", name="o__echo", arguments={"text": "hi"}, task={})
    assert answer["result"]["content"][0]["text"] == "hi"


async def _modern(http: httpx2.AsyncClient, url: str, method: str, *, tasks: bool, **params: Any) -> dict[str, Any]:
    can: dict[str, Any] = {"extensions": {EXTENSION: {}}} if tasks else {}
    meta = {**MODERN_META, "io.modelcontextprotocol/clientCapabilities": can}
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
    name = params.get("name") or params.get("taskId")
    headers |= {"mcp-method": method} | ({"mcp-name": name} if name else {})
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return dict((await http.post(url, json=body, headers=headers)).json())


async def test_a_modern_servers_task_passes_to_a_modern_client_under_an_id_of_its_own() -> None:
    origin = ModernTasks()
    async with (
        serving(origin.app) as base,
        front({"m": {"url": f"{base}/mcp"}}) as served,
        httpx2.AsyncClient(timeout=30) as http,
    ):
        declared = await _modern(http, served.all, "server/discover", tasks=True)
        created = await _modern(http, served.all, "tools/call", tasks=True, name="m__long", arguments={})
        task = created["result"]["taskId"]
        got = await _modern(http, served.all, "tasks/get", tasks=True, taskId=task)
        await _modern(http, served.all, "tasks/update", tasks=True, taskId=task, inputResponses={})
        cancelled = await _modern(http, served.all, "tasks/cancel", tasks=True, taskId=task)
        own = await _modern(http, served.all, "tasks/get", tasks=True, taskId="task 1")
        plain = await _modern(http, served.all, "tools/call", tasks=False, name="m__long", arguments={})
        removed = await _modern(http, served.all, "tasks/result", tasks=True, taskId=task)
        undeclared = await _modern(http, served.all, "tasks/get", tasks=False, taskId=task)
    assert declared["result"]["capabilities"]["extensions"] == {EXTENSION: {}}
    assert created["result"]["resultType"] == "task"
    assert (got["result"]["taskId"], got["result"]["status"]) == (task, "completed")
    assert got["result"]["result"]["content"][0]["text"] == "in the end"
    assert "result" in cancelled
    assert own["error"]["code"] == -32602
    assert plain["result"]["content"][0]["text"] == "at once"
    assert removed["error"]["code"] == -32601
    assert undeclared["error"]["code"] == -32021
    assert origin.methods() == ["tools/call", "tasks/get", "tasks/update", "tasks/cancel", "tools/call"]
    assert {params["taskId"] for method, params, _ in origin.seen if method.startswith("tasks/")} == {"task 1/ä"}


async def test_a_legacy_client_gets_a_plain_result_from_a_modern_server_that_runs_tasks(ada: Person) -> None:
    origin = ModernTasks()
    async with (
        serving(origin.app) as base,
        front({"m": {"url": f"{base}/mcp"}}) as served,
        ada.client(served.all, "legacy") as client,
    ):
        assert text_of(await client.call_tool("m__long", {})) == "at once"


def test_an_id_opens_only_for_its_principal_and_only_as_it_was_given() -> None:
    ids = TaskIds()
    task = ServerTask("a server", "täsk\x00.1")
    shown = ids.shown(task, "ada")
    assert ids.find(shown, "ada") == task
    assert ids.shown(task, "ada") == shown
    assert ids.find(shown, "bob") is None
    assert TaskIds().find(shown, "ada") is None
    body, _, seal = shown.partition(".")
    for other in (
        "",
        ".",
        body,
        f"{body}.",
        f".{seal}",
        f"{body}x.{seal}",
        f"{body}.{seal}x",
        "é.é",
        "a" * 10_000 + ".",
    ):
        assert ids.find(other, "ada") is None
    assert json.loads(json.dumps(shown)) == shown


def test_replicas_with_the_same_keys_open_the_ids_of_each_other_and_know_the_home() -> None:
    ring = KeyRing([b"k" * 32])
    here, there = (TaskIds(lambda: ring, home) for home in ("one", "two"))
    shown = here.shown(ServerTask("t", "1"), "ada")
    assert there.find(shown, "ada") == ServerTask("t", "1", "one")
    assert TaskIds(lambda: KeyRing([b"x" * 32]), "two").find(shown, "ada") is None


RELATED = "io.modelcontextprotocol/related-task"


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        ({"taskId": "1"}, True),
        ({"task": {"taskId": "1", "status": "working"}}, True),
        ({"_meta": {RELATED: {"taskId": "1", "more": 2}, "mine": 3}}, True),
        ({"taskId": 7, "task": {}, "_meta": {RELATED: {}}}, False),
        ({"task": "one", "_meta": 7}, False),
        ({"_meta": {RELATED: 7}}, False),
        ({}, False),
    ],
)
def test_every_id_of_a_task_in_a_result_is_the_one_that_its_client_knows(said: dict[str, Any], changes: bool) -> None:
    ids, result = TaskIds(), RawObject.of(said)
    shown = renamed(result, "t", ids, "ada")
    own = json.dumps(ids.shown(ServerTask("t", "1"), "ada"))
    assert json.loads(shown.written()) == json.loads(json.dumps(said).replace('"1"', own))
    assert (shown is not result) is changes


@pytest.mark.requirement("DX-8")
@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [({"ttl": 60_000}, 60), ({"ttlMs": 60_000}, 60), ({"ttl": 9e9}, LONGEST_TASK), ({"ttl": -1}, LONGEST_TASK)]
    + [({"ttl": wrong}, LONGEST_TASK) for wrong in (True, "1", None)],
)
def test_a_task_lives_as_long_as_its_server_says_within_a_bound(ttl: dict[str, Any], seconds: float) -> None:
    now = [0.0]
    ids = TaskIds(now=lambda: now[0])
    renamed(RawObject.of({"taskId": "1", "status": "working", **ttl}), "t", ids, "ada")
    renamed(RawObject.of({"taskId": "1"}), "t", ids, "ada")  # it says nothing of its state
    seen = []
    for now[0] in (seconds - 1, seconds):
        seen.append(ids.has_open)
    assert seen == [True, False]


@pytest.mark.requirement("DX-8")
def test_a_task_is_under_way_until_its_server_says_otherwise_or_its_lifetime_is_over() -> None:
    """A hub in the background does not end meanwhile."""
    now = [0.0]
    ids = TaskIds(now=lambda: now[0])

    def said(**members: object) -> RawObject:
        return RawObject.of({"taskId": "one", **members})

    seen = [ids.has_open]
    for status in ("working", "completed"):
        renamed(said(status=status, ttl=60_000), "t", ids, "ada")
        seen.append(ids.has_open)
    renamed(RawObject.of({"task": {"taskId": "two", "status": "input_required", "ttl": None}}), "t", ids, "ada")
    for now[0] in (LONGEST_TASK - 1, LONGEST_TASK):
        seen.append(ids.has_open)
    assert seen == [False, True, False, True, False]
    for number in range(2 * MOST_OPEN):
        renamed(RawObject.of({"taskId": str(number), "status": "working"}), "t", ids, "ada")
    assert len(ids._open) == MOST_OPEN
