"""What a call left behind, what is open and what waits keeps the access rules too (SEC-14).

Ann has two tokens. The wide one names her group, for which everything is allowed. The narrow one does not: with it she
may call one tool of each server. Both are the same principal, so only the rules tell them apart.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.access import TokenPolicy
from holdfast.access.audit_reader import AuditFilter, AuditReader, verify as verify_audit
from holdfast.access.audit_writer import AuditFiles, AuditTrail
from holdfast.config import config_from_mapping
from holdfast.core import Kind
from holdfast.endpoint.broker import ClientServers
from holdfast.endpoint.view import EndpointAddress, View, has_all
from holdfast.front.app import create_app
from holdfast.hub import Hub
from holdfast.hub.call_approvals import CallVerdict
from holdfast.serve.telemetry import record_other_events
from tests.access.plain_policy import Caller
from tests.access.test_audit import KEY
from tests.endpoint.test_access_doors import Doors, token_of, verify
from tests.endpoint.test_first_list import slow_server
from tests.fleet.test_homes import LegacyClient, events_of, hurry, message, replicas
from tests.harness.raw_session import Session
from tests.harness.served_hub import front
from tests.harness.waiting import came_true
from tests.harness.web import serving
from tests.peers.modern_tasks import EXTENSION, ModernTasks
from tests.peers.peer_server import Origin, running
from tests.peers.recording_server import recording

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-14")]

WIDE = Caller(name="ann", groups=frozenset({"sre"}))
NARROW = Caller(name="ann")
BOB = Caller(name="bob", groups=frozenset({"sre"}))
ALLOWED: dict[str, Any] = {
    "rules": [{"effect": "allow", "groups": ["sre"]}, {"effect": "allow", "principals": ["ann"], "tools": ["bump"]}]
}
LONG = "".join(f"line {number:04}\n" for number in range(400))
ANSWERS = {"q1": {"action": "accept", "content": {"colour": "blue"}}}


def denying(**rule: Any) -> dict[str, Any]:
    """The rules with one more, that denies something to Ann, with either token."""
    return {"rules": [*ALLOWED["rules"], {"effect": "deny", "principals": ["ann"], **rule}]}


def headers_of(caller: Caller) -> dict[str, str]:
    return {"authorization": f"Bearer {token_of(caller)}"}


def capable(**capabilities: Any) -> dict[str, Any]:
    """What a modern request says of its client."""
    return {"_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities}}


@asynccontextmanager
async def opened(servers: dict[str, Any], access: Any = None, **options: Any) -> AsyncIterator[Doors]:
    """A served hub that knows callers by their tokens."""
    async with (
        front(servers, tokens=TokenPolicy(verify=verify), access=access or ALLOWED, **options) as served,
        httpx2.AsyncClient(timeout=30, trust_env=False) as http,
    ):
        yield Doors(served.hub, served.base, http, {})


@asynccontextmanager
async def with_origin(access: Any = None, **options: Any) -> AsyncIterator[tuple[Doors, Origin]]:
    async with running("legacy") as origin, opened({"o": {"url": origin.url}}, access, **options) as doors:
        yield doors, origin


async def reload(doors: Doors, access: dict[str, Any]) -> None:
    """The rules change, and nothing else does."""
    changed = config_from_mapping({"mcpServers": {}, "holdfast": {"access": access}}).settings.access
    config = doors.hub.config
    await doors.hub.apply(replace(config, settings=replace(config.settings, access=changed)))


# What a call left behind.


async def test_a_task_is_unknown_to_a_narrower_token_of_its_principal() -> None:
    origin, able = ModernTasks(), capable(extensions={EXTENSION: {}})
    async with serving(origin.app) as base, opened({"m": {"url": f"{base}/mcp"}}) as doors:
        created = await doors.ask(WIDE, "/mcp", "tools/call", name="m__long", arguments={}, **able)
        task = created["result"]["taskId"]
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            for path in ("/mcp", "/servers/m/mcp"):
                refused = await doors.ask(NARROW, path, method, taskId=task, inputResponses={}, **able)
                assert "no such task" in refused["error"]["message"]
        assert origin.methods() == ["tools/call"]
        got = await doors.ask(WIDE, "/mcp", "tasks/get", taskId=task, **able)
        assert got["result"]["status"] == "completed"
        await reload(doors, denying(tools=["long"]))
        ended = await doors.ask(WIDE, "/mcp", "tasks/get", taskId=task, **able)
        assert "no such task" in ended["error"]["message"]


async def test_a_kept_result_is_unknown_to_a_narrower_token_of_its_principal() -> None:
    async with with_origin(largeResults={"over": 1_000}) as (doors, _):
        called = await doors.ask(WIDE, "/mcp", "tools/call", name="o__echo", arguments={"text": LONG})
        (uri,) = [block["uri"] for block in called["result"]["content"] if block["type"] == "resource_link"]
        read_on = {"name": "read_result", "arguments": {"handle": uri.removeprefix("holdfast://results/")}}
        for path in ("/mcp", "/servers/o/mcp", "/mcp?tools=find"):
            read = await doors.ask(NARROW, path, "tools/call", **read_on)
            assert "Unknown handle" in read["result"]["content"][0]["text"]
            contents = await doors.ask(NARROW, path, "resources/read", uri=uri)
            assert "Unknown" in contents["error"]["message"]
        read = await doors.ask(WIDE, "/mcp", "tools/call", **read_on)
        assert read["result"]["content"][0]["text"].startswith("line 0000")
        contents = await doors.ask(WIDE, "/mcp", "resources/read", uri=uri)
        assert contents["result"]["contents"][0]["text"] == LONG


async def test_a_stream_is_not_resumed_by_a_narrower_token_of_its_principal() -> None:
    async with with_origin() as (doors, origin):
        session = Session(doors.http, f"{doors.base}/mcp")
        session.headers |= headers_of(WIDE)
        await session.begin()
        async with session.call("o__wait", {}, progressToken="p") as events:
            first = await anext(events)
        origin.go.set()
        session.headers |= headers_of(NARROW)
        (lost,) = await session.come_back(after=first["id"])
        assert "a caller with other rights" in json.loads(lost["data"])["error"]["message"]
        session.headers |= headers_of(WIDE)
        assert "waited" in (await session.come_back(after=first["id"]))[-1]["data"]


# What is open when the rules change.


async def _updates(events: AsyncIterator[dict[str, Any]], until: str) -> list[str]:
    """The resources that a stream tells of before the next notice of another method."""
    told: list[str] = []
    async for event in events:
        said = event.get("message") or json.loads(event.get("data") or "{}")
        if said.get("method") == until:
            return told
        if said.get("method") == "notifications/resources/updated":
            told.append(said["params"]["uri"])
    raise AssertionError("the stream ended")


RESOURCES_CHANGED = "notifications/resources/list_changed"
GRANTED = denying(tools=["none"])
DENIED = denying(resources=["note://*"])


@asynccontextmanager
async def listening(doors: Doors, caller: Caller) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The stream of a modern subscription."""
    wanted = {"resourcesListChanged": True, "resourceSubscriptions": ["note://one"]}
    async with doors.stream(caller, "/mcp", "subscriptions/listen", notifications=wanted) as answer:
        events = events_of(answer)
        await message(events, "notifications/subscriptions/acknowledged")
        yield events


