"""One suite for both transports and both eras: what a client gets over HTTP, a client over stdio gets too.

A real hub listens, another serves its client over stdio; both have the same two servers, one of each era, and every
client is by hand. What belongs to one transport alone (streams, sessions, the era of a pipe) has tests of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.cli.serve_process import Served, run, served
from tests.cli.test_serve_approvals import FIRST, LATER, TURNING
from tests.harness.transports import Era, Message, RawClient, Transport, over_http, over_stdio
from tests.harness.waiting import PATIENCE, ready, until
from tests.peers.peer_server import Origin, running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-1", "HUB-2")]

BOUND = 64 * 1024
Origins = dict[str, Origin]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def origins() -> AsyncIterator[Origins]:
    async with running("modern") as new, running("legacy") as old:
        yield {"new": new, "old": old}


@pytest.fixture(scope="module")
def config(origins: Origins, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("parity") / "mcp.json"
    servers = {name: {"url": origin.url} for name, origin in origins.items()}
    holdfast = {"limits": {"messageBytes": BOUND}, "call": {"readyTimeout": "60s"}}
    file.write_text(json.dumps({"mcpServers": servers, "holdfast": holdfast}))
    return file


@pytest.fixture(scope="module")
async def hub(config: Path) -> AsyncIterator[Served]:
    async with served(config.parent / "listens", "--config", str(config)) as hub:
        await ready(hub.url.removesuffix("/mcp") + "/readyz")
        yield hub


@pytest.fixture(
    scope="module",
    params=[("http", "legacy"), ("http", "modern"), ("stdio", "legacy"), ("stdio", "modern")],
    ids="-".join,
)
async def client(request: pytest.FixtureRequest, hub: Served, config: Path) -> AsyncIterator[RawClient]:
    transport, era = request.param
    async with connected(transport, era, hub, config) as client:
        for server in ("new", "old"):
            assert text_of(await client.call(f"{server}__echo", text="there")) == "there"
        yield client


@pytest.fixture(params=["new", "old"])
def server(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def connected(
    transport: Transport, era: Era, hub: Served, config: Path, **more: Any
) -> AbstractAsyncContextManager[RawClient]:
    if transport == "http":
        return over_http(hub.url, era, **more)
    return over_stdio(config.parent / f"spawned-{era}", era, "--config", str(config), **more)


def text_of(answer: Message) -> str:
    text: str = answer["result"]["content"][0]["text"]
    return text


# What a client asks for.


async def test_everything_that_the_servers_offer_is_listed_and_used(client: RawClient) -> None:
    for server in ("new", "old"):
        tools = (await client.ask("tools/list"))["result"]["tools"]
        prompts = (await client.ask("prompts/list"))["result"]["prompts"]
        resources = (await client.ask("resources/list"))["result"]["resources"]
        templates = (await client.ask("resources/templates/list"))["result"]["resourceTemplates"]
        ours = "" if server == "new" else "from-old+"
        assert {"holdfast_status", f"{server}__echo", f"{server}__count"} <= {one["name"] for one in tools}
        assert f"{server}__greet" in {one["name"] for one in prompts}
        assert f"{ours}note://one" in {one["uri"] for one in resources}
        assert f"{ours}note://of/{{who}}" in {one["uriTemplate"] for one in templates}
        greeted = await client.ask("prompts/get", name=f"{server}__greet", arguments={"who": "Bo"})
        assert greeted["result"]["messages"][0]["content"]["text"] == "Greet Bo."
        note = await client.ask("resources/read", uri=f"{ours}note://one")
        assert note["result"]["contents"][0]["text"] == "the text of note://one"
        argument, prompt = {"name": "who", "value": "B"}, {"type": "ref/prompt", "name": f"{server}__greet"}
        completed = await client.ask("completion/complete", ref=prompt, argument=argument)
        assert completed["result"]["completion"]["values"] == ["B!"]


@pytest.mark.requirement("HUB-8")
async def test_the_hub_tells_of_its_servers(client: RawClient) -> None:
    told = text_of(await client.call("holdfast_status"))
    assert [line.partition(";")[0] for line in told.splitlines()] == ["new: connected", "old: connected"]
    page = (await client.ask("resources/read", uri="holdfast://status"))["result"]["contents"][0]["text"]
    assert {name: one["available"] for name, one in json.loads(page)["servers"].items()} == {"new": True, "old": True}


async def test_an_error_of_a_server_passes_as_it_is(client: RawClient, server: str) -> None:
    failed = await client.call(f"{server}__fail")
    assert failed["error"] == {"code": -32123, "message": "it failed", "data": {"why": "asked to"}}


async def test_a_servers_meta_passes_and_a_client_says_nothing_in_the_hubs_name(client: RawClient, server: str) -> None:
    answer = await client.call(f"{server}__echo", meta={"test/own": "kept", "holdfast/trusted": True}, text="hi")
    said = answer["result"]["_meta"]
    assert said["test/own"] == "kept"
    assert not [key for key in said if key.startswith("holdfast/")]


async def test_a_link_in_a_result_is_read_from_the_server_that_gave_it(client: RawClient) -> None:
    linked = await client.call("old__link", uris=["note://one"])
    assert [one.get("uri") or one["resource"]["uri"] for one in linked["result"]["content"]] == [
        "from-old+note://one"
    ] * 2


# What comes before the result.


async def test_all_progress_comes_in_order_and_before_the_result(client: RawClient, server: str) -> None:
    for token in ("a text", 7):
        client.heard.clear()
        sent = client.request("tools/call", meta={"progressToken": token}, name=f"{server}__count", arguments={"n": 20})
        await client.send(sent)
        await client.until(lambda one: "id" in one)
        *before, last = client.heard
        assert last["id"] == sent["id"]
        assert "result" in last
        steps = [one["params"] for one in before if one["method"] == "notifications/progress"]
        assert [(one["progressToken"], one["progress"]) for one in steps] == [(token, n) for n in range(1, 21)]


async def test_logs_come_at_the_level_that_was_asked_for_and_before_the_result(client: RawClient, server: str) -> None:
    wanted = {"io.modelcontextprotocol/logLevel": "warning"} if client.era == "modern" else None
    if client.era == "legacy":
        assert (await client.ask("logging/setLevel", level="warning"))["result"] == {}
    client.heard.clear()
    for level in ("info", "warning", "error"):
        await client.call(f"{server}__log", meta=wanted, level=level, text=f"{level} of {server}")
    if client.era == "modern":
        await client.call(f"{server}__log", level="error", text="not asked for")
    logs = [(one["params"]["level"], one["params"]["data"]) for one in client.of("notifications/message")]
    assert logs == [("warning", f"warning of {server}"), ("error", f"error of {server}")]


# What a server asks.


QUESTIONS = {
    "elicit": ("elicitation/create", {"action": "accept", "content": {"colour": "blue"}}, "blue"),
    "roots": ("roots/list", {"roots": [{"uri": "file:///here"}]}, "file:///here"),
}


REFUSED = "refused: the client does not support sampling"


@pytest.mark.requirement("HUB-7")
@pytest.mark.parametrize("kind", QUESTIONS)
async def test_a_question_of_a_server_is_answered_by_the_client(client: RawClient, server: str, kind: str) -> None:
    method, result, text = QUESTIONS[kind]
    sent = client.request("tools/call", name=f"{server}__ask", arguments={"kind": kind})
    await client.send(sent)
    if client.era == "legacy":
        question = await client.until(lambda one: one.get("method") == method)
        client.heard.remove(question)
        await client.send({"jsonrpc": "2.0", "id": question["id"], "result": result})
        answer = await client.answer(sent["id"])
    else:
        asked = (await client.answer(sent["id"]))["result"]
        ((key, question),) = asked["inputRequests"].items()
        assert question["method"] == method
        answer = await client.ask(
            "tools/call",
            name=f"{server}__ask",
            arguments={"kind": kind},
            inputResponses={key: result},
            requestState=asked["requestState"],
        )
    assert text_of(answer).partition(" (")[0] == text


@pytest.mark.requirement("HUB-7")
async def test_a_question_that_the_client_cannot_answer_is_refused(client: RawClient) -> None:
    # A modern server is told in each request of a modern client what it can, and decides itself.
    for server in ("old",) if client.era == "modern" else ("old", "new"):
        assert text_of(await client.call(f"{server}__ask", kind="sample")) == REFUSED
    assert not client.of("sampling/createMessage")


# What a client gives up.


async def test_a_request_that_is_cancelled_ends_at_the_server_and_gets_no_result(
    client: RawClient, server: str, origins: Origins
) -> None:
    origin = origins[server]
    origin.hanging, origin.cancelled = anyio.Event(), anyio.Event()
    sent = client.request("tools/call", name=f"{server}__hang", arguments={})
    await client.send(sent)
    with anyio.fail_after(PATIENCE):
        await origin.hanging.wait()
        await client.cancel(sent["id"])
        await origin.cancelled.wait()
    assert text_of(await client.call(f"{server}__echo", text="goes on")) == "goes on"
    answers = [one["error"]["code"] for one in client.heard if one.get("id") == sent["id"]]
    assert answers in ([], [-32800]), "over HTTP the request of a session must have an end"


# What the hub tells by itself.


async def test_a_changed_list_is_told(client: RawClient, server: str, origins: Origins) -> None:
    method = "notifications/tools/list_changed"
    listen = client.request("subscriptions/listen", notifications={"toolsListChanged": True})
    if client.era == "modern":
        await client.send(listen)
        await client.until(lambda one: one.get("method") == "notifications/subscriptions/acknowledged")
    client.heard.clear()
    await client.call(f"{server}__grow")
    told = await client.until(lambda one: one.get("method") == method)
    if client.era == "modern":
        assert told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == listen["id"]
        await client.cancel(listen["id"])
    names = {one["name"] for one in (await client.ask("tools/list"))["result"]["tools"]}
    assert f"{server}__{origins[server].extra_tools[-1]}" in names


@pytest.mark.requirement("HUB-7")
async def test_a_watched_resource_is_told_of_until_it_is_let_go(
    client: RawClient, server: str, origins: Origins
) -> None:
    method, origin = "notifications/resources/updated", origins[server]
    uri = "note://one" if server == "new" else "from-old+note://one"
    listen = client.request("subscriptions/listen", notifications={"resourceSubscriptions": [uri]})
    if client.era == "modern":
        await client.send(listen)
    else:
        assert (await client.ask("resources/subscribe", uri=uri))["result"] == {}
    await origin.until(lambda: "note://one" in origin.subscribed)
    client.heard.clear()
    await client.call(f"{server}__touch", uri="note://two")
    await client.call(f"{server}__touch", uri="note://one")
    await client.until(lambda one: one.get("method") == method)
    if client.era == "modern":
        await client.cancel(listen["id"])
    else:
        assert (await client.ask("resources/unsubscribe", uri=uri))["result"] == {}
    await origin.until(lambda: not origin.subscribed)
    assert {one["params"]["uri"] for one in client.of(method)} == {uri}


async def test_changed_roots_of_a_client_are_told_to_its_servers(client: RawClient, origins: Origins) -> None:
    if client.era == "modern":
        pytest.skip("a modern client tells nothing")
    origin = origins["old"]
    origin.roots_changed = anyio.Event()
    await client.tell("notifications/roots/list_changed")
    with anyio.fail_after(PATIENCE):
        await origin.roots_changed.wait()


# What is wrong.


NO_MESSAGES = {
    b"{": -32700,
    b'{"jsonrpc":"2.0","id":1,"method":"\xff"}': -32700,
    b'{"jsonrpc":"2.0","id":905,"method":"ping"}]': -32700,
    b"5": -32600,
    b'"ping"': -32600,
    b"null": -32600,
    b'{"jsonrpc":"1.0","id":901,"method":"ping"}': -32600,
    b'{"id":902,"method":"ping"}': -32600,
    b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}': -32600,
    b'{"jsonrpc":"2.0","id":true,"method":"ping"}': -32600,
    b'{"jsonrpc":"2.0","id":{},"method":"ping"}': -32600,
    b'{"jsonrpc":"2.0","id":903,"method":7}': -32600,
    b'{"jsonrpc":"2.0","id":904}': -32600,
    b'[{"jsonrpc":"2.0","id":906,"method":"ping"}]': -32600,
    b"[" * 20_000: -32600,
}


@pytest.mark.requirement("SEC-4")
async def test_what_is_no_message_is_refused_with_its_code_and_the_next_request_is_served(client: RawClient) -> None:
    for content, code in NO_MESSAGES.items():
        await client.send_bytes(content, {})
        assert (await client.answer(None))["error"]["code"] == code, content[:60]
    assert "result" in await client.ask("tools/list")


UNKNOWN_RESOURCE = {"legacy": -32002, "modern": -32602}
ONLY_LEGACY = {"legacy": -32602, "modern": -32601}
WRONG_REQUESTS: list[tuple[str, dict[str, Any], int | dict[str, int]]] = [
    ("no/such", {}, -32601),
    ("holdfast/none", {}, -32601),
    ("tools/call", {}, -32602),
    ("tools/call", {"name": 7}, -32602),
    ("tools/call", {"name": "new__echo", "arguments": []}, -32602),
    ("tools/list", {"cursor": "none"}, -32602),
    ("prompts/get", {"name": "none"}, -32602),
    ("resources/read", {}, -32602),
    ("resources/read", {"uri": "nowhere://x"}, UNKNOWN_RESOURCE),
    ("resources/subscribe", {}, ONLY_LEGACY),
    ("logging/setLevel", {"level": "loud"}, ONLY_LEGACY),
    ("completion/complete", {"ref": {"type": "ref/none"}}, -32602),
    ("subscriptions/listen", {}, {"legacy": -32601, "modern": -32602}),
]


async def test_a_wrong_request_is_refused_with_its_code_under_its_id(client: RawClient) -> None:
    for method, given, code in WRONG_REQUESTS:
        refused = await client.ask(method, **given)
        assert refused["error"]["code"] == (code if isinstance(code, int) else code[client.era]), (method, refused)
    odd: dict[str, Any] = {
        "the parameters are not an object": [1],
        "`_meta` is not an object": {"name": "x", "_meta": 5},
    }
    for why, params in odd.items():
        sent = client.request("tools/call") | {"params": params}
        await client.send(sent)
        assert (await client.answer(sent["id"]))["error"] == {"code": -32602, "message": why}
    unknown = (await client.call("new__ech"))["error"]
    assert unknown["message"].startswith("Unknown tool: new__ech; did you mean new__echo")
    pinged = await client.ask("ping")
    assert pinged.get("result") == {} if client.era == "legacy" else pinged["error"]["code"] == -32601


@pytest.mark.requirement("HUB-17")
async def test_a_message_over_the_bound_is_refused_and_one_below_it_is_served(client: RawClient) -> None:
    await client.send(client.request("tools/call", name="new__echo", arguments={"text": "x" * BOUND}))
    refused = await client.until(lambda one: "error" in one)
    client.heard.remove(refused)
    assert "too large" in str(refused["error"]) or "messageBytes" in refused["error"]["message"]
    assert text_of(await client.call("new__count", n=0, padding="y" * (BOUND - 1024))) == "done"


@pytest.mark.requirement("HUB-17")
async def test_an_id_in_flight_is_refused_and_the_first_request_goes_on(client: RawClient, origins: Origins) -> None:
    origin = origins["new"]
    origin.waiting, origin.go = anyio.Event(), anyio.Event()
    first = client.request("tools/call", name="new__wait", arguments={})
    await client.send(first)
    with anyio.fail_after(PATIENCE):
        await origin.waiting.wait()
    await client.send({**client.request("tools/call", name="new__echo", arguments={"text": "x"}), "id": first["id"]})
    second = await client.until(lambda one: "error" in one or "result" in one)
    client.heard.remove(second)
    if "result" in second:
        assert type(client).__name__ == "_Web", (
            "only over HTTP the requests of the modern era know nothing of each other"
        )
        assert client.era == "modern"
    else:
        assert (second["id"], second["error"]["code"]) == (None, -32600)
        assert "in flight already" in second["error"]["message"]
    origin.go.set()
    assert text_of(await client.answer(first["id"])) == "waited"


# What needs a connection of its own.


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_each_message_of_a_batch_is_answered_in_the_version_that_has_batches(
    transport: Transport, hub: Served, tmp_path: Path
) -> None:
    empty = tmp_path / "mcp.json"
    empty.write_text(json.dumps({"mcpServers": {}}))
    async with connected(transport, "legacy", hub, empty, version="2025-03-26") as client:
        call = client.request("tools/call", name="holdfast_status", arguments={})
        ping, wrong = client.request("ping"), client.request("no/such")
        await client.send([call, {"jsonrpc": "2.0", "method": "notifications/none"}, 5, ping, wrong])
        assert (await client.answer(call["id"]))["result"]["content"][0]["type"] == "text"
        assert (await client.answer(ping["id"]))["result"] == {}
        assert (await client.answer(wrong["id"]))["error"]["code"] == -32601
        assert (await client.answer(None))["error"]["code"] == -32600
        for batch in ([], [ping] * 101):
            await client.send(batch)
            assert (await client.answer(None))["error"]["code"] == -32600
        assert (await client.ask("ping"))["result"] == {}
        assert not [one for one in client.heard if "id" in one], "one answer to each"


SILENT = """
import json, sys
log = open(sys.argv[1], "a", buffering=1)
for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked.get("method"), asked.get("params", {})
    print(method, params.get("requestId", asked.get("id")), file=log)
    info = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    tools = {"tools": [{"name": "never", "inputSchema": {"type": "object"}}]}
    answers = {"initialize": info, "ping": {}, "tools/list": tools}
    if "id" in asked and method != "tools/call":
        known = {"result": answers[method]} if method in answers else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **known}), flush=True)
