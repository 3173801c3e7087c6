"""Canaries: a secret in every place that holds one, and a search of every output for each, plain and encoded.

The servers behind the hub are hostile: they repeat every secret that they were given, plain and in base64, in their
errors and on stderr. One output may hold an address as it is: what the gateway is given (``gateway render`` and
``/api/targets``), because it must reach the server.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
import pytest

from holdfast.access import TokenPolicy
from holdfast.config import load_config
from holdfast.errors import HoldfastError
from holdfast.files import replace_file
from holdfast.hub import Hub
from tests.cli.serve_process import Served, run, served
from tests.harness import waiting

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

log = logging.getLogger("tests.canaries")

CANARIES = {
    "header": "Kq7vT2mX9pLw4Rz8Nc5Yb1Hd",
    "path": "pZ3xQ8wE5rT1yU7iO4aS9dFg",
    "query": "mB6nV2cX8zL4kJ1hG9fD5sAq",
    "named query": "named-query-secret",
    "password": "pass-word-of-the-url",
    "variable": "value-of-a-variable",
    "positional": "tY7uI3oP9aS5dF1gH8jK4lZx",
    "short option": "9f8e7d6c5b4a39281706f5e4d3c2b1a0",
    "named option": "option-value-secret",
    "reference": "from-the-environment",
    "client secret": "oauth-client-secret-1",
    "caller token": "caller-token-canary-000001",
    "control token": "control-token-canary-00001",
    "gateway secret": "gateway-secret-canary-0001",
    "session key": "session-key-canary-0123456789-abcdefghijkl",
    "upstream session": "3b1f0c9e-7d5a-4826-b0e1-d2c3f4a59687",
}
IN_ADDRESS = {"path", "query", "named query"}


def forms(secret: str) -> set[str]:
    """How a secret could be written, without the ends that depend on its neighbours."""
    data = secret.encode()
    encoded = {data.hex(), data.hex().upper(), quote(secret, safe=""), "".join(f"%{byte:02X}" for byte in data)}
    for before in range(3):
        whole = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        encoded |= {whole[4:-2], whole[4:-2].replace("+", "-").replace("/", "_")}
    return {secret, *encoded}


FORMS = {name: forms(secret) for name, secret in CANARIES.items()}


def found_in(text: str, *, allowed: frozenset[str] = frozenset()) -> list[str]:
    return [name for name, spelled in FORMS.items() if name not in allowed and any(form in text for form in spelled)]


class Echo(BaseHTTPRequestHandler):
    """Fails, and repeats what it was sent: plain, and in base64."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        sent = f"{self.path} {dict(self.headers)}"
        body = f"cannot serve {sent} {base64.b64encode(sent.encode()).decode()}".encode()
        self.send_response(500)
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", str(len(body)))
        self.send_header("mcp-session-id", CANARIES["upstream session"])
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_DELETE = do_POST  # noqa: N815 - the names that the library calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the library has it
        """Say nothing."""


