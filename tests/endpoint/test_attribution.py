"""What belongs to one client reaches that client alone; what cannot be attributed is refused, never guessed."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import mcp_types as types
import pytest
from mcp import MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from holdfast.access.principals import TokenPolicy, TokensFile
from holdfast.endpoint import Broker, Client, EndpointAddress, clients
from holdfast.endpoint.attribution import Attribution
from holdfast.front import session_store as sessions
from holdfast.hub.hub import Hub
from tests.endpoint.test_announcer import Told
from tests.endpoint.test_view import opened
from tests.harness.raw_session import Session
from tests.harness.served_hub import PATIENT, Era, Person, front, over_stdio, text_of
from tests.peers.late_server import NARRATED
from tests.peers.peer_server import running

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("HUB-10")
async def test_two_clients_with_questions_in_flight_each_get_their_own(
    client_era: Era, server_era: Era, ada: Person, bob: Person
) -> None:
    both_asked = _Barrier(2)
    ada.before_answering = bob.before_answering = both_asked.wait
    answers: dict[str, str] = {}

    async def ask(client: Any, name: str) -> None:
        answers[name] = text_of(await client.call_tool("o__ask", {"kind": "elicit"}))

    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era) as one,
        bob.client(served.all, client_era) as other,
    ):
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, one, "ada")
                tasks.start_soon(ask, other, "bob")
    assert answers["ada"].startswith("ada's blue")
    assert answers["bob"].startswith("bob's blue")
    assert (ada.asked, bob.asked) == (["elicit"], ["elicit"])


@pytest.mark.requirement("HUB-10")
async def test_two_clients_never_see_each_others_progress_or_logs(
    client_era: Era, server_era: Era, ada: Person, bob: Person
) -> None:
    seen: dict[str, list[float]] = {"ada": [], "bob": []}
    level: Any = {"log_level": "debug"} if client_era == "modern" else {}

    async def work(client: Any, name: str, n: int) -> None:
        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            seen[name].append(total or 0)

        for _ in range(5):
            await client.call_tool("o__count", {"n": n}, progress_callback=progressed)
            await client.call_tool("o__log", {"level": "error", "text": name})

    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era, **level) as one,
        bob.client(served.all, client_era, **level) as other,
    ):
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work, one, "ada", 3)
                tasks.start_soon(work, other, "bob", 4)
        await ada.until(lambda: len(ada.logs) == 5)
        await bob.until(lambda: len(bob.logs) == 5)
    assert set(seen["ada"]) == {3}
    assert set(seen["bob"]) == {4}
    assert {text for _, text in ada.logs} == {"ada"}
    assert {text for _, text in bob.logs} == {"bob"}


@pytest.mark.requirement("HUB-10")
@pytest.mark.parametrize("kind", ["elicit", "sample", "roots"])
async def test_a_spawned_servers_question_reaches_the_only_client_there_is(
    client_era: Era, kind: str, ada: Person
) -> None:
    async with front({"o": over_stdio("legacy")}, call=PATIENT) as served, ada.client(served.all, client_era) as client:
        with anyio.fail_after(20):
            result = await client.call_tool("o__ask", {"kind": kind})
    assert ada.asked == [kind]
    assert "ada" in text_of(result)


@pytest.mark.requirement("HUB-10")
async def test_the_result_of_a_call_does_not_overtake_its_logs(client_era: Era, ada: Person) -> None:
    definition = {"command": sys.executable, "args": ["-m", "tests.peers.late_server"]}
    level: Any = {"log_level": "debug"} if client_era == "modern" else {}
    async with front({"o": definition}, call=PATIENT) as served, ada.client(served.all, client_era, **level) as client:
        for _ in range(5):
            ada.logs.clear()
            assert text_of(await client.call_tool("o__narrate", {})) == "narrated"
            await ada.until(lambda: len(ada.logs) == NARRATED)


@pytest.mark.requirement("HUB-10")
async def test_a_shared_servers_question_goes_to_the_client_whose_call_is_in_flight(ada: Person, bob: Person) -> None:
    async with (
        front({"o": over_stdio("legacy")}, call=PATIENT) as served,
        ada.client(served.all, "legacy") as client,
        bob.client(served.all, "legacy") as other,
    ):
        with anyio.fail_after(20):
            await other.list_tools()
            result = await client.call_tool("o__ask", {"kind": "elicit"})
    assert text_of(result) == "ada's blue"
    assert (ada.asked, bob.asked) == (["elicit"], [])


@pytest.mark.requirement("HUB-10")
async def test_a_shared_servers_question_is_refused_while_calls_of_two_clients_are_in_flight(
    ada: Person, bob: Person
) -> None:
    async with (
        front({"o": over_stdio("legacy")}, call=PATIENT) as served,
        ada.client(served.all, "legacy") as client,
        bob.client(served.all, "legacy") as other,
        anyio.create_task_group() as tasks,
    ):
        with anyio.fail_after(20):
            tasks.start_soon(other.call_tool, "o__hang", {})
            broker = served.app.state.front.broker
            while not broker.attribution.calls:
                await anyio.lowlevel.checkpoint()
            result = await client.call_tool("o__ask", {"kind": "elicit"})
            status = await client.call_tool("holdfast_status", {})
            tasks.cancel_scope.cancel()
    assert text_of(result) == "refused: elicitation/create cannot be attributed to one of several clients"
    assert (ada.asked, bob.asked) == ([], [])
    assert "per-client" in status.structured_content["servers"]["o"]["finding"]


@pytest.mark.requirement("HUB-10")
async def test_a_client_that_left_without_a_word_is_no_candidate(ada: Person) -> None:
    late = {"command": sys.executable, "args": ["-m", "tests.peers.late_server"]}
    async with front({"o": late}, call=PATIENT) as served, httpx2.AsyncClient() as http:
        ghost = Session(http, served.all)
        with anyio.fail_after(20):
            await ghost.begin(sampling={})
            async with ghost.call("holdfast_status", {}) as events:
                await anext(events)
            (known,) = served.app.state.front.broker.attribution.clients.values()
            known.seen_at -= clients.ABSENT_SECONDS
            async with ada.client(served.all, "legacy") as client:
                await client.call_tool("o__speak", {})
                await ada.until(lambda: ada.asked == ["sample"])
                heard = await _heard(client)
    assert "ada says so" in heard


@pytest.mark.requirement("HUB-10", "SEC-18")
async def test_what_a_server_says_late_does_not_reach_another_principal(ada: Person, bob: Person) -> None:
    late = {"command": sys.executable, "args": ["-m", "tests.peers.late_server"]}
    tokens = TokenPolicy(tokens={"ada": "ada-" + "x" * 16, "bob": "bob-" + "x" * 16})
    async with (
        front({"o": late}, tokens=tokens, call=PATIENT) as served,
        _caller(bob, served.all, tokens.tokens["bob"]) as bobs,
    ):
        with anyio.fail_after(20):
            async with _caller(ada, served.all, tokens.tokens["ada"]) as adas:
                await adas.call_tool("o__remember", {"text": "the secret of ada"}, progress_callback=_ignore)
            await bobs.call_tool("o__speak", {})
            heard = await _heard(bobs)
    assert (bob.asked, bob.logs) == ([], [])
    assert "notifications/progress" not in bob.notices
    assert "served more than one user" in heard


@pytest.mark.requirement("HUB-10", "SEC-18")
@pytest.mark.parametrize("bob_comes", ["before", "after"])
@pytest.mark.parametrize("question", ["sampling/createMessage", "elicitation/create", "roots/list"])
async def test_what_a_server_asks_after_a_call_ended_does_not_reach_the_only_client_that_is_left(
    question: str, bob_comes: str, ada: Person, bob: Person
) -> None:
    late = {"command": sys.executable, "args": ["-m", "tests.peers.late_server"]}
    tokens = TokenPolicy(tokens={"ada": "ada-" + "x" * 16, "bob": "bob-" + "x" * 16})
    with anyio.fail_after(20):
        async with front({"o": late}, tokens=tokens, call=PATIENT) as served, AsyncExitStack() as stack:
            url, hers, his = served.all, tokens.tokens["ada"], tokens.tokens["bob"]
            if bob_comes == "before":
                await stack.enter_async_context(_caller(bob, url, his))
            async with _caller(ada, url, hers) as adas:
                asked = {"text": "the secret of ada", "at_ping": question}
                await adas.call_tool("o__remember", asked, progress_callback=_ignore)
            if bob_comes == "after":
                await stack.enter_async_context(_caller(bob, url, his))
            await served.hub.registry.request("o", "ping", {})
            heard = await _heard_by(served.hub)
    assert (bob.asked, bob.logs) == ([], [])
    assert "notifications/progress" not in bob.notices
    assert "no client is connected that could answer" in heard


@pytest.mark.requirement("HUB-10", "SEC-18")
async def test_a_server_over_http_keeps_its_principals_when_its_connection_is_made_again(
    ada: Person, bob: Person
) -> None:
    """The process behind it goes on: what it asks late may belong to a call of the connection before."""
    tokens = TokenPolicy(tokens={"ada": "ada-" + "x" * 16, "bob": "bob-" + "x" * 16})
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}, tokens=tokens, call=PATIENT) as served,
        _caller(bob, served.all, tokens.tokens["bob"]),
    ):
        async with _caller(ada, served.all, tokens.tokens["ada"]) as adas:
            await adas.call_tool("o__echo", {"text": "a"})
        await served.hub.reconnect("o")
        assert served.app.state.front.broker.attribution._candidates("o") == ([], [])


@pytest.mark.requirement("HUB-10", "SEC-18")
async def test_an_answer_that_another_principal_forges_never_reaches_the_server(
    tmp_path: Path, ada: Person, bob: Person
) -> None:
    secrets = {"ada": "ada-" + "x" * 16, "bob": "bob-" + "x" * 16}
    file = tmp_path / "tokens.json"
    entries = [{"name": name, "sha256": hashlib.sha256(token.encode()).hexdigest()} for name, token in secrets.items()]
    file.write_text(json.dumps({"tokens": entries}))
    file.chmod(0o600)
    tokens = TokenPolicy(file=TokensFile(file))
    answers: list[int] = []
    async with (
        front({"o": over_stdio("legacy")}, tokens=tokens, call=PATIENT) as served,
        httpx2.AsyncClient(headers={"authorization": f"Bearer {secrets['bob']}"}) as http,
        _caller(ada, served.all, secrets["ada"]) as adas,
    ):
        forger = Session(http, served.all)
        await forger.begin(elicitation={}, sampling={})
        sessions = served.app.state.front.endpoint_of(EndpointAddress()).sessions

        async def forge() -> None:
            """While ada's question is open: its true id, in bob's own session and in hers, which he has stolen."""
            (open_one,) = [one for one in sessions.all() if one.exchange.questions]
            (number,) = open_one.exchange.questions._open
            forged = {"jsonrpc": "2.0", "id": number, "result": {"action": "accept", "content": {"colour": "forged"}}}
            for session in sessions.all():
                headers = {**forger.headers, "mcp-session-id": session.id}
                answers.append((await http.post(served.all, json=forged, headers=headers)).status_code)

        ada.before_answering = forge
        with anyio.fail_after(20):
            result = await adas.call_tool("o__ask", {"kind": "elicit"})
    assert text_of(result) == "ada's blue"
    assert len(answers) == 2
    assert 404 in answers  # her session does not exist for him
    assert bob.asked == []


async def _ignore(progress: float, total: float | None, message: str | None) -> None:
    """Ada asks for progress."""


@asynccontextmanager
async def _caller(person: Person, url: str, token: str) -> AsyncIterator[Any]:
    """A legacy client with a token."""
    async with (
        create_mcp_http_client(headers={"authorization": f"Bearer {token}"}) as http,
        person.client(streamable_http_client(url, http_client=http), "legacy") as client,
    ):
        yield client


async def _heard_by(hub: Hub) -> str:
    """The same, asked by the hub itself: no client's call is in flight."""
    while True:
        result = await hub.registry.request("o", "tools/call", {"name": "heard", "arguments": {}})
        if (heard := str(result["content"][0]["text"])) != "nothing":
            return heard
        await anyio.lowlevel.checkpoint()


