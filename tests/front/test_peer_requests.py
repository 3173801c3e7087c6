"""Requests and notices of a client that belong to another replica: who answers, and what a client is told (FLEET-5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from mcp import MCPError

from holdfast.access import ClientKey, Principal
from holdfast.endpoint import LivesElsewhere, read_message
from holdfast.fleet import PeerFailed, Peers, PeerUnreachable
from holdfast.front import peer_requests
from holdfast.front.peer_requests import NoticesElsewhere, PeerRequests
from holdfast.front.requests import Reply, Request
from tests.fleet.test_peers import PATIENCE, Endpoints, Fleet, fleet
from tests.harness.waiting import all_blocked

__all__ = ["fleet"]

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-5")]


class Forwarding(Endpoints):
    """A hub whose requests belong to another replica; a test says which one, and reads what came of it."""

    def __init__(self, peers: Peers) -> None:
        super().__init__()
        self.requests = PeerRequests(peers, None, lambda *work: None)
        self.home = LivesElsewhere("home", "it was lost")
        self.act: Callable[[Request, Reply], Any] = lambda request, reply: self.requests.answer(
            self.home, request, reply
        )
        self.outcome: object = None

    async def serve(self, request: Request, reply: Reply) -> None:
        request.whole = await request.body(1 << 20)
        request.forwarded = False  # it came from a client
        try:
            self.outcome = await self.act(request, reply)
        except MCPError as exc:
            self.outcome = exc.error.message
        if not reply.started and self.outcome is not True and self.outcome is not None:
            reply.plain(200, json.dumps(self.outcome).encode())


class Scene:
    """A client's side, the replica that its requests come to, and the one that they belong to."""

    def __init__(self, fleet: Fleet, client: Peers, at: Forwarding) -> None:
        self.fleet = fleet
        self.client = client
        self.at = at

    async def post(self, body: bytes = b"hello", *, act: str = "", **headers: str) -> tuple[int, bytes]:
        async with self.client.request("at", "POST", "/mcp", {**headers, "x-act": act}, body) as answer:
            return answer.status, bytes(await answer.read(1 << 20) or b"")

    @property
    def home(self) -> Endpoints:
        return self.fleet.hubs["home"]


@pytest.fixture
async def scene(fleet: Fleet) -> Scene:
    client = await fleet.add("client")
    at = await fleet.add("at")
    await fleet.add("home")
    forwarding = Forwarding(at)
    fleet.listeners["at"]._front = cast("Any", forwarding)
    return Scene(fleet, client, forwarding)


async def test_the_replica_that_a_request_belongs_to_answers_it_with_its_principal(scene: Scene) -> None:
    assert await scene.post(b"call", authorization="secret", own="kept") == (200, b"echo call")
    assert scene.at.outcome is True
    ((request, _),) = scene.home.came
    assert request.forwarded
    assert request.headers["own"] == "kept"
    assert "authorization" not in request.headers


@pytest.mark.requirement("SEC-11")
async def test_a_replica_that_was_heard_does_not_give_way_to_those_that_come(scene: Scene) -> None:
    await scene.post()
    for name in ("at", "home"):
        (connection,) = scene.fleet.listeners[name].connections
        assert not connection.admission.limits.close_one(), "no connection waits for its first request"


async def test_a_stream_is_passed_on_piece_by_piece(scene: Scene) -> None:
    async with scene.client.request("at", "POST", "/mcp", {"x-act": "stream"}, b"") as answer:
        assert b'{"n":1}' in bytes(await answer.next_chunk() or b"")
        scene.home.go_on.set()
        rest = b"".join([bytes(piece) async for piece in _pieces(answer)])
    assert b'{"n":2}' in rest
    assert answer.headers["content-type"] == "text/event-stream"


async def _pieces(answer: Any) -> Any:
    while (piece := await answer.next_chunk()) is not None:
        yield piece


async def test_a_client_that_leaves_ends_its_request_at_the_other_replica(scene: Scene) -> None:
    async with scene.client.request("at", "POST", "/mcp", {"x-act": "stream"}, b"") as answer:
        await answer.next_chunk()
    await scene.home.gone.wait()


async def test_what_is_lost_with_its_replica_is_told_to_the_client(scene: Scene) -> None:
    assert (await scene.post(act="moved"))[1].startswith(b'"it was lost (')
    _, said = await scene.post(act="abort")
    assert b"whether the server carried the request out is not known" in said
    scene.fleet.listeners["home"].close()
    scene.home.came.clear()
    assert (await scene.post())[1].startswith(b'"it was lost (')
    assert scene.home.came == []