print("end of input", 0, file=log)
"""
"""A server that notes all that it is sent, and answers no call."""


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_client_that_leaves_cancels_its_calls_at_the_server(
    transport: Transport, era: Era, tmp_path: Path
) -> None:
    seen, config = tmp_path / "seen", tmp_path / "mcp.json"
    server = {"command": sys.executable, "args": ["-I", "-S", "-c", SILENT, str(seen)]}
    config.write_text(json.dumps({"mcpServers": {"s": server}, "holdfast": {"call": {"readyTimeout": "60s"}}}))
    seen.touch()

    def told(method: str) -> list[str]:
        return [line.split()[-1] for line in seen.read_text().splitlines() if line.startswith(method)]

    async with AsyncExitStack() as stack:
        if transport == "http":
            listens = await stack.enter_async_context(served(tmp_path / "home", "--config", str(config)))
            client = await stack.enter_async_context(over_http(listens.url, era))
        else:
            client = await stack.enter_async_context(over_stdio(tmp_path / "home", era, "--config", str(config)))
        for _ in range(2):
            await client.send(client.request("tools/call", name="s__never", arguments={}))
        await until(lambda: len(told("tools/call")) == 2, beside=tmp_path)
        await client.leave()
        await until(lambda: len(told("notifications/cancelled")) == 2, beside=tmp_path)
    assert sorted(told("notifications/cancelled")) == sorted(told("tools/call"))


@pytest.mark.requirement("SEC-5")
async def test_the_lock_of_approvals_holds_over_both_transports(tmp_path: Path) -> None:
    says, lock = tmp_path / "says.json", tmp_path / "approvals.lock"
    says.write_text(json.dumps(FIRST))
    config = tmp_path / "mcp.json"
    server = {"command": sys.executable, "args": ["-I", "-S", "-c", TURNING, str(says)]}
    config.write_text(json.dumps({"mcpServers": {"s": server}, "holdfast": {"approvals": "off"}}))
    async with served(tmp_path / "first", "--config", str(config)) as first:
        await first.said("s: connected")
        await anyio.to_thread.run_sync(lambda: run("approve", "--export", str(lock), home=tmp_path / "first"))
    says.write_text(json.dumps(LATER))
    locked = ("--config", str(config), "--approvals-lock", str(lock))
    async with (
        served(tmp_path / "listens", *locked) as hub,
        over_http(hub.url, "legacy") as web,
        over_stdio(tmp_path / "spawned", "legacy", *locked) as pipe,
    ):
        for client in (web, pipe):
            assert text_of(await client.call("s__same")) == "done"
            tools = {one["name"]: one for one in (await client.ask("tools/list"))["result"]["tools"]}
            assert tools["s__read"]["icons"] == FIRST["tools"][0]["icons"]  # type: ignore[index]
            assert "s__send" not in tools
            prompts = (await client.ask("prompts/list"))["result"]["prompts"]
            assert [(one["name"], one["description"]) for one in prompts] == [("s__ask", "Asks.")]
            for name in ("s__read", "s__send"):
                refused = await client.call(name)
                assert "error" in refused or refused["result"]["isError"]
            for name in ("s__ask", "s__late"):
                assert "error" in await client.ask("prompts/get", name=name)
    assert says.with_name("used").read_text() == "same\n" * 2
