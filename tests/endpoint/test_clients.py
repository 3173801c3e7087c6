"""A client and its calls: what it can be asked, what it wants to hear, and how long it counts as there (HUB-2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from mcp import MCPError

from holdfast.access import Principal
from holdfast.endpoint import Call, Client, Outlet, View, clients, read_message
from holdfast.endpoint.clients import Questions, require_capability
from holdfast.hub import Hub
from tests.endpoint.test_exchange import Recorded, settled

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2", "HUB-7")]

ASK = "elicitation/create"


class Line(Recorded):
    """An outlet that keeps what it was told, with the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, Mapping[str, Any] | None]] = []

    def tell(self, method: str, params: Mapping[str, Any] | None, *, everywhere: bool = False) -> None:
        self.told.append((method, params))


class Unreachable(Line):
    """The stream of a client that cannot be asked."""

    async def reach(self, method: str) -> Outlet:
        raise MCPError(-32600, "it has no stream")


def client(outlet: Line | None = None, *, modern: bool = False, now: float = 0.0, **more: Any) -> Client:
    view = View(Hub.from_config({"mcpServers": {}}))
    return Client(view, outlet or Line(), {"sampling": {}}, modern=modern, owner="o", clock=lambda: now, **more)


async def call(of: Client, reply: Line, **params: Any) -> Call:
    body = {"jsonrpc": "2.0", "id": 1, "method": params.pop("method", "tools/call"), "params": params}
    message = await read_message(json.dumps(body).encode())
    return Call(message, of, reply, of.view, "2025-11-25", {}, None, of.identity)


@pytest.fixture
def outlet() -> Line:
    return Line()


async def answered(questions: Questions, number: object, **answer: Any) -> bool:
    body = {"jsonrpc": "2.0", "id": number, **(answer or {"result": {}})}
    return questions.answered(await read_message(json.dumps(body).encode()))


async def test_an_answer_is_taken_for_a_question_that_was_asked_here_and_for_no_other(outlet: Line) -> None:
    questions = Questions(10)
    assert not questions
    asking = asyncio.create_task(questions.ask(outlet, ASK, {"a": 1}))
    await settled()
    assert questions
    assert outlet.questions == [11]
    assert [await answered(questions, number) for number in (10, 12, "11", -1)] == [False] * 4
    assert not asking.done()
    assert await answered(questions, 11, result={"action": "accept"})
    assert await answered(questions, 11, result={"action": "decline"}), "it is no other replica's either"
    assert await asking == {"action": "accept"}
    assert await answered(questions, 11)
    assert not questions
    assert outlet.told == []


async def test_a_question_that_is_no_longer_needed_is_withdrawn(outlet: Line) -> None:
    questions = Questions()
    asking = asyncio.create_task(questions.ask(outlet, ASK, None))
    await settled()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    reason = {"requestId": 1, "reason": "the answer is no longer needed"}
    assert outlet.told == [("notifications/cancelled", reason)]
    assert not questions


async def test_a_question_that_takes_too_long_is_an_error_for_the_server(
    outlet: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "ASK_SECONDS", 0.0)
    with pytest.raises(MCPError, match="did not answer elicitation/create in time"):
        await Questions().ask(outlet, ASK, None)
    assert outlet.told == [("notifications/cancelled", {"requestId": 1, "reason": "it took too long"})]


async def test_a_client_that_left_answers_no_question(outlet: Line) -> None:
    questions = Questions()
    asking = [asyncio.create_task(questions.ask(outlet, ASK, None)) for _ in range(2)]
    await settled()
    await answered(questions, 1)
    questions.end("it left")
    assert await asking[0] == {}
    with pytest.raises(MCPError, match="the client cannot answer: it left"):
        await asking[1]
    assert outlet.told == [("notifications/cancelled", {"requestId": 2, "reason": "it left"})]


