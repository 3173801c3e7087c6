"""Streamable HTTP: each request alone with its answer, its refusal and its evidence."""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import cast

import anyio
import httpx2
import pytest

import holdfast.wire.http.client as client_room
import holdfast.wire.http.pool as pool_room
from holdfast.config.settings import Limits
from holdfast.config.spec import ServerSpec
from holdfast.core.classify import classify_evidence
from holdfast.core.evidence import (
    BadConfig,
    Evidence,
    HttpStatus,
    Login,
    LoginState,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
)
from holdfast.core.redact import MASK, Redactor
from holdfast.errors import ServerFailure
from holdfast.wire.http.answer_parser import AnswerHead
from holdfast.wire.http.client import HttpPeer, StickyCookies
from holdfast.wire.http.connection import Response
from holdfast.wire.http.transport import HttpDispatcher
from holdfast.wire.in_flight import Caller
from tests.harness.waiting import came_true
from tests.peers.http_fault import Behaviour, Exchange, FaultServer, Request, reset_before_answer, respond
from tests.peers.leaks import no_leaks

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def dispatcher(
    url: str, *, secrets: tuple[str, ...] = (), headers: dict[str, str] | None = None
) -> AsyncIterator[HttpDispatcher]:
    spec = ServerSpec(id="a", transport="http", url=url, headers=headers or {}, secrets=frozenset(secrets))
    peer = HttpPeer(spec, Redactor(spec.secrets))
    wire = HttpDispatcher(peer, Limits())
    with anyio.fail_after(20):
        wire.start()
        try:
            yield wire
        finally:
            await wire.aclose()
            await peer.aclose()


async def asked(wire: HttpDispatcher, method: str = "a") -> dict[str, object]:
    return (await wire.ask(method, {})).value()


async def failure_of(wire: HttpDispatcher) -> Evidence:
    with pytest.raises(ServerFailure) as failed:
        await asked(wire, "tools/list")
    return failed.value.evidence


def events(make: Callable[[object], list[object]]) -> Behaviour:
    """Answer with an event stream of these messages, made from the id of the request, and end it."""

    async def act(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        for message in make(json.loads(exchange.request.body)["id"]):
            text = message if isinstance(message, str) else json.dumps(message)
            await exchange.chunk(f"data: {text}\n\n".encode())
        await exchange.end()

    return Behaviour("events", act)


def answer(message_id: object, **result: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": message_id, "result": result}


async def test_on_a_stream_only_the_answer_to_this_request_counts() -> None:
    script = events(lambda given: [answer(999, wrong=True), answer(str(given), right=True)])
    async with FaultServer(script) as peer, dispatcher(peer.origin) as wire:
        assert await asked(wire) == {"right": True}


@pytest.mark.parametrize(
    ("body", "with_length", "cut"),
    [
        (b'{"jsonrpc": "2.0", "id"', False, True),
        (b'{"jsonrpc": "2.0", "id"', True, False),
        (b'{"jsonrpc": }', False, False),
        (b"it works!", False, False),
    ],
    ids=["a beginning", "all of it", "an end too", "no object"],
)
async def test_a_body_that_ends_with_its_connection_was_cut_where_it_is_the_beginning_of_an_object(
    body: bytes, with_length: bool, cut: bool
) -> None:
    async def act(exchange: Exchange) -> None:
        length = b"content-length: %d\r\n" % len(body) if with_length else b""
        await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + length + b"\r\n" + body)
        exchange.close()

    async with FaultServer(Behaviour("unreadable", act)) as peer, dispatcher(peer.origin) as wire:
        seen = await failure_of(wire)
    if cut:
        assert seen == NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
    else:
        assert isinstance(seen, NotMcp)
        assert (seen.fault, body.decode()[:9].replace('"', "'") in str(seen.detail)) == (NotMcpFault.NOT_JSON, True)


@pytest.mark.requirement("LOAD-2")
@pytest.mark.parametrize("messages", [[], [answer(999)], [{"jsonrpc": "2.0", "method": "notifications/message"}]])
async def test_a_stream_that_ends_without_the_answer_is_a_closed_connection_and_no_wait(
    messages: list[object],
) -> None:
    async with FaultServer(events(lambda _: messages)) as peer, dispatcher(peer.origin) as wire:
        assert await failure_of(wire) == NetworkFailure(fault=NetworkFault.CLOSED, stood=True)


async def test_an_error_without_an_id_on_a_requests_own_stream_is_its_answer() -> None:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "cannot read that"}}
    async with FaultServer(events(lambda _: [error])) as peer, dispatcher(peer.origin) as wire:
        with pytest.raises(Exception, match="cannot read that"):
            await asked(wire)


