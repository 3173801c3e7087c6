"""No answer of an authorization server, and no published key set, holds up the event loop (SEC-7)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.access.jwt import JwtVerifier
from holdfast.auth.flows import DeviceCode
from holdfast.auth.person_login import log_in
from holdfast.auth.token_endpoint import NoTokenAnswer, OAuthClient, TokenRefused, issued, post_form
from holdfast.auth.token_store import TokenStore
from holdfast.config.spec import ServerSpec
from holdfast.errors import LoginFailed
from tests.front.heavy_inputs import SHAPES
from tests.front.loop_steps import LONGEST_STEP, TRIES, LoopSteps, measured_loop
from tests.peers.heavy_http import in_a_thread

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-7")]

SIZES = (120 << 10, 1 << 20, 6 << 20)
"""Below every bound of such an answer, and above it."""


class _Issuer(ThreadingHTTPServer):
    """An authorization server whose answers are stored, by the end of their path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stored: dict[str, tuple[int, bytes]] = {}

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def document(self, path: str) -> tuple[int, bytes]:
        if path.endswith("/mcp") and "well-known" not in path:
            return 401, b""
        if "oauth-protected-resource" in path:
            fields: dict[str, Any] = {"resource": f"{self.origin}/mcp", "authorization_servers": [self.origin]}
        elif "authorization-server" in path:
            ends = {
                "authorization_endpoint": "authorize",
                "token_endpoint": "token",
                "registration_endpoint": "register",
            }
            fields = {"issuer": self.origin, "code_challenge_methods_supported": ["S256"]}
            fields |= {name: f"{self.origin}/{end}" for name, end in ends.items()}
        else:
            return 404, b"{}"
        return 200, json.dumps(fields).encode()

    def answer(self, path: str) -> tuple[int, bytes]:
        stored = next((one for end, one in self.stored.items() if end in path), None)
        return stored or self.document(path)


class _Handler(BaseHTTPRequestHandler):
    server: _Issuer

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", "0")))
        status, body = self.server.answer(self.path)
        self.send_response(status)
        if status == 401:
            self.send_header("www-authenticate", "Bearer")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *args: Any) -> None:
        """Nothing is printed."""


@contextmanager
def _issuer() -> Iterator[_Issuer]:
    with _Issuer() as server, in_a_thread(server):
        yield server


def _member(name: bytes, shape: str) -> Callable[[bytes, int], bytes]:
    """A document of the usual members, and one of foreign size."""
    return lambda usual, size: usual[:-1] + b',"' + name + b'":' + SHAPES[shape](size) + b"}"


