"""Calls that wait for a modern client's answers: good for one use, by the one who was asked, for a while."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError

from holdfast.access import Principal
from holdfast.endpoint import Client as HubClient, clients, input_required
from holdfast.endpoint.input_required import OpenCall, PendingCalls, next_round, request_identity
from holdfast.errors import CallFailed
from holdfast.files import replace_file
from holdfast.wire import LoadedObject, RawObject
from tests.cli.serve_process import config, served
from tests.clients.raw import MODERN_META
from tests.endpoint.test_clients import Line, answered, call, client
from tests.endpoint.test_exchange import settled
from tests.harness import waiting
from tests.harness.served_hub import Person, front
from tests.harness.waiting import came_true
from tests.peers.peer_server import running

pytestmark = pytest.mark.anyio

ASK = {"kind": "elicit"}
ANSWER: Any = {"q1": types.ElicitResult(action="accept", content={"colour": "red"})}


async def _asked(client: Client) -> types.InputRequiredResult:
    result = await client.session.call_tool("o__ask", ASK, allow_input_required=True)
    assert isinstance(result, types.InputRequiredResult)
    return result


async def _request(client: Client, state: str | None, arguments: dict[str, Any] = ASK, answers: Any = ANSWER) -> Any:
    return await client.session.call_tool(
        "o__ask", arguments, input_responses=answers, request_state=state, allow_input_required=True
    )


@pytest.mark.requirement("HUB-7")
async def test_a_state_is_good_for_one_use_and_for_the_same_request_alone(ada: Person) -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, "modern") as client,
    ):
        first = await _asked(client)
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await _request(client, first.request_state, {"kind": "elicit", "more": 1})
        result = await _request(client, first.request_state)
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await _request(client, first.request_state)
    assert result.content[0].text == "red"


@pytest.mark.requirement("HUB-7")
async def test_an_answer_that_is_left_out_is_asked_for_again(ada: Person) -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, "modern") as client,
    ):
        first = await _asked(client)
        again = await _request(client, first.request_state, answers={})
        assert isinstance(again, types.InputRequiredResult)
        result = await _request(client, again.request_state)
    assert result.content[0].text == "red"


@pytest.mark.requirement("HUB-7")
async def test_a_call_whose_client_does_not_return_is_cancelled(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, "modern") as client,
    ):
        first = await _asked(client)
        broker = served.app.state.front.broker
        assert len(broker.attribution.calls) == 1
        monkeypatch.setattr(input_required, "ASK_SECONDS", -1.0)
        broker.pending.sweep()
        with anyio.fail_after(10):
            assert await broker.drain(10)
        with pytest.raises(MCPError):
            await _request(client, first.request_state)
    assert clients.ASK_SECONDS > 0


@pytest.mark.requirement("HUB-7")
async def test_one_call_more_than_may_wait_for_clients_is_refused_and_ends_at_its_server(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_required, "MAX_PENDING", 1)
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, "modern") as client,
    ):
        first = await _asked(client)
        with pytest.raises(MCPError, match="too many calls wait"):
            await _asked(client)
        calls = served.app.state.front.broker.attribution.calls
        with anyio.fail_after(10):
            await came_true(lambda: len(calls) == 1)
        result = await _request(client, first.request_state)
    assert result.content[0].text == "red"


@pytest.mark.requirement("HUB-7", "SEC-11")
async def test_the_pending_calls_of_one_principal_leave_room_for_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(input_required, "MOST_OF_PRINCIPAL", 2)

    async def question_of(name: str) -> bytes:
        asking = client(modern=True, identity=Principal(name=name, source="token"))
        request = await call(asking, Line(), name="ask")

        async def work() -> RawObject:
            assert request.open is not None
            await request.open.ask("roots/list", None)
            raise AssertionError("no one answers")

        result = await pending.begin(request, work)
        return bytes(result.get("requestState") or b"")

    async with anyio.create_task_group() as tasks:

        def start(work: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> None:
            tasks.start_soon(work, *given)

        pending = PendingCalls(None, start)
        states = {await question_of("ann"), await question_of("ann")}
        with pytest.raises(MCPError, match="too many calls wait"):
            await question_of("ann")
        states |= {await question_of("bob"), await question_of("bob")}
        assert len(states) == 4
        pending.close()


@pytest.mark.requirement("HUB-7")
async def test_time_does_not_run_while_the_client_is_asked(ada: Person) -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}, call={"timeout": "2s", "hardTimeout": "3s"}) as served,
        ada.client(served.all, "legacy") as client,
    ):

        async def until_others_have_run_out_of_time() -> None:
            for _ in range(2):
                with pytest.raises(CallFailed, match="hang"):
                    await served.hub.call_tool("o__hang", {})

        ada.before_answering = until_others_have_run_out_of_time
        with anyio.fail_after(20):
            result: Any = await client.call_tool("o__ask", ASK)
    assert result.content[0].text == "ada's blue"


@pytest.mark.requirement("HUB-7")
async def test_a_call_that_was_parked_in_a_hub_from_before_is_told_and_reaches_no_server(ada: Person) -> None:
    async with running("legacy") as origin:
        async with front({"o": {"url": origin.url}}) as before, ada.client(before.all, "modern") as client:
            first = await _asked(client)
        async with front({"o": {"url": origin.url}}) as after, ada.client(after.all, "modern") as client:
            with pytest.raises(MCPError, match="the hub was restarted since"):
                await _request(client, first.request_state)


TOKENS = {name: f"token-of-{name}-0123456789" for name in ("ada", "bob")}


async def _by_hand(http: httpx2.AsyncClient, url: str, whose: str, name: str = "o__ask", **params: Any) -> Any:
    """The answer to a modern call of one principal, in which every member is the test's own."""
    meta = {**MODERN_META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "_meta": meta, **params}}
    headers = {
        "accept": "application/json",
        "authorization": f"Bearer {TOKENS[whose]}",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": name,
    }
    return (await http.post(url, json=body, headers=headers)).json()


