"""Before a call is made: an external service decides, and a person approves (SEC-14, SEC-19)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import mcp_types as types
import msgspec
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from holdfast.access.audit_reader import AuditFilter, AuditReader
from holdfast.access.audit_writer import AuditFiles, AuditRecord, AuditTrail
from holdfast.access.principals import Principal, TokenPolicy
from holdfast.config.read import config_from_mapping
from holdfast.config.settings import ApprovalSettings
from holdfast.core.breaker import BreakerState
from holdfast.endpoint.broker import Broker
from holdfast.endpoint.call_gate import CallAudit, argument_hash
from holdfast.endpoint.clients import Call, Client as HubClient, LivesElsewhere
from holdfast.endpoint.message import read_message
from holdfast.endpoint.view import View
from holdfast.errors import CallForbidden, HoldfastError, NotApproved, NotAudited, NotAuthorized
from holdfast.front.app import create_app
from holdfast.hub.call_approvals import (
    MOST_OF_CALLER,
    CallApprovals,
    CallBinding,
    CallVerdict,
    UnknownQuestion,
)
from holdfast.hub.hub import Hub
from holdfast.wire import RawObject
from tests.access.test_audit import KEY
from tests.endpoint.test_clients import Line, call, client
from tests.endpoint.test_exchange import Recorded
from tests.endpoint.test_first_list import slow_server
from tests.harness.served_hub import Era, Person, Served, front, text_of
from tests.harness.waiting import came_true
from tests.harness.web import serving
from tests.peers.grpc_authorizer import GrpcAuthorizer, grpc_authorizer
from tests.peers.peer_server import Origin, running

pytestmark = pytest.mark.anyio

ASK_ALL: dict[str, Any] = {"rules": [{"effect": "ask"}], "default": "allow"}
ASK_OPERATOR: dict[str, Any] = {"rules": [{"effect": "ask", "approver": "operator"}], "default": "allow"}


@asynccontextmanager
async def authorized(service: GrpcAuthorizer, *, within: str = "20s") -> AsyncIterator[tuple[Served, Origin]]:
    access = {"extAuthz": {"address": service.address, "timeout": within}}
    async with running("legacy") as origin, front({"o": {"url": origin.url}}, access=access) as served:
        yield served, origin


# The external service.


@pytest.mark.requirement("SEC-14")
async def test_each_call_is_authorized_and_no_list_is(tmp_path: Path, ada: Person, client_era: Era) -> None:
    async with grpc_authorizer(tmp_path) as service, authorized(service) as (served, _):
        async with ada.client(served.all, client_era) as client:
            await client.list_tools()
            await client.list_prompts()
            await client.list_resources()
            assert service.seen == []
            await client.call_tool("o__echo", {"text": "hi"})
            await client.get_prompt("o__greet", {"name": "Ada"})
            await client.read_resource("mem://greeting")
        async with ada.client(served.one("o"), client_era) as client:
            await client.call_tool("echo", {"text": "hi"})
        async with ada.client(f"{served.all}?tools=find", client_era) as client:
            await client.call_tool("call_tool", {"name": "o__echo", "arguments": {"text": "hi"}})
    asked = [one["context_extensions"] for one in service.seen]
    assert [(one["method"], one["name"]) for one in asked] == [
        ("tools/call", "echo"),
        ("prompts/get", "greet"),
        ("resources/read", "mem://greeting"),
        ("tools/call", "echo"),
        ("tools/call", "echo"),
    ]
    assert {one["server"] for one in asked} == {"o"}
    assert {one["principal"] for one in asked} == {"local"}
    assert len({one["argument_hash"] for one in asked if one["method"] == "tools/call"}) == 1


@pytest.mark.requirement("SEC-14")
async def test_a_denial_says_who_may_not_do_what_and_reaches_no_server(
    tmp_path: Path, ada: Person, client_era: Era
) -> None:
    async with grpc_authorizer(tmp_path) as service, authorized(service) as (served, origin):
        service.deny("only sre may")
        async with ada.client(served.all, client_era) as client:
            result = await client.call_tool("o__echo", {"text": "hi"})
            with pytest.raises(MCPError, match="only sre may"):
                await client.get_prompt("o__greet", {"name": "Ada"})
    assert result.is_error
    words = text_of(result)
    assert "'local' was denied echo of MCP server 'o'" in words
    assert '"only sre may"' in words
    assert "starting up" not in words
    assert origin.calls == []


@pytest.mark.requirement("SEC-14")
async def test_a_service_that_cannot_be_asked_refuses_in_words_of_its_own_and_counts_for_no_breaker(
    tmp_path: Path, ada: Person, client_era: Era
) -> None:
    async with (
        grpc_authorizer(tmp_path) as service,
        authorized(service, within="500ms") as (served, origin),
        ada.client(served.all, client_era) as client,
    ):
        service.hang()
        slow = [text_of(await client.call_tool("o__echo", {"text": "hi"})) for _ in range(4)]
        await service.kill()
        dead = [text_of(await client.call_tool("o__echo", {"text": "hi"})) for _ in range(4)]
        health = served.hub.server_health("o")
    words = "echo of MCP server 'o' could not be authorized (timeout); not called. "
    assert {*slow} == {f"{words}The authorization service of the hub must answer first. Each new call asks it again."}
    assert all("could not be authorized (connection refused); not called" in words for words in dead)
    assert not any("starting up" in words or "denied" in words for words in (*slow, *dead))
    assert (health.status, health.failures, health.breaker) == ("available", 0, BreakerState.CLOSED)
    assert origin.calls == []


@pytest.mark.requirement("SEC-14")
async def test_a_service_that_flaps_is_believed_call_by_call(tmp_path: Path, ada: Person) -> None:
    async with (
        grpc_authorizer(tmp_path) as service,
        authorized(service) as (served, origin),
        ada.client(served.all, "legacy") as client,
    ):
        assert not (await client.call_tool("o__echo", {"text": "1"})).is_error
        await service.kill()
        assert (await client.call_tool("o__echo", {"text": "2"})).is_error
        async with service.running():
            assert not (await client.call_tool("o__echo", {"text": "3"})).is_error
            service.deny("no more")
            assert (await client.call_tool("o__echo", {"text": "4"})).is_error
    assert len(origin.calls) == 2


@pytest.mark.requirement("SEC-14")
async def test_the_service_of_a_new_configuration_is_asked_at_once(tmp_path: Path, ada: Person) -> None:
    async with grpc_authorizer(tmp_path) as service, authorized(service) as (served, origin):
        service.deny()
        async with ada.client(served.all, "legacy") as client:
            assert (await client.call_tool("o__echo", {"text": "1"})).is_error
            await served.hub.apply(config_from_mapping({"mcpServers": {"o": {"url": origin.url}}}))
            assert not (await client.call_tool("o__echo", {"text": "1"})).is_error


# A person.


@asynccontextmanager
async def asking(access: dict[str, Any], era: Era = "legacy", **settings: Any) -> AsyncIterator[tuple[Served, Origin]]:
    async with running(era) as origin, front({"o": {"url": origin.url}}, access=access, **settings) as served:
        yield served, origin


class Decider(Person):
    """Answers the hub's question about a call, and nothing else."""

    def __init__(self, action: Any = "accept") -> None:
        super().__init__("ada")
        self.action = action
        self.questions: list[str] = []

    async def elicit(self, ctx: Any, params: Any) -> types.ElicitResult:
        self.questions.append(params.message)
        if "Which?" in params.message:
            return types.ElicitResult(action="accept", content={"colour": "red"})
        if self.before_answering is not None:
            await self.before_answering()
        return types.ElicitResult(action=self.action, content={} if self.action == "accept" else None)


