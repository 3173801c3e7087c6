"""What the HTTP shell refuses by itself, with which status and words, before a message reaches the exchange (HUB-1)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx2
import pytest
from mcp_types import HEADER_MISMATCH
from mcp_types.version import LATEST_MODERN_VERSION

from holdfast.access.principals import LOCAL, Principal, TokenPolicy
from holdfast.endpoint import EndpointAddress
from holdfast.front.http import _in_folder
from tests.clients.raw import initialize
from tests.harness.raw_session import Session
from tests.harness.served_hub import front

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
