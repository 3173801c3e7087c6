"""The ways in which clients use ``serve --workers 2``: each request comes in at the worker that the test chooses.

A connection belongs to the worker that took it. So a client that opens several, as most do, is served by both.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self

import anyio
import httpx2
import pytest

from tests.cli.serve_process import Served, config, served
from tests.cli.test_serve import ready
from tests.cli.test_serve_homes import Entrance
from tests.cli.test_serve_workers import held, two_replicas, workers_of
from tests.fleet.test_homes import FORM, LegacyClient, events_of, message, modern, modern_call
from tests.harness.waiting import asked
from tests.peers.peer_server import Origin, running

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.long,
    pytest.mark.timeout(300),  # the hub of the module is five processes, one after another
    pytest.mark.requirement("FLEET-5", "FLEET-8"),
    pytest.mark.skipif(sys.platform != "linux", reason="the connections of a process are found by /proc"),
]

ANSWERS: dict[str, Any] = {
    "elicit": {"action": "accept", "content": {"colour": "blue"}},
    "sample": {"role": "assistant", "model": "none", "content": {"type": "text", "text": "blue"}},
    "roots": {"roots": [{"uri": "file:///blue"}]},
}


EVERYTHING = {"command": sys.executable, "args": ["-m", "tests.peers.peer_server", "legacy"]}
CHILD = {**EVERYTHING, "cwd": str(Path(__file__).parents[2])}


class Workers:
    """A hub of two workers, and connections to each of them."""

    def __init__(self, hub: Served, origin: Origin, stack: AsyncExitStack) -> None:
        self.hub = hub
        self.origin = origin
        self.at: Any = Entrance(hub.url)
        self._stack = stack

    async def connection(self, number: int) -> httpx2.AsyncClient:
        """A client whose one connection is held by the first or the second worker."""
        workers = sorted(workers_of(self.hub.process.pid))
        with anyio.fail_after(30):
            while True:
                limits = httpx2.Limits(max_connections=1)
                made = httpx2.AsyncClient(trust_env=False, timeout=30, limits=limits)
                # One at the other worker stays open too: the next goes to the worker that has fewer.
                await self._stack.enter_async_context(made)
                before = held(workers[number], self.hub)
                assert (await made.get(self.hub.url.replace("/mcp", "/readyz"))).status_code == 200
                if held(workers[number], self.hub) > before:
                    return made


class Client(LegacyClient):
    """A session by hand; ``via`` names the connection of the next request."""

    def __init__(self, workers: Workers, *connections: httpx2.AsyncClient) -> None:
        super().__init__(connections[0])
        self._connections = connections
        self.at = workers.at

    def via(self, number: int) -> Self:
        self.http = self._connections[number]
        return self


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """The tests share one hub, whose workers keep connections."""


@pytest.fixture(scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Served, Origin]]:
    folder = tmp_path_factory.mktemp("bound")
    async with running("legacy") as origin:
        servers = {"o": {"url": origin.url}, "own": {"url": origin.url, "sharing": "per-client"}, "child": CHILD}
        file = config(folder / "mcp.json", **servers)
        async with served(folder / "home", "--config", str(file), "--workers", "2", "--drain", "3") as hub:
            await ready(hub)
            yield hub, origin


@pytest.fixture
async def workers(both: tuple[Served, Origin]) -> AsyncIterator[Workers]:
    async with AsyncExitStack() as stack:
        await two_replicas(both[0])
        yield Workers(*both, stack)


async def session(workers: Workers, *numbers: int, **capabilities: Any) -> Client:
    """A session that began at the worker of the first number."""
    client = Client(workers, *[await workers.connection(number) for number in numbers])
    await client.begin(client.at, **capabilities)
    return client.via(0)


@pytest.mark.parametrize("kept", [True, False], ids=["one connection", "a new connection for each request"])
async def test_a_client_makes_all_its_requests_in_its_own_way(workers: Workers, kept: bool) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
        client = LegacyClient(http)
        if not kept:
            client.headers["connection"] = "close"
        await client.begin(workers.at)
        assert [await client.call(workers.at, "own__bump") for _ in range(8)] == [str(n) for n in range(1, 9)]
        for _ in range(4):
            assert (await client.ask(workers.at, "ping"))["result"] == {}
            assert len((await client.ask(workers.at, "tools/list"))["result"]["tools"]) > 10


@pytest.mark.parametrize("kind", ["elicit", "sample", "roots"])
@pytest.mark.parametrize("tool", ["o__ask", "own__ask", "child__ask"])
async def test_a_question_is_answered_over_a_connection_to_the_other_worker(
    workers: Workers, kind: str, tool: str
) -> None:
    for asks, answers in ((0, 1), (1, 0)):
        client = await session(workers, asks, answers, **FORM, sampling={}, roots={})
        async with client.via(0).stream(client.at, "tools/call", name=tool, arguments={"kind": kind}) as events:
            question = await _question(events)
            assert (await client.via(1).answer(client.at, question, **ANSWERS[kind])).status_code == 202
            result = [event async for event in events][-1]["message"]
        assert "blue" in result["result"]["content"][0]["text"]


async def _question(events: AsyncIterator[dict[str, Any]]) -> Any:
    async for event in events:
        if "method" in event.get("message", {}) and "id" in event["message"]:
            return event["message"]["id"]
    raise AssertionError("the stream ended without a question")


async def test_a_modern_call_is_continued_at_the_other_worker(workers: Workers) -> None:
    asked = {"kind": "elicit"}
    for first, second in ((0, 1), (1, 0)):
        begun = await modern_call(await workers.connection(first), workers.at, "o__ask", arguments=asked)
        again = {"requestState": begun["result"]["requestState"], "inputResponses": {"q1": ANSWERS["elicit"]}}
        done = await modern_call(await workers.connection(second), workers.at, "o__ask", arguments=asked, **again)
        assert done["result"]["content"][0]["text"] == "blue"


@pytest.mark.parametrize("server", ["o", "own", "child"], ids=["http", "of one client", "process"])
async def test_the_stream_of_notices_is_at_one_worker_and_the_requests_at_the_other(
    workers: Workers, server: str
) -> None:
    """The server tells the connection that touched the resource. The process of ``child`` runs at one worker."""
    for stream, posts in ((0, 1), (1, 0)):
        client = await session(workers, posts, stream, stream)
        await client.via(0).call(client.at, f"{server}__bump")
        listed = (await client.ask(client.at, "resources/list"))["result"]["resources"]
        uri = next(one["uri"] for one in listed if one["name"] == "one" and _is_of(server, one["uri"]))
        async with client.via(1).open(client.at) as events:
            assert (await client.via(0).ask(client.at, "resources/subscribe", uri=uri))["result"] == {}
            if server == "o":
                await workers.origin.until(lambda: len(workers.origin.subscribed) == 2)  # each worker by itself
            async with anyio.create_task_group() as tasks:
                # A worker follows a subscription made at another one within a second. The process tells no test when.
                touching = 2 if server == "o" else 0
                told = anyio.Event()
                tasks.start_soon(_touch_until, told, client.via(touching), f"{server}__touch")
                assert (await message(events, "notifications/resources/updated"))["params"]["uri"] == uri
                told.set()
            assert (await client.via(0).ask(client.at, "resources/unsubscribe", uri=uri))["result"] == {}
            if server == "o":
                await workers.origin.until(lambda: workers.origin.subscribed == [])
            if server != "own":  # the list of a server is that of its shared connection
                await client.via(0).call(client.at, f"{server}__grow")
                await message(events, "notifications/tools/list_changed")


async def _touch_until(told: anyio.Event, client: Client, tool: str) -> None:
    while not told.is_set():
        await client.call(client.at, tool, uri="note://one")


def _is_of(server: str, uri: str) -> bool:
    return uri.startswith(f"from-{server}") or (server == "o" and not uri.startswith("from-"))


async def test_a_session_that_is_ended_at_one_worker_is_over_at_the_other(workers: Workers) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    for begins, ends in ((0, 1), (1, 0)):
        client = await session(workers, begins, ends, begins)
        await client.via(0).call(client.at, "own__bump")
        async with client.via(2).open(client.at) as events:
            ended = await client.via(1).http.delete(client.at.url, headers=client.headers)
            assert ended.status_code in (200, 202, 204)
            assert [event async for event in events if "message" in event] == []
        for connection in (0, 1):
            refused = await client.via(connection).http.post(client.at.url, json=ping, headers=client.headers)
            assert refused.status_code == 404


async def test_a_cancellation_and_a_broken_stream_come_in_at_the_other_worker(workers: Workers) -> None:
    origin = workers.origin
    for first, second in ((0, 1), (1, 0)):
        client = await session(workers, first, second)
        origin.hanging, origin.cancelled, origin.waiting, origin.go = (anyio.Event() for _ in range(4))
        async with client.via(0).stream(
            client.at, "tools/call", request_id="x", name="o__hang", arguments={}
        ) as events:
            await origin.hanging.wait()
            await client.via(1).notice(client.at, "notifications/cancelled", requestId="x")
            await origin.cancelled.wait()
            assert [event async for event in events][-1]["message"]["error"]["message"] == "Request cancelled"
        params = {"name": "o__wait", "arguments": {}, "_meta": {"progressToken": 1}}
        async with client.via(0).stream(client.at, "tools/call", request_id="y", **params) as events:
            seen = [await anext(events), await anext(events)]
            await origin.waiting.wait()
        async with client.via(1).open(client.at, after=seen[-1]["id"]) as events:
            origin.go.set()
            assert [event["message"]["id"] async for event in events if "message" in event] == ["y"]


async def test_the_level_of_log_messages_holds_at_the_other_worker(workers: Workers) -> None:
    client = await session(workers, 0, 1)
    for level, wanted in (("error", 0), ("debug", 1)):
        assert (await client.via(1).ask(client.at, "logging/setLevel", level=level))["result"] == {}

        async def heard(wanted: int = wanted) -> bool:
            said = {"name": "o__log", "arguments": {"level": "info", "text": "hello"}}
            async with client.via(0).stream(client.at, "tools/call", **said) as events:
                methods = [event.get("message", {}).get("method") async for event in events]
            return (methods.count("notifications/message") > 0) == bool(wanted)

        await asked(heard)  # it is known at the other worker within a second


async def test_a_modern_subscription_at_one_worker_hears_of_a_change_through_the_other(workers: Workers) -> None:
    listed = await (await session(workers, 0)).ask(workers.at, "resources/list")
    uri = next(one["uri"] for one in listed["result"]["resources"] if _is_of("child", one["uri"]))
    for listens, touches in ((0, 1), (1, 0)):
        body, headers = modern("")
        wanted = {"notifications": {"resourceSubscriptions": [uri]}, "_meta": body["params"]["_meta"]}
        body |= {"method": "subscriptions/listen", "params": wanted}
        headers |= {"mcp-method": "subscriptions/listen"}
        del headers["mcp-name"]
        http = await workers.connection(listens)
        async with http.stream("POST", workers.at.url, json=body, headers=headers, timeout=None) as answer:
            events = events_of(answer)
            await message(events, "notifications/subscriptions/acknowledged")
            said = {"uri": "note://one"}
            await modern_call(await workers.connection(touches), workers.at, "child__touch", arguments=said)
            assert (await message(events, "notifications/resources/updated"))["params"]["uri"] == uri


async def test_a_session_goes_on_when_the_worker_with_its_stream_is_killed(workers: Workers) -> None:
    client = await session(workers, 0, 1, **FORM)
    await client.via(0).call(client.at, "own__bump")
    victim = min(workers_of(workers.hub.process.pid))
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as fresh:
        with suppress(httpx2.HTTPError):
            async with client.via(0).open(client.at) as events:
                os.kill(victim, signal.SIGKILL)
                assert [event async for event in events if "message" in event] == []
        client.http = fresh
        assert await client.call(client.at, "own__bump") == "1"  # its server is a new one, and says so
        assert await client.via(1).call(client.at, "own__bump") == "2"
        client.http = fresh
        async with client.stream(client.at, "tools/call", name="o__ask", arguments={"kind": "elicit"}) as events:
            question = await _question(events)
            assert (await client.via(1).answer(client.at, question, **ANSWERS["elicit"])).status_code == 202
            assert [event async for event in events][-1]["message"]["result"]["content"][0]["text"] == "blue"