@pytest.mark.requirement("SEC-19")
async def test_a_caller_approves_her_own_call_at_every_door(client_era: Era, server_era: Era) -> None:
    ada = Decider()
    async with asking(ASK_ALL, server_era) as (served, origin):
        async with ada.client(served.all, client_era) as client:
            assert text_of(await client.call_tool("o__echo", {"text": "1"})) == "1"
        async with ada.client(served.one("o"), client_era) as client:
            assert text_of(await client.call_tool("echo", {"text": "2"})) == "2"
        async with ada.client(f"{served.all}?tools=find", client_era) as client:
            found = await client.call_tool("call_tool", {"name": "o__echo", "arguments": {"text": "3"}})
            assert text_of(found) == "3"
    assert origin.calls == ["echo"] * 3
    assert ada.questions == [f'Allow the call of echo of MCP server \'o\'?\n{{\n "text": "{n}"\n}}' for n in (1, 2, 3)]


@pytest.mark.requirement("SEC-19")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_refusal_is_a_result_with_its_reason(client_era: Era, action: str) -> None:
    ada = Decider(action)
    async with asking(ASK_ALL) as (served, origin), ada.client(served.all, client_era) as client:
        result = await client.call_tool("o__echo", {"text": "1"})
    assert result.is_error
    assert "echo of MCP server 'o' was not called: it needs an approval, and was refused by local" in text_of(result)
    assert ("the question was closed" in text_of(result)) == (action == "cancel")
    assert origin.calls == []


