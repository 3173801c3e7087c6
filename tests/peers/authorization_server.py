"""An authorization server and an MCP server that trusts it, as a process of its own, on the standard library alone.

``python -m tests.peers.authorization_server`` prints its address once it listens. How it behaves is set over HTTP
(``POST /control``), and what it saw is read there (``GET /control``): so tests talk to it as they would to any
server. Every token that it gives begins with ``PLANTED``, so that a token which turns up where it should not is found.
"""

from __future__ import annotations

import base64
import hashlib
import json
import queue
import secrets
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

__all__ = ["PLANTED"]

PLANTED = "hf-planted-"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass
class Behaviour:
    """What a test can change."""

    expires_in: int | None = 3600
    gives_refresh: bool = True
    rotates: bool = True
    omits_refresh_on_renewal: bool = False
    registers: bool = True
    takes_documents: bool = False
    methods: list[str] = field(default_factory=lambda: ["none"])
    device: bool = True
    device_pending: int = 1
    revocation: bool = True
    revokes_at: str = ""
    """Another place than the true one to give tokens back."""
    denies: bool = False
    metadata: bool = True
    resource: str = ""
    """Another resource than the true one, in the protected resource metadata."""
    issuer: str = ""
    """Another issuer than the true one, in its own metadata."""
    iss: str = ""
    """Another issuer than the true one, in its answers; ``-`` for none."""
    names_itself: bool = True
    """Whether its metadata says that its answers name it (RFC 9207)."""
    state: str = ""
    """Another state than the one that was sent."""
    redirects_to: str = ""
    """Another place than the one that was asked for, for the metadata and the tokens."""
    audience: str = ""
    """Makes access tokens that say whom they are for."""
    token_status: int = 0
    """Answers every token request with this status."""
    token_error: str = "server_error"
    """What it says with that."""
    forgets_clients: bool = False
    token_cut: bool = False
    """Hangs up on every token request before it does anything."""
    token_delay: float = 0.0
    open: bool = False
    """Whether the MCP server answers without a login."""
    mcp_status: int = 0
    accepts: str = ""
    """The one client authentication that it accepts, whatever it says; ``plain_basic`` is Basic without decoding."""
    secret: str = PLANTED + "client"
    answers: dict[str, Any] = field(default_factory=dict)
    """Fields of the tokens' answer beside, or instead of, the usual ones."""
    format: str = "json"
    """How the token endpoint answers: ``json``, ``form``, ``html`` or ``nested`` (errors inside an object)."""
    breaks_at: str = ""
    """Answers 500 at addresses that begin so."""
    names_authorization_server: bool = True
    authorization_server: str = ""
    """Another address than its own for it, in the protected resource metadata."""
    grant_types: list[str] = field(default_factory=list)
    refuses_scope_of_clients: bool = False
    refuses_numbers: bool = False
    """Registers no redirect URI with the number of an address."""
    denial: str = "access_denied"
    """What it says when it denies."""
    person: str = ""
    """Who logs in at its page, unless the browser says so (``X-Person``). The MCP server has a tool for each person."""
    needs: str = "files:read"
    """The scope that every request needs; the tool ``write`` needs ``files:write`` beside it."""