class SessionEcho(Echo):
    """Opens a session, then fails with its id in the text."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        if asked.get("method") == "initialize":
            result = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "s", "version": "1"},
            }
            self._answer(200, json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode())
        elif "id" not in asked:
            self._answer(202, b"")
        elif asked.get("method") == "tools/list":
            tools = [{"name": "t", "inputSchema": {"type": "object"}}]
            self._answer(200, json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"tools": tools}}).encode())
        else:
            text = f"the session {CANARIES['upstream session']} is broken"
            error = {"code": -32000, "message": text}
            self._answer(200, json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "error": error}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("mcp-session-id", CANARIES["upstream session"])
        self.end_headers()
        self.wfile.write(body)

    do_GET = Echo.do_GET  # noqa: N815 - as above


class Sink(BaseHTTPRequestHandler):
    """Takes traces."""

    taken = b""

    def do_POST(self) -> None:
        Sink.taken += self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the library has it
        """Say nothing."""


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_TELLTALE = """
import base64, os, sys
said = " ".join([*sys.argv[1:], *os.environ.values()])
print("cannot start:", said, file=sys.stderr)
print("encoded:", base64.b64encode(said.encode()).decode(), said.encode().hex(), file=sys.stderr)
sys.exit(3)
"""


def canary_config(folder: Path, echo: int, session: int) -> Path:
    c = CANARIES
    address = f"127.0.0.1:{echo}/mcp/{c['path']}?k={c['query']}&api_key={c['named query']}"
    servers: dict[str, Any] = {
        "web": {
            "type": "http",
            "url": f"http://{address}",
            "headers": {"X-Key": c["header"], "X-Other": "Bearer ${env:CANARY_REFERENCE}"},
        },
        "named": {"type": "http", "url": f"http://user:{c['password']}@127.0.0.1:{echo}/mcp"},
        "login": {
            "type": "http",
            "url": f"http://127.0.0.1:{echo}/",
            "oauth": {"clientId": "me", "clientSecret": c["client secret"]},
        },
        "session": {"type": "http", "url": f"http://127.0.0.1:{session}/mcp", "era": "legacy"},
        "program": {
            "command": sys.executable,
            "args": ["-c", _TELLTALE, c["positional"], "-k", c["short option"], "--token", c["named option"]],
            "env": {"SOME_VARIABLE": c["variable"]},
        },
    }
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers, "holdfast": {"load": {"attempts": 1, "attemptTimeout": "5s"}}}))
    return file


COMMANDS = [
    ["list"],
    ["list", "--json"],
    ["tools"],
    ["tools", "--json"],
    ["find", "a tool"],
    ["find", "a tool", "--json"],
    ["call", "session", "t"],
    ["call", "web", "t"],
    ["call", "program", "t", "--json"],
    ["doctor", "--timeout", "5"],
    ["doctor", "--timeout", "5", "--json"],
    ["auth", "status"],
    ["auth", "status", "--json"],
]
ABOUT_THE_HUB = [
    ["status", "--all"],
    ["status", "--json"],
    ["logs", "program"],
    ["logs", "program", "--json"],
    ["logs", "web"],
    ["logs", "session"],
    ["approve"],
    ["reconnect", "program"],
    ["reconnect", "web", "--json"],
]
LOGS = [f"servers/{name}/logs" for name in ("web", "program", "session")]
SERVERS = [f"servers/{name}" for name in ("web", "program", "session")]
API = ["hub", "servers", *SERVERS, "catalog", "approvals", *LOGS, "openapi.json", "nowhere"]


def ask(
    port: int, method: str, path: str, token: str, body: Any = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    made = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        common = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
        common |= {"content-type": "application/json", **headers}
        made.request(method, path, json.dumps(body) if body is not None else None, common)
        answer = made.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        made.close()


async def asked(
    hub: Served, path: str, token: str, body: Any = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    port = int(hub.url.rpartition(":")[2].partition("/")[0])
    method = "POST" if body is not None else "GET"
    return await anyio.to_thread.run_sync(lambda: ask(port, method, path, token, body, **headers))


async def in_thread(*command: str, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command; the servers of this process go on meanwhile. One that was not understood has told nothing."""
    ran = await anyio.to_thread.run_sync(lambda: run(*command, home=home, **environ))
    assert ran.returncode != 2, ran.stderr
    return ran


async def as_a_client(hub: Served, outputs: dict[str, str]) -> None:
    """What a model and its client are told."""
    token = CANARIES["caller token"]
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    _, outputs["mcp initialize"], headers = await asked(hub, "/mcp", token, hello)
    session = {"mcp-session-id": {name.lower(): value for name, value in headers.items()}["mcp-session-id"]}
    for number, (method, params) in enumerate(
        [
            ("tools/list", {}),
            ("tools/call", {"name": "session__t", "arguments": {}}),
            ("tools/call", {"name": "web__t", "arguments": {}}),
            ("tools/call", {"name": "holdfast_status", "arguments": {}}),
            ("resources/list", {}),
        ]
    ):
        message = {"jsonrpc": "2.0", "id": number + 2, "method": method, "params": params}
        status, outputs[f"mcp {number} {method}"], _ = await asked(hub, "/mcp", token, message, **session)
        assert status == 200
    outputs["refused"] = (await asked(hub, "/mcp", "wrong", hello))[1]
    assert session["mcp-session-id"] not in hub.out + hub.err