@pytest.mark.requirement("SEC-19")
async def test_a_question_of_the_server_in_an_approved_call_is_not_another_call(
    client_era: Era, server_era: Era
) -> None:
    ada = Decider()
    async with asking(ASK_ALL, server_era) as (served, _), ada.client(served.all, client_era) as client:
        result = await client.call_tool("o__ask", {"kind": "elicit"})
    assert text_of(result).startswith("red")
    assert [question.splitlines()[0] for question in ada.questions] == [
        "Allow the call of ask of MCP server 'o'?",
        "Which?",
    ]


@pytest.mark.requirement("SEC-19")
async def test_a_client_that_cannot_ask_is_told_what_to_do_and_its_approval_is_for_one_call(
    ada: Person, client_era: Era
) -> None:
    async with (
        asking(ASK_ALL) as (served, origin),
        ada.client(served.all, client_era, answers=False) as client,
    ):
        questions = served.hub.registry.call_approvals
        first = text_of(await client.call_tool("o__echo", {"text": "1"}))
        again = text_of(await client.call_tool("o__echo", {"text": "1"}))
        (question,) = questions.waiting()
        assert question.arguments == '{\n "text": "1"\n}'
        assert first == again
        assert f"holdfast approve --call {question.id}" in first
        assert "Then make the same call again." in first
        questions.decide(question.id, CallVerdict(True, "control"))
        assert (await client.call_tool("o__echo", {"text": "2"})).is_error  # other arguments
        assert (await client.call_tool("o__log", {"text": "1", "level": "info"})).is_error  # another tool
        assert text_of(await client.call_tool("o__echo", {"text": "1"})) == "1"
        assert (await client.call_tool("o__echo", {"text": "1"})).is_error  # it was used
    assert origin.calls == ["echo"]


@pytest.mark.requirement("SEC-19")
async def test_an_approval_is_for_the_caller_who_needs_it_and_for_the_policy_that_asked(client_era: Era) -> None:
    tokens = TokenPolicy(tokens={"alice": "a" * 32, "bob": "b" * 32})
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}, tokens=tokens, access=ASK_ALL) as served,
        _as("alice", served.all, client_era) as alice,
        _as("bob", served.all, client_era) as bob,
    ):
        questions = served.hub.registry.call_approvals
        await alice.call_tool("o__echo", {"text": "1"})
        (question,) = questions.waiting()
        assert question.binding.principal == "alice"
        questions.decide(question.id, CallVerdict(True, "control"))
        assert (await bob.call_tool("o__echo", {"text": "1"})).is_error
        other = {**ASK_ALL, "rules": [*ASK_ALL["rules"], {"effect": "deny", "tools": ["nothing"]}]}
        config = config_from_mapping({"mcpServers": {"o": {"url": origin.url}}, "holdfast": {"access": other}})
        await served.hub.apply(config)
        assert (await alice.call_tool("o__echo", {"text": "1"})).is_error
    assert origin.calls == []