@asynccontextmanager
async def subscribed(doors: Doors, caller: Caller) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The stream of a legacy session that subscribed."""
    session = Session(doors.http, f"{doors.base}/mcp")
    session.headers |= headers_of(caller)
    await session.begin()
    async with session.request("resources/subscribe", {"uri": "note://one"}) as events:
        assert "result" in json.loads((await anext(events))["data"])
    async with session.notices() as notices:
        yield notices


@pytest.mark.parametrize("open_stream", [listening, subscribed])
async def test_an_open_stream_tells_nothing_that_new_rules_hide(open_stream: Any) -> None:
    async with (
        with_origin(GRANTED) as (doors, _),
        open_stream(doors, WIDE) as ann,
        open_stream(doors, BOB) as bob,
    ):

        async def touch() -> None:
            touched = await doors.ask(BOB, "/mcp", "tools/call", name="o__touch", arguments={"uri": "note://one"})
            assert "result" in touched
            await _heard(bob)

        with anyio.fail_after(20):
            await touch()
            await reload(doors, DENIED)
            assert await _updates(ann, RESOURCES_CHANGED) == ["note://one"]
            await touch()
            await reload(doors, GRANTED)
            assert await _updates(ann, RESOURCES_CHANGED) == []
            await touch()
            await _heard(ann)


async def test_a_stream_that_is_refused_does_not_change_for_whom_the_open_one_is() -> None:
    async with with_origin() as (doors, _), listening(doors, BOB) as bob:
        session = Session(doors.http, f"{doors.base}/mcp")
        session.headers |= headers_of(WIDE)
        await session.begin()
        async with session.request("resources/subscribe", {"uri": "note://one"}) as events:
            assert "result" in json.loads((await anext(events))["data"])
        session.headers |= headers_of(NARROW)
        async with session.notices() as notices:
            with anyio.fail_after(20):
                second = await doors.http.get(session.url, headers=session.headers | headers_of(WIDE))
                assert second.status_code == 409
                touched = await doors.ask(BOB, "/mcp", "tools/call", name="o__touch", arguments={"uri": "note://one"})
                assert "result" in touched
                await _heard(bob)
                await reload(doors, GRANTED)
                assert await _updates(notices, RESOURCES_CHANGED) == []


async def _heard(events: AsyncIterator[dict[str, Any]]) -> None:
    """Wait for the next notice of an updated resource."""
    async for event in events:
        if "notifications/resources/updated" in event.get("data", ""):
            return
    raise AssertionError("the stream ended")


async def test_a_session_cannot_subscribe_to_what_its_token_does_not_see() -> None:
    async with with_origin() as (doors, origin):
        await doors.ask_in_session(WIDE, "ping")
        refused = await doors.ask_in_session(NARROW, "resources/subscribe", uri="note://one")
        assert "Unknown" in refused["error"]["message"]
        assert origin.subscribed == []


@pytest.mark.requirement("SEC-11")
async def test_the_subscriptions_of_a_client_are_few_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.endpoint.broker.MOST_SUBSCRIBED", 2)
    async with with_origin() as (doors, origin):
        for uri in ("note://one", "note://of/a", "note://of/a"):
            assert "result" in await doors.ask_in_session(WIDE, "resources/subscribe", uri=uri)
        over = await doors.ask_in_session(WIDE, "resources/subscribe", uri="note://of/b")
        assert over["error"]["message"] == "a client has 2 subscriptions at most; end one of them first"
        listening = {"resourceSubscriptions": ["note://one", "note://of/a", "note://of/b"]}
        over = await doors.ask(WIDE, "/mcp", "subscriptions/listen", notifications=listening)
        assert "2 subscriptions at most" in over["error"]["message"]
        unknown = {"resourceSubscriptions": ["holdfast://a", "holdfast://b", "holdfast://c"]}
        over = await doors.ask(WIDE, "/mcp", "subscriptions/listen", notifications=unknown)
        assert "2 subscriptions at most" in over["error"]["message"]
        await doors.ask_in_session(WIDE, "resources/unsubscribe", uri="note://one")
        long = await doors.ask_in_session(WIDE, "resources/subscribe", uri=f"note://of/{'a' * 3_000}")
        assert "characters at most" in long["error"]["message"]
        assert "result" in await doors.ask_in_session(WIDE, "resources/subscribe", uri="note://of/b")
        assert sorted(map(str, origin.subscribed)) == ["note://of/a", "note://of/b"]


@pytest.mark.requirement("SEC-11")
async def test_subscriptions_at_the_same_time_are_counted_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.endpoint.broker.MOST_SUBSCRIBED", 1)
    uris, both = ["note://of/a", "note://of/b"], anyio.Event()
    arrived: list[str] = []

    async def check_home(_servers: ClientServers, _client: Any, server: str) -> None:
        arrived.append(server)
        if len(arrived) == len(uris):
            both.set()
        await both.wait()

    answers: list[dict[str, Any]] = []
    async with with_origin() as (doors, origin):
        await doors.ask_in_session(WIDE, "ping")
        monkeypatch.setattr(ClientServers, "check_home", check_home)

        async def subscribe(uri: str) -> None:
            answers.append(await doors.ask_in_session(WIDE, "resources/subscribe", uri=uri))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for uri in uris:
                    tasks.start_soon(subscribe, uri)
        assert len(origin.subscribed) == 1
    assert sorted("error" in answer for answer in answers) == [False, True]


async def test_a_stream_of_notices_is_judged_by_the_token_that_opened_it() -> None:
    async with with_origin() as (doors, _):
        session = Session(doors.http, f"{doors.base}/mcp")
        session.headers |= headers_of(WIDE)
        await session.begin()
        async with session.request("resources/subscribe", {"uri": "note://one"}) as events:
            await anext(events)
        session.headers |= headers_of(NARROW)
        async with session.notices() as ann, subscribed(doors, BOB) as bob:
            with anyio.fail_after(20):
                await doors.ask(BOB, "/mcp", "tools/call", name="o__touch", arguments={"uri": "note://one"})
                await _heard(bob)
                await reload(doors, GRANTED)
                assert await _updates(ann, RESOURCES_CHANGED) == []


# What waits when the rules change.


async def test_a_call_that_waits_for_a_person_is_judged_by_the_rules_when_she_decides() -> None:
    asks = {"rules": [*ALLOWED["rules"], {"effect": "ask", "approver": "operator"}]}
    async with with_origin(asks) as (doors, origin), anyio.create_task_group() as tasks:
        answers: list[dict[str, Any]] = []

        async def call() -> None:
            answers.append(await doors.ask(WIDE, "/mcp", "tools/call", name="o__echo", arguments={"text": "1"}))

        tasks.start_soon(call)
        questions = doors.hub.registry.call_approvals
        await came_true(questions.waiting)
        await reload(doors, denying(tools=["echo"]))
        questions.decide(questions.waiting()[0].id, CallVerdict(True, "olga"))
        await came_true(lambda: answers)
    assert "'ann' was denied echo of MCP server 'o'" in answers[0]["result"]["content"][0]["text"]
    assert origin.calls == []


async def test_a_pending_call_is_continued_only_while_the_rules_allow_it() -> None:
    form = capable(elicitation={"form": {}})
    asked = {"name": "o__ask", "arguments": {"kind": "elicit"}}
    async with with_origin() as (doors, _):
        begun = [(await doors.ask(WIDE, "/mcp", "tools/call", **asked, **form))["result"] for _ in range(3)]
        hidden, denied, done = (
            {**asked, "requestState": one["requestState"], "inputResponses": ANSWERS, **form} for one in begun
        )
        refused = await doors.ask(NARROW, "/mcp", "tools/call", **hidden)
        assert "Unknown tool" in refused["error"]["message"]
        await reload(doors, denying(tools=["ask"], when='arguments.kind == "elicit"'))
        refused = await doors.ask(WIDE, "/mcp", "tools/call", **denied)
        assert "'ann' was denied ask" in refused["result"]["content"][0]["text"]
        await reload(doors, ALLOWED)
        answered = await doors.ask(WIDE, "/mcp", "tools/call", **done)
        assert answered["result"]["content"][0]["text"] == "blue"


@pytest.mark.parametrize("before", [{"rules": []}, None], ids=["no rules before", "other rules before"])
async def test_a_call_that_waits_for_the_first_list_is_judged_by_the_rules_when_it_is_there(
    before: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, wait = anyio.Event(), ClientServers.wait_for_first_listing

    async def noted(self: ClientServers, *args: Any, **options: Any) -> None:
        waits.set()
        await wait(self, *args, **options)

    monkeypatch.setattr(ClientServers, "wait_for_first_listing", noted)
    answers: list[dict[str, Any]] = []
    async with (
        slow_server() as slow,
        opened({"o": {"url": slow.url}}, before, wait=False, call={"readyTimeout": "60s"}) as doors,
        anyio.create_task_group() as tasks,
    ):

        async def call() -> None:
            inner = {"name": "o__echo", "arguments": {"text": "1"}}
            answers.append(await doors.ask(WIDE, "/mcp?tools=find", "tools/call", name="call_tool", arguments=inner))

        with anyio.fail_after(30):
            await slow.asked.wait()
            tasks.start_soon(call)
            await waits.wait()
            await reload(doors, denying(tools=["echo"]))
            slow.may.set()
            await came_true(lambda: answers)
    assert "'ann' was denied echo of MCP server 'o'" in answers[0]["result"]["content"][0]["text"]


async def test_a_call_that_waits_for_its_turn_is_judged_by_the_rules_when_it_is_made() -> None:
    async with (
        with_origin(call={"concurrency": 1}) as (doors, origin),
        anyio.create_task_group() as tasks,
    ):
        answers: list[dict[str, Any]] = []

        async def call() -> None:
            answers.append(await doors.ask(WIDE, "/mcp", "tools/call", name="o__echo", arguments={"text": "1"}))

        tasks.start_soon(partial(doors.ask, BOB, "/mcp", "tools/call", name="o__wait", arguments={}))
        await origin.waiting.wait()
        tasks.start_soon(call)
        await came_true(lambda: doors.hub.registry.slots["o"].bulkhead.waiting)
        await reload(doors, denying(tools=["echo"]))
        origin.go.set()
        await came_true(lambda: answers)
    assert "'ann' was denied echo of MCP server 'o'" in answers[0]["result"]["content"][0]["text"]
    assert origin.calls == ["wait"]


# Replicas, folders, and what is recorded.


async def test_a_request_is_judged_by_its_own_token_at_the_replica_that_it_belongs_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hurry(monkeypatch)
    async with (
        running("legacy") as origin,
        replicas(
            {"o": {"url": origin.url}, "own": {"url": origin.url, "sharing": "per-client"}},
            tokens=TokenPolicy(verify=verify),
            access=ALLOWED,
            largeResults={"over": 1_000},
        ) as (a, b),
        httpx2.AsyncClient(trust_env=False, timeout=20) as http,
    ):
        ann = LegacyClient(http, token_of(WIDE))
        await ann.begin(a)
        assert [await ann.call(at, "own__bump") for at in (a, b)] == ["1", "2"]
        assert await ann.call(b, "own__echo", text="hi") == "hi"
        called = await ann.ask(a, "tools/call", name="o__echo", arguments={"text": LONG})
        (uri,) = [block["uri"] for block in called["result"]["content"] if block["type"] == "resource_link"]
        handle = uri.removeprefix("holdfast://results/")
        assert (await ann.call(b, "read_result", handle=handle)).startswith("line 0000")
        ann.headers |= headers_of(NARROW)
        assert (await ann.call(b, "read_result", handle=handle)).startswith("Unknown handle")
        assert "Unknown" in (await ann.ask(b, "resources/read", uri=uri))["error"]["message"]
        assert "Unknown" in (await ann.ask(b, "tools/call", name="own__echo", arguments={}))["error"]["message"]
        assert await ann.call(b, "own__bump") == "3"


LIMITED: dict[str, Any] = {
    "rules": [
        {"effect": "allow", "groups": ["sre"], "servers": ["files"]},
        {"effect": "deny", "principals": ["ann"], "servers": ["files"], "tools": ["get_secret"]},
        {"effect": "deny", "principals": ["ann"], "tools": ["get_issue"], "when": "arguments.n > 10"},
    ]
}


@asynccontextmanager
async def limited(folder: str = "", audit: AuditTrail | None = None) -> AsyncIterator[tuple[Doors, str]]:
    """A server under these rules, and its id; one that runs for a folder, if that is named."""
    async with recording("files") as server, httpx2.AsyncClient(timeout=30, trust_env=False) as http:
        config = config_from_mapping({"mcpServers": {"files": {"url": server.url}}, "holdfast": {"access": LIMITED}})
        spec = config.servers["files"]
        if folder:
            spec = spec.in_folder(folder)
        hub = Hub(replace(config, servers={spec.id: spec}))
        app = create_app(hub, tokens=TokenPolicy(verify=verify), audit=audit)
        async with hub, serving(app) as base:
            record_other_events(audit, hub)
            assert await hub.ready(60)
            yield Doors(hub, base, http, {"files": server}), spec.id


async def test_rules_mean_the_server_of_a_folder_by_its_name_in_the_configuration() -> None:
    async with limited("/home/ann/project") as (doors, server):
        ann, bob = await verify(token_of(WIDE)), await verify(token_of(BOB))
        assert ann is not None
        assert bob is not None
        assert server.startswith("files@project-")
        path = f"/servers/{server}/mcp"
        seen = View(doors.hub, EndpointAddress(folder="/home/ann/project")).seen_by(ann)
        expected = {"get_issue", "delete_issue"}
        assert {entry.original for entry in seen.entries(Kind.TOOL)} == expected
        listed = await doors.ask(WIDE, path, "tools/list")
        assert {tool["name"] for tool in listed["result"]["tools"]} == expected
        hidden = await doors.ask(WIDE, path, "tools/call", name="get_secret", arguments={})
        assert "Unknown tool" in hidden["error"]["message"]
        denied = await doors.ask(WIDE, path, "tools/call", name="get_issue", arguments={"n": 11})
        assert "was denied get_issue" in denied["result"]["content"][0]["text"]
        assert doors.saw() == []
        await doors.ask(WIDE, path, "tools/call", name="get_issue", arguments={"n": 1})
        assert doors.saw() == [("files", "tool", "get_issue")]
        one = View(doors.hub, EndpointAddress(server))
        assert [has_all(one.seen_by(who), server) for who in (ann, bob)] == [False, True]


@pytest.mark.requirement("SEC-15")
async def test_the_audit_names_the_rule_of_a_refusal_and_has_each_change_of_the_rules(tmp_path: Path) -> None:
    trail = AuditTrail(AuditFiles(tmp_path, KEY), KEY)
    trail.start()
    async with limited(audit=trail) as (doors, _):
        for caller, tool, n in ((WIDE, "get_secret", 1), (WIDE, "get_issue", 11), (NARROW, "get_issue", 1)):
            await doors.ask(caller, "/mcp", "tools/call", name=f"files__{tool}", arguments={"n": n})
        assert doors.saw() == []
        await reload(doors, ALLOWED)
        version = doors.hub.registry.policy.version
        config = doors.hub.config
        await doors.hub.apply(replace(config, settings=replace(config.settings, pin=("files/*",))))
    trail.close()
    found = list(AuditReader(tmp_path, AuditFilter()).read())
    assert [(one.server, one.outcome, one.rule) for one in found if one.event == "call"] == [
        ("files", "refused", "rules[1]"),
        ("files", "denied", "rules[2]"),
        ("files", "refused", "default"),
    ]
    assert [one.reason for one in found if one.event == "policy"] == [f"version {version}"]
    assert [one.outcome for one in found if one.event == "reload"] == ["applied", "applied"]


@pytest.mark.requirement("SEC-15", "FIND-7")
async def test_the_audit_names_the_tool_and_the_rule_of_a_refused_call_through_call_tool(tmp_path: Path) -> None:
    trail = AuditTrail(AuditFiles(tmp_path, KEY), KEY)
    trail.start()
    async with limited(audit=trail) as (doors, _):
        for caller, name in ((WIDE, "files__get_secret"), (NARROW, "files__get_issue"), (WIDE, "made_up")):
            inner = {"name": name, "arguments": {"n": 1}}
            answer = await doors.ask(caller, "/mcp?tools=find", "tools/call", name="call_tool", arguments=inner)
            assert f"Unknown tool: {name}." in answer["result"]["content"][0]["text"]
        for odd in ({}, {"name": 7}, {"name": "files__get_issue", "arguments": 7}):
            await doors.ask(WIDE, "/mcp?tools=find", "tools/call", name="call_tool", arguments=odd)
        assert doors.saw() == []
    trail.close()
    found = [one for one in AuditReader(tmp_path, AuditFilter()).read() if one.event == "call"]
    assert [(one.server, one.tool, one.outcome, one.rule, one.argument_bytes) for one in found] == [
        ("files", "files__get_secret", "refused", "rules[1]", 8),
        ("files", "files__get_issue", "refused", "default", 8),
        ("", "made_up", "refused", "", 8),
        ("", "call_tool", "tool_error", "", 2),
        ("", "call_tool", "tool_error", "", 11),
        ("", "files__get_issue", "tool_error", "", 1),
    ]


@pytest.mark.requirement("SEC-15", "SEC-11")
async def test_no_name_that_a_caller_makes_up_ends_the_audit(tmp_path: Path) -> None:
    trail = AuditTrail(AuditFiles(tmp_path, KEY), KEY, required=True)
    trail.start()
    async with limited(audit=trail) as (doors, _):
        odd = {"io.modelcontextprotocol/clientInfo": {"name": "\udcff", "version": "\ud800"}}
        for what in ("\ud800", "files__\udcff", "\u202e\n\x1b[31m"):
            await doors.ask(WIDE, "/mcp", "tools/call", name="a", _meta={**odd, "traceparent": f"00-{what:>32}-1-1"})
            await doors.ask_in_session(WIDE, "tools/call", name=what, arguments={})
            await doors.ask_in_session(WIDE, "resources/read", uri=f"note://{what}")
            await doors.ask_in_session(WIDE, f"vendor/{what}")
        answer = await doors.ask(WIDE, "/mcp", "tools/call", name="files__get_issue", arguments={"n": 1})
        assert not answer["result"].get("isError"), answer
    trail.close()
    calls = [one for one in AuditReader(tmp_path, AuditFilter()).read() if one.event == "call"]
    assert {"\\ud800", "files__\\udcff", "get_issue"} <= {one.tool for one in calls}
    assert verify_audit(tmp_path, KEY).problems == []