@pytest.mark.requirement("HUB-7", "SEC-18")
async def test_another_principal_cannot_resume_a_call_and_does_not_take_it_from_its_owner(tmp_path: Path) -> None:
    known = [{"name": name, "sha256": hashlib.sha256(text.encode()).hexdigest()} for name, text in TOKENS.items()]
    tokens = tmp_path / "tokens.json"
    replace_file(tokens, json.dumps({"tokens": known}))
    answer = {"q1": {"action": "accept", "content": {"colour": "red"}}}
    async with running("legacy") as origin:
        file = config(tmp_path / "mcp.json", o={"url": origin.url})
        async with (
            served(tmp_path / "home", "--config", str(file), "--tokens-file", str(tokens)) as hub,
            httpx2.AsyncClient(trust_env=False, timeout=waiting.PATIENCE) as http,
        ):
            await waiting.ready(hub.url.replace("/mcp", "/readyz"))
            first = (await _by_hand(http, hub.url, "ada", arguments=ASK))["result"]
            assert first["resultType"] == "input_required"
            again = {"arguments": ASK, "requestState": first["requestState"], "inputResponses": answer}
            stolen = await _by_hand(http, hub.url, "bob", **again)
            unanswered = await _by_hand(http, hub.url, "bob", **{**again, "inputResponses": {}})
            other = (await _by_hand(http, hub.url, "bob", arguments=ASK))["result"]
            crossed = await _by_hand(http, hub.url, "ada", **{**again, "requestState": other["requestState"]})
            resumed = await _by_hand(http, hub.url, "ada", **again)
            used = await _by_hand(http, hub.url, "bob", **again)
    for refused in (stolen, unanswered, crossed, used):
        assert "Invalid or expired requestState" in refused["error"]["message"]
        assert "result" not in refused
    assert resumed["result"]["content"][0]["text"] == "red"
    assert first["requestState"] not in json.dumps([stolen, unanswered, used])