@pytest.mark.parametrize("moves", [True, False])
async def test_a_request_looks_again_where_it_belongs_if_that_may_have_changed(scene: Scene, moves: bool) -> None:
    async def looks() -> bool:
        return moves

    scene.at.home = LivesElsewhere("home", moves=looks)
    await scene.post(act="moved")
    assert scene.at.outcome is False, "the other replica says itself that it moved"
    scene.home.refusing = True
    await scene.post()
    assert scene.at.outcome is False, "it says itself that it leaves"
    scene.at.home = LivesElsewhere("nobody", moves=looks)
    await scene.post()
    assert (scene.at.outcome is False) == moves
    assert moves or "the connections of this client cannot be reached" in str(scene.at.outcome)


async def test_an_answer_goes_to_the_replica_that_asked(scene: Scene) -> None:
    message = await read_message(b'{"jsonrpc": "2.0", "id": "a", "result": {}}')
    scene.at.act = lambda request, reply: scene.at.requests.pass_answer(message, request, reply)
    _, said = await scene.post()
    assert b"this question is not open" in said, "no hub numbers its questions by texts"
    unknown = await read_message(b'{"jsonrpc": "2.0", "id": 1, "result": {}}')
    scene.at.act = lambda request, reply: scene.at.requests.pass_answer(unknown, request, reply)
    _, said = await scene.post()
    assert b"this question is not open" in said, "no replica has this number"
    assert scene.home.came == []


async def test_a_stream_goes_on_at_the_replica_that_made_its_events(scene: Scene) -> None:
    tag = PeerRequests(cast("Any", SimpleNamespace(replica="home")), None, lambda *work: None).tag
    scene.at.act = lambda request, reply: scene.at.requests.resume(tag, request, reply)
    assert await scene.post(b"resume") == (200, b"echo resume")
    scene.at.act = lambda request, reply: scene.at.requests.resume("nobody", request, reply)
    await scene.post()
    assert scene.at.outcome is False


async def test_a_notification_is_passed_on_and_its_failure_hurts_no_one(scene: Scene) -> None:
    async def passes(request: Request, reply: Reply) -> str:
        await scene.at.requests.pass_notice("home", request)
        await scene.at.requests.pass_notice("nobody", request)
        return "passed"

    scene.at.act = passes
    assert await scene.post(b"notice") == (200, b'"passed"')
    assert len(scene.home.came) == 1


async def test_an_answer_that_breaks_off_ends_the_connection_of_its_client(scene: Scene) -> None:
    """Its client comes back with the last event that it saw."""

    async def break_off(_request: Request, reply: Reply) -> None:
        reply.event(b'{"n":1}')
        await all_blocked()
        reply.abort()

    scene.home.serve = break_off  # type: ignore[method-assign,assignment]  # what this hub answers
    seen = bytearray()

    async def read_all() -> None:
        async with scene.client.request("at", "POST", "/mcp", {}, b"") as answer:
            async for piece in _pieces(answer):
                seen.extend(piece)

    with pytest.raises(PeerFailed):
        await read_all()
    assert b'{"n":1}' in seen
    assert scene.at.outcome is True, "it is not answered a second time"


async def test_only_a_replica_that_may_have_just_joined_is_looked_for(scene: Scene) -> None:
    looks: list[int] = []

    async def look_again() -> None:
        looks.append(1)

    scene.fleet.look_again = look_again  # type: ignore[method-assign]
    for tag, looked in ((scene.at.requests.tag, 0), ("nobody", 1)):
        scene.at.act = partial(scene.at.requests.resume, tag)
        await scene.post()
        assert (scene.at.outcome, len(looks)) == (False, looked)


class Session:
    """A session at another replica, with a stream of notices or without."""

    def __init__(self, *, listening: bool) -> None:
        self.listening = listening
        self.listening_since = 0.0
        self.sent: list[bytes] = []
        self.notices = SimpleNamespace(send=self.sent.append)
        self.exchange = SimpleNamespace(cancel=lambda request: request == 7)


