"""The requests of one connection: their form, calls that become tasks, and what clients together want of a server."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from mcp import MCPError
from mcp_types import ServerCapabilities

from holdfast.core import (
    HttpStatus,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    RpcError,
    TimedOut,
    ToldByHub,
)
from holdfast.errors import ServerFailure
from holdfast.wire.raw_json import RawObject
from holdfast.wire.request_form import (
    FAILURE_KEY,
    TASKS_EXTENSION,
    CallerIdentity,
    Greeting,
    HubPeer,
    RequestForm,
    without_task_capabilities,
)
from holdfast.wire.session import RELATED_TASK, DesiredState, call_as_task
from tests.wire.test_request_headers import Client

CREATED = RawObject.of({"task": {"taskId": "t1"}})
RESULT = RawObject.of({"content": [], "_meta": {RELATED_TASK: {"taskId": "t1"}}})


class Server:
    """Answers the requests of a task, and keeps what it was asked."""

    def __init__(self, *answers: RawObject | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.times: list[tuple[float, float]] = []

    async def __call__(self, method: str, params: Any, *, idle: float, within: float) -> RawObject:
        self.asked.append((method, {key: json.loads(bytes(one)) for key, one in params.items()}))
        self.times.append((idle, within))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def call(self) -> Any:
        params = RawObject.of({"name": "slow", "_meta": {"own": 1}}).members
        return (await call_as_task(self, params, idle=5.0, within=60.0)).value()


@pytest.mark.anyio
@pytest.mark.requirement("LIFE-28")
async def test_a_call_that_becomes_a_task_gives_the_tasks_result_without_its_name() -> None:
    server = Server(CREATED, RESULT)
    assert await server.call() == {"content": []}
    assert server.asked == [
        ("tools/call", {"name": "slow", "_meta": {"own": 1}, "task": {}}),
        ("tasks/result", {"taskId": "t1", "_meta": {"own": 1}}),
    ]
    assert server.times[0] == (5.0, 60.0)
    assert 59.0 < server.times[1][0] == server.times[1][1] <= 60.0
    kept = {"content": [], "_meta": {"own": 1}}
    for meta in ({RELATED_TASK: {}, "own": 1}, {"own": 1}):
        assert await Server(CREATED, RawObject.of({**kept, "_meta": meta})).call() == kept
    plain: Any
    for plain in ({"content": []}, {"task": "odd"}, {"content": [], "_meta": "odd"}):
        assert await Server(RawObject.of(plain)).call() == plain


@pytest.mark.anyio
@pytest.mark.requirement("LIFE-16")
@pytest.mark.parametrize(
    ("seen", "told", "cancelled"),
    [
        (TimedOut(doing="x", after=1.0), TimedOut(doing="the result of slow", after=60.0), True),
        (RpcError(method="x", code=1, message="no"), RpcError(method="x", code=1, message="no"), True),
        (HttpStatus(status=500), HttpStatus(status=500), False),
        (
            HttpStatus(status=404),
            NetworkFailure(fault=NetworkFault.CLOSED, stood=True, detail="the server lost the task's session"),
            False,
        ),
        (
            NetworkFailure(fault=NetworkFault.REFUSED),
            NetworkFailure(fault=NetworkFault.CLOSED, stood=True, detail="the server went away while the task ran"),
            False,
        ),
        (NetworkFailure(fault=NetworkFault.RESET), NetworkFailure(fault=NetworkFault.RESET), False),
    ],
)
async def test_a_task_that_failed_was_begun_and_one_that_may_run_is_cancelled(
    seen: Any, told: Any, cancelled: bool
) -> None:
    server = Server(CREATED, ServerFailure(seen), ServerFailure(seen))
    with pytest.raises(ServerFailure) as failed:
        await server.call()
    assert failed.value.evidence == told
    assert [method for method, _ in server.asked[2:]] == ["tasks/cancel"] * cancelled


@pytest.mark.parametrize("extensions", [{}, {"x": {}}, "odd"])
def test_a_client_without_tasks_declares_all_else(extensions: Any) -> None:
    others = {"roots": {}} | ({"extensions": extensions} if extensions else {})
    assert without_task_capabilities(others) is others
    assert without_task_capabilities({**others, "tasks": {}}) == (
        others if isinstance(extensions, dict) else {"roots": {}}
    )
    if isinstance(extensions, dict):
        with_tasks = {"roots": {}, "extensions": {**extensions, TASKS_EXTENSION: {}}}
        assert without_task_capabilities(with_tasks) == others


def form(era: Any = "modern", **more: Any) -> RequestForm:
    wire: Any = SimpleNamespace(rpc=SimpleNamespace(received=7))
    greeting = Greeting(era, "2026-07-28", ServerCapabilities(), "")
    return RequestForm(greeting, wire, more.get("hub"), more.get("identity"))


@pytest.mark.requirement("LIFE-28")
def test_arguments_that_a_server_wants_as_headers_are_sent_as_both_and_no_other_is_read() -> None:
    made = form()
    made.mirrored({"query": {("region",): "Region"}})
    params = RawObject.read(b'{"name": "query", "arguments": {"region": "eu", "x": {}}, "_meta": {"own": 1}}').members
    sent, headers = made.addressed("tools/call", params, None)
    assert {name: value for name, value in headers.items() if "egion" in name} == {"Mcp-Param-Region": "eu"}
    assert json.loads(bytes(sent["_meta"]))["own"] == 1
    for other in (b'{"name": "query", "arguments": "odd"}', b'{"name": "query"}', b'{"name": "other"}'):
        assert not [
            one for one in made.addressed("tools/call", RawObject.read(other).members, None)[1] if "gion" in one
        ]
    legacy, headers = form("legacy").addressed("tools/call", params, None)
    assert (legacy, headers) == (params, {})


@pytest.mark.requirement("FLEET-6", "SEC-20")
def test_a_hub_and_a_server_that_is_told_get_their_headers_in_either_era() -> None:
    for era in ("modern", "legacy"):
        made = form(era, hub=HubPeer(proven=True, own_id="us"), identity=CallerIdentity("aud", None))
        _, headers = made.addressed("tools/list", {}, Client(principal="ada"))
        assert headers.items() >= {"holdfast-via": "us", "holdfast-principal": '"ada"', "holdfast-user": "ada"}.items()


def test_a_result_that_is_of_no_use_or_tells_a_failure_of_a_hub_is_a_failure() -> None:
    failing = RawObject.of({"content": [], "_meta": {FAILURE_KEY: {"reason": "down"}}})
    assert form().checked("tools/call", failing).value() == {"content": []}, "the server is no hub"
    hub = form(hub=HubPeer(proven=True, own_id="us"))
    for made, method, result, seen in (
        (hub, "tools/call", failing, ToldByHub),
        (form(), "tools/call", RawObject.of({"content": "odd"}), NotMcp),
        (form(), "resources/read", RawObject.of({"contents": "odd"}), NotMcp),
    ):
        with pytest.raises(ServerFailure) as failed:
            made.checked(method, result)
        assert isinstance(failed.value.evidence, seen)
        assert not isinstance(failed.value.evidence, NotMcp) or failed.value.evidence.fault is NotMcpFault.BAD_RESULT
    error = MCPError(-1, "no", {FAILURE_KEY: {"reason": "down"}, "x": 1})
    assert form().failure("x", error).evidence == RpcError(
        method="x", code=-1, message="no", data={FAILURE_KEY: {"reason": "down"}, "x": 1}
    )
    assert isinstance(hub.failure("x", error).evidence, ToldByHub)


@pytest.mark.anyio
async def test_a_resource_is_watched_from_its_first_watcher_to_its_last() -> None:
    wishes = DesiredState()
    changed = wishes.changed
    assert wishes.watch("a:b")
    with anyio.fail_after(1):
        await changed.wait()
    assert not wishes.watch("a:b")
    assert not wishes.unwatch("a:b")
    assert wishes.uris == {"a:b"}
    assert wishes.unwatch("a:b")
    assert not wishes.unwatch("a:b"), "it was not watched"
    assert wishes.uris == set()


def test_a_server_sends_logs_of_the_lowest_level_that_a_client_wants() -> None:
    wishes = DesiredState()
    assert [wishes.log(level) for level in ("warning", "error", "warning", "debug", "info")] == [
        True, False, False, True, False
    ]  # fmt: skip
    assert wishes.log_level == "debug"