@pytest.mark.requirement("SEC-19")
async def test_her_own_approval_with_one_token_is_none_for_a_token_that_needs_an_operator() -> None:
    async def verify(token: str, path: str = "") -> Principal | None:
        scopes = {"d": "desk", "m": "mobile"}[token[0]]
        return Principal(name="alice", scopes=frozenset({scopes}), source="jwt")

    asks = [
        {"effect": "ask", "scopes": ["desk"], "approver": "caller"},
        {"effect": "ask", "scopes": ["mobile"], "approver": "operator"},
    ]
    access = {"rules": asks, "default": "allow", "approvals": {"wait": "10ms"}}
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}, tokens=TokenPolicy(verify=verify), access=access) as served,
        _as("desk", served.all, "legacy") as desk,
        _as("mobile", served.all, "legacy") as mobile,
    ):
        questions = served.hub.registry.call_approvals
        await desk.call_tool("o__echo", {"text": "1"})
        (question,) = questions.waiting()
        assert question.approver == "caller"
        questions.decide(question.id, CallVerdict(True, "alice"))
        assert "the approval of an operator" in text_of(await mobile.call_tool("o__echo", {"text": "1"}))
        assert origin.calls == []
        assert text_of(await desk.call_tool("o__echo", {"text": "1"})) == "1"


@asynccontextmanager
async def _as(name: str, url: str, era: Era) -> AsyncIterator[Client]:
    mode: Any = "legacy" if era == "legacy" else "auto"
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {name[0] * 32}"}, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, cache=None) as client,
    ):
        yield client