DOCUMENTS: dict[str, Callable[[bytes, int], bytes]] = {
    "small objects": _member(b"x", "small objects"),
    "members": lambda usual, size: usual[:-1] + b"," + SHAPES["members"](size)[1:],
    "depth": _member(b"x", "depth"),
    "digits": lambda usual, size: usual[:-1] + b',"x":' + b"1" * size + b"}",
    "scopes": lambda usual, size: usual[:-1] + b',"scopes_supported":["' + b"a " * (size // 2) + b'"]}',
    "scopes one by one": lambda usual, size: usual[:-1] + b',"scopes_supported":[' + b'"a",' * (size // 4) + b'"b"]}',
    "other letters in an error": lambda usual, size: (
        b'{"error":"invalid_request","error_description":' + SHAPES["other letters"](size) + b"}"
    ),
    "a long error": lambda usual, size: b'{"error":' + SHAPES["words like secrets"](size) + b"}",
    "escapes in an issuer": lambda usual, size: (
        b'{"issuer":' + SHAPES["surrogates"](size) + b',"resource":"' + b"/../" * (size // 4) + b'"}'
    ),
}


class _Person:
    """A person who never comes back from the page."""

    def asked_for(self, scope: tuple[str, ...], issuer: str) -> None:
        """They see it."""

    def visit(self, address: str) -> None:
        raise LoginFailed("far enough")

    def enter(self, code: DeviceCode) -> None:
        raise LoginFailed("far enough")

    async def paste(self) -> str:
        await anyio.sleep_forever()
        raise AssertionError


async def _worst(steps: LoopSteps, act: Callable[[], Any], took: dict[str, float], what: str) -> None:
    took[what] = await steps.longest_in(act, TRIES)


async def test_no_metadata_and_no_registration_holds_up_the_event_loop(tmp_path: Path) -> None:
    took: dict[str, float] = {}
    store = TokenStore(tmp_path)
    with _issuer() as issuer, measured_loop() as steps:
        spec = ServerSpec(id="guarded", transport="http", url=f"{issuer.origin}/mcp")

        async def act() -> None:
            with suppress(LoginFailed):
                await log_in(spec, store=store, person=_Person())

        for path in ("oauth-protected-resource", "authorization-server", "/register"):
            usual = issuer.document(path)[1]
            usual = usual if path != "/register" else b'{"client_id":"a"}'
            for number, (shape, make) in enumerate(DOCUMENTS.items()):
                size = SIZES[number % len(SIZES)]
                body = await anyio.to_thread.run_sync(make, usual, size)
                issuer.stored = {path: (200 if "error" not in shape else 400, body)}
                await _worst(steps, act, took, f"{size >> 10} KiB of {shape} at {path}")
    assert {what: seconds for what, seconds in took.items() if seconds > LONGEST_STEP} == {}


TOKENS: dict[str, Callable[[bytes, int], bytes]] = {
    **DOCUMENTS,
    "a long token": lambda usual, size: b'{"access_token":"' + b"a" * size + b'"}',
    "a token of dots": lambda usual, size: b'{"access_token":"' + b"." * size + b'"}',
    "a scope": lambda usual, size: usual[:-1] + b',"scope":"' + b"a " * (size // 2) + b'"}',
    "a long time": lambda usual, size: usual[:-1] + b',"expires_in":"' + b"9" * size + b'"}',
}


async def test_no_answer_of_a_token_endpoint_holds_up_the_event_loop() -> None:
    took: dict[str, float] = {}
    client = OAuthClient(id="a")
    usual = b'{"access_token":"a","token_type":"Bearer"}'
    with _issuer() as issuer, measured_loop() as steps:

        async def act() -> None:
            with suppress(TokenRefused, NoTokenAnswer):
                issued(await post_form(f"{issuer.origin}/token", {"grant_type": "refresh_token"}, client=client))

        for number, (shape, make) in enumerate(TOKENS.items()):
            size = SIZES[number % len(SIZES)]
            body = await anyio.to_thread.run_sync(make, usual, size)
            issuer.stored = {"/token": (200 if "error" not in shape else 400, body)}
            await _worst(steps, act, took, f"{size >> 10} KiB of {shape}")
    assert {what: seconds for what, seconds in took.items() if seconds > LONGEST_STEP} == {}


KEYS: dict[str, Callable[[int], bytes]] = {
    "small objects": lambda size: b'{"keys":' + SHAPES["small objects"](size) + b"}",
    "members": SHAPES["members"],
    "depth": SHAPES["depth"],
    "keys": lambda size: (
        b'{"keys":['
        + b",".join(
            b'{"kty":"OKP","crv":"Ed25519","kid":"k%d","x":"GL9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE"}' % number
            for number in range(size // 90)
        )
        + b"]}"
    ),
}


async def test_no_published_key_set_holds_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read in a thread: a parser that holds the interpreter shows as a step that waits, so the bytes are few."""
    took: dict[str, float] = {}
    read: list[int] = []
    token = jwt.encode({"sub": "a"}, Ed25519PrivateKey.generate(), algorithm="EdDSA", headers={"kid": "unknown"})
    original = json.loads

    def loads(text: Any, **more: Any) -> Any:
        read.append(len(text))
        return original(text, **more)

    monkeypatch.setattr(json, "loads", loads)
    with _issuer() as issuer, measured_loop() as steps:
        for number, (shape, make) in enumerate(KEYS.items()):
            size = SIZES[number % len(SIZES)]
            issuer.stored = {"/keys": (200, await anyio.to_thread.run_sync(make, size))}
            verify = JwtVerifier(issuer="https://issuer.example", audience="hub", keys=f"{issuer.origin}/keys")

            async def act(verify: Any = verify) -> None:
                assert await verify(token) is None

            await _worst(steps, act, took, f"{size >> 10} KiB of {shape}")
    assert {what: seconds for what, seconds in took.items() if seconds > LONGEST_STEP} == {}
    assert max(read) <= 256 << 10
