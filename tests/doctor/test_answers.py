"""A server that answers, and not as it should: paths, transports, redirects, what is no MCP, and its tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import stdio
from tests.doctor.examination import Examination
from tests.peers.http_fault import FaultServer, never_answer, redirect, reset_before_answer, respond
from tests.peers.mcp_http import HTML_PAGE, McpPeer
from tests.peers.mcp_sse import SsePeer
from tests.peers.peer_server import Era
from tests.peers.stdio import StdioPeer
from tests.peers.tls import Certificates

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DOC-2", "DOC-4", "DOC-8")]

Make = Callable[..., StdioPeer]


# Where it is


@pytest.mark.parametrize(
    ("is_at", "says", "name"),
    [("/mcp", "", "root"), ("/mcp/", "/mcp", "slash"), ("/api/mcp", "/api", "below"), ("/mcp", "/sse/v1", "other")],
)
async def test_a_404_is_told_with_the_path_that_works(clinic: Examination, is_at: str, says: str, name: str) -> None:
    async with McpPeer(path=is_at) as peer:
        found = await clinic.found({"url": peer.origin + says, "type": "http"})
        assert found.code == "HF-PATH"
        clinic.matches(f"path_{name}", found)
        clinic.carry_out(found)
        assert (await clinic.one()).health == "healthy"


async def test_a_path_that_works_nowhere_says_where_was_looked(clinic: Examination) -> None:
    async with FaultServer(respond(404, "not found")) as server:
        found = await clinic.found({"url": f"{server.origin}/v1"})
        assert {request.path for request in server.requests} == {
            "/v1",
            "/v1/",
            "/v1/mcp",
            "/mcp",
            "/mcp/",
            "/v1/sse",
            "/sse",
        }
    clinic.matches("path_nowhere", found)


async def test_the_search_for_a_path_finds_one_that_asks_for_credentials(clinic: Examination) -> None:
    async with McpPeer(auth="Bearer x") as peer:
        peer.script = lambda request: peer.healthy if request.path == "/mcp" else respond(404, "no")
        found = await clinic.found({"url": peer.origin})
    assert "it asks for credentials there" in found.words


@pytest.mark.parametrize("path", ["/sse", ""])
async def test_an_sse_server_that_is_configured_as_http(clinic: Examination, path: str) -> None:
    async with SsePeer() as peer:
        found = await clinic.found({"url": peer.origin + path, "type": "http"})
        assert found.code == "HF-TYPE-SSE"
        clinic.matches("type_sse" + ("" if path else "_root"), found)
        clinic.carry_out(found)
        assert (await clinic.one()).health == "healthy"


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
async def test_an_http_server_that_is_configured_as_sse(clinic: Examination, path: str) -> None:
    async with McpPeer() as peer:
        found = await clinic.found({"url": peer.origin + path, "type": "sse"})
        assert found.code == "HF-TYPE-HTTP"
        clinic.matches("type_http" + ("" if path == "/mcp" else "_sse"), found)
        clinic.carry_out(found)
        assert (await clinic.one()).health == "healthy"


async def test_a_redirect_to_another_origin_is_told_with_its_address(clinic: Examination) -> None:
    async with McpPeer() as there, FaultServer(redirect(there.url, 301)) as here:
        found = await clinic.found({"url": f"{here.origin}/mcp"})
        assert found.code == "HF-REDIRECT"
        clinic.matches("redirect", found)
        clinic.carry_out(found)
        assert (await clinic.one()).health == "healthy"


async def test_a_redirect_to_https_means_https(clinic: Examination) -> None:
    async with FaultServer(lambda request: redirect("https://127.0.0.1:1/mcp", 301)) as here:
        found = await clinic.found({"url": f"{here.origin}/mcp"})
    clinic.matches("redirect_https", found)


@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize("path", ["/mcp/", "/mcp"])
async def test_a_redirect_to_plain_http_is_no_reason_to_give_up_tls(
    clinic: Examination, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A server behind a proxy that ends TLS writes its redirects so: those that add a slash are the most common."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.write_ca(tmp_path)))
    moved = redirect(f"http://127.0.0.1{path}", 307)
    async with FaultServer(moved, ssl=certificates.server_context()) as here:
        url = f"https://127.0.0.1:{here.port}"
        found = await clinic.found({"url": f"{url}/mcp"})
    assert found.code == "HF-REDIRECT"
    assert [edit.value for edit in found.remedy.edits] == ([f'"{url}/mcp/"'] if path == "/mcp/" else []), found.remedy


async def test_credentials_that_would_travel_unencrypted_are_not_sent(clinic: Examination) -> None:
    async def here(host: str, port: int) -> tuple[str, ...]:
        return ("127.0.0.1",)

    async with McpPeer() as peer:
        definition = {"url": f"http://clinic.example:{peer.port}/mcp", "headers": {"X-Key": "hush-hush"}}
        found = await clinic.found(definition, resolve=here)
        assert peer.requests == []
    clinic.matches("plain_credentials", found)


# What it answers


@pytest.mark.parametrize(
    ("status", "headers", "code"),
    [
        (429, {"retry-after": "7"}, "HF-RATE"),
        (503, {}, "HF-NOT-READY"),
        (400, {}, "HF-STATUS"),
    ],
)
async def test_each_refusal_by_status_is_told_apart(
    clinic: Examination, status: int, headers: dict[str, str], code: str
) -> None:
    async with FaultServer(respond(status, "some words", headers)) as server:
        found = await clinic.found({"url": f"{server.origin}/mcp"})
    assert found.code == code
    clinic.matches(f"status_{status}", found)


async def test_a_request_that_reached_a_tls_port_in_plain_text_means_https(clinic: Examination) -> None:
    said = "<html>The plain HTTP request was sent to HTTPS port</html>"
    async with FaultServer(respond(400, said)) as server:
        assert (await clinic.found({"url": f"{server.origin}/mcp"})).code == "HF-HTTPS-MEANT"


async def test_a_web_page_is_no_mcp_server(clinic: Examination) -> None:
    async with FaultServer(HTML_PAGE) as server:
        found = await clinic.found({"url": f"{server.origin}/mcp"})
    clinic.matches("not_mcp", found)


async def test_a_web_page_beside_an_endpoint_is_the_wrong_path(clinic: Examination) -> None:
    async with McpPeer() as peer:
        peer.script = lambda request: peer.healthy if request.path == "/mcp" else HTML_PAGE
        found = await clinic.found({"url": peer.origin})
        assert found.code == "HF-PATH"
        clinic.carry_out(found)
        assert (await clinic.one()).health == "healthy"


async def test_a_connection_that_is_cut_is_told_as_that(clinic: Examination) -> None:
    async with FaultServer(reset_before_answer) as server:
        found = await clinic.found({"url": f"{server.origin}/mcp"})
    clinic.matches("cut", found)


@pytest.mark.parametrize(
    ("fault", "code"), [("version", "HF-VERSION"), ("misfit", "HF-PROTOCOL"), ("error", "HF-RPC-ERROR")]
)
async def test_each_fault_of_a_handshake_is_told_apart(
    clinic: Examination, stdio_peer: Make, fault: str, code: str
) -> None:
    found = await clinic.found(stdio(stdio_peer("--handshake-fault", fault)))
    assert found.code == code
    clinic.matches(f"handshake_{fault}", found)


async def test_a_modern_server_of_another_version_says_which_it_speaks(clinic: Examination) -> None:
    async with McpPeer(era="modern", handshake_fault="version") as peer:
        found = await clinic.found({"url": peer.url})
    assert "2099-01-01" in found.words


async def test_a_server_over_a_bound_is_told_which(clinic: Examination, stdio_peer: Make) -> None:
    clinic.configure({"server": stdio(stdio_peer("--tools", "20"))}, limits={"catalogItems": 10})
    (found,) = (await clinic.one()).findings
    clinic.matches("bound", found)
    clinic.carry_out(found)
    assert (await clinic.one()).health == "healthy"


@pytest.mark.requirement("DOC-4", "SEC-4")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_bound_that_no_setting_raises_names_none(clinic: Examination, era: Era) -> None:
    async with McpPeer(era=era, instructions="x" * 600_000) as peer:
        found = await clinic.found({"url": peer.url})
    assert (found.code, found.remedy.edits) == ("HF-BOUND", ())
    assert "its answer to the handshake" in found.words
    assert "no setting" in found.remedy.text


# Its tools


@pytest.mark.parametrize(
    ("fault", "code"), [("error", "HF-RPC-ERROR"), ("misfit", "HF-PROTOCOL"), ("repeating_cursor", "HF-PROTOCOL")]
)
async def test_a_listing_that_fails_is_told_of_the_tools_and_not_of_the_handshake(
    clinic: Examination, stdio_peer: Make, fault: str, code: str
) -> None:
    server = await clinic.one(stdio(stdio_peer("--list-fault", fault)))
    statuses = {result.check: result.status for result in server.checks}
    assert (statuses["handshake"], statuses["tools"]) == ("passed", "failed")
    assert [found.code for found in server.findings] == [code]


async def test_a_server_without_tools_is_a_warning(clinic: Examination, stdio_peer: Make) -> None:
    server = await clinic.one(stdio(stdio_peer("--tools", "0")))
    assert (server.health, server.tools) == ("warned", 0)
    clinic.matches("tools_none", server.findings)


async def test_a_definition_that_hides_every_tool_is_told_and_corrected(clinic: Examination, stdio_peer: Make) -> None:
    found = await clinic.found(stdio(stdio_peer(), tools={"include": ["reed_*"]}))
    clinic.matches("tools_hidden", found)
    clinic.carry_out(found)
    assert (await clinic.one()).health == "healthy"


def tool(name: str, schema: object = None) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"} if schema is None else schema}


@pytest.mark.requirement("HUB-3")
async def test_names_that_a_client_cuts_are_told_and_the_default_length_is_the_cure(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = [tool("fine"), tool("create_" + "a" * 40)]
    async with McpPeer() as peer:
        monkeypatch.setattr(peer.mind, "_list", lambda message: peer.mind._complete(message, {"tools": long}))
        clinic.configure({"server": {"url": peer.url}}, nameLength=64)
        server = await clinic.one()
        (cut,) = server.findings
        assert cut.code == "HF-TOOLS-CUT"
        assert "Claude Code, Cline, Codex" in cut.words
        assert f"`server__create_{'a' * 40}`" in cut.words
        assert cut.remedy.edits[0].value == "48"
        clinic.matches("tools_cut", cut)
        clinic.configure({"server": {"url": peer.url}})
        assert (await clinic.one()).findings == ()
        long = [tool("b" * 60)]
        (alone,) = (await clinic.one()).findings
    assert (alone.code, alone.severity) == ("HF-TOOLS-LONG", "note")
    assert "at /servers/server/mcp, Claude Code" in alone.words
    clinic.matches("tools_long", alone)


async def test_tools_that_clients_refuse_are_named_and_hiding_them_is_the_cure(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = [
        tool("fine"),
        tool("twice"),
        tool("twice"),
        tool("with space"),
        tool("x" * 70),
        tool("bad_schema", {"type": "object", "properties": {"a": {"type": "integr"}}}),
    ]
    async with McpPeer() as peer:
        monkeypatch.setattr(peer.mind, "_list", lambda message: peer.mind._complete(message, {"tools": odd}))
        server = await clinic.one({"url": peer.url})
        assert server.health == "warned"
        clinic.matches("tools_odd", server.findings)
        # One edit for all of them: pasted one after the other, two of the same key would be one too many.
        assert [len(found.remedy.edits) for found in server.findings] == [1, 0, 0]
        clinic.carry_out(server.findings[0])
        after = await clinic.one()
    assert [found.code for found in after.findings] == []
    assert after.tools == 1


HOSTILE_NAMES = ("", "*", "f[i]ne", "f?ne", "a b", "hidden\u202e\U000e0041", "\x1b[2J\x9b")


@pytest.mark.requirement("DOC-8", "MSG-11")
@pytest.mark.parametrize(
    "tools",
    [{}, ["*"], ["f*", "**"], {"include": ["*"], "exclude": ["other"]}],
    ids=["nothing", "list", "two", "object"],
)
async def test_the_edit_that_hides_tools_hides_these_and_no_other_whatever_their_names_are(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch, tools: object
) -> None:
    listed = [tool("fine"), *(tool(name) for name in HOSTILE_NAMES)]
    async with McpPeer() as peer:
        monkeypatch.setattr(peer.mind, "_list", lambda message: peer.mind._complete(message, {"tools": listed}))
        found = await clinic.found({"url": peer.url, **({"tools": tools} if tools else {})})
        assert not {"\u202e", "\x1b", "\x9b", "\U000e0041"} & set(found.remedy.edits[0].paste)
        clinic.carry_out(found)
        after = await clinic.one()
    assert (after.findings, after.tools) == ((), 1)


@pytest.mark.requirement("LOAD-9")
@pytest.mark.parametrize(
    "load",
    [
        {},
        {"attemptTimeout": "60s", "totalTimeout": "90s"},
        {"attempts": 1, "totalTimeout": "10m", "attemptTimeout": "5m"},
        {"attempts": 1},
        {"attemptTimeout": "20s"},
    ],
    ids=str,
)
async def test_the_remedy_for_a_slow_server_gives_it_more_time_than_it_has(
    clinic: Examination, load: Mapping[str, object]
) -> None:
    """Also where doctor itself was told to wait for a shorter time."""
    async with FaultServer(never_answer) as peer:
        clinic.configure({"server": {"url": peer.origin}}, **({"load": load} if load else {}))
        before = clinic.reading().config.settings.load
        [found] = (await clinic.one(within=0.3)).findings
    assert found.code == "HF-SILENT"
    clinic.carry_out(found)
    after = clinic.reading().config.settings.load
    assert before.attempt_timeout < after.attempt_timeout <= after.total_timeout
    [command] = found.remedy.commands
    assert float(command.split()[-1]) > before.attempt_timeout
