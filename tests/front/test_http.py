"""What the HTTP shell refuses by itself, with which status and words, before a message reaches the exchange (HUB-1)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import anyio
import httpx2
import pytest
from mcp import MCPError
from mcp_types import HEADER_MISMATCH, ErrorData
from mcp_types.version import LATEST_MODERN_VERSION

from holdfast.access import QuotaExceeded
from holdfast.access.principals import LOCAL, Principal, TokenPolicy
from holdfast.endpoint import EndpointAddress, LivesElsewhere
from holdfast.front.http import HttpEndpoint, RequestsInFlight, _accepted, _in_folder, _kind_of, _over_quota
from holdfast.front.peer_requests import MOST_TRIES
from tests.clients.raw import initialize
from tests.harness.raw_session import Session
from tests.harness.served_hub import front
from tests.harness.waiting import all_blocked

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-1")]

BOTH = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
PING = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "holdfast_status", "arguments": {}}}
ANSWER = {"jsonrpc": "2.0", "id": 7, "result": {}}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
MODERN = {"mcp-protocol-version": LATEST_MODERN_VERSION}


class Caller:
    """Sends requests to one hub: without a session, or in one."""

    def __init__(self, http: httpx2.AsyncClient, base: str, session: Session) -> None:
        self.http, self.base, self.session = http, base, session

    @property
    def in_session(self) -> dict[str, str]:
        return {"mcp-session-id": self.session.headers["mcp-session-id"]}

    async def send(
        self, method: str = "POST", path: str = "/mcp", body: Any = None, **headers: str | None
    ) -> httpx2.Response:
        """The answer; a header that is None is left out, and ``_`` in its name is a hyphen."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in {**BOTH, **given}.items() if value is not None}
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return await self.http.request(method, self.base + path, content=content, headers=sent)


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    profiles: dict[str, Any] = {"profiles": {"work": ["s/echo"]}}
    async with front({}, **profiles) as served, httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        session = Session(http, served.all)
        await session.begin()
        yield Caller(http, served.base, session)


def _said(answer: httpx2.Response) -> str:
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize("in_session", [False, True])
async def test_the_form_of_a_legacy_request_is_checked_first(caller: Caller, in_session: bool) -> None:
    more: dict[str, Any] = caller.in_session if in_session else {}
    body = PING if in_session else initialize()
    for changed, status, words in (
        ({"content_encoding": "gzip"}, 415, "without a Content-Encoding"),
        ({"accept": "text/event-stream"}, 406, "must accept application/json"),
        ({"accept": "text/html"}, 406, "must accept application/json"),
        ({"content_type": "text/plain"}, 415, "must be application/json"),
        ({"content_type": None}, 415, "must be application/json"),
        ({"mcp_method": "tools/list"}, 400, "does not match the request body"),
        ({"mcp_method": str(body["method"]), "mcp_name": "x"}, 400, "does not match the request body"),
        ({"mcp_name": "x"}, 400, "does not match the request body"),
    ):
        answer = await caller.send(body=body, **more, **changed)
        assert (answer.status_code, words in _said(answer)) == (status, True), (changed, answer.text)
    for same in (
        {"content_encoding": "identity"},
        {"content_encoding": ""},
        {"accept": "*/*"},
        {"accept": "text/html;q=0.1, application/*;q=0.5"},
        {"accept": None},
        {"content_type": "Application/JSON; charset=utf-8"},
        {"mcp_method": str(body["method"])},
    ):
        answer = await caller.send(body=body, **more, **same)
        assert (answer.status_code, "result" in answer.text) == (200, True), (same, answer.text)


async def test_headers_that_a_gateway_decides_by_agree_with_the_body(caller: Caller) -> None:
    for name, status in (("holdfast_status", 200), ("=?base64?aG9sZGZhc3Rfc3RhdHVz?=", 200), ("other", 400)):
        answer = await caller.send(body=CALL, **caller.in_session, mcp_name=name)
        assert answer.status_code == status, (name, answer.text)
    refused = await caller.send(body=CALL, **caller.in_session, mcp_name="other")
    assert refused.json()["error"]["code"] == HEADER_MISMATCH
    assert refused.headers["mcp-session-id"] == caller.in_session["mcp-session-id"]