@pytest.mark.requirement("SEC-19")
@pytest.mark.parametrize("approved", [True, False])
async def test_a_call_waits_for_an_operator(client_era: Era, server_era: Era, approved: bool) -> None:
    ada = Decider()
    async with (
        asking(ASK_OPERATOR, server_era, call={"timeout": "1s", "hardTimeout": "1s"}) as (served, origin),
        ada.client(served.all, client_era) as client,
    ):
        questions = served.hub.registry.call_approvals
        results: list[types.CallToolResult] = []

        async def call() -> None:
            results.append(await client.call_tool("o__echo", {"text": "1"}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await came_true(questions.waiting)
            (question,) = questions.waiting()
            questions.decide(question.id, CallVerdict(approved, "olga", "" if approved else "not on a Friday"))
        assert questions.waiting() == []
    (result,) = results
    assert ada.questions == []
    assert origin.calls == (["echo"] if approved else [])
    expected = "1" if approved else "was refused by olga: not on a Friday"
    assert expected in text_of(result)


@pytest.mark.requirement("SEC-19")
async def test_the_time_of_the_call_does_not_run_while_a_person_decides(client_era: Era) -> None:
    ada = Decider()
    async with (
        asking(ASK_ALL, call={"timeout": "1s", "hardTimeout": "1s"}) as (served, _),
        ada.client(served.all, client_era) as client,
        Person("bob").client(served.one("o"), "legacy") as other,
    ):

        async def until_another_call_ran_out_of_time() -> None:
            ada.before_answering = None
            result = await other.call_tool("hang", {})
            assert "no answer within 1 s" in text_of(result)

        ada.before_answering = until_another_call_ran_out_of_time
        assert text_of(await client.call_tool("o__echo", {"text": "1"})) == "1"


@pytest.mark.requirement("SEC-19")
async def test_a_call_that_no_operator_decides_says_that_it_waits_still(ada: Person) -> None:
    access = {**ASK_OPERATOR, "approvals": {"wait": "10ms", "lifetime": "7m"}}
    async with asking(access) as (served, origin), ada.client(served.all, "legacy") as client:
        words = text_of(await client.call_tool("o__echo", {"text": "1"}))
        (question,) = served.hub.registry.call_approvals.waiting()
    assert "needs the approval of an operator" in words
    assert f"The approval {question.id} is open for 7 min" in words
    assert origin.calls == []


BINDING = CallBinding("alice", "jira", "delete", "ab", "p1", "rules[0]")


def _open(questions: CallApprovals, binding: CallBinding = BINDING) -> str:
    return questions.open(binding, approver="operator", rule="rules[0]", program="", arguments="").id


@pytest.mark.requirement("SEC-19")
def test_a_verdict_serves_exactly_what_it_was_given_for_and_once() -> None:
    questions = CallApprovals(ApprovalSettings)
    questions.decide(_open(questions), CallVerdict(True, "olga"))
    for name in CallBinding._fields:
        assert questions.take(BINDING._replace(**{name: "other"})) is None
    assert questions.take(BINDING) == CallVerdict(True, "olga")
    assert questions.take(BINDING) is None


@pytest.mark.requirement("SEC-19")
def test_a_question_ends_with_its_time_and_so_does_a_verdict_that_was_not_used() -> None:
    now = [0.0]
    questions = CallApprovals(ApprovalSettings, wall=lambda: now[0])
    first = _open(questions)
    second = _open(questions, BINDING._replace(tool="other"))
    questions.decide(first, CallVerdict(True, "olga"))
    now[0] = 599.0
    assert [one.id for one in questions.waiting()] == [second]
    now[0] = 600.0
    assert questions.take(BINDING) is None
    with pytest.raises(UnknownQuestion):
        questions.decide(second, CallVerdict(True, "olga"))


@pytest.mark.requirement("SEC-19")
def test_a_question_is_decided_once_and_one_caller_cannot_take_all_places() -> None:
    questions = CallApprovals(ApprovalSettings)
    first = _open(questions)
    assert _open(questions) == first
    questions.decide(first, CallVerdict(False, "olga"))
    with pytest.raises(UnknownQuestion):
        questions.decide(first, CallVerdict(True, "mallory"))
    for number in range(MOST_OF_CALLER - 1):
        _open(questions, BINDING._replace(argument_hash=str(number)))
    with pytest.raises(NotApproved, match="too many calls wait"):
        _open(questions, BINDING._replace(argument_hash="one more"))
    _open(questions, BINDING._replace(principal="bob"))


@pytest.mark.requirement("SEC-19")
async def test_two_equal_calls_at_a_time_need_two_verdicts() -> None:
    questions = CallApprovals(ApprovalSettings)
    verdicts: list[CallVerdict | None] = []

    async def wait() -> None:
        verdicts.append(await questions.wait(BINDING, 10))

    question = _open(questions)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        tasks.start_soon(wait)
        await anyio.lowlevel.checkpoint()
        questions.decide(question, CallVerdict(True, "olga"))
    assert sorted(verdicts, key=bool) == [None, CallVerdict(True, "olga")]


@pytest.mark.requirement("SEC-19")
async def test_an_approval_serves_no_arguments_that_a_server_may_read_otherwise() -> None:
    approved = b'{"path": "/tmp/a"}'
    for other in (b'{"path": "/etc/shadow", "path": "/tmp/a"}', b'{"path": "/tmp/a", "Path": "/etc/shadow"}'):
        assert await argument_hash(other) != await argument_hash(approved)


@pytest.mark.requirement("SEC-19")
async def test_the_hash_of_arguments_does_not_depend_on_how_they_are_written() -> None:
    assert await argument_hash(b'{"a": 1, "b": [2]}') == await argument_hash(b'{"b":[2],"a":1}')
    assert await argument_hash(b'{"a": 1}') != await argument_hash(b'{"a": "1"}')
    large = json.dumps({"text": "x" * 200_000}).encode()
    assert await argument_hash(large) == await argument_hash(bytes(large))


class Sharing:
    """Carries questions to the other replica, as the bytes that the store gets."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.other: CallApprovals | None = None
        self.alive = True

    def note_question(self, question: str, value: Mapping[str, Any] | None, until: float) -> None:
        if self.alive and self.other is not None:
            self.other.follow_question(question, _carried(value) if value is not None else None)

    def note_verdict(self, question: str, value: Mapping[str, Any], until: float) -> None:
        if self.alive and self.other is not None:
            self.other.follow_verdict(question, _carried(value))


def _carried(value: Mapping[str, Any]) -> dict[str, Any]:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=dict[str, Any])


def _replicas() -> tuple[CallApprovals, CallApprovals, Sharing]:
    one, two = Sharing("r1"), Sharing("r2")
    first, second = CallApprovals(ApprovalSettings, one), CallApprovals(ApprovalSettings, two)
    one.other, two.other = second, first
    return first, second, two


@pytest.mark.requirement("SEC-19")
def test_a_person_decides_at_any_replica_and_the_home_alone_lets_the_verdict_be_used() -> None:
    home, other, _ = _replicas()
    question = _open(home)
    assert [one.id for one in other.waiting()] == [question]
    assert (home.elsewhere(BINDING), other.elsewhere(BINDING)) == ("", "r1")
    other.decide(question, CallVerdict(True, "olga", "fine"))
    assert other.take(BINDING) is None
    assert home.take(BINDING) == CallVerdict(True, "olga", "fine")
    assert home.take(BINDING) is None
    assert other.waiting() == home.waiting() == []
    with pytest.raises(UnknownQuestion):
        other.decide(question, CallVerdict(True, "mallory"))


@pytest.mark.requirement("SEC-19")
def test_a_verdict_that_the_store_does_not_carry_allows_nothing() -> None:
    home, other, sharing = _replicas()
    question = _open(home)
    sharing.alive = False
    other.decide(question, CallVerdict(True, "olga"))
    assert home.take(BINDING) is None
    assert [one.id for one in home.waiting()] == [question]


@pytest.mark.requirement("SEC-14", "SEC-19")
async def test_the_audit_has_who_called_and_what_was_decided(tmp_path: Path) -> None:
    trail = AuditTrail(AuditFiles(tmp_path / "audit", KEY), KEY)
    trail.start()
    ada = Principal(name="ada", groups=frozenset({"sre"}), scopes=frozenset({"call"}), source="jwt")

    async def verify(token: str, path: str = "") -> Principal | None:
        return ada

    async with grpc_authorizer(tmp_path) as service, running("legacy") as origin:
        access = {**ASK_ALL, "extAuthz": {"address": service.address, "timeout": "20s"}}
        hub = Hub.from_config({"mcpServers": {"o": {"url": origin.url}}, "holdfast": {"access": access}})
        app = create_app(hub, tokens=TokenPolicy(verify=verify), audit=trail)
        async with hub, serving(app) as base:
            assert await hub.ready(60)
            async with _as("ada", f"{base}/mcp", "legacy") as client:
                await client.call_tool("o__echo", {"text": "1"})
                (question,) = hub.registry.call_approvals.waiting()
                hub.registry.call_approvals.decide(question.id, CallVerdict(True, "olga"))
                await client.call_tool("o__echo", {"text": "1"})
            told = service.seen[0]["context_extensions"]
    trail.close()
    waited, made = AuditReader(tmp_path / "audit", AuditFilter(principal="ada")).read()
    assert (waited.outcome, waited.rule, waited.approval) == ("refused", "rules[0]", "")
    assert (made.outcome, made.rule, made.approval, made.authz) == (
        "completed",
        "rules[0]",
        "approved by olga",
        "allowed",
    )
    assert (made.groups, made.scopes) == (("sre",), ("call",))
    assert (told["groups"], told["scopes"], told["principal_source"]) == ('["sre"]', '["call"]', "jwt")


@pytest.mark.requirement("SEC-14")
async def test_a_name_that_is_a_guess_leads_to_no_tool_that_was_not_judged(ada: Person) -> None:
    """A server that was never listed is called under a guess of its name, and the true name is known later."""
    odd, answers = "my slow.server", list[str]()
    async with running() as origin, Hub(config_from_mapping({"mcpServers": {odd: {"url": origin.url}}})) as first:
        assert await first.ready(60)
        shown = {entry.original: entry.name for entry in first.catalog.tools}
    access = {"rules": [{"effect": "deny", "tools": ["echo"]}], "default": "allow"}
    async with (
        slow_server() as slow,
        front({odd: {"url": slow.url}}, wait=False, access=access, call={"readyTimeout": "60s"}) as served,
        ada.client(served.all, "legacy") as client,
        anyio.create_task_group() as tasks,
    ):

        async def call() -> None:
            answers.append(text_of(await client.call_tool(shown["echo"], {"text": "sunny"})))

        with anyio.fail_after(30):
            places = served.hub.registry.slot(odd).bulkhead
            free = places.free
            tasks.start_soon(call)
            await came_true(lambda: places.free < free)
            slow.may.set()
            await came_true(lambda: answers)
            assert text_of(await client.call_tool(shown["grow"], {})) == "done"
            with pytest.raises(MCPError, match="Unknown tool"):
                await client.call_tool(shown["echo"], {"text": "sunny"})
    (guessed,) = answers
    assert "sunny" not in guessed
    assert "make the call again" in guessed


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize(("effect", "refusal"), [("deny", CallForbidden), ("ask", NotApproved)])
async def test_a_call_that_waited_for_its_server_is_judged_by_the_rules_of_now(
    effect: str, refusal: type[HoldfastError]
) -> None:
    servers = {"o": {"url": "http://127.0.0.1:9/mcp", "enabled": False}}
    async with Hub.from_config({"mcpServers": servers}) as hub:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {}}}
        client = HubClient(View(hub), Recorded(), {}, modern=False, owner="one")
        message = await read_message(json.dumps(asked).encode())
        call = Call(message, client, Recorded(), client.view, "", {}, None, client.identity)
        call.to("o", call.params, repeatable=False)
        gate = Broker(hub).gate
        gate.check_again(call)
        rules = {"rules": [{"effect": effect}], "default": "allow"}
        await hub.apply(config_from_mapping({"mcpServers": servers, "holdfast": {"access": rules}}))
        with pytest.raises(refusal, match="echo"):
            gate.check_again(call)


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize("before", [{}, {"rules": [{"effect": "allow"}]}, {"extAuthz": {"address": "127.0.0.1:8"}}])
@pytest.mark.parametrize("rules", [{}, {"rules": [{"effect": "allow"}]}])
async def test_a_call_that_waited_for_its_server_is_not_made_past_a_service_that_was_never_asked(
    before: dict[str, Any], rules: dict[str, Any]
) -> None:
    servers = {"o": {"url": "http://127.0.0.1:9/mcp", "enabled": False}}
    document = {"mcpServers": servers, "holdfast": {"access": before}}
    async with Hub.from_config(document) as hub:
        waiting = await call(client(), Line(), name="echo", arguments={})
        waiting.to("o", waiting.params, repeatable=False)
        gate = Broker(hub).gate
        judged = gate.judge(waiting)
        if judged is not None and "extAuthz" in before:
            judged.authz = "allowed"
        gate.check_again(waiting)
        access = {**rules, "extAuthz": {"address": "127.0.0.1:9"}}
        await hub.apply(config_from_mapping({"mcpServers": servers, "holdfast": {"access": access}}))
        with pytest.raises(NotAuthorized, match="echo"):
            gate.check_again(waiting)


@pytest.mark.requirement("SEC-14")
async def test_a_call_that_the_same_service_allowed_stays_allowed_where_other_rules_came_into_force() -> None:
    servers = {"o": {"url": "http://127.0.0.1:9/mcp", "enabled": False}}
    access: dict[str, Any] = {"extAuthz": {"address": "127.0.0.1:9"}}
    async with Hub.from_config({"mcpServers": servers, "holdfast": {"access": access}}) as hub:
        waiting = await call(client(), Line(), name="echo", arguments={})
        waiting.to("o", waiting.params, repeatable=False)
        gate = Broker(hub).gate
        judged = gate.judge(waiting)
        assert judged is not None
        judged.authz = "allowed"
        access["rules"] = [{"effect": "allow"}]
        await hub.apply(config_from_mapping({"mcpServers": servers, "holdfast": {"access": access}}))
        gate.check_again(waiting)


class Recorder:
    """An audit that keeps its records, and may be unable to write."""

    def __init__(self) -> None:
        self.why = ""
        self.records: list[AuditRecord] = []

    def refusal(self) -> str:
        return self.why

    def add(self, record: AuditRecord, arguments: object = None) -> None:
        self.records.append(record)


TRACE = "a" * 32


@pytest.mark.requirement("SEC-15")
@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("tools/call", {"name": "https://u:secret@host/"}, "https://u:secret@host/"),
        ("prompts/get", {"name": "greet"}, "greet"),
        ("resources/read", {"uri": "https://u:secret@host/x"}, "https://***@host/x"),
        ("tasks/get", {"taskId": "t1"}, "t1"),
        ("completion/complete", {"ref": {"name": "greet"}}, "greet"),
        ("completion/complete", {"ref": {"uri": "mem://{x}"}}, "mem://{x}"),
        ("completion/complete", {"ref": 7}, ""),
        ("tools/call", {"name": "n" * 300}, "n" * 256),
        ("x/own", {}, ""),
        ("resources/read", {"uri": "mem://a", "name": "harmless"}, "mem://a"),
        ("resources/subscribe", {"uri": "mem://a", "name": "harmless"}, "mem://a"),
        ("tasks/cancel", {"taskId": "t1", "name": "harmless", "uri": "mem://a"}, "t1"),
        ("completion/complete", {"ref": {"name": "greet"}, "name": "harmless", "uri": "mem://a"}, "greet"),
        ("prompts/get", {"uri": "mem://a"}, ""),
        ("x/own", {"name": "harmless"}, "harmless"),
    ],
)
async def test_a_record_names_what_the_request_is_about(method: str, params: dict[str, Any], name: str) -> None:
    recorder = Recorder()
    audit = CallAudit(cast("AuditTrail", recorder))
    asked = await call(client(), Line(), method=method, **params, _meta={"traceparent": f"00-{TRACE}-1-01"})

    async def handler(_: Call) -> RawObject:
        return RawObject.of({"a": 1})

    await audit.answer(asked, handler)
    (record,) = recorder.records
    assert (record.method, record.tool, record.outcome, record.trace) == (method, name, "completed", TRACE)
    assert (record.result_bytes, record.argument_bytes, record.principal) == (1, 0, "local")


@pytest.mark.requirement("SEC-15")
@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({"isError": True}, "tool_error"),
        ({"isError": False}, "completed"),
        ({"resultType": "input_required"}, "input_required"),
        (MCPError(-1, "no " + "x" * 300), "refused"),
        (CallForbidden("no", rule="r"), "denied"),
    ],
)
async def test_a_record_says_how_the_request_ended(said: dict[str, Any] | Exception, outcome: str) -> None:
    recorder = Recorder()
    audit = CallAudit(cast("AuditTrail", recorder))

    async def handler(_: Call) -> RawObject:
        if isinstance(said, Exception):
            raise said
        return RawObject.of(said)

    with suppress(MCPError, HoldfastError):
        await audit.answer(await call(client(), Line(), name="x", arguments={"a": 1}), handler)
    (record,) = recorder.records
    assert (record.outcome, record.argument_bytes, record.trace) == (outcome, 8, "")
    assert len(record.reason) <= 256


@pytest.mark.requirement("SEC-15")
async def test_no_reason_makes_a_record_longer_than_a_line_may_be() -> None:
    recorder = Recorder()

    async def handler(_: Call) -> RawObject:
        raise CallForbidden("no" * 300_000, rule="r")

    with suppress(HoldfastError):
        await CallAudit(cast("AuditTrail", recorder)).answer(await call(client(), Line(), name="x"), handler)
    assert 0 < len(recorder.records[0].reason) <= 1_000


@pytest.mark.requirement("SEC-15")
async def test_no_request_is_made_that_cannot_be_recorded_and_lists_are_not_recorded() -> None:
    recorder = Recorder()
    audit = CallAudit(cast("AuditTrail", recorder))
    made: list[str] = []

    async def handler(asked: Call) -> RawObject:
        made.append(asked.method)
        return RawObject.of({})

    recorder.why = "the disk is full"
    await audit.answer(await call(client(), Line(), method="tools/list"), handler)
    assert (made, recorder.records) == (["tools/list"], [])
    refused = await audit.answer(await call(client(), Line(), name="x"), handler)
    assert "not called: the disk is full" in json.loads(refused.written())["content"][0]["text"]
    with pytest.raises(NotAudited, match="the disk is full"):
        await audit.answer(await call(client(), Line(), method="prompts/get", name="x"), handler)
    assert [record.outcome for record in recorder.records] == ["refused", "refused"]
    assert made == ["tools/list"]


@pytest.mark.requirement("SEC-15")
async def test_a_request_that_another_replica_serves_is_recorded_there() -> None:
    recorder = Recorder()

    async def handler(_: Call) -> RawObject:
        raise LivesElsewhere("there")

    with pytest.raises(LivesElsewhere):
        await CallAudit(cast("AuditTrail", recorder)).answer(await call(client(), Line(), name="x"), handler)
    assert recorder.records == []