class World:
    """All that the process knows."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.address = ""
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self.behaviour = Behaviour()
        self.codes: dict[str, dict[str, str]] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self.refreshes: dict[str, dict[str, Any]] = {}
        self.used: dict[str, str] = {}
        self.devices: dict[str, dict[str, Any]] = {}
        self.clients: dict[str, dict[str, Any]] = {}
        self.forgotten: set[str] = set()
        self.log: list[dict[str, Any]] = []
        self.aside: queue.Queue[dict[str, Any]] = queue.Queue()

    def note(self, what: str, **more: Any) -> None:
        self.log.append({"what": what, **more})

    def issue(self, scope: str, client: str, resource: str, *, family: str = "", person: str = "") -> dict[str, Any]:
        """Tokens for a client that may have them."""
        how, family = self.behaviour, family or secrets.token_hex(4)
        access = PLANTED + secrets.token_hex(12)
        if how.audience:
            head, claims = (
                base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
                for part in ({"alg": "HS256"}, {"aud": how.audience})
            )
            access = f"{head}.{claims}.{PLANTED}{secrets.token_hex(8)}x"  # its signature is 28 characters of base64
        ends = time.time() + how.expires_in if how.expires_in is not None else None
        self.tokens[access] = {"scope": scope, "ends": ends, "resource": resource, "family": family, "person": person}
        given: dict[str, Any] = {"access_token": access, "token_type": "Bearer", "scope": scope}
        if how.expires_in is not None:
            given["expires_in"] = how.expires_in
        if how.gives_refresh:
            given["refresh_token"] = PLANTED + "refresh-" + secrets.token_hex(12)
            self.refreshes[given["refresh_token"]] = {
                "scope": scope,
                "client": client,
                "family": family,
                "person": person,
            }
        return given

    def revoke(self, family: str | None = None) -> None:
        """Take tokens back: all of them, or those of one login."""
        for held in (self.tokens, self.refreshes):
            for token in [token for token, one in held.items() if family in (None, one["family"])]:
                del held[token]


WORLD = World()

_DISCOVERY = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/sse":
            return self._stream()
        with WORLD.lock:
            return self._get(parts.path, dict(parse_qsl(parts.query)))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = urlsplit(self.path).path
        if path == "/token" and WORLD.behaviour.token_delay:
            WORLD.note("waits")
            time.sleep(WORLD.behaviour.token_delay)
        with WORLD.lock:
            self._post(path, body)

    def do_DELETE(self) -> None:
        self._answer(200, {})

    def log_message(self, *_: object) -> None:
        """Silence."""

    def _get(self, path: str, query: dict[str, str]) -> None:
        how, here = WORLD.behaviour, WORLD.address
        if path == "/control":
            return self._answer(200, {"log": WORLD.log, "tokens": len(WORLD.tokens)})
        if how.breaks_at and path.startswith(how.breaks_at):
            return self._answer(500, {})
        if path.startswith("/.well-known/oauth-protected-resource") and how.metadata:
            described = {"resource": how.resource or f"{here}/mcp", "scopes_supported": ["files:read"]}
            named = (
                {"authorization_servers": [how.authorization_server or here]} if how.names_authorization_server else {}
            )
            return self._answer(200, {**described, **named})
        if path.startswith(_DISCOVERY) and how.metadata:
            if how.redirects_to:
                return self._redirect(how.redirects_to)
            return self._answer(200, _metadata(how, here))
        if path == "/authorize":
            return self._authorize(how, query)
        if path == "/device/enter":
            WORLD.devices[query["code"]]["agreed"] = not how.denies
            WORLD.devices[query["code"]]["decided"] = True
            return self._answer(200, {})
        return self._answer(405 if path == "/mcp" else 404, {})

    def _authorize(self, how: Behaviour, query: dict[str, str]) -> None:
        WORLD.note("authorize", **{name: value for name, value in query.items() if name != "state"})
        iss = {} if how.iss == "-" else {"iss": how.iss or WORLD.address}
        answer = {"state": how.state or query.get("state", ""), **iss}
        if how.denies:
            return self._redirect(f"{query['redirect_uri']}?{urlencode({**answer, 'error': how.denial})}")
        code = secrets.token_hex(8)
        WORLD.codes[code] = {**query, "person": self.headers.get("x-person") or how.person}
        return self._redirect(f"{query['redirect_uri']}?{urlencode({**answer, 'code': code})}")

    def _post(self, path: str, body: bytes) -> None:
        match path:
            case "/control":
                self._control(json.loads(body))
            case "/register" if WORLD.behaviour.registers:
                self._register(json.loads(body))
            case "/token":
                self._token(dict(parse_qsl(body.decode())))
            case "/device" if WORLD.behaviour.device:
                self._device(dict(parse_qsl(body.decode())))
            case "/revoke":
                WORLD.note("revoke")
                WORLD.refreshes.pop(dict(parse_qsl(body.decode())).get("token", ""), None)
                self._answer(200, {})
            case "/mcp" | "/messages":
                self._mcp(json.loads(body), aside=path == "/messages")
            case _:
                self._answer(404, {})

    def _control(self, change: dict[str, Any]) -> None:
        if change.pop("reset", False):
            WORLD.begin()
        if change.pop("revoke", False):
            WORLD.revoke()
        if change.pop("restart", False):
            WORLD.forgotten |= {*WORLD.clients}
        if change.pop("end_tokens", False):
            WORLD.tokens.clear()
        if change.pop("forget", False):
            WORLD.log.clear()
        WORLD.behaviour = Behaviour(**{**asdict(WORLD.behaviour), **change})
        self._answer(200, {})

    def _register(self, wanted: dict[str, Any]) -> None:
        client, method = f"client-{secrets.token_hex(3)}", wanted.get("token_endpoint_auth_method", "none")
        WORLD.note("register", **wanted)
        if WORLD.behaviour.refuses_scope_of_clients and "scope" in wanted:
            return self._answer(400, {"error": "invalid_client_metadata"})
        if WORLD.behaviour.refuses_numbers and "127.0.0.1" in wanted["redirect_uris"][0]:
            return self._answer(400, {"error": "invalid_redirect_uri"})
        secret = {} if method in ("none", "private_key_jwt") else {"client_secret": WORLD.behaviour.secret}
        WORLD.clients[client] = wanted
        return self._answer(201, {**wanted, "client_id": client, **secret})

    def _token(self, form: dict[str, str]) -> None:
        how = WORLD.behaviour
        basic = base64.b64decode(self.headers.get("authorization", "")[6:]).decode()
        client = unquote(basic.partition(":")[0]) if basic else form.get("client_id", "")
        seen = {name: form.get(name) for name in ("grant_type", "client_id", "resource")}
        WORLD.note("token", client=client, basic=bool(basic), **seen)
        if how.token_cut:
            self.close_connection = True
            return None
        if how.token_status:
            return self._reply(how.token_status, {"error": how.token_error})
        if how.accepts and _proof(form, basic) != (how.accepts, how.secret):
            return self._reply(401, {"error": "invalid_client"})
        if how.redirects_to:
            return self._redirect(how.redirects_to, status=307)
        if client in WORLD.forgotten:
            return self._answer(401, {"error": "invalid_client"})
        if how.forgets_clients and client in WORLD.clients:
            del WORLD.clients[client]
            return self._answer(401, {"error": "invalid_client"})
        match form["grant_type"]:
            case "authorization_code":
                return self._by_code(form, client)
            case "refresh_token":
                return self._by_refresh(form, client)
            case _:
                return self._by_device(form, client)

    def _by_code(self, form: dict[str, str], client: str) -> None:
        asked = WORLD.codes.pop(form["code"], None)
        digest = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest()).decode()
        if asked is None or asked["code_challenge"] != digest.rstrip("=") or asked["client_id"] != client:
            return self._answer(400, {"error": "invalid_grant"})
        given = WORLD.issue(asked.get("scope", ""), client, asked.get("resource", ""), person=asked["person"])
        return self._reply(200, {**given, **WORLD.behaviour.answers})

    def _by_refresh(self, form: dict[str, str], client: str) -> None:
        token, how = form["refresh_token"], WORLD.behaviour
        held = WORLD.refreshes.get(token)
        if held is None:
            if token in WORLD.used:  # a stolen one, for all that we know: the whole login ends
                WORLD.note("reuse")
                WORLD.revoke(WORLD.used[token])
            return self._answer(400, {"error": "invalid_grant", "error_description": f"{token} is not known"})
        given = WORLD.issue(
            held["scope"], client, form.get("resource", ""), family=held["family"], person=held["person"]
        )
        if how.rotates and not how.omits_refresh_on_renewal:
            WORLD.used[token] = held["family"]
            del WORLD.refreshes[token]
        elif "refresh_token" in given:
            del WORLD.refreshes[given.pop("refresh_token")]
        return self._answer(200, given)

    def _device(self, form: dict[str, str]) -> None:
        code = secrets.token_hex(4)
        pending = WORLD.behaviour.device_pending
        WORLD.devices[code] = {"scope": form.get("scope", ""), "pending": pending, "agreed": False, "decided": False}
        entered = f"{WORLD.address}/device/enter"
        given = {"device_code": code, "user_code": code.upper(), "verification_uri": entered, "interval": 1}
        self._answer(200, {**given, "expires_in": 600, "verification_uri_complete": f"{entered}?code={code}"})

    def _by_device(self, form: dict[str, str], client: str) -> None:
        asked = WORLD.devices[form["device_code"]]
        if asked["pending"] > 0 or not asked["decided"]:
            asked["pending"] -= 1
            return self._answer(400, {"error": "authorization_pending"})
        if not asked["agreed"]:
            return self._answer(400, {"error": "access_denied"})
        return self._answer(200, WORLD.issue(asked["scope"], client, form.get("resource", "")))

    # The MCP server

    def _stream(self) -> None:
        """The older transport: every answer comes on one stream."""
        with WORLD.lock:
            held = self._held("GET")
            if held is None:
                return self._refuse(401, "invalid_token", WORLD.behaviour.needs)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"event: endpoint\ndata: /messages\n\n")
        with suppress(OSError):
            while True:
                self.wfile.write(f"event: message\ndata: {json.dumps(WORLD.aside.get())}\n\n".encode())

    def _held(self, method: str, who: str = "") -> dict[str, Any] | None:
        """What is known of the token that a request carries; None if it is not good. ``who`` a call says it is for."""
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        held = WORLD.tokens.get(bearer)
        good = held is not None and (held["ends"] is None or time.time() < held["ends"])
        person = held["person"] if held is not None else ""
        WORLD.note("mcp", method=method, token=bool(bearer), good=good, person=person, who=who)
        return held if good else None

    def _mcp(self, message: dict[str, Any], *, aside: bool = False) -> None:
        how, method = WORLD.behaviour, message.get("method", "")
        held = self._held(method, _given(message).get("who", "")) if not how.open else {"scope": how.needs}
        if how.mcp_status:
            return self._answer(how.mcp_status, {})
        if held is None:
            return self._refuse(401, "invalid_token" if "authorization" in self.headers else "", how.needs)
        needed = {*how.needs.split(), *(["files:write"] if _tool(message) == "write" else [])}
        if missing := needed - {*held["scope"].split()}:
            return self._refuse(403, "insufficient_scope", " ".join(sorted(missing)))
        if "id" not in message:
            return self._answer(202, None)
        answer = {"jsonrpc": "2.0", "id": message["id"], **_result(method, message, held.get("person", ""))}
        if aside:
            WORLD.aside.put(answer)
            return self._answer(202, None)
        return self._answer(200, answer)

    def _refuse(self, status: int, error: str, scope: str) -> None:
        metadata = f'resource_metadata="{WORLD.address}/.well-known/oauth-protected-resource/mcp"'
        errors = f'error="{error}", ' if error else ""
        metadata = f", {metadata}" if WORLD.behaviour.metadata else ""
        self._answer(status, {}, {"WWW-Authenticate": f'Bearer {errors}scope="{scope}"{metadata}'})

    def _reply(self, status: int, fields: dict[str, Any]) -> None:
        """The token endpoint's answer, in the format of its behaviour."""
        match WORLD.behaviour.format:
            case "form":
                text = {name: value for name, value in fields.items() if value is not None}
                return self._answer(status, urlencode(text), {"Content-Type": "application/x-www-form-urlencoded"})
            case "html":
                return self._answer(status, "<html><h1>Error</h1></html>", {"Content-Type": "text/html"})
            case "nested" if "error" in fields:
                fields = {"error": {"code": fields["error"], "message": "refused"}}
        return self._answer(status, fields)

    def _redirect(self, where: str, *, status: int = 302) -> None:
        self._answer(status, {}, {"Location": where})

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        text = content if isinstance(content, str) else json.dumps(content) if content is not None else ""
        data = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _metadata(how: Behaviour, here: str) -> dict[str, Any]:
    described = {
        "issuer": how.issuer or here,
        "authorization_endpoint": f"{here}/authorize",
        "token_endpoint": f"{here}/token",
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": how.methods,
        "scopes_supported": ["files:read", "files:write"],
        "client_id_metadata_document_supported": how.takes_documents,
        "authorization_response_iss_parameter_supported": how.names_itself,
    }
    if how.grant_types:
        described["grant_types_supported"] = how.grant_types
    if how.registers:
        described["registration_endpoint"] = f"{here}/register"
    if how.device:
        described["device_authorization_endpoint"] = f"{here}/device"
    if how.revocation:
        described["revocation_endpoint"] = how.revokes_at or f"{here}/revoke"
    return described