async def test_only_a_handshake_needs_no_session(caller: Caller) -> None:
    for method, body, status, words in (
        ("GET", None, 400, "Missing session ID"),
        ("DELETE", None, 400, "Missing session ID"),
        ("PUT", None, 405, "Method Not Allowed"),
        ("POST", PING, 400, "Missing session ID"),
        ("POST", {**initialize(), "id": None}, 400, ""),
        ("POST", b"no json", 400, ""),
        ("POST", [initialize()], 400, ""),
    ):
        answer = await caller.send(method, body=body)
        assert (answer.status_code, words in _said(answer)) == (status, True), (method, answer.text)
        assert (answer.headers.get("allow") == "GET, POST, DELETE") is (status == 405)
    bad = await caller.send(body={**initialize(), "params": {}})
    assert (bad.status_code, "error" in bad.json(), "mcp-session-id" in bad.headers) == (200, True, False)
    begun = await caller.send(body=initialize())
    again = await caller.send(body=initialize(), mcp_session_id=begun.headers["mcp-session-id"])
    assert begun.headers["mcp-session-id"] != again.headers["mcp-session-id"], "it declares itself again"


async def test_what_is_no_message_of_a_session_is_refused_with_its_session(caller: Caller) -> None:
    more: dict[str, Any] = caller.in_session
    for method, changed, body, status in (
        ("GET", {"accept": "application/json"}, None, 406),
        ("PUT", {}, None, 405),
        ("POST", {}, b"no json", 400),
        ("POST", {}, [PING], 400),
        ("POST", {}, ANSWER, 400),
        ("POST", {}, INITIALIZED, 202),
        ("POST", {}, PING, 200),
    ):
        answer = await caller.send(method, body=body, **more, **changed)
        assert (answer.status_code, answer.headers.get("mcp-session-id")) == (
            status,
            caller.in_session["mcp-session-id"],
        ), (method, answer.text)
    assert (await caller.send(body=PING, mcp_session_id="forged")).status_code == 404
    async with caller.session.notices():
        second = await caller.send("GET", **more)
        assert (second.status_code, "Only one SSE stream" in _said(second)) == (409, True)


async def test_a_modern_request_is_a_post_that_takes_json(caller: Caller) -> None:
    modern: dict[str, Any] = {name.replace("-", "_"): value for name, value in MODERN.items()}
    listen = {"jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen", "params": {}}
    for method, changed, body, status, words in (
        ("GET", {}, None, 405, ""),
        ("PUT", {}, None, 405, ""),
        ("DELETE", {}, None, 405, ""),
        ("POST", {"accept": "text/event-stream"}, PING, 406, "must accept application/json"),
        ("POST", {"accept": "application/json"}, listen, 406, "must accept text/event-stream"),
        ("POST", {}, b"no json", 400, ""),
        ("POST", {}, ANSWER, 400, "single JSON-RPC request or notification"),
        ("POST", {}, INITIALIZED, 202, ""),
        ("POST", {"mcp_protocol_version": "2099-01-01"}, INITIALIZED, 400, "nsupported"),
    ):
        answer = await caller.send(method, body=body, **{**modern, **changed})
        assert answer.status_code == status, (method, changed, answer.text)
        assert words in answer.text
        assert (answer.headers.get("allow") == "POST") is (status == 405)


async def test_a_header_that_routes_a_modern_request_comes_once(caller: Caller) -> None:
    headers = [*BOTH.items(), *MODERN.items(), ("mcp-method", "ping"), ("mcp-method", "ping")]
    answer = await caller.http.post(caller.base + "/mcp", content=json.dumps(PING).encode(), headers=headers)
    assert (answer.status_code, _said(answer)) == (400, "mcp-method header appears more than once")
    assert (answer.json()["id"], answer.json()["error"]["code"]) == (7, HEADER_MISMATCH)


async def test_an_address_that_means_nothing_is_not_found(caller: Caller) -> None:
    for path, words in (
        ("/servers/none/mcp", "no server named 'none' is configured"),
        ("/servers/a%2Fb/mcp", "no server named 'a/b' is configured"),
        ("/mcp?tools=some", "there is no endpoint with `tools=some`: write tools=all or tools=find"),
        ("/mcp?profile=gone", "there is no profile 'gone'; known: work"),
        ("/mcp?folder=/tmp", "`folder=` is for local clients of a hub that serves a file"),
    ):
        answer = await caller.send(path=path, body=initialize())
        assert (answer.status_code, answer.json()["error"]) == (404, words)
    for path in ("/mcp?tools=find", "/mcp?profile=work", "/mcp?other=1", "/mcp?folder="):
        assert (await caller.send(path=path, body=initialize())).status_code == 200