async def _heard(client: Any) -> str:
    """What the server was answered; it asks after its own answer is out."""
    while (heard := text_of(await client.call_tool("o__heard", {}))) == "nothing":
        await anyio.lowlevel.checkpoint()
    return heard


@pytest.mark.requirement("HUB-10")
async def test_clients_of_a_per_client_server_each_have_a_connection_and_their_questions(
    ada: Person, bob: Person
) -> None:
    async with (
        front({"o": over_stdio("legacy", sharing="per-client")}, call=PATIENT) as served,
        ada.client(served.all, "legacy") as one,
        bob.client(served.all, "legacy") as other,
    ):
        with anyio.fail_after(30):
            pids = [text_of(await client.call_tool("o__pid", {})) for client in (one, other, one, other)]
            answers = [text_of(await client.call_tool("o__ask", {"kind": "elicit"})) for client in (one, other)]
    assert answers == ["ada's blue", "bob's blue"]
    assert pids[:2] == pids[2:]
    assert pids[0] != pids[1]


@pytest.mark.requirement("HUB-10")
async def test_a_client_that_leaves_takes_its_own_connection_with_it(ada: Person) -> None:
    async with front({"o": over_stdio("legacy", sharing="per-client")}, call=PATIENT) as served:
        with anyio.fail_after(30):
            async with ada.client(served.all, "legacy") as client:
                await client.call_tool("o__echo", {"text": "hi"})
                (slot,) = served.hub.registry.clients.all()
            await slot.closed.wait()
        assert served.hub.registry.clients.all() == []