def _proof(form: dict[str, str], basic: str) -> tuple[str, str]:
    """How a client authenticates, and its secret."""
    if basic:
        _, _, secret = basic.partition(":")
        encoded = WORLD.behaviour.accepts == "client_secret_basic"
        return (WORLD.behaviour.accepts if "basic" in WORLD.behaviour.accepts else "basic"), (
            unquote(secret) if encoded else secret
        )
    return "client_secret_post", form.get("client_secret", "")


def _tool(message: dict[str, Any]) -> str:
    return str((message.get("params") or {}).get("name", "")) if message.get("method") == "tools/call" else ""


def _given(message: dict[str, Any]) -> dict[str, Any]:
    return (message.get("params") or {}).get("arguments") or {}


def _result(method: str, message: dict[str, Any], person: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {}}
    match method:
        case "initialize":
            about = {"name": "guarded", "version": "1"}
            return {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}}
        case "tools/list":
            names = ("read", "write", *([f"of_{person}"] if person else []))
            return {"result": {"tools": [{"name": name, "inputSchema": schema} for name in names]}}
        case "tools/call":
            done = f"{_tool(message)} done{f' for {person}' if person else ''}"
            times = _given(message).get("times", 1)
            return {"result": {"content": [{"type": "text", "text": done if times == 1 else f"{done}\n" * times}]}}
        case "ping":
            return {"result": {}}
        case _:
            return {"error": {"code": -32601, "message": "no such method"}}


class Server(ThreadingHTTPServer):
    """Takes many at once, and waits for none at the end."""

    request_queue_size = 128
    daemon_threads = True


def main() -> None:
    """Serve until killed."""
    server = Server(("127.0.0.1", 0), Handler)
    WORLD.address = f"http://127.0.0.1:{server.server_port}"
    sys.stdout.write(WORLD.address + "\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