class Folders:
    """The folders of clients: all but one exist, and one is too many."""

    matter = True

    def of(self, named: str, working: str) -> str | None:
        return named.rstrip("/") if named != "/none" else None

    async def touch(self, folder: str) -> bool:
        return folder != "/full"


@pytest.mark.requirement("DX-9")
async def test_the_folder_of_an_address_is_a_whole_path_of_a_local_client() -> None:
    async def seen(named: str, principal: Principal = LOCAL) -> object:
        address = EndpointAddress(None, "find", "work", named)
        return await _in_folder(address, named, principal, cast("Any", Folders()))

    assert await seen("/home/ada/") == EndpointAddress(None, "find", "work", "/home/ada")
    for named in ("here", "/none", "~"):
        assert await seen(named) == f"`folder={named}` names no folder: write its whole path"
    assert await seen("/full") == "clients work in too many folders"
    assert (
        await seen("/home/ada", Principal(name="ada")) == "`folder=` is for local clients of a hub that serves a file"
    )


@pytest.mark.requirement("SEC-2")
async def test_a_caller_without_a_token_learns_of_no_server() -> None:
    tokens = TokenPolicy(tokens={"ada": "the token of ada is long"})
    async with front({}, tokens=tokens) as served, httpx2.AsyncClient(trust_env=False) as http:
        for path in ("/mcp", "/servers/none/mcp", "/mcp?tools=some"):
            answer = await http.post(served.base + path, json=initialize(), headers=BOTH)
            assert (answer.status_code, "www-authenticate" in answer.headers) == (401, True)
            assert answer.headers["content-type"] == "application/json"


@pytest.mark.requirement("SEC-14")
async def test_a_server_that_a_caller_may_not_see_is_not_there_for_her() -> None:
    tokens = TokenPolicy(tokens={"ada": "the token of ada is long", "bob": "the token of bob is long"})
    access = {"rules": [{"effect": "allow", "principals": ["ada"], "servers": ["secret"]}]}
    hidden = {"secret": {"url": "http://127.0.0.1:9/mcp"}}
    said = {}
    async with (
        front(hidden, tokens=tokens, wait=False, access=access) as served,
        httpx2.AsyncClient(trust_env=False) as http,
    ):
        for user, token in tokens.tokens.items():
            headers = {**BOTH, "authorization": f"Bearer {token}"}
            assert (await http.post(served.all, json=initialize(), headers=headers)).status_code == 200
            answer = await http.post(served.one("secret"), json=initialize(), headers=headers)
            said[user] = answer.status_code, answer.json().get("error")
    assert said == {"ada": (200, None), "bob": (404, "no server named 'secret' is configured")}


# Parts that need no connection.


@pytest.mark.requirement("HUB-1")
def test_what_a_client_takes_is_read_from_its_header() -> None:
    for accept, taken in (
        (None, (True, False)),
        ("", (False, False)),
        ("*/*", (True, True)),
        ("application/json", (True, False)),
        ("application/*", (True, False)),
        ("text/event-stream", (False, True)),
        ("text/*;q=0.5", (False, True)),
        ("Text/Event-Stream ; q=1, APPLICATION/JSON", (True, True)),
        ("application/xml, text/html", (False, False)),
    ):
        assert _accepted(accept) == taken, accept
    kinds = [_kind_of(one) for one in ("", "Application/JSON ; charset=utf-8", "text/plain")]
    assert kinds == ["", "application/json", "text/plain"]


class Use:
    """A place in a quota."""

    ended = 0

    def end_call(self) -> None:
        self.ended += 1


@pytest.mark.requirement("FLEET-7")
async def test_requests_in_flight_are_waited_for_until_the_last_has_its_answer() -> None:
    flight, use = RequestsInFlight(), Use()
    with anyio.fail_after(10):
        await flight.wait_until_idle()
        flight.number += 2
        waits = asyncio.create_task(flight.wait_until_idle())
        await all_blocked()
        flight.end(cast("Any", use))
        await all_blocked()
        assert (waits.done(), flight.number, use.ended, repr(flight)) == (False, 1, 1, "<RequestsInFlight 1>")
        flight.end(None)
        await waits
        flight.number += 1
        again = asyncio.create_task(flight.wait_until_idle())
        await all_blocked()
        assert not again.done(), "it does not remember that it was idle"
        flight.end(None)
        await again


