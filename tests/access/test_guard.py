"""Who may come in: Host, Origin, tokens; and a session is its opener's alone."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.access.guard import FAILURES
from holdfast.access.jwt import JwtVerifier
from holdfast.access.principals import Principal, TokenPolicy, TokensFile, Verify
from holdfast.errors import UsageError
from holdfast.files import replace_file
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub
from tests.harness.waiting import all_blocked, came_true
from tests.harness.web import serving

pytestmark = pytest.mark.anyio

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@asynccontextmanager
async def endpoint(tokens: TokenPolicy | None = None, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    hub = Hub.from_config({"mcpServers": {}})
    accept = bool(options.pop("accept", False))
    async with (
        hub,
        serving(create_app(hub, tokens=tokens, **options), accept=accept) as base,
        httpx2.AsyncClient(base_url=base) as http,
    ):
        yield http


async def post(http: httpx2.AsyncClient, path: str = "/mcp", body: Any = INITIALIZE, **headers: str) -> httpx2.Response:
    return await http.post(path, json=body, headers={**HEADERS, **headers})


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("path", ["/mcp", "/servers/x/mcp", "/healthz", "/readyz", "/nowhere"])
@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", "", "[::1]evil.example",
        "127.0.0.1:80:evil.example",
    ],
)  # fmt: skip
async def test_a_foreign_host_is_refused_on_every_path(path: str, host: str) -> None:
    async with endpoint() as http:
        response = await post(http, path, host=host)
    assert response.status_code in (400, 421)


@pytest.mark.requirement("SEC-2", "OBS-1")
@pytest.mark.parametrize("host", ["10.1.2.3", "10.1.2.3:8765", "[fd00:10:244::1f]:8765"])
async def test_an_address_as_host_is_served_where_programs_look_after_the_hub_and_nowhere_else(host: str) -> None:
    """Prometheus, the kubelet and balancers use the address. A page under a name of its own sends that name."""
    async with endpoint() as http:
        for path in ("/healthz", "/readyz"):
            assert (await http.get(path, headers={"host": host})).status_code == 200
            refused = await http.get(path, headers={"host": host, "origin": "https://evil.example"})
            assert refused.status_code == 403
        for path in ("/mcp", "/servers/x/mcp", "/nowhere", "/metrics/x", "/healthz/"):
            assert (await post(http, path, host=host)).status_code == 421
        for odd in ("10.1.2.3.evil.example", "10.1.2", "0x0a010203", "167838211", "[fd00::1f]x"):
            assert (await http.get("/healthz", headers={"host": odd})).status_code == 421


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://localhost.evil",
        "null",
        "http://127.0.0.1.evil:80",
        "http://[",
        "http://localhost:80@evil.example",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
async def test_every_request_of_another_origin_is_refused(origin: str, method: str) -> None:
    async with endpoint() as http:
        response = await http.request(method, "/mcp", headers={**HEADERS, "origin": origin}, content=b"{}")
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.requirement("SEC-2")
async def test_an_empty_allowed_host_accepts_no_request() -> None:
    async with endpoint(allowed_hosts=("127.0.0.1", "")) as http:
        assert (await post(http, host=":80")).status_code == 421
        assert (await post(http, origin="null")).status_code == 403
        assert (await post(http)).status_code == 200


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:99", "localhost."])
async def test_our_own_names_are_served_with_any_port(host: str) -> None:
    async with endpoint() as http:
        response = await post(http, host=host, origin=f"http://{host}")
    assert response.status_code == 200


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer wrong", "Basic c2VjcmV0", "secret", "Bearer secre", "Bearer secret2"],
)
async def test_a_request_without_the_right_token_is_refused(authorization: str | None) -> None:
    async with endpoint(TokenPolicy(tokens={"ada": "secret"})) as http:
        headers = {"authorization": authorization} if authorization is not None else {}
        refused = await post(http, **headers)
        alive = await http.get("/healthz")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert "secret" not in refused.text
    assert alive.status_code == 200


@pytest.mark.requirement("SEC-2")
async def test_a_session_serves_only_the_one_who_opened_it() -> None:
    async with endpoint(TokenPolicy(tokens={"ada": "a-secret", "bob": "b-secret"})) as http:
        opened = await post(http, authorization="Bearer a-secret")
        session = opened.headers["mcp-session-id"]
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        own = await post(http, body=ping, authorization="Bearer a-secret", **{"mcp-session-id": session})
        other = await post(http, body=ping, authorization="Bearer b-secret", **{"mcp-session-id": session})
    assert (opened.status_code, own.status_code, other.status_code) == (200, 200, 404)


@pytest.mark.requirement("SEC-2")
async def test_a_jwt_is_believed_only_if_all_of_it_holds(tmp_path: Path) -> None:
    key, stranger = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    pem = tmp_path / "issuer.pem"
    pem.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    verify = JwtVerifier(issuer="https://id.example", audience="hub", keys=str(pem))
    good = {"iss": "https://id.example", "aud": "hub", "sub": "ada", "exp": time.time() + 600}

    def signed(claims: dict[str, Any], by: Any = key, algorithm: str = "ES256") -> str:
        return jwt.encode(claims, by, algorithm=algorithm)

    assert await verify(signed(good)) == Principal(name="https://id.example#ada")
    for change in ({"iss": "https://other.example"}, {"aud": "other"}, {"exp": time.time() - 600}, {"sub": ""}):
        assert await verify(signed({**good, **change})) is None
    for missing in good:
        assert await verify(signed({name: value for name, value in good.items() if name != missing})) is None
    assert await verify(signed(good, stranger)) is None
    assert await verify(jwt.encode(good, "", algorithm="none")) is None
    assert await verify(jwt.encode(good, "x" * 64, algorithm="HS256")) is None
    assert await verify("not a token") is None


class Issuer:
    """Publishes a key, if it does; counts who asked."""

    def __init__(self) -> None:
        self.asked, self.works = 0, False
        self.key = ec.generate_private_key(ec.SECP256R1())

    async def keys(self, _: Request) -> Response:
        self.asked += 1
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key()))
        return JSONResponse({"keys": [{**public, "kid": "one"}]}, 200 if self.works else 503)

    def signed(self, kid: str) -> str:
        claims = {"iss": "i", "aud": "hub", "sub": "ada", "exp": time.time() + 600}
        return jwt.encode(claims, self.key, algorithm="ES256", headers={"kid": kid})


@pytest.mark.requirement("SEC-2")
async def test_an_issuer_that_is_down_is_not_asked_for_every_token_and_is_asked_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.access.jwt.PAUSE_SECONDS", 3600.0)
    issuer = Issuer()
    async with serving(Starlette(routes=[Route("/keys", issuer.keys)])) as base:
        verify = JwtVerifier(issuer="i", audience="hub", keys=f"{base}/keys")
        for kid in ("one", "two", "three"):
            assert await verify(issuer.signed(kid)) is None
        assert issuer.asked == 1
        monkeypatch.setattr("holdfast.access.jwt.PAUSE_SECONDS", 0.0)
        verify = JwtVerifier(issuer="i", audience="hub", keys=f"{base}/keys")
        assert await verify(issuer.signed("one")) is None
        issuer.works = True
        assert await verify(issuer.signed("one")) == Principal(name="i#ada")
        assert issuer.asked == 3


@pytest.mark.requirement("SEC-2")
async def test_no_redirect_leads_to_keys_of_another_origin() -> None:
    forger = Issuer()
    forger.works = True
    async with serving(Starlette(routes=[Route("/keys", forger.keys)])) as elsewhere:

        async def moved(_: Request) -> Response:
            return RedirectResponse(f"{elsewhere}/keys", 302)

        async with serving(Starlette(routes=[Route("/keys", moved)])) as base:
            verify = JwtVerifier(issuer="i", audience="hub", keys=f"{base}/keys")
            assert await verify(forger.signed("one")) is None
    assert forger.asked == 0


@pytest.mark.requirement("SEC-2")
async def test_while_strangers_wait_for_a_key_callers_with_a_known_one_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.access.jwt.KNOWN_SECONDS", 0.0)
    monkeypatch.setattr("holdfast.access.jwt.FETCH_SECONDS", 60.0)
    issuer, asked, answer = Issuer(), anyio.Event(), anyio.Event()
    issuer.works = True

    async def keys(request: Request) -> Response:
        if issuer.asked:
            asked.set()
            await answer.wait()
        return await issuer.keys(request)

    async def stranger(verify: Verify, token: str) -> None:
        assert await verify(token) is None

    async with serving(Starlette(routes=[Route("/keys", keys)])) as base:
        verify = JwtVerifier(issuer="i", audience="hub", keys=f"{base}/keys")
        assert await verify(issuer.signed("one")) == Principal(name="i#ada")
        async with anyio.create_task_group() as tasks:
            for number in range(60):
                tasks.start_soon(stranger, verify, issuer.signed(f"stranger-{number}"))
            try:
                with anyio.fail_after(10):
                    await asked.wait()
                    assert await verify(issuer.signed("one")) == Principal(name="i#ada")
            finally:
                issuer.works = False
                answer.set()


@pytest.mark.requirement("SEC-11", "HUB-13")
async def test_a_caller_with_a_known_key_does_not_wait_for_an_issuer_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.access.jwt.KNOWN_SECONDS", 0.0)
    monkeypatch.setattr("holdfast.access.jwt.KEPT_SECONDS", 0.0)
    monkeypatch.setattr("holdfast.access.jwt.FETCH_SECONDS", 60.0)
    issuer, answer = Issuer(), anyio.Event()
    issuer.works = True

    async def keys(request: Request) -> Response:
        found = await issuer.keys(request)
        if issuer.asked > 1:
            await answer.wait()
        return found

    async with serving(Starlette(routes=[Route("/keys", keys)])) as base:
        verify = JwtVerifier(issuer="i", audience="hub", keys=f"{base}/keys")
        try:
            with anyio.fail_after(10):
                for _ in range(3):
                    assert await verify(issuer.signed("one")) == Principal(name="i#ada")
            await came_true(lambda: issuer.asked == 2)
        finally:
            answer.set()
        assert await verify(issuer.signed("stranger")) is None


@pytest.mark.requirement("SEC-11")
async def test_unknown_keys_share_one_fetch_and_a_pause_follows_it() -> None:
    issuer, asked, answer = Issuer(), anyio.Event(), anyio.Event()
    issuer.works = True

    async def keys(request: Request) -> Response:
        asked.set()
        await answer.wait()
        return await issuer.keys(request)

    found: list[Principal | None] = []

    async with serving(Starlette(routes=[Route("/keys", keys)])) as base:
        verify = JwtVerifier(issuer="i", audience="hub", keys=f"{base}/keys")

        async def ask(kid: str) -> None:
            found.append(await verify(issuer.signed(kid)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "stranger")
            with anyio.fail_after(10):
                await asked.wait()
            for number in range(50):
                tasks.start_soon(ask, "one" if number == 25 else f"stranger-{number}")
            await all_blocked()
            answer.set()
        assert await verify(issuer.signed("another-stranger")) is None
    assert [one for one in found if one is not None] == [Principal(name="i#ada")]
    assert issuer.asked == 1


@pytest.mark.requirement("SEC-11")
async def test_a_token_is_valid_by_the_keys_at_hand_while_the_issuer_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.access.jwt.KNOWN_SECONDS", 0.0)
    monkeypatch.setattr("holdfast.access.jwt.KEPT_SECONDS", 0.0)
    issuer = Issuer()
    issuer.works = True
    async with serving(Starlette(routes=[Route("/keys", issuer.keys)])) as base:
        verify = JwtVerifier(issuer="i", audience="hub", keys=f"{base}/keys")
        assert await verify(issuer.signed("one")) == Principal(name="i#ada")
        issuer.works = False
        assert await verify(issuer.signed("one")) == Principal(name="i#ada")
        await came_true(lambda: issuer.asked == 2)  # an old set is asked for again
        monkeypatch.setattr("holdfast.access.jwt.STALE_SECONDS", 0.0)
        assert await verify(issuer.signed("one")) is None


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("kind", ["static", "jwt", "file"])
async def test_a_valid_credential_is_let_in_after_any_number_of_wrong_ones_from_its_address(
    kind: str, tmp_path: Path
) -> None:
    """One that this hub sees for the first time, such as a token that was renewed a moment ago."""
    issuer, now = Issuer(), time.time()
    issuer.works = True
    file = tmp_path / "tokens.json"
    digest = hashlib.sha256(b"of-the-file").hexdigest()
    replace_file(file, json.dumps({"tokens": [{"name": "ci", "sha256": digest}]}))
    stranger = jwt.encode(
        {"iss": "i", "aud": "hub", "sub": "ada", "exp": now + 600},
        ec.generate_private_key(ec.SECP256R1()),
        algorithm="ES256",
        headers={"kid": "one"},
    )
    wrong = ["guess", "y", "a.b.c", stranger, issuer.signed("unknown"), "x" * 20_000]
    async with serving(Starlette(routes=[Route("/keys", issuer.keys)])) as base:
        verify = JwtVerifier(issuer="i", audience="hub", keys=f"{base}/keys")
        policy = TokenPolicy(tokens={"ada": "secret"}, file=TokensFile(file), verify=verify)
        async with endpoint(policy, accept=True) as http:
            refused = [(await post(http, authorization=f"Bearer {wrong[n % 6]}")).status_code for n in range(FAILURES)]
            valid = {"static": "secret", "jwt": issuer.signed("one"), "file": "of-the-file"}[kind]
            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(partial(post, http, authorization=f"Bearer {wrong[number]}"))
                await all_blocked()
                assert (await post(http, authorization=f"Bearer {valid}")).status_code == 200
                tasks.cancel_scope.cancel()
    assert refused == [401] * FAILURES
    assert issuer.asked == 1


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(
    "keys", ["http://id.example/keys", "http://10.0.0.1/keys", "http://localhost.evil/keys", "http:///"]
)
async def test_keys_that_an_attacker_could_replace_are_not_fetched(keys: str) -> None:
    with pytest.raises(UsageError, match="unencrypted") as refused:
        JwtVerifier(issuer="i", audience="a", keys=keys)
    assert "https://" in refused.value.hint


@pytest.mark.requirement("SEC-2")
async def test_a_policy_that_would_accept_every_caller_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a token or a verifier"):
        TokenPolicy()
    with pytest.raises(UsageError, match="every caller"):
        TokenPolicy(tokens={"ada": ""})
    with pytest.raises(UsageError, match="cannot be read"):
        JwtVerifier(issuer="i", audience="a", keys=str(tmp_path / "none.pem"))
    (tmp_path / "wrong.pem").write_text("hello")
    with pytest.raises(UsageError, match="no public key"):
        JwtVerifier(issuer="i", audience="a", keys=str(tmp_path / "wrong.pem"))
    assert "secret" not in repr(TokenPolicy(tokens={"ada": "secret"}))


@pytest.mark.requirement("SEC-4")
async def test_a_request_that_is_too_large_or_no_json_is_refused_and_the_next_is_served() -> None:
    async with endpoint() as http:
        large = await http.post("/mcp", content=b'{"x":"' + b"a" * (17 * 1024 * 1024) + b'"}', headers=HEADERS)
        broken = await http.post("/mcp", content=b'{"jsonrpc', headers=HEADERS)
        good = await post(http)
    assert large.status_code == 413
    assert broken.status_code == 400
    assert good.status_code == 200
    said = [line.removeprefix("data: ") for line in good.text.splitlines() if line.startswith("data: {")] or [good.text]
    assert json.loads(said[-1])["id"] == 1