@pytest.mark.parametrize("listening", [True, False])
async def test_a_session_is_reached_by_the_replicas_that_do_not_have_it(scene: Scene, listening: bool) -> None:
    session = Session(listening=listening)
    scene.home.sessions = SimpleNamespace(  # type: ignore[attr-defined]
        in_use=lambda endpoint, key, who: session if (key, who) == ("s", "ada") else None
    )
    about = {"session": "s", "principal": "ada", "endpoint": None}
    ask = scene.client.ask
    assert (await ask("home", "listening", about, within=5))["listening"] is listening
    assert (await ask("home", "deliver", about, b"notice", within=5)) == {"delivered": listening}
    assert session.sent == ([b"notice"] if listening else [])
    assert await ask("home", "cancel", {**about, "request": 7}, within=5) == {"cancelled": True}
    assert await ask("home", "cancel", {**about, "request": 8}, within=5) == {"cancelled": False}
    for other in ({**about, "principal": "bob"}, {**about, "endpoint": "unknown"}):
        assert (await ask("home", "deliver", other, b"notice", within=5)) == {"delivered": False}
        assert (await ask("home", "listening", other, within=5)) == {"listening": False, "age": 0.0}
        assert await ask("home", "cancel", {**other, "request": 7}, within=5) == {"cancelled": False}


async def test_all_replicas_hear_that_a_client_gave_up_or_left(scene: Scene) -> None:
    gave_up: list[object] = []
    session = Session(listening=True)
    session.exchange.cancel = gave_up.append
    scene.home.sessions = SimpleNamespace(in_use=lambda *_: session)  # type: ignore[attr-defined]
    asked = cast("Any", SimpleNamespace(id="s", principal=Principal(name="ada")))
    await scene.at.requests.cancel(asked, 7)
    assert gave_up == [7]
    await scene.at.requests.forget_client(ClientKey("ada", "k"))
    assert scene.home.released == [ClientKey("ada", "k")]


class ListeningReplica:
    """Another replica that has the stream of every session; it takes each notice, and may break off then."""

    def __init__(self, *, breaks: bool = False, gone: str = "", listening: bool = True) -> None:
        self.breaks = breaks
        self.gone = gone
        self.listening = listening
        self.asked: list[str] = []
        self.took: list[bytes] = []

    async def ask_all(self, operation: str, about: Any, *, within: float) -> dict[str, dict[str, Any]]:
        return {"a": {"listening": self.listening, "age": 9.0}, "b": {"listening": self.listening, "age": 1.0}, "c": {}}

    async def ask(self, replica: str, operation: str, about: Any, message: bytes, *, within: float) -> dict[str, Any]:
        self.asked.append(replica)
        if replica == self.gone:
            raise PeerUnreachable("it is gone")
        self.took.append(message)
        if self.breaks:
            raise PeerFailed("the connection broke")
        return {"delivered": True}


class SessionElsewhere:
    """A session whose stream of notices is on another replica."""

    id, principal, stream_at, ended = "s", Principal(name="ada"), "", False


async def _delivered(replica: ListeningReplica, *messages: bytes, stream_at: str = "") -> list[bytes]:
    work: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    notices = NoticesElsewhere(cast("Any", replica), None, lambda run, *args: work.append((run, args)))
    session = cast("Any", SessionElsewhere())
    session.stream_at = stream_at
    for message in messages:
        notices.deliver(session, message)
    with anyio.fail_after(PATIENCE):
        for run, args in work:
            await run(*args)
    return replica.took


async def test_a_notice_whose_delivery_broke_off_is_not_sent_a_second_time() -> None:
    assert await _delivered(ListeningReplica(breaks=True), b"1", b"2") == [b"1", b"2"]


async def test_notices_for_another_replica_wait_in_order_and_the_oldest_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_requests, "MOST_WAITING", 2)
    assert await _delivered(ListeningReplica(), b"1", b"2", b"3") == [b"2", b"3"]


async def test_the_newest_stream_of_a_session_gets_its_notices() -> None:
    replica = ListeningReplica()
    assert await _delivered(replica, b"1", b"2") == [b"1", b"2"]
    assert replica.asked == ["b", "b"]


async def test_a_stream_that_moved_is_looked_for_once_again() -> None:
    replica = ListeningReplica(gone="old")
    assert await _delivered(replica, b"1", stream_at="old") == [b"1"]
    assert replica.asked == ["old", "b"]
    assert await _delivered(ListeningReplica(gone="b"), b"1", b"2") == []


async def test_a_notice_for_a_session_without_a_stream_goes_to_no_replica() -> None:
    replica = ListeningReplica(listening=False)
    assert (await _delivered(replica, b"1"), replica.asked) == ([], [])