class Stream:
    """The stream of a request, with the errors that it was answered with."""

    def __init__(self) -> None:
        self.done = False
        self.errors: list[tuple[object, int, str]] = []

    def error(self, request_id: object, why: ErrorData) -> None:
        self.errors.append((request_id, why.code, why.message))
        self.done = True


class Elsewhere:
    """An endpoint whose requests belong to other replicas; ``answers`` are what becomes of each try."""

    def __init__(self, *answers: bool | MCPError, handled: tuple[Exception | None, ...] = ()) -> None:
        self.answers = list(answers)
        self.handled = list(handled)
        self.peers: Any = self
        self.asked: list[str] = []
        self.lost: list[str] = []
        self.stream = Stream()

    async def answer(self, found: LivesElsewhere, *_: object) -> bool:
        self.asked.append(found.replica)
        answer = self.answers.pop(0)
        if isinstance(answer, MCPError):
            raise answer
        return answer

    async def handle(self, *_: object, **__: object) -> None:
        if (again := self.handled.pop(0)) is not None:
            raise again

    def _lose(self, message: object, stream: Stream, request: object, why: ErrorData) -> None:
        self.lost.append(why.message)
        stream.error(7, why)

    async def ask(self, *, forwarded: bool = False) -> list[tuple[int, bytes, bytes]]:
        """What the reply was given beside the stream."""
        plain: list[tuple[int, bytes, bytes]] = []
        reply = SimpleNamespace(plain=lambda *given: plain.append(given))
        request = SimpleNamespace(forwarded=forwarded, headers={}, principal=LOCAL)
        await HttpEndpoint._answer_elsewhere(
            cast("Any", self),
            LivesElsewhere("first"),
            cast("Any", (SimpleNamespace(id=7), self.stream, self)),
            cast("Any", request),
            cast("Any", reply),
        )
        return plain


@pytest.mark.requirement("FLEET-2")
async def test_a_request_of_another_replica_is_answered_there_or_here_when_that_has_changed() -> None:
    alone = Elsewhere()
    alone.peers = None
    with pytest.raises(LivesElsewhere) as raised:
        await alone.ask()
    assert raised.value.replica == "first"
    there = Elsewhere(True)
    assert await there.ask() == []
    assert (there.asked, there.stream.done, there.lost) == (["first"], True, [])
    here = Elsewhere(False, handled=(None,))
    await here.ask()
    assert (here.asked, here.stream.done, here.lost, here.handled) == (["first"], False, [], [])
    moved = Elsewhere(False, True, handled=(LivesElsewhere("second"),))
    await moved.ask()
    assert (moved.asked, moved.stream.done, moved.lost) == (["first", "second"], True, [])
    fails = Elsewhere(MCPError(-32603, "it left"))
    await fails.ask()
    assert (fails.asked, fails.lost) == (["first"], ["it left"])


@pytest.mark.requirement("FLEET-2")
async def test_a_request_that_finds_no_replica_is_given_up_after_so_many_tries_and_a_forwarded_one_at_once() -> None:
    gone = Elsewhere(*[False] * MOST_TRIES, handled=tuple(LivesElsewhere(f"r{n}") for n in range(MOST_TRIES)))
    await gone.ask()
    assert (len(gone.asked), gone.answers, gone.handled) == (MOST_TRIES, [], [])
    text = "the replica with the connections of this client was not found; try again"
    assert gone.stream.errors == [(7, -32603, text)]
    forwarded = Elsewhere()
    ((status, body, headers),) = await forwarded.ask(forwarded=True)
    assert (status, body) == (421, b"{}")
    assert headers.endswith(b": the connections of this client are on another replica now\r\n")
    assert (forwarded.asked, forwarded.lost) == ([], [])


def test_a_refusal_over_a_quota_says_which_one_and_when_to_come_again() -> None:
    answers: list[tuple[int, Any, bytes]] = []
    reply = SimpleNamespace(
        plain=lambda status, body, headers: answers.append((status, json.loads(bytes(body)), headers))
    )
    exceeded = QuotaExceeded(quota="callsPerMinute", most=9, retry_after=12)
    _over_quota(cast("Any", reply), None, exceeded, b"x: 1\r\n")
    ((status, body, headers),) = answers
    error = {
        "code": -32029,
        "message": exceeded.message,
        "data": {"retryAfter": 12, "quota": "callsPerMinute"},
    }
    assert (status, body["error"], body["id"]) == (429, error, None)
    assert headers == b"content-type: application/json\r\nretry-after: 12\r\nx: 1\r\n"