@pytest.mark.requirement("LOAD-3")
@pytest.mark.parametrize("text", ["no json", '"a string"', "[]", "{}", "[" * 5000])
async def test_a_stream_of_something_else_is_not_mcp(text: str) -> None:
    async with FaultServer(events(lambda _: [text])) as peer, dispatcher(peer.origin) as wire:
        assert isinstance(await failure_of(wire), NotMcp)


async def test_a_fault_of_ours_on_one_stream_reaches_the_one_who_asked_unwrapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notice = {"jsonrpc": "2.0", "method": "notifications/message"}
    async with FaultServer(events(lambda given: [notice, answer(given)])) as peer, dispatcher(peer.origin) as wire:

        def trip(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(wire.rpc, "_route", trip)
        with pytest.raises(ZeroDivisionError):
            await asked(wire)


async def test_one_failed_request_harms_no_other_on_the_same_connection() -> None:
    waiting = anyio.Event()

    async def slow(exchange: Exchange) -> None:
        message = json.loads(exchange.request.body)
        if message["method"] == "bad":
            exchange.reset()
            waiting.set()
        else:
            await waiting.wait()
            await exchange.respond(200, json.dumps(answer(message["id"], fine=True)).encode())

    async with FaultServer(Behaviour("slow", slow)) as peer, dispatcher(peer.origin) as wire:
        results: list[object] = []

        async def ask() -> None:
            results.append(await asked(wire, "good"))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
            with pytest.raises(ServerFailure):
                await asked(wire, "bad")
    assert results == [{"fine": True}] * 5


@pytest.mark.requirement("LIFE-14")
@pytest.mark.parametrize(
    "refusal",
    [
        respond(400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no such request"}}'),
        respond(404),
        respond(500),
        reset_before_answer,
    ],
    ids=str,
)
async def test_an_answer_or_a_cancellation_that_the_server_refuses_ends_no_other_request(refusal: Behaviour) -> None:
    came, refused = anyio.Event(), 0

    async def act(exchange: Exchange) -> None:
        nonlocal refused
        message = json.loads(exchange.request.body)
        if message.get("method") == "abandoned":
            came.set()
            await exchange.gone()
        elif message.get("method") != "a":
            await refusal.act(exchange)
            refused += 1
            peer.stirred()
        else:
            await exchange.start(content_type="text/event-stream")
            question = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
            await exchange.chunk(f"data: {json.dumps(question)}\n\n".encode())
            await peer.until(lambda: refused >= 2)
            await exchange.chunk(f"data: {json.dumps(answer(message['id'], fine=True))}\n\n".encode())
            await exchange.end()

    async with FaultServer(Behaviour("act", act)) as peer, dispatcher(peer.origin) as wire:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked, wire, "abandoned")
            await came.wait()
            tasks.cancel_scope.cancel()
        for _ in range(2):
            assert await asked(wire) == {"fine": True}


# Refusals


@pytest.mark.requirement("LOAD-4")
@pytest.mark.parametrize("status", [401, 403, 404, 503])
async def test_a_refusal_whose_body_never_ends_is_a_refusal_all_the_same(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_room, "ERROR_BODY_SECONDS", 0.05)

    async def drip(exchange: Exchange) -> None:
        await exchange.start(status, content_type="text/plain")
        await exchange.chunk(b"because")
        await exchange.gone()

    async with no_leaks(), FaultServer(Behaviour("drip", drip)) as peer:
        async with dispatcher(peer.origin) as wire:
            seen = await failure_of(wire)
        await peer.all_closed()
    assert isinstance(seen, HttpStatus)
    assert (seen.status, seen.body) == (status, "because")


@pytest.mark.requirement("LOAD-2", "LOAD-5")
async def test_an_outage_is_known_by_its_words_though_one_of_them_is_a_secret_of_the_server() -> None:
    body = "Authorization service unavailable"
    async with FaultServer(respond(403, body)) as peer, dispatcher(peer.origin, secrets=("unavailable",)) as wire:
        seen = await failure_of(wire)
    assert classify_evidence(seen).status == "transient"
    assert isinstance(seen, HttpStatus)
    assert seen.body == "Authorization service ***"


@pytest.mark.requirement("LOAD-4")
async def test_an_outages_words_followed_by_much_more_are_no_outage() -> None:
    body = "upstream call timeout" + " " * 3000 + "and you are not in the group"
    async with FaultServer(respond(403, body)) as peer, dispatcher(peer.origin) as wire:
        seen = await failure_of(wire)
    assert classify_evidence(seen).status == "denied"


@pytest.mark.requirement("MSG-6")
@pytest.mark.parametrize("before", range(2040, 2050))
async def test_a_secret_is_masked_before_a_body_is_cut(before: int) -> None:
    echo = respond(500, "x" * before + "hunter22")
    async with FaultServer(echo) as peer, dispatcher(peer.origin, secrets=("hunter22",)) as wire:
        seen = await failure_of(wire)
    assert isinstance(seen, HttpStatus)
    assert "hu" not in seen.body
    assert len(seen.body) <= 2048


@pytest.mark.requirement("MSG-6")
async def test_the_address_of_a_request_is_not_logged_and_other_requests_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with FaultServer(respond(503)) as peer, dispatcher(f"{peer.origin}/mcp?key=hunter22") as wire:
        await failure_of(wire)
        async with httpx2.AsyncClient() as another:
            await another.get(f"{peer.origin}/not-ours")
    assert "hunter22" not in caplog.text
    assert "/not-ours" in caplog.text


@pytest.mark.requirement("MSG-6")
async def test_a_server_that_repeats_our_credentials_is_masked() -> None:
    async with FaultServer(respond(500, "you sent Bearer hunter22")) as peer:
        headers = {"Authorization": "Bearer hunter22"}
        async with dispatcher(peer.origin, headers=headers, secrets=("Bearer hunter22",)) as wire:
            seen = await failure_of(wire)
    assert isinstance(seen, HttpStatus)
    assert seen.credentials_sent
    assert seen.body == f"you sent {MASK}"


# Streams after their answer


def answered_then(rest: Callable[[Exchange], Awaitable[None]]) -> Behaviour:
    """Answer on an event stream, and go on with it only when the client has the answer."""

    async def act(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        number = json.loads(exchange.request.body)["id"]
        await exchange.chunk(f"data: {json.dumps(answer(number, fine=True))}\n\n".encode())
        await rest(exchange)

    return Behaviour("answered", act)


@pytest.mark.requirement("PERF-4")
async def test_a_stream_whose_end_follows_its_answer_leaves_its_connection_to_the_next_request() -> None:
    has_answer = anyio.Event()

    async def end_later(exchange: Exchange) -> None:
        await has_answer.wait()
        await exchange.chunk(b": the end is near\n\n")
        await exchange.end()

    async with FaultServer(answered_then(end_later)) as peer, dispatcher(peer.origin) as wire:
        for _ in range(3):
            assert await asked(wire) == {"fine": True}
            has_answer.set()
            (pool,) = wire.peer._pools.values()
            await came_true(lambda: pool._idle)  # noqa: B023 - the loop waits for it
            has_answer = anyio.Event()
    assert peer.connections == 1


@pytest.mark.parametrize("goes_on", ["with much", "for ever"])
async def test_a_stream_that_goes_on_after_its_answer_holds_no_connection(
    goes_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = anyio.Event()

    async def go_on(exchange: Exchange) -> None:
        try:
            while goes_on == "with much":
                await exchange.chunk(b": and more\n\n" * 1000)
            await exchange.gone()
        finally:
            left.set()

    monkeypatch.setattr(pool_room, "_next_sweep", lambda now: now)
    monkeypatch.setattr(pool_room, "IDLE_SECONDS", 0.0)
    async with FaultServer(answered_then(go_on)) as peer, dispatcher(peer.origin) as wire:
        assert await asked(wire) == {"fine": True}
        await left.wait()


# A login's token


class Tokens:
    """A login whose tokens are given one after the other; None renews none, and an exception is raised."""

    def __init__(self, first: str, *others: str | ServerFailure | None) -> None:
        self._token, self._others = first, iter(others)
        self.refused: list[str] = []

    async def token(self) -> str:
        return self._token

    async def renewed(self, refused: str) -> bool:
        self.refused.append(refused)
        other = next(self._others, None)
        if isinstance(other, ServerFailure):
            raise other
        self._token = other or self._token
        return other is not None

    def login(self) -> Login:
        return Login(state=LoginState.GOOD, command="holdfast login a")


@pytest.mark.parametrize(
    ("others", "sent", "status"),
    [
        ((), ["one"], 401),
        (("two",), ["one", "two"], 200),
        (("other",), ["one", "other"], 401),
        ((ServerFailure(NotMcp(fault=NotMcpFault.NO_ANSWER)),), ["one"], None),
    ],
    ids=["no other token", "another one", "another one that is refused too", "the renewal fails"],
)
async def test_a_refused_token_is_renewed_once_and_the_request_sent_again(
    others: tuple[str | ServerFailure, ...], sent: list[str], status: int | None
) -> None:
    async def refuse_without_end(exchange: Exchange) -> None:
        await exchange.start(401)
        await exchange.gone()

    refusal = respond(401, "no") if status is not None else Behaviour("refuse-without-end", refuse_without_end)

    def script(request: Request) -> Behaviour:
        return respond(200, "{}") if request.headers["authorization"] == "Bearer two" else refusal

    async with FaultServer(script) as server:
        spec = ServerSpec(id="a", transport="http", url=server.origin)
        tokens = Tokens("one", *others)
        peer = HttpPeer(spec, Redactor(), tokens)
        seen: int | None = None
        with suppress(ServerFailure):
            async with peer.request("GET", peer.url, headers={}, doing="it") as response:
                seen = response.status
                assert (await peer.refusal(response))[0].login is not None
        if status is None:
            await server.all_closed()  # nothing reads the refusal
        await peer.aclose()
    assert (seen, tokens.refused) == (status, ["one"])
    assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {one}" for one in sent]


async def test_an_authorization_of_the_definition_takes_the_place_of_a_login() -> None:
    async with FaultServer(respond(401, "no")) as server:
        spec = ServerSpec(id="a", transport="http", url=server.origin, headers={"Authorization": "Own key"})
        peer = HttpPeer(spec, Redactor(), Tokens("one", "two"))
        async with peer.request("GET", peer.url, headers={}, doing="it") as response:
            assert (await peer.refusal(response))[0].login is None
        await peer.aclose()
    assert [request.headers["authorization"] for request in server.requests] == ["Own key"]


@pytest.mark.parametrize(
    ("named", "host", "port"),
    [("http://proxy.example", "proxy.example", 80), ("https://p.example", "p.example", 443), ("p:81", "p", 81)],
)
def test_a_proxy_has_the_port_of_its_scheme_unless_it_names_one(
    named: str, host: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"http": named})
    proxy = client_room._proxy_for(httpx2.URL("http://document.example/"))
    assert proxy is not None
    assert (proxy.host, proxy.port, proxy.tls) == (host, port, port == 443)


# Streams that are cut


def cut_stream(*, resumed: Behaviour, event_id: str = "e-1", retry: int = 1) -> Callable[[Request], Behaviour]:
    """A script: a request's stream ends after an event with an id; this answers a request that resumes it."""

    async def begin(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        message = '{"jsonrpc": "2.0", "method": "notifications/message"}'
        await exchange.chunk(f"retry: {retry}\nid: {event_id}\ndata: {message}\n\n".encode())
        await exchange.end()

    begun = Behaviour("begin", begin)
    return lambda request: begun if request.method == "POST" else resumed


async def test_a_stream_that_was_cut_is_taken_up_again_where_it_ended() -> None:
    async def go_on(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        await exchange.chunk(f"data: {json.dumps(answer(1, resumed=True))}\n\n".encode())
        await exchange.end()

    script = cut_stream(resumed=Behaviour("go on", go_on))
    async with FaultServer(script) as peer, dispatcher(peer.origin) as wire:
        assert await asked(wire) == {"resumed": True}
    assert [request.method for request in peer.requests] == ["POST", "GET"]
    assert peer.requests[1].headers["last-event-id"] == "e-1"


@pytest.mark.requirement("SEC-4")
async def test_a_server_cannot_put_off_the_resumption_of_a_stream_for_days(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go_on(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        await exchange.chunk(f"data: {json.dumps(answer(1, resumed=True))}\n\n".encode())
        await exchange.end()

    monkeypatch.setattr("holdfast.wire.http.transport.LONGEST_RESUME_DELAY_SECONDS", 0.01, raising=False)
    script = cut_stream(resumed=Behaviour("go on", go_on), retry=999_999_999)
    async with FaultServer(script) as peer, dispatcher(peer.origin) as wire:
        assert await asked(wire) == {"resumed": True}


@pytest.mark.parametrize(("event_id", "sent"), [("\u65e5 \u00e9", "\u65e5 \u00e9"), ("a\x01b", None)])
async def test_an_id_of_an_event_is_sent_back_as_it_came_or_not_at_all(event_id: str, sent: str | None) -> None:
    """A header has bytes: an id in any script is UTF-8 there. One with a control character cannot be sent."""

    async def go_on(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        await exchange.chunk(f"data: {json.dumps(answer(1, resumed=True))}\n\n".encode())
        await exchange.end()

    script = cut_stream(resumed=Behaviour("go on", go_on), event_id=event_id)
    async with FaultServer(script) as peer, dispatcher(peer.origin) as wire:
        if sent is None:
            assert await failure_of(wire) == NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
        else:
            assert await asked(wire) == {"resumed": True}
            assert peer.requests[1].headers["last-event-id"].encode("latin-1").decode() == sent


async def test_a_stream_that_is_cut_again_and_again_is_given_up() -> None:
    async def end(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        await exchange.end()

    async with FaultServer(cut_stream(resumed=Behaviour("end", end))) as peer, dispatcher(peer.origin) as wire:
        assert await failure_of(wire) == NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
    assert [request.method for request in peer.requests] == ["POST", "GET", "GET"]


@pytest.mark.requirement("LIFE-16")
@pytest.mark.parametrize(
    "resumed",
    [
        respond(400, '{"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "unknown event"}}'),
        respond(404),
        respond(405),
        respond(503),
        reset_before_answer,
    ],
    ids=str,
)
async def test_a_request_whose_stream_was_cut_is_not_said_to_be_refused(resumed: Behaviour) -> None:
    """The server has the request: a refusal to go on with its answer says nothing about that."""
    async with FaultServer(cut_stream(resumed=resumed)) as peer, dispatcher(peer.origin) as wire:
        assert await failure_of(wire) == NetworkFailure(fault=NetworkFault.CLOSED, stood=True)


async def test_a_resumed_stream_whose_answer_cannot_be_read_says_why() -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        await exchange.chunk(b"data: no JSON\n\n")
        await exchange.end()

    async with FaultServer(cut_stream(resumed=Behaviour("say", say))) as peer, dispatcher(peer.origin) as wire:
        assert isinstance(await failure_of(wire), NotMcp)


@pytest.mark.requirement("LIFE-28")
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("application/json", "%s"),
        ("text/event-stream", "data: %s\n\n"),
        ("text/event-stream", "event: message\r\ndata: %s\r\n\r\n"),
        ("text/event-stream", ": ping\n\ndata: %s\n\n"),
    ],
)
async def test_progress_that_came_on_another_stream_is_told_before_the_result(
    kind: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []

    def tell(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)

    async with dispatcher("http://127.0.0.1:9/mcp") as wire:

        async def send(method: str, url: object, headers: object, body: bytes, **_: bool) -> Response:
            number = json.loads(body)["id"]
            params = {"progressToken": number, "progress": 0.5}
            notice = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            await wire.rpc.take(json.dumps(notice).encode())
            head = AnswerHead(200, {"content-type": kind}, keep_alive=True, length=None, chunked=True)
            response = Response(None, head, head.status, head.headers, "")
            response.feed((form % json.dumps(answer(number))).encode())
            response.end()
            return response

        monkeypatch.setattr(wire.peer, "send", send)
        request = wire.in_flight.start(cast("Caller", SimpleNamespace(progress=tell)), idle=10, within=10)
        assert await wire.call(request, "tools/call", {}, headers={}) is not None
    assert told == [0.5]


@pytest.mark.parametrize(
    "value", ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994", " 37 "]
)
def test_a_time_to_wait_is_read_in_every_form_and_in_utc(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        seconds = client_room._retry_after(value, 784111740.0)
    time.tzset()
    assert seconds == 37.0


async def test_the_user_info_of_a_proxy_is_sent_unquoted_and_to_the_proxy_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FaultServer(respond(200, "{}")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://us%40er:pass@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("http_proxy", f"http://us%40er:pass@127.0.0.1:{proxy.port}")
        with anyio.fail_after(20):
            assert await client_room.fetch("http://document.example/of?it=1") == b"{}"
    (request,) = proxy.requests
    assert request.headers["proxy-authorization"] == "Basic dXNAZXI6cGFzcw=="
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("lines", "sent"),
    [
        (["a=1; Path=/; Max-Age=60", "b=2"], "a=1; b=2"),
        (["a=1", "a=2"], "a=2"),
        (["a=1\nb=2"], "a=1; b=2"),
        (["a=1", "a=x; max-age = 0"], None),
        (["a=1", "b=2", "a=x; Max-Age=-1"], "b=2"),
        (["a", "b c=1", "c=ä", "d=\x01", "=1"], None),
        (
            [f"c{number}={number}" for number in range(60)] + ["c0=new"],
            "; ".join(["c0=new", *(f"c{number}={number}" for number in range(1, client_room.MOST_COOKIES))]),
        ),
    ],
)
def test_the_cookies_of_a_balancer_are_sent_back_until_they_expire(lines: list[str], sent: str | None) -> None:
    cookies = StickyCookies()
    for one in lines:
        cookies.note(one)
    assert cookies.header == ({"cookie": sent} if sent is not None else {})


@pytest.mark.parametrize("url", ["ftp://x.example/mcp", "http:///mcp"])
async def test_an_address_that_is_no_address_of_http_is_an_error_of_the_definition(url: str) -> None:
    async with dispatcher(url) as wire:
        assert isinstance(await failure_of(wire), BadConfig)


@pytest.mark.parametrize("headers", [{"a b": "x"}, {"a": "x\ny"}, {"a": "ä"}, {"a": 1}, {"": "x"}])
def test_a_header_that_cannot_be_sent_and_an_address_that_cannot_be_read_are_errors_of_the_definition(
    headers: dict[str, str],
) -> None:
    for url, given in (("http://127.0.0.1/", headers), ("http://127.0.0.1:port/", {})):
        with pytest.raises(ServerFailure) as failed:
            HttpPeer(ServerSpec(id="a", transport="http", url=url, headers=given), Redactor())
        assert isinstance(failed.value.evidence, BadConfig)


@pytest.mark.parametrize(
    ("named", "problem"), [("socks5://p.example:1", "a proxy by socks5"), ("http://p.example:port", "cannot be read")]
)
async def test_a_proxy_that_cannot_be_used_is_an_error_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, named: str, problem: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", named)
    async with dispatcher("http://x.example/") as wire:
        seen = await failure_of(wire)
    assert isinstance(seen, BadConfig)
    assert problem in seen.problems[0]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("soon", None), ("-1", None), ("0", 0.0), ("123456789", 123456789.0), ("9" * 5_000, 999999999.0)],
)
def test_a_time_to_wait_is_a_number_of_seconds_however_long_it_is_written(
    value: str | None, seconds: float | None
) -> None:
    assert client_room._retry_after(value, 0.0) == seconds


@pytest.mark.requirement("MSG-6")
@pytest.mark.parametrize("over", [0, 1])
async def test_a_body_that_is_cut_ends_with_an_ellipsis(over: int) -> None:
    async with FaultServer(respond(500, "x" * (2048 + over))) as peer, dispatcher(peer.origin) as wire:
        seen = await failure_of(wire)
    assert isinstance(seen, HttpStatus)
    assert seen.body == ("x" * 2047 + "…" if over else "x" * 2048)


@pytest.mark.requirement("LOAD-2")
async def test_an_outages_words_in_a_body_that_never_ends_are_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_room, "ERROR_BODY_SECONDS", 0.05)

    async def drip(exchange: Exchange) -> None:
        await exchange.start(403, content_type="text/plain")
        await exchange.chunk(b"Authorization service unavailable")
        await exchange.gone()

    async with no_leaks(), FaultServer(Behaviour("drip", drip)) as peer:
        async with dispatcher(peer.origin) as wire:
            seen = await failure_of(wire)
        await peer.all_closed()
    assert classify_evidence(seen).status == "denied", "what would follow is not known"
