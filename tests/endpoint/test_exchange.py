"""The exchange alone, without a transport: any sequence of messages gets exactly one answer for each request (HUB-2).

The clock and the numbers of questions are the test's. Its server answers when the test says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from mcp import MCPError
from mcp_types import ErrorData

from holdfast.endpoint import Broker, Call, Exchange, McpServer, Outlet, View, attribution, read_message
from holdfast.hub import Hub
from holdfast.wire import Bytes, Era, RawObject
from tests.clients.raw import MODERN_META

pytestmark = [pytest.mark.requirement("HUB-2")]

FIRST_QUESTION = 1_000
IDS = (1, 2, "a")
CAPABILITIES: dict[str, Any] = {"elicitation": {}}


class Recorded:
    """The reply of one message: it keeps what came, in its order."""

    is_open = True

    def __init__(self) -> None:
        self.came: list[str] = []
        self.questions: list[int] = []

    def tell(self, method: str, params: Mapping[str, Any] | None, *, everywhere: bool = False) -> None:
        if method != "notifications/cancelled":  # a question that need not be answered any more: that is no answer
            self.came.append(method)

    async def reach(self, method: str) -> Outlet:
        return self

    def put_question(self, message: bytes) -> None:
        self.came.append("question")
        self.questions.append(json.loads(message)["id"])

    def result(self, request_id: Bytes, result: RawObject | bytes) -> None:
        self.came.append("result")

    def error(self, request_id: Bytes | None, error: ErrorData) -> None:
        self.came.append("error" if request_id is not None else "refused")

    def cancelled(self, request_id: Bytes) -> None:
        self.came.append("cancelled")


class Puppet(McpServer):
    """A server whose answers the test gives."""

    def __init__(self, broker: Broker, view: View) -> None:
        super().__init__(broker, view)
        self.under_way: dict[Call, asyncio.Future[RawObject]] = {}
        self.ended: list[str] = []

    async def answer(self, call: Call) -> RawObject:
        done = self.under_way[call] = asyncio.get_running_loop().create_future()
        try:
            result: RawObject = await done
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        finally:
            del self.under_way[call]
        return result


class Scene:
    """One exchange, and what was sent to it."""

    def __init__(self, era: Era, *, on_a_pipe: bool) -> None:
        hub = Hub.from_config({"mcpServers": {}})
        self.server = Puppet(Broker(hub), View(hub))
        self.era = era
        self.now = 0.0
        self.outlet = Recorded()
        self.exchange = Exchange(
            self.server,
            self.outlet,
            era=None if on_a_pipe else era,
            owner="pipe" if on_a_pipe else None,
            first_question=FIRST_QUESTION,
            clock=lambda: self.now,
        )
        if era == "legacy":
            self.exchange.begin("2025-11-25", CAPABILITIES)
        self.requests: list[tuple[str | int, Recorded]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.asking: list[asyncio.Task[Any]] = []
        self.late: list[Call] = []

    async def send(self, message: dict[str, Any]) -> Recorded:
        """Give a message to the exchange, as a shell does: in a task of its own."""
        reply = Recorded()
        read = await read_message(json.dumps({"jsonrpc": "2.0", **message}).encode())
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": str(message.get("method"))}
        self.tasks.append(asyncio.create_task(self.exchange.handle(read, reply, headers)))
        await settled()
        return reply

    async def request(self, key: str | int) -> None:
        meta = {"progressToken": "t"} | (MODERN_META if self.era == "modern" else {})
        reply = await self.send({"id": key, "method": "x/any", "params": {"_meta": meta}})
        self.requests.append((key, reply))

    async def with_call(self, number: int, act: Callable[[Call], Any]) -> None:
        """Something that the server does in one of the calls at it."""
        if calls := list(self.server.under_way):
            act(calls[number % len(calls)])
            await settled()

    def finish(self, call: Call) -> None:
        self.late.append(call)
        self.server.under_way[call].set_result(RawObject.of({}))

    def fail(self, call: Call) -> None:
        self.late.append(call)
        self.server.under_way[call].set_exception(MCPError(-32000, "no"))

    def ask(self, call: Call) -> None:
        self.asking.append(asyncio.create_task(call.ask("elicitation/create", {"mode": "form"})))

    async def give_answers(self) -> None:
        """The client answers all it was asked, and more."""
        asked = [number for _, reply in self.requests for number in reply.questions]
        for number in (*asked, FIRST_QUESTION + 900):
            await self.send({"id": number, "result": {"action": "decline"}})

    async def step(self, what: str, which: int) -> None:
        self.now += 1
        match what:
            case "request":
                await self.request(IDS[which % len(IDS)])
            case "cancel":
                wanted = {"requestId": IDS[which % len(IDS)]}
                await self.send({"method": "notifications/cancelled", "params": wanted})
            case "progress":
                await self.with_call(which, lambda call: call.progress(which, None, None))
            case "late":
                for call in self.late:
                    call.progress(which, None, None)
            case "ask":
                await self.with_call(which, self.ask)
            case "answer":
                await self.give_answers()
            case "finish":
                await self.with_call(which, self.finish)
            case _:
                await self.with_call(which, self.fail)

    async def end(self) -> None:
        self.exchange.close("the client left")
        await settled()
        await asyncio.gather(*self.tasks, *self.asking, return_exceptions=True)


async def settled() -> None:
    """All tasks have done what they can do now."""
    for _ in range(8):
        await asyncio.sleep(0)


STEPS = st.tuples(
    st.sampled_from(["request"] * 3 + ["cancel", "progress", "late", "ask", "answer", "finish", "finish", "fail"]),
    st.integers(0, 5),
)
ANSWERS = {"result", "error", "cancelled", "refused"}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["legacy", "modern"]), st.booleans(), st.lists(STEPS, max_size=25))
def test_each_request_has_one_answer_and_nothing_follows_it(
    era: Era, on_a_pipe: bool, steps: list[tuple[str, int]]
) -> None:
    async def run() -> None:
        scene = Scene(era, on_a_pipe=on_a_pipe)
        in_flight: dict[str | int, Recorded] = {}
        for what, which in steps:
            before = {key for key, reply in in_flight.items() if not ANSWERS & set(reply.came)}
            await scene.step(what, which)
            if what == "request":
                key, reply = scene.requests[-1]
                assert (reply.came == ["refused"]) == (key in before), "an id names one request in flight"
                if key not in before:
                    in_flight[key] = reply
            for key in scene.exchange.calls:
                assert not ANSWERS & set(in_flight[key].came), "a request in flight has no answer yet"
        await scene.end()
        for _, reply in scene.requests:
            answers = [one for one in reply.came if one in ANSWERS]
            assert len(answers) == 1, reply.came
            assert reply.came[-1] == answers[0], "something followed the answer"
        cancelled = sum(reply.came[-1] == "cancelled" for _, reply in scene.requests)
        assert cancelled == len(scene.server.ended), "a cancelled call ends at its server too"
        assert not scene.exchange.calls
        assert not scene.exchange.questions
        assert all(task.done() for task in (*scene.tasks, *scene.asking))

    asyncio.run(run())


@pytest.mark.anyio
async def test_the_numbers_of_questions_are_those_that_the_shell_gave() -> None:
    scene = Scene("legacy", on_a_pipe=False)
    await scene.request(1)
    await scene.step("ask", 0)
    assert scene.requests[0][1].questions == [FIRST_QUESTION + 1]
    await scene.give_answers()
    assert [await one for one in scene.asking] == [{"action": "decline"}]
    await scene.end()


@pytest.mark.anyio
async def test_a_cancelled_call_leaves_its_task_to_the_next_message() -> None:
    """Over HTTP one task serves all requests of a connection: it must not be cancelled with one of them."""
    scene = Scene("legacy", on_a_pipe=False)
    went_on: list[str] = []

    async def connection() -> None:
        for key in (1, 2):
            read = await read_message(json.dumps({"jsonrpc": "2.0", "id": key, "method": "x/any"}).encode())
            reply = Recorded()
            await scene.exchange.handle(read, reply)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0, "the next timeout in this task would not work"
            went_on.append(reply.came[-1])

    served = asyncio.create_task(connection())
    await settled()
    await scene.step("cancel", 0)
    await scene.step("finish", 0)
    await served
    assert went_on == ["cancelled", "result"]
    await scene.end()


@pytest.mark.anyio
async def test_a_client_is_seen_by_the_clock_that_was_given() -> None:
    scene = Scene("legacy", on_a_pipe=True)
    scene.now = 41.0
    await scene.send({"method": "notifications/initialized"})
    assert scene.exchange.client is not None
    assert scene.exchange.client.seen_at == 41.0
    await scene.end()


@pytest.mark.anyio
async def test_an_exchange_says_in_a_debugger_what_is_under_way() -> None:
    scene = Scene("legacy", on_a_pipe=False)
    await scene.request("a")
    assert repr(scene.exchange) == "<Exchange legacy local calls=['a'] <Questions open=[]>>"
    assert repr(scene.exchange.calls["a"]) == "<Call 'a' x/any to ? legacy in flight>"
    await scene.end()


@pytest.mark.anyio
async def test_an_endpoint_takes_no_more_subscriptions_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "MAX_SUBSCRIPTIONS", 1)
    scene = Scene("modern", on_a_pipe=True)
    hub = scene.server.view.hub
    scene.exchange = Exchange(McpServer(Broker(hub), View(hub)), scene.outlet, owner="pipe")
    wanted = {"notifications": {"toolsListChanged": True}, "_meta": MODERN_META}
    first, second = [
        await scene.send({"id": key, "method": "subscriptions/listen", "params": wanted}) for key in IDS[:2]
    ]
    assert first.came == ["notifications/subscriptions/acknowledged"]
    assert second.came == ["error"]
    await scene.send({"method": "notifications/cancelled", "params": {"requestId": IDS[0]}})
    third = await scene.send({"id": IDS[1], "method": "subscriptions/listen", "params": wanted})
    assert third.came == first.came[:1], "the place of one that left is free"
    await scene.end()


@pytest.mark.anyio
async def test_a_client_may_ping_before_its_handshake_and_ask_nothing_else() -> None:
    scene = Scene("modern", on_a_pipe=True)
    scene.exchange = Exchange(scene.server, scene.outlet, era="legacy")
    ping = await scene.send({"id": 1, "method": "ping"})
    assert ping.came == []
    await scene.with_call(0, scene.finish)
    assert ping.came == ["result"]
    assert (await scene.send({"id": 2, "method": "tools/list"})).came == ["error"]
    await scene.end()


KEY = "k" * 16


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("on_a_pipe", "meta", "persistent", "expires", "level"),
    [
        (False, {}, False, False, None),
        (False, {"holdfast/client": KEY, "io.modelcontextprotocol/logLevel": "error"}, True, True, "error"),
        (True, {"io.modelcontextprotocol/logLevel": "loud"}, True, False, None),
    ],
)
async def test_a_modern_request_is_a_client_of_its_own_or_that_of_its_key_or_pipe(
    on_a_pipe: bool, meta: dict[str, Any], persistent: bool, expires: bool, level: str | None
) -> None:
    scene = Scene("modern", on_a_pipe=on_a_pipe)
    for key in IDS[:2]:
        await scene.send({"id": key, "method": "x/any", "params": {"_meta": MODERN_META | meta}})
    one, other = (call.client for call in scene.server.under_way)
    assert (one.modern, one.persistent, one.expires, one.log_level) == (True, persistent, expires, level)
    assert (one.owner == other.owner) is persistent
    assert (one.program, scene.exchange.program) == ("raw", "raw")
    assert (one.key is not None, one.key == other.key) == (expires, True), "a hub behind this one knows it by its key"
    assert one.key is None or KEY not in one.key
    await scene.end()


class Moves:
    """Takes its client to the endpoint of a folder with the first request that asks."""

    def __init__(self, there: McpServer) -> None:
        self.there: McpServer | None = there
        self.asked = 0
        self.left = self.forgotten = False

    async def server_for(self, call: Call) -> McpServer | None:
        self.asked += 1
        there, self.there = self.there, None
        return there

    def forget(self) -> None:
        self.forgotten = True

    def leave(self) -> None:
        self.left = True


@pytest.mark.anyio
@pytest.mark.requirement("DX-9")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_legacy_client_is_served_by_the_endpoint_of_its_folder_from_its_first_request_on(era: Era) -> None:
    scene = Scene(era, on_a_pipe=True)
    folder = Puppet(scene.server.broker, scene.server.view)
    roots: Any = Moves(folder)
    scene.exchange.roots = roots
    await scene.request(1)
    await scene.request(2)
    serving, idle = (folder, scene.server) if era == "legacy" else (scene.server, folder)
    assert (len(serving.under_way), len(idle.under_way)) == (2, 0)
    assert scene.exchange.server is serving
    assert roots.asked == (2 if era == "legacy" else 0), "each request of a modern client names its folder"
    await scene.send({"method": "notifications/roots/list_changed"})
    assert roots.forgotten == (era == "legacy")
    await scene.end()
    assert roots.left