@pytest.mark.requirement("HUB-10")
async def test_a_modern_call_to_a_per_client_server_has_a_connection_for_itself(ada: Person) -> None:
    async with (
        front({"o": over_stdio("legacy", sharing="per-client")}, call=PATIENT) as served,
        ada.client(served.all, "modern") as client,
    ):
        with anyio.fail_after(30):
            result = await client.call_tool("o__ask", {"kind": "elicit"})
        assert served.hub.registry.clients.all() == []
    assert text_of(result).startswith("ada's blue\nHoldfast: these MCP servers have one connection per client")


@pytest.mark.requirement("HUB-10")
async def test_a_question_that_a_client_cannot_answer_is_refused(server_era: Era, ada: Person) -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, "legacy", answers=False) as client,
    ):
        result = await client.call_tool("o__ask", {"kind": "sample"})
    assert text_of(result) == "refused: the client does not support sampling"


@pytest.mark.requirement("HUB-2")
async def test_changed_roots_are_told_to_legacy_servers(ada: Person) -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, "legacy") as client,
    ):
        await client.session.send_notification(types.RootsListChangedNotification())
        with anyio.fail_after(10):
            await origin.roots_changed.wait()


@pytest.mark.requirement("HUB-2", "HUB-10")
async def test_a_server_that_asked_for_roots_without_a_client_gets_them_when_one_connects(
    ada: Person, bob: Person
) -> None:
    async with running("legacy") as origin, front({"o": {"url": origin.url}}) as served:
        origin.curious = True
        with anyio.fail_after(20):
            early = await served.hub.call_tool("o__ask", {"kind": "roots"})
            async with ada.client(served.all, "legacy"):
                await origin.until(lambda: origin.roots == ["file:///ada"])
            async with bob.client(served.all, "legacy"):
                await origin.until(lambda: origin.roots == ["file:///ada", "file:///bob"])
    assert early.text == "refused: no client is connected that could answer roots/list"