async def test_a_question_that_cannot_reach_its_client_uses_no_number(outlet: Line) -> None:
    questions = Questions()
    with pytest.raises(MCPError, match="it has no stream"):
        await questions.ask(Unreachable(), ASK, None)
    asking = asyncio.create_task(questions.ask(outlet, ASK, None))
    await settled()
    assert outlet.questions == [1]
    questions.end("done")
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize(
    ("declared", "method", "params", "words"),
    [
        ({}, "roots/list", None, "does not support roots"),
        ({"roots": {}}, "roots/list", None, ""),
        ({"sampling": {}}, "sampling/createMessage", {"mode": "url"}, ""),
        ({"elicitation": {}}, ASK, None, ""),
        ({"elicitation": {}}, ASK, {"mode": "form"}, ""),
        ({"elicitation": {}}, ASK, {"mode": "url"}, "does not support elicitation by url"),
        ({"elicitation": {"url": {}}}, ASK, {"mode": "url"}, ""),
    ],
)
async def test_a_client_is_asked_only_what_it_can_answer(
    declared: dict[str, Any], method: str, params: dict[str, Any] | None, words: str
) -> None:
    one = client()
    one.capabilities = declared
    if not words:
        require_capability(one, method, params)
        return
    with pytest.raises(MCPError, match=words):
        require_capability(one, method, params)


@pytest.mark.parametrize(
    ("modern", "wanted", "level", "is_told"),
    [
        (False, None, "debug", True),
        (True, None, "error", False),
        (False, "warning", "info", False),
        (False, "warning", "warning", True),
        (True, "warning", "error", True),
        (False, "warning", "loud", True),
        (True, "warning", None, False),
    ],
)
async def test_a_client_hears_the_log_messages_that_it_wants(
    modern: bool, wanted: str | None, level: str | None, is_told: bool
) -> None:
    one, reply = client(modern=modern, log_level=wanted), Line()
    assert one.wants_log(level) is is_told
    (await call(one, reply)).tell("notifications/message", {"level": level})
    assert bool(reply.told) is is_told


async def test_a_client_without_a_stream_is_there_for_a_while_after_its_last_message() -> None:
    now = 0.0
    one = client()
    one.clock = lambda: now
    now = clients.ABSENT_SECONDS + 1
    assert one.is_present(), "its stream is open"
    one.outlet.is_open = False  # type: ignore[misc]  # the outlet of this test
    assert not one.is_present()
    one.seen_at = 2.0
    assert one.is_present()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1, None, None), {"progress": 1}),
        ((0.5, 2.0, "half"), {"progress": 0.5, "total": 2.0, "message": "half"}),
    ],
)
@pytest.mark.parametrize("token", ["t", 7])
async def test_progress_is_told_under_the_token_of_its_request(
    arguments: tuple[Any, ...], expected: dict[str, Any], token: str | int
) -> None:
    reply = Line()
    (await call(client(), reply, _meta={"progressToken": token})).progress(*arguments)
    ((method, params),) = reply.told
    assert (method, params) == ("notifications/progress", {"progressToken": token, **expected})
    assert json.loads(getattr(params, "raw", b"")) == params


@pytest.mark.parametrize("token", [None, True, 1.5, {}])
async def test_progress_that_was_not_asked_for_is_not_told(token: object) -> None:
    reply = Line()
    (await call(client(), reply, _meta={"progressToken": token})).progress(1, None, None)
    assert reply.told == []


async def test_nothing_follows_the_answer_and_a_modern_client_is_not_told_of_what_its_era_lacks() -> None:
    reply, complete = Line(), "notifications/elicitation/complete"
    for modern in (False, True):
        (await call(client(modern=modern), reply)).tell(complete, {"modern": modern})
    assert reply.told == [(complete, {"modern": False})]
    over = await call(client(), reply)
    over.done = True
    over.tell("notifications/message", {"level": "error"})
    assert len(reply.told) == 1


async def test_a_call_is_of_its_sender_and_asks_by_the_era_of_its_client() -> None:
    reply = Line()
    legacy, modern = await call(client(), reply), await call(client(modern=True), reply)
    assert (legacy.log_level, modern.log_level) == ("info", None)
    assert (await call(client(log_level="error"), reply)).log_level == "error"
    with pytest.raises(MCPError, match="its protocol knows no such request"):
        await modern.ask("sampling/createMessage", None)
    asking = asyncio.create_task(legacy.ask("sampling/createMessage", None))
    await settled()
    assert reply.questions == [1]
    legacy.client.questions.end("done")
    await asyncio.gather(asking, return_exceptions=True)
    assert (await call(client(), reply, method="tasks/get", taskId="x")).task == "x"
    assert (await call(client(), reply, taskId="x")).task is None
    assert (await call(client(identity=Principal(name="ann")), reply)).principal == "ann"
