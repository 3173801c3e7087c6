"""The scenario table for HTTP: each failure produced for real, with its status, attempts, words and requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.config.settings import Limits
from holdfast.core.messages import FailureStatus
from tests.faults.outcomes import observe
from tests.peers.authz import AuthzService
from tests.peers.envoy import envoy_gateway
from tests.peers.everything import everything_over_http
from tests.peers.http_fault import (
    Behaviour,
    Exchange,
    FaultServer,
    accept_and_ignore,
    close_mid_answer,
    closed_port,
    never_answer,
    oversized,
    redirect,
    reset_before_answer,
    reset_mid_answer,
    reset_on_accept,
    respond,
    trickle,
)
from tests.peers.mcp_http import HTML_PAGE, McpPeer, Refusal
from tests.peers.mcp_sse import SsePeer
from tests.peers.tls import CertificateKind, Certificates

pytestmark = pytest.mark.anyio

SOON = 0.8
"""The deadline of an attempt at a server that never answers: long enough to connect, no longer."""


@dataclass(frozen=True)
class Row:
    """One line of the table: what the server does, and what must be made of it."""

    name: str
    behaviour: Behaviour
    status: FailureStatus
    says: str
    requests: int
    """How many the server itself sees, in all attempts together."""
    hint: str = ""
    attempts: int = 3
    deadline: float = 10.0
    peer_notices: bool = True

    def __str__(self) -> str:
        return self.name


def transient(name: str, behaviour: Behaviour, says: str, *, requests: int = 3, deadline: float = 10.0) -> Row:
    return Row(
        name, behaviour, "transient", says, requests, deadline=deadline, peer_notices=behaviour is not accept_and_ignore
    )


def final(
    name: str, behaviour: Behaviour, status: FailureStatus, says: str, *, requests: int = 1, hint: str = ""
) -> Row:
    return Row(name, behaviour, status, says, requests, hint, attempts=1)


TABLE = [
    final("401", respond(401), "denied", "asks for credentials and none are configured (HTTP 401)", hint="takes a key"),
    final(
        "403 policy", respond(403, "RBAC: access denied"), "denied", '(HTTP 403: "RBAC: access denied")', hint="access"
    ),
    final("403 empty", respond(403), "denied", "not allowed to use it (HTTP 403)", hint="status_on_error"),
    final(
        "403 AgentGateway",
        respond(403, "external authorization failed"),
        "denied",
        "external authorization failed",
        hint="denyWithStatus",
    ),
    final(
        "403 outage words inside more",
        respond(403, "denied: upstream call timeout"),
        "denied",
        "not allowed to use it",
    ),
    *(
        transient(f"403 {body}", respond(403, body), f'could not complete its authorization check (HTTP 403: "{body}")')
        for body in ("authorization service unavailable", "upstream call timeout")
    ),
    final("404", respond(404), "permanent", "no MCP endpoint at its URL (HTTP 404)", requests=2, hint="/mcp"),
    final("404 gateway", respond(404, "route not found"), "permanent", "route not found", requests=2),
    final("405", respond(405), "permanent", "does not take MCP requests", requests=2, hint='"type": "sse"'),
    transient("408", respond(408), "HTTP 408"),
    transient("429", respond(429, headers={"retry-after": "0"}), "limiting requests (HTTP 429)"),
    transient("500", respond(500, "boom"), 'it answered HTTP 500: "boom"'),
    transient("502", respond(502), "HTTP 502"),
    transient("503", respond(503, "Authorization service unavailable"), "HTTP 503"),
    transient("504", respond(504, "upstream call timeout"), "HTTP 504"),
    transient("reset on accept", reset_on_accept, "connection was", requests=0),
    transient("reset before the answer", reset_before_answer, "connection was"),
    transient("reset in the middle of the answer", reset_mid_answer, "connection was"),
    transient("closed in the middle of the answer", close_mid_answer, "connection was closed"),
    transient("accepts and never answers", never_answer, "no answer within 0.8 s", deadline=SOON),
    transient("accepts and never reads", accept_and_ignore, "no answer within 0.8 s", requests=0, deadline=SOON),
    transient("a body that trickles", trickle(), "no answer within 0.8 s", deadline=SOON),
    final(
        "not MCP: a web page", HTML_PAGE, "permanent", "not an MCP server: it answered with text/html", hint="browser"
    ),
    final("not MCP: JSON", respond(200, '{"hello": 1}', content_type="application/json"), "permanent", "not MCP"),
    final("not MCP: no JSON", respond(200, "{", content_type="application/json"), "permanent", "not MCP"),
    final("oversized", oversized(200_000), "permanent", "bound on the size of a message", hint="messageBytes"),
    final(
        "oversized, length untold", oversized(200_000, declared=False), "permanent", "bound on the size of a message"
    ),
]


@pytest.mark.requirement(
    "LOAD-2", "LOAD-3", "LOAD-4", "LOAD-6", "LOAD-9", "LOAD-10", "MSG-1", "MSG-2", "MSG-3", "SEC-4"
)
@pytest.mark.parametrize("row", TABLE, ids=str)
async def test_a_failing_http_server_gets_its_true_status_attempts_words_and_requests(row: Row) -> None:
    async with FaultServer(row.behaviour) as server:
        outcome = await observe(
            {"transport": "streamable_http", "url": f"{server.origin}/mcp"},
            attempt_timeout=row.deadline,
            limits=Limits(message_bytes=100_000),
            peer_notices=row.peer_notices,
        )
        if row.peer_notices:
            await server.all_closed()
    assert (outcome.status, outcome.attempts) == (row.status, row.attempts)
    assert row.says in (outcome.error or "")
    assert row.hint in outcome.hint
    assert len(server.requests) == row.requests
    assert outcome.tools == []


@pytest.mark.requirement("LOAD-4", "LOAD-5", "LOAD-10")
async def test_a_denied_server_named_after_failures_is_denied_and_asked_once() -> None:
    async with FaultServer(respond(403, "no")) as server:
        outcome = await observe(
            {"transport": "streamable_http", "url": f"{server.origin}/timeout/503/refused?q=timeout"},
            server_id="timeout-503-refused",
        )
    assert (outcome.status, outcome.attempts, len(server.requests)) == ("denied", 1, 1)


@pytest.mark.requirement("LOAD-2", "LOAD-9")
@pytest.mark.parametrize(
    "fault",
    [respond(503), respond(403, "Authorization service timeout"), respond(429), reset_before_answer, reset_mid_answer],
    ids=lambda fault: str(fault.name),
)
async def test_a_transient_fault_that_goes_away_is_survived(fault: Behaviour) -> None:
    async with McpPeer(faults=[fault, fault], era="modern") as peer:
        outcome = await observe({"transport": "streamable_http", "url": peer.url})
        await peer.all_closed()
    assert (outcome.status, outcome.attempts) == ("available", 3)
    assert peer.methods == ["server/discover"] * 3 + ["tools/list"]


@pytest.mark.requirement("LOAD-8")
@pytest.mark.parametrize(
    ("era", "methods"),
    [
        ("modern", ["server/discover", "tools/list"]),
        ("both", ["server/discover", "tools/list"]),
        ("legacy", ["server/discover", "initialize", "notifications/initialized", "tools/list", "DELETE"]),
    ],
)
@pytest.mark.parametrize("respond_with", ["json", "sse"])
async def test_a_healthy_http_server_costs_one_attempt_and_no_request_too_many(
    era: str, methods: list[str], respond_with: str
) -> None:
    async with McpPeer(era=era, respond_with=respond_with) as peer:  # type: ignore[arg-type]  # both come from the table
        outcome = await observe({"transport": "streamable_http", "url": peer.url})
        await peer.all_closed()
    assert (outcome.status, outcome.attempts, len(outcome.tools)) == ("available", 1, 5)
    assert peer.methods == methods
    assert peer.sessions == set()


@pytest.mark.requirement("LOAD-8")
@pytest.mark.parametrize(
    "refusal", [Refusal(400, None), Refusal(404, None), Refusal(405, None), Refusal(200), Refusal()]
)
async def test_a_legacy_server_may_turn_the_probe_down_in_any_way(refusal: Refusal) -> None:
    async with McpPeer(era="legacy", refuse_discover=refusal) as peer:
        outcome = await observe({"transport": "streamable_http", "url": peer.url})
    assert (outcome.status, outcome.attempts) == ("available", 1)


@pytest.mark.requirement("LOAD-3")
async def test_a_refused_connection_is_permanent_for_a_server_that_never_connected() -> None:
    with closed_port() as port:
        outcome = await observe({"transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp"})
    assert (outcome.status, outcome.attempts) == ("permanent", 1)
    assert "connection refused" in (outcome.error or "")


@pytest.mark.requirement("LOAD-3")
async def test_a_name_that_does_not_resolve_is_permanent() -> None:
    outcome = await observe({"transport": "streamable_http", "url": "http://nowhere.invalid/mcp"})
    assert (outcome.status, outcome.attempts) == ("permanent", 1)
    assert "does not resolve" in (outcome.error or "")


@pytest.mark.requirement("LOAD-3")
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("other_ca", "authority that is not trusted"),
        ("expired", "has expired"),
        ("not_yet_valid", "not valid yet"),
        ("wrong_name", "for another name"),
    ],
)
async def test_a_certificate_that_does_not_verify_is_permanent_and_says_why(
    kind: CertificateKind, says: str, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.write_ca(tmp_path)))
    async with McpPeer(ssl=certificates.server_context(kind)) as peer:
        outcome = await observe({"transport": "streamable_http", "url": peer.url})
    assert (outcome.status, outcome.attempts, peer.requests) == ("permanent", 1, [])
    assert says in (outcome.error or "")


async def test_a_trusted_certificate_is_accepted(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.write_ca(tmp_path)))
    async with McpPeer(ssl=certificates.server_context("good")) as peer:
        outcome = await observe({"transport": "streamable_http", "url": peer.url})
    assert outcome.status == "available"


@pytest.mark.requirement("LOAD-3")
async def test_plain_http_on_a_tls_address_is_permanent() -> None:
    async def speak_plainly(exchange: Exchange) -> None:
        await exchange.respond(400, b"this is plain http", content_type="text/plain")

    async with FaultServer(Behaviour("plain", speak_plainly, reads=False)) as server:
        outcome = await observe({"transport": "streamable_http", "url": f"https://127.0.0.1:{server.port}/mcp"})
    assert (outcome.status, outcome.attempts) == ("permanent", 1)
    assert "http://" in outcome.hint


@pytest.mark.requirement("LOAD-9", "LOAD-12")
async def test_a_tls_handshake_that_is_never_answered_ends_at_the_deadline_and_leaves_no_socket() -> None:
    async with FaultServer(accept_and_ignore) as server:
        outcome = await observe(
            {"transport": "streamable_http", "url": f"https://127.0.0.1:{server.port}/mcp"},
            attempt_timeout=SOON,
            peer_notices=False,
        )
    assert (outcome.status, outcome.attempts, server.connections) == ("transient", 3, 3)


@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_credentials_never_follow_a_redirect_to_another_origin(status: int) -> None:
    async with McpPeer() as elsewhere, FaultServer(redirect(elsewhere.url, status)) as server:
        outcome = await observe(
            {
                "transport": "streamable_http",
                "url": f"{server.origin}/mcp",
                "headers": {"Authorization": "Bearer planted-secret"},
            }
        )
    assert (outcome.status, outcome.attempts) == ("permanent", 1)
    assert elsewhere.requests == []
    assert len(server.requests) == 1
    assert elsewhere.url in (outcome.error or "")


@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize(
    "there", ["http://localhost:{port}/mcp", "https://127.0.0.1:{port}/mcp", "http://user:word@127.0.0.1:{port}/mcp"]
)
async def test_another_host_another_scheme_and_other_credentials_are_another_origin(there: str) -> None:
    async with McpPeer(era="modern") as peer:
        moved, here = redirect(there.format(port=peer.port)), Behaviour("mcp", peer._answer)
        peer.script = lambda request: moved if request.path == "/old" else here
        outcome = await observe(
            {
                "transport": "streamable_http",
                "url": f"{peer.origin}/old",
                "headers": {"Authorization": "Bearer planted-secret"},
            }
        )
        assert [request.path for request in peer.requests] == ["/old"]
    assert (outcome.status, outcome.attempts) == ("permanent", 1)


@pytest.mark.requirement("SEC-3")
async def test_a_redirect_within_the_origin_that_keeps_the_request_is_followed() -> None:
    async with McpPeer(era="modern") as peer:
        moved, here = redirect("/mcp"), Behaviour("mcp", peer._answer)
        peer.script = lambda request: moved if request.path == "/old" else here
        outcome = await observe({"transport": "streamable_http", "url": f"{peer.origin}/old"})
    assert (outcome.status, outcome.attempts) == ("available", 1)


@pytest.mark.requirement("SEC-3")
async def test_credentials_are_not_sent_over_plain_http_beyond_loopback_unless_the_config_says_so() -> None:
    connection = {
        "transport": "streamable_http",
        "url": "http://holdfast.invalid/mcp",
        "headers": {"Authorization": "Bearer planted-secret"},
    }
    refused = await observe(connection)
    assert refused.status == "permanent"
    assert "unencrypted" in (refused.error or "")
    allowed = await observe({**connection, "allowPlainHttp": True})
    assert "does not resolve" in (allowed.error or "")


@pytest.mark.requirement("LOAD-4", "MSG-6")
async def test_a_rejected_token_is_denied_and_told_apart_from_a_missing_one() -> None:
    async with McpPeer(auth="Bearer right") as peer:
        connection = {"transport": "streamable_http", "url": peer.url}
        wrong = await observe({**connection, "headers": {"Authorization": "Bearer planted-secret"}})
        right = await observe({**connection, "headers": {"Authorization": "Bearer right"}})
    assert wrong.status == "denied"
    assert "were rejected (HTTP 401)" in (wrong.error or "")
    assert "planted-secret" not in f"{wrong} {wrong.message}"
    assert right.status == "available"


@pytest.mark.requirement("LOAD-3", "SEC-4")
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("misfit", "does not fit the protocol"),
        ("repeating_cursor", "a page cursor came back"),
        ("endless_cursors", "bound on the pages of a list (20)"),
    ],
)
async def test_a_list_of_tools_that_cannot_be_right_is_permanent(era: str, fault: str, says: str) -> None:
    async with McpPeer(era=era, list_fault=fault) as peer:  # type: ignore[arg-type]  # both come from the table
        outcome = await observe({"transport": "streamable_http", "url": peer.url}, limits=Limits(pages=20))
    assert (outcome.status, outcome.attempts) == ("permanent", 1)
    assert says in (outcome.error or "")


@pytest.mark.requirement("LOAD-3")
@pytest.mark.parametrize(("fault", "says"), [("misfit", "does not fit"), ("version", "no protocol version")])
async def test_a_handshake_that_cannot_be_right_is_permanent(fault: str, says: str) -> None:
    async with McpPeer(era="legacy", handshake_fault=fault) as peer:  # type: ignore[arg-type]  # from the table
        outcome = await observe({"transport": "streamable_http", "url": peer.url})
    assert (outcome.status, outcome.attempts) == ("permanent", 1)
    assert says in (outcome.error or "")


@pytest.mark.requirement("LOAD-2")
@pytest.mark.parametrize("where", ["handshake_fault", "list_fault"])
async def test_an_internal_error_of_the_server_is_its_way_of_saying_500(where: str) -> None:
    async with McpPeer(era="legacy", **{where: "error"}) as peer:  # type: ignore[arg-type]  # from the table
        outcome = await observe({"transport": "streamable_http", "url": peer.url})
    assert (outcome.status, outcome.attempts) == ("transient", 3)
    assert "-32603" in (outcome.error or "")


@pytest.mark.requirement("LOAD-6", "SEC-4")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_catalog_of_5000_tools_over_pages_loads_whole(era: str) -> None:
    async with McpPeer(era=era, tools=5000, page_size=500) as peer:  # type: ignore[arg-type]  # from the table
        outcome = await observe({"transport": "streamable_http", "url": peer.url})
    assert (outcome.status, len({tool.name for tool in outcome.tools})) == ("available", 5000)
    assert peer.methods.count("tools/list") == 10


@pytest.mark.requirement("SEC-4")
async def test_a_catalog_over_its_bound_is_that_servers_clear_error() -> None:
    async with McpPeer(tools=50, page_size=10) as peer:
        outcome = await observe({"transport": "streamable_http", "url": peer.url}, limits=Limits(catalog_items=20))
    assert (outcome.status, outcome.attempts) == ("permanent", 1)
    assert "bound on the number of tools (20)" in (outcome.error or "")
    assert "catalogItems" in outcome.hint


@pytest.mark.requirement("LOAD-8")
async def test_a_healthy_sse_server_loads_without_a_probe() -> None:
    async with SsePeer() as peer:
        outcome = await observe({"transport": "sse", "url": peer.url})
        await peer.all_closed()
    assert (outcome.status, outcome.attempts, len(outcome.tools)) == ("available", 1, 5)
    assert peer.methods == ["GET", "initialize", "notifications/initialized", "tools/list"]


SSE_TABLE = [
    ("the stream is refused", SsePeer(faults=[respond(403, "no")] * 3), "denied", 1, "HTTP 403", 1),
    ("the stream is not ready", SsePeer(faults=[respond(503)] * 3), "transient", 3, "HTTP 503", 3),
    ("a message is refused", SsePeer(post=respond(403, "no")), "denied", 1, "HTTP 403", 2),
    ("a message meets an outage", SsePeer(post=respond(503)), "transient", 3, "HTTP 503", 6),
    ("a message is reset", SsePeer(post=reset_before_answer), "transient", 3, "connection was", 6),
    ("another origin", SsePeer(endpoint="http://127.0.0.1:9/messages"), "permanent", 1, "another origin", 1),
    ("no endpoint", SsePeer(endpoint=None), "transient", 3, "no answer within", 3),
    ("the stream ends at once", SsePeer(stream_ends="at_once"), "transient", 3, "closed", 3),
    ("not an event stream", FaultServer(HTML_PAGE), "permanent", 1, "not an MCP server", 1),
    ("no such path", FaultServer(respond(404)), "permanent", 1, "HTTP 404", 1),
]


@pytest.mark.requirement("LOAD-2", "LOAD-3", "LOAD-4", "LOAD-10", "SEC-3")
@pytest.mark.parametrize(
    ("peer", "status", "attempts", "says", "requests"),
    [pytest.param(*row[1:], id=row[0]) for row in SSE_TABLE],
)
async def test_a_failing_sse_server_gets_its_true_status(
    peer: FaultServer, status: str, attempts: int, says: str, requests: int
) -> None:
    async with peer:
        outcome = await observe({"transport": "sse", "url": f"{peer.origin}/sse"}, attempt_timeout=SOON * 3)
        await peer.all_closed()
    assert (outcome.status, outcome.attempts) == (status, attempts)
    assert says in (outcome.error or "")
    assert len(peer.requests) == requests


@pytest.fixture
async def authz() -> AsyncIterator[AuthzService]:
    async with AuthzService() as service:
        yield service


@pytest.mark.requirement("LOAD-2", "LOAD-4", "LOAD-9")
async def test_behind_a_real_envoy_outages_denials_and_health_are_told_apart(
    authz: AuthzService, tmp_path: Path
) -> None:
    plain_folder, telling_folder = tmp_path / "plain", tmp_path / "telling"
    plain_folder.mkdir()
    telling_folder.mkdir()
    async with (
        McpPeer(era="modern") as peer,
        envoy_gateway({"/mcp/a": peer.port}, authz_port=authz.port, folder=plain_folder) as plain,
        envoy_gateway(
            {"/mcp/a": peer.port}, authz_port=authz.port, folder=telling_folder, status_on_error=503
        ) as telling,
    ):
        authz.hold()
        hidden = await observe({"transport": "streamable_http", "url": plain.url("/mcp/a")}, peer_notices=False)
        outage = await observe({"transport": "streamable_http", "url": telling.url("/mcp/a")}, peer_notices=False)
        checks_during_outage = len(authz.requests)
        authz.deny("not for you")
        denials = [
            await observe({"transport": "streamable_http", "url": gateway.url("/mcp/a")}, peer_notices=False)
            for gateway in (plain, telling)
        ]
        seen_before_it_was_allowed = len(peer.requests)
        authz.allow()
        healthy = await observe({"transport": "streamable_http", "url": telling.url("/mcp/a")}, peer_notices=False)
    assert (hidden.status, hidden.attempts) == ("denied", 1)
    assert "status_on_error" in hidden.hint
    assert (outage.status, outage.attempts) == ("transient", 3)
    assert checks_during_outage == 1 + 3
    assert [(denial.status, denial.attempts) for denial in denials] == [("denied", 1)] * 2
    assert all("not for you" in (denial.error or "") for denial in denials)
    assert seen_before_it_was_allowed == 0
    assert (healthy.status, healthy.attempts, len(healthy.tools)) == ("available", 1, 5)


@pytest.mark.requirement("LOAD-9")
async def test_an_authorization_timeout_behind_envoy_heals_on_a_later_attempt(
    authz: AuthzService, tmp_path: Path
) -> None:
    async with (
        McpPeer(era="modern") as peer,
        envoy_gateway({"/mcp/a": peer.port}, authz_port=authz.port, folder=tmp_path, status_on_error=503) as gateway,
    ):
        authz.hold_first(2)
        outcome = await observe({"transport": "streamable_http", "url": gateway.url("/mcp/a")}, peer_notices=False)
    assert (outcome.status, outcome.attempts) == ("available", 3)
    assert peer.methods == ["server/discover", "tools/list"]


@pytest.mark.requirement("LOAD-6")
@pytest.mark.parametrize(("transport", "kind"), [("streamableHttp", "streamable_http"), ("sse", "sse")])
async def test_the_reference_server_loads_over_http(transport: str, kind: str, tmp_path: Path) -> None:
    async with everything_over_http(transport, folder=tmp_path) as url:  # type: ignore[arg-type]  # from the table
        outcome = await observe({"transport": kind, "url": url})
    assert (outcome.status, outcome.attempts) == ("available", 1)
    assert "echo" in {tool.name for tool in outcome.tools}


async def test_no_proxy_is_on_the_way_to_a_server_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultServer(respond(502)) as proxy, McpPeer() as peer:
        monkeypatch.setenv("HTTP_PROXY", proxy.origin)
        monkeypatch.setenv("http_proxy", proxy.origin)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        outcome = await observe({"transport": "streamable_http", "url": peer.url})
    assert (outcome.status, proxy.requests) == ("available", [])