@pytest.mark.requirement("HUB-10")
async def test_a_client_that_keeps_no_stream_open_is_not_waited_for_when_it_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "OPENING_SECONDS", 0.05)
    async with running("legacy") as origin, front({"o": {"url": origin.url}}) as served, httpx2.AsyncClient() as http:
        session = Session(http, served.all)
        with anyio.fail_after(20):
            await session.begin(roots={})
            async with session.call("holdfast_status", {}) as events:
                await anext(events)
            answer = await served.hub.call_tool("o__ask", {"kind": "roots"})
    assert answer.text == "refused: roots/list cannot reach the client: it has no notification stream open"


class _Barrier:
    """Everyone waits until all are there."""

    def __init__(self, parties: int) -> None:
        self._missing = parties
        self._full = anyio.Event()

    async def wait(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._full.set()
        with anyio.fail_after(10):
            await self._full.wait()


@pytest.mark.requirement("HUB-10")
async def test_a_change_of_roots_is_announced_once_and_only_for_a_client_that_can_be_asked_for_them() -> None:
    async with opened("a", "b") as hub:
        broker = Broker(hub)
        there: dict[Hashable, Client] = {}
        relay = Attribution(hub, there, broker.announcer, {})
        with pytest.raises(MCPError, match="no client is connected"):
            await relay.asked("a", "roots/list", None, None)
        ada, bob, modern, rootless = (Told(broker).client for _ in range(4))
        modern.modern, rootless.capabilities = True, {}

        def announced(*present: Client) -> list[str]:
            there.clear()
            there.update({one.owner: one for one in present})
            return [slot.spec.id for slot in relay.announce_roots()]

        assert announced() == []
        assert announced(modern) == announced(rootless) == []
        assert announced(ada) == ["a"], "the other server never asked for roots"
        assert announced(ada) == [], "it was told"
        assert announced(ada, bob) == [], "they may be either one's"
        assert announced() == announced(ada) == []
        assert announced(bob) == ["a"]