@pytest.mark.requirement("SEC-12", "MSG-6")
@pytest.mark.parametrize("log_format", ["json", "console"])
async def test_no_output_holds_a_secret_in_any_form(tmp_path: Path, log_format: str) -> None:
    outputs: dict[str, str] = {}
    home = tmp_path / "home"
    home.mkdir()
    files = {name: tmp_path / name.replace(" ", "-") for name in CANARIES}
    for name in ("caller token", "control token", "gateway secret", "session key"):
        replace_file(files[name], CANARIES[name])
    with listening(Echo) as echo, listening(SessionEcho) as session, listening(Sink) as sink:
        file = canary_config(tmp_path, echo, session)
        environ = {"CANARY_REFERENCE": CANARIES["reference"], "HOLDFAST_TOKEN_STORE": "file"}
        if log_format == "json":
            for command in COMMANDS:
                ran = await in_thread(*command, "--config", str(file), home=home, **environ)
                outputs[" ".join(command)] = ran.stdout + ran.stderr
            debug = {"HOLDFAST_DEBUG": "1", **environ}
            ran = await in_thread("call", "web", "t", "--config", str(file), home=home, **debug)
            outputs["traceback"] = ran.stdout + ran.stderr
        traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{sink}", "OTEL_BSP_SCHEDULE_DELAY": "100"}
        arguments = (
            *("--config", str(file), "--log-format", log_format, "--log-level", "debug"),
            *("--token-file", str(files["caller token"]), "--control-token-file", str(files["control token"])),
            *("--gateway-secret-file", str(files["gateway secret"]), "--session-key-file", str(files["session key"])),
        )
        async with served(home, *arguments, **environ, **traced) as hub:
            control = CANARIES["control token"]
            await waiting.ready(hub.url.replace("/mcp", "/readyz"))
            await as_a_client(hub, outputs)
            statuses: dict[str, int] = {}
            for path in (*(f"/api/{one}" for one in API), "/", "/metrics", "/healthz", "/readyz", "/static/app.js"):
                statuses[path], outputs[path], _ = await asked(hub, path, control)
            refused = [path for path, status in statuses.items() if status != 200]
            assert refused == ["/api/nowhere"], "what is refused tells nothing"
            targets = (await asked(hub, "/api/targets", control))[1]
            for command in ABOUT_THE_HUB:
                ran = await in_thread(*command, home=home)
                outputs[" ".join(command)] = ran.stdout + ran.stderr
            hub.process.terminate()
            await hub.ended()
        outputs["log"] = hub.out + hub.err
        outputs["traces"] = Sink.taken.decode("latin-1")
        render = ("gateway", "render", "--gateway-version", "1.4.1", "--config", str(file))
        rendered = await in_thread(*render, home=home, **environ)
    known = load_config(file, environ=environ)
    outputs["reprs"] = repr(
        [known, *known.servers.values(), Hub(known), TokenPolicy(tokens={"caller": CANARIES["caller token"]})]
    )
    assert outputs["traces"]
    assert "program" in outputs["log"]
    leaks = {name: leaked for name, text in outputs.items() if (leaked := found_in(text))}
    assert leaks == {}
    for text in (targets, rendered.stdout + rendered.stderr):
        assert CANARIES["path"] in text
        assert found_in(text, allowed=frozenset(IN_ADDRESS)) == []
    log.info("outputs searched: %d; forms: %d", len(outputs) + 2, sum(map(len, FORMS.values())))


@pytest.mark.requirement("SEC-12", "MSG-6")
async def test_the_id_of_a_session_at_a_server_is_in_no_error_and_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with listening(SessionEcho) as port:
        definition = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp", "era": "legacy"}
        async with Hub.from_config({"mcpServers": {"session": definition}}) as hub:
            assert await hub.ready(20)
            with pytest.raises(HoldfastError) as refused:
                await hub.call_tool("session__t")
    assert "is broken" in refused.value.message
    assert found_in(refused.value.message + repr(refused.value) + caplog.text) == []


def test_a_canary_is_found_in_each_of_its_forms() -> None:
    for name, secret in CANARIES.items():
        whole = base64.b64encode(f"user:{secret}:tail".encode()).decode()
        for text in (secret, whole, secret.encode().hex(), quote(secret, safe="")):
            assert name in found_in(f"x {text} y")