@pytest.mark.requirement("HUB-7")
async def test_what_a_server_says_between_two_requests_is_told_to_the_next_one() -> None:
    first, second = Line(), Line()
    one = client(modern=True)
    pending = OpenCall(await call(one, first, _meta={"progressToken": "a"}))
    pending.call.open = pending
    asking = asyncio.create_task(pending.ask("sampling/createMessage", LoadedObject()))
    assert await pending.advance(pending.call) is None
    pending.tell("notifications/x", {"n": 1})
    pending.tell("notifications/x", {"n": 2})
    assert first.told == []
    repeated = await call(one, second, _meta={"progressToken": "b"})
    pending.answer({"q1": {"action": "accept"}, "q2": {}, "q3": 7})
    assert await asking == {"action": "accept"}
    advancing = asyncio.create_task(pending.advance(repeated))
    await settled()
    pending.call.progress(1, None, None)
    assert [params for _, params in second.told] == [{"n": 1}, {"n": 2}, {"progressToken": "b", "progress": 1}]

    async def work() -> RawObject:
        return RawObject.of({"a": 1})

    await pending.run(work)
    assert (await advancing or RawObject.of({})).value() == {"a": 1}
    with pytest.raises(MCPError, match="has its answer already"):
        await pending.advance(repeated)


@pytest.mark.requirement("HUB-7")
async def test_a_question_that_is_none_of_the_protocol_is_the_error_of_its_server() -> None:
    pending = OpenCall(await call(client(modern=True), Line()))
    with pytest.raises(MCPError, match="its parameters are not those of the protocol"):
        await pending.ask("sampling/createMessage", {"messages": 7})
    assert pending.questions() == b"{}"


@pytest.mark.requirement("HUB-7")
async def test_a_call_that_fails_or_is_cancelled_says_so_in_the_request_that_waits() -> None:
    async def fails() -> RawObject:
        raise MCPError(-1, "it failed")

    for work, words in ((fails, "it failed"), (anyio.sleep_forever, "the call was cancelled")):
        pending = OpenCall(asked := await call(client(modern=True), Line()))
        running_call = asyncio.create_task(pending.run(cast("Any", work)))
        waiting_call = asyncio.create_task(pending.advance(asked))
        await settled()
        pending.cancel()
        with pytest.raises(MCPError, match=words):
            await waiting_call
        await running_call


@pytest.mark.requirement("HUB-7")
async def test_a_request_is_the_same_however_its_arguments_are_written() -> None:
    one, other = client(modern=True), client(modern=True, identity=Principal(name="ann"))

    async def identity(of: HubClient, **params: Any) -> str:
        return request_identity(await call(of, Line(), **params))

    asked: dict[str, Any] = {"name": "x", "arguments": {"a": 1, "b": 2}}
    same = await identity(one, **asked)
    assert await identity(one, requestState="s", arguments={"b": 2, "a": 1}, name="x") == same
    others = [
        await identity(other, **asked),
        await identity(one, **asked, method="prompts/get"),
        await identity(one, name="x", arguments={"a": 1}),
        await identity(one, name="x"),
        await identity(one, uri="x"),
        await identity(one, name="x", uri="x"),
    ]
    assert len({same, *others}) == 7


@pytest.mark.requirement("HUB-7")
async def test_a_legacy_client_answers_all_questions_of_a_modern_server_at_once() -> None:
    reply = Line()
    one = client()
    asked = await call(one, reply, name="x", requestState="old", inputResponses={})
    both = {key: {"method": "sampling/createMessage", "params": {}} for key in ("p", "q")}
    round_ = asyncio.create_task(next_round(asked, asked.params, {"inputRequests": both, "requestState": "new"}))
    await settled()
    assert reply.questions == [1, 2]
    for number in reply.questions:
        await answered(one.questions, number, result={"n": number})
    sent = {key: json.loads(bytes(value)) for key, value in (await round_).items()}
    assert sent == {"name": "x", "requestState": "new", "inputResponses": {"p": {"n": 1}, "q": {"n": 2}}}
    for wrong, words in (({"method": "x/own"}, "not a request to a client"), ({"method": "roots/list"}, "roots")):
        with pytest.raises(MCPError, match=words):
            await next_round(asked, asked.params, {"inputRequests": {"p": wrong}})


@pytest.mark.requirement("HUB-7")
async def test_a_server_that_asks_nothing_gets_another_round_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_required, "ROUND_PAUSE_SECONDS", 0.0)
    asked = await call(client(), Line(), name="x", requestState="old")
    assert (await next_round(asked, asked.params, {})).keys() == {"name"}
