"""Who may use the control API, and who may not: tokens, codes, origins and hosts."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from starlette.requests import Request
from starlette.responses import Response

from holdfast.access.audit_reader import AuditFilter, AuditReader
from holdfast.access.audit_writer import AuditFiles, AuditTrail
from holdfast.access.guard import FAILURES
from holdfast.access.principals import TokenPolicy
from holdfast.auth.sign_in import SignInClient
from holdfast.control.models import ApiError, Session
from holdfast.control.server import status_page as limits
from holdfast.control.server.browser_identity import BrowserIdentity, SealedCookies
from holdfast.control.server.control_server import page_name
from holdfast.control.server.operations import OPERATIONS
from holdfast.control.server.status_page import CODE_SECONDS, BrowserSessions
from holdfast.errors import HubRefused
from holdfast.front.session_id import SessionIds
from holdfast.hub import AccessRefused, HubRecord
from holdfast.testing import HttpServer
from tests.access.test_audit import KEY
from tests.access.test_guard import HEADERS, INITIALIZE
from tests.control.server.controlled_hub import CALLER, TOKEN, Steered, steered

pytestmark = pytest.mark.anyio

MISSING = {"command": "no-such-command-anywhere"}


async def signed_in(hub: Steered) -> str:
    code = (await hub.control.code()).code
    answer = await hub.ask("/api/session", method="POST", token=None, body={"code": code})
    assert answer.status_code == 200
    return Session.model_validate_json(answer.content).token


@pytest.mark.requirement("SEC-2", "HUB-5")
async def test_nothing_is_told_or_done_without_a_token() -> None:
    async with HttpServer({"a": "one"}) as up, steered({"x": up.definition}) as hub:
        for operation in OPERATIONS:
            path = operation.path.replace("{server}", "x")
            for token in (None, "wrong", TOKEN + "x", TOKEN[:-1]):
                if operation.needs != "nothing":
                    answer = await hub.ask(path, method=operation.method, token=token)
                    assert (operation.name, answer.status_code) == (operation.name, 401)
                    assert answer.headers["www-authenticate"] == "Bearer"
                    assert "x" not in answer.json()
        basic = await hub.ask("/api/hub", token=None, authorization=f"Basic {TOKEN}")
        assert basic.status_code == 401
        assert hub.hub.server_health("x").generation == 1


@pytest.mark.requirement("SEC-2", "HUB-5")
async def test_a_callers_token_is_no_control_token_and_the_reverse() -> None:
    policy = TokenPolicy(tokens={"caller": CALLER})
    async with steered({"x": MISSING}, tokens=policy) as hub:
        assert (await hub.ask("/api/hub", token=CALLER)).status_code == 403
        assert (await hub.ask("/api/hub", token=TOKEN)).status_code == 200
        page = await signed_in(hub)
        assert (await hub.ask("/api/hub", token=page)).status_code == 200
        for token, status in ((CALLER, 200), (TOKEN, 401), (page, 401), (None, 401)):
            answer = await hub.ask("/mcp", method="POST", token=token, body=INITIALIZE, accept=HEADERS["accept"])
            assert answer.status_code == status


@pytest.mark.requirement("SEC-2", "HUB-5")
async def test_another_host_or_origin_is_refused_even_with_the_token() -> None:
    async with steered({"x": MISSING}) as hub:
        authority = hub.base.removeprefix("http://")
        assert (await hub.ask("/api/hub", host="evil.example")).status_code == 421
        strangers = (
            "http://evil.example",
            "null",
            "http://127.0.0.1:1",
            "http://localhost:4653",
            "file://",
            "http://[",
        )
        for origin in strangers:
            answer = await hub.ask("/api/servers/x/disable", method="POST", origin=origin)
            assert (origin, answer.status_code) == (origin, 403)
            assert ApiError.model_validate_json(answer.content).error
        assert (await hub.ask("/api/hub", origin=f"http://{authority}")).status_code == 200
        assert hub.hub.server_health("x").state.value != "disabled"


@pytest.mark.requirement("SEC-2", "HUB-5")
@pytest.mark.parametrize("origin", [b"http://[", b"null", b""])
def test_what_is_no_origin_is_no_page_of_the_hub_without_the_guard_in_front_too(origin: bytes) -> None:
    ids = SessionIds()
    browsers = BrowserIdentity("http://127.0.0.1:1", ring=lambda: ids.keys.ring, ended=ids, tokens=None)
    assert not browsers.is_own_page(Request({"type": "http", "headers": [(b"origin", origin)]}))


@pytest.mark.requirement("SEC-2", "HUB-5")
async def test_what_a_web_page_elsewhere_can_send_by_itself_does_nothing() -> None:
    """A form, or a fetch without leave: no header of its own but the harmless ones, cookies at most."""
    async with steered({"x": MISSING}) as hub:
        code = (await hub.control.code()).code
        for origin in ("http://evil.example", "http://127.0.0.1:8080"):
            simple = {"content_type": "text/plain", "origin": origin, "cookie": f"token={TOKEN}"}
            for path in ("/api/servers/x/disable", "/api/servers/x/reconnect", "/api/codes", "/api/session"):
                answer = await hub.ask(path, method="POST", token=None, body={"code": code}, **simple)
                assert answer.status_code in (401, 403)
                assert "access-control-allow-origin" not in answer.headers
            assert (await hub.ask("/api/hub", method="OPTIONS", origin=origin)).status_code in (401, 403, 405)
        plain = await hub.ask("/api/session", method="POST", token=None, body={"code": code}, content_type="text/plain")
        assert plain.status_code == 422
        in_query = await hub.ask(f"/api/hub?token={TOKEN}&access_token={TOKEN}", token=None, cookie=f"token={TOKEN}")
        assert in_query.status_code == 401
        assert (await signed_in(hub)) != TOKEN


@pytest.mark.requirement("SEC-2", "HUB-5")
async def test_a_code_signs_in_once_and_its_token_makes_no_further_codes() -> None:
    async with steered({"x": MISSING}) as hub:
        code = (await hub.control.code()).code
        first = await hub.ask("/api/session", method="POST", token=None, body={"code": code})
        again = await hub.ask("/api/session", method="POST", token=None, body={"code": code})
        assert (first.status_code, again.status_code) == (200, 401)
        token = Session.model_validate_json(first.content).token
        assert (await hub.ask("/api/servers/x/enable", method="POST", token=token)).status_code == 200
        for path, method in (("/api/codes", "POST"), ("/api/targets", "GET")):
            assert (await hub.ask(path, method=method, token=token)).status_code == 403
        assert first.headers["cache-control"] == "no-store"
    async with steered({"x": MISSING}) as hub:
        assert (await hub.ask("/api/hub", token=token)).status_code == 401


@pytest.mark.requirement("SEC-2", "HUB-5")
async def test_guesses_at_codes_are_answered_late_and_lock_no_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.access.guard.DELAY_SECONDS", 0.001)
    refused: list[str] = []

    def note(record: HubRecord) -> None:
        if isinstance(record, AccessRefused):
            refused.append(record.kind)

    async with steered({"x": MISSING}) as hub:
        hub.hub.registry.journal.add_sink(note, calls=lambda _: None)
        code = (await hub.control.code()).code
        statuses = [
            (await hub.ask("/api/session", method="POST", token=None, body={"code": f"guess-{number}"})).status_code
            for number in range(FAILURES + 2)
        ]
        assert statuses == [401] * (FAILURES + 2)
        assert refused == ["login"] * FAILURES + ["too_many_logins"] * 2
        answer = await hub.ask("/api/session", method="POST", token=None, body={"code": code})
        assert answer.status_code == 200


@pytest.mark.requirement("SEC-2", "MSG-6")
async def test_no_refusal_repeats_what_was_shown() -> None:
    async with steered({"x": MISSING}) as hub:
        for path in ("/api/hub", "/api/session"):
            answer = await hub.ask(path, method="POST", token="shown-token-value", body={"code": "shown-code-value"})
            assert "shown-" not in answer.text


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.requirement("SEC-2")
def test_codes_get_old_and_work_once() -> None:
    time = Time()
    sessions = BrowserSessions(TOKEN, wall=time)
    old = sessions.new_code()
    time.now += CODE_SECONDS
    assert sessions.sign_in(old) is None
    code = sessions.new_code()
    assert sessions.sign_in(code) is not None
    assert sessions.sign_in(code) is None


@pytest.mark.requirement("SEC-2")
def test_a_signed_in_page_is_signed_out_after_a_while_and_with_a_new_control_token() -> None:
    time = Time()
    sessions = BrowserSessions(TOKEN, wall=time)
    first = sessions.sign_in(sessions.new_code()) or ""
    time.now += limits.SESSION_SECONDS - 1
    second = sessions.sign_in(sessions.new_code()) or ""
    assert sessions.access(first) == "session"
    time.now += 1
    assert sessions.access(first) is None
    assert sessions.access(second) == "session"
    sessions.use_control_token("another-control-token")
    assert sessions.access(second) is None
    assert sessions.access(TOKEN) is None
    assert sessions.access("another-control-token") == "control"


@pytest.mark.requirement("SEC-2")
async def test_a_page_of_yesterday_is_refused_while_its_hub_still_runs() -> None:
    async with steered({"x": MISSING}) as hub:
        token = await signed_in(hub)
        assert (await hub.ask("/api/hub", token=token)).status_code == 200
        later = clock.time() + limits.SESSION_SECONDS
        hub.admin.sessions._wall = lambda: later
        for path, method in (("/api/hub", "GET"), ("/api/events", "GET"), ("/api/servers/x/enable", "POST")):
            assert (await hub.ask(path, method=method, token=token)).status_code == 401
        assert (await hub.ask("/api/hub", token=TOKEN)).status_code == 200


@pytest.mark.requirement("SEC-2")
def test_a_code_is_no_token_and_nothing_of_it_is_shown() -> None:
    sessions = BrowserSessions(TOKEN, wall=Time())
    code = sessions.new_code()
    assert sessions.access(code) is None
    token = sessions.sign_in(code) or ""
    assert sessions.access(token) == "session"
    assert sessions.sign_in(token) is None
    assert sessions.access(TOKEN) == "control"
    assert not {TOKEN, token, code} & set(repr(sessions).split())


@pytest.mark.requirement("HUB-5")
async def test_a_client_with_a_wrong_token_is_told_so() -> None:
    async with steered({"x": MISSING}) as hub:
        hub.control._api._peer._credentials._headers = {"authorization": "Bearer wrong"}
        with anyio.fail_after(10), pytest.raises(HubRefused) as refused:
            await hub.control.hub()
    assert refused.value.status == 401
    assert "holdfast status --open" in refused.value.hint


@pytest.mark.requirement("HUB-5", "SEC-2")
async def test_metrics_need_a_token_where_callers_need_one() -> None:
    async with steered({"x": MISSING}) as hub:
        shown = await hub.ask("/metrics", token=None)
        assert shown.status_code == 200
        assert 'holdfast_server_state{server="x"' in shown.text
        assert (await hub.ask("/metrics", token=None, host="evil.example")).status_code == 421
    async with steered({"x": MISSING}, tokens=TokenPolicy(tokens={"caller": CALLER})) as hub:
        page = await signed_in(hub)
        for token, status in ((None, 401), ("wrong", 401), (CALLER, 200), (TOKEN, 200), (page, 200)):
            assert (await hub.ask("/metrics", token=token)).status_code == status
            assert (await hub.ask("/metrics", token=token, host="10.1.2.3:4653")).status_code == status
        assert (await hub.ask("/api/hub", host="10.1.2.3:4653")).status_code == 421


@pytest.mark.requirement("HUB-5", "SEC-2")
async def test_the_page_is_served_without_a_token_and_contains_no_data() -> None:
    async with steered({"secret-name": MISSING}, tokens=TokenPolicy(tokens={"caller": CALLER})) as hub:
        page = await hub.ask("/", token=None)
        assert page.status_code == 200
        assert "secret-name" not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert (await hub.ask("/", token=None, host="evil.example")).status_code == 421


@pytest.fixture
def trail(tmp_path: Path) -> Iterator[AuditTrail]:
    made = AuditTrail(AuditFiles(tmp_path / "audit", KEY), KEY)
    made.start()
    yield made
    made.close()


@pytest.mark.requirement("SEC-15")
async def test_a_caller_sees_her_own_activity_and_an_operator_all_of_it(trail: AuditTrail) -> None:
    policy = TokenPolicy(tokens={"ada": CALLER, "bob": "token-of-bob-0123456789"})
    for principal in ("ada", "bob", "ada"):
        trail.event("call", principal=principal, tool="get")
    trail.close()
    async with steered({"x": MISSING}, tokens=policy, audit=trail) as hub:
        own = (await hub.ask("/api/activity", token=CALLER)).json()
        assert (own["principal"], [one["principal"] for one in own["records"]]) == ("ada", ["ada", "ada"])
        every = (await hub.ask("/api/activity", token=TOKEN)).json()
        assert (every["principal"], sorted(one["principal"] for one in every["records"])) == ("", ["ada", "ada", "bob"])
        assert (await hub.ask("/api/activity", token="wrong-token-0123456789")).status_code == 401
        assert (await hub.ask("/api/hub", token=CALLER)).status_code == 403
        page = await signed_in(hub)
        assert (await hub.ask("/api/activity?lines=1", token=page)).json()["records"][0]["tool"] == "get"


@pytest.mark.requirement("SEC-15")
async def test_what_an_operator_does_is_recorded_with_her_name(trail: AuditTrail) -> None:
    async with HttpServer({"a": "one"}) as up, steered({"x": up.definition}, audit=trail) as hub:
        page = await signed_in(hub)
        assert (await hub.ask("/api/servers/x/disable", method="POST", token=page)).status_code == 200
        assert (await hub.ask("/api/servers/none/enable", method="POST", token=TOKEN)).status_code == 404
        assert (await hub.ask("/api/hub", token=TOKEN)).status_code == 200
    trail.close()
    records = list(AuditReader(trail.folder, AuditFilter()).read())
    assert [(one.event, one.method, one.server, one.outcome) for one in records] == [
        ("sign-in", "new_code", "", "done"),
        ("sign-in", "sign_in", "", "done"),
        ("switch", "disable", "x", "done"),
        ("switch", "enable", "none", "refused"),
    ]
    assert [one.principal for one in records] == ["control", page_name(page), page_name(page), "control"]


async def test_a_hub_without_an_audit_has_no_activity() -> None:
    async with steered({"x": MISSING}) as hub:
        answer = await hub.ask("/api/activity", token=TOKEN)
        assert answer.json() == {"audit": False, "principal": "", "records": []}


@pytest.mark.requirement("SEC-14")
async def test_no_name_of_a_server_leads_to_an_endpoint_that_its_caller_may_not_ask_for() -> None:
    """Only a local client names a folder; a name in the path is never read as anything but a name."""
    async with steered({"x": MISSING}, tokens=TokenPolicy(tokens={"caller": CALLER})) as hub:
        for parts in (["endpoint", None, "all", None, "/srv/project"], ["endpoint", "x", "all", None, None]):
            name = quote(json.dumps(parts), safe="")
            answer = await hub.ask(
                f"/servers/{name}/mcp", method="POST", token=CALLER, body=INITIALIZE, accept=HEADERS["accept"]
            )
            assert answer.status_code == 404


HIDING = {"rules": [{"effect": "allow", "principals": ["ada"], "servers": ["y"]}]}


@pytest.mark.requirement("SEC-14", "SEC-20")
async def test_metrics_name_no_server_to_a_caller_who_may_not_see_it() -> None:
    policy = TokenPolicy(tokens={"ada": CALLER, "prometheus": "token-of-prometheus-01"})
    access = {**HIDING, "roles": {"read": {"principals": ["prometheus"]}}}
    async with steered({"x": MISSING, "y": MISSING}, tokens=policy, access=access) as hub:
        assert (await hub.ask("/metrics", token=CALLER)).status_code == 401
        assert (await hub.ask("/metrics", token="token-of-prometheus-01")).status_code == 200
        assert (await hub.ask("/metrics", token=TOKEN)).status_code == 200


@pytest.mark.requirement("SEC-14", "SEC-15")
async def test_the_activity_of_a_caller_says_of_a_hidden_name_what_it_says_of_an_unknown_one(
    trail: AuditTrail,
) -> None:
    policy = TokenPolicy(tokens={"ada": CALLER})
    async with (
        HttpServer({"get": "one"}) as up,
        steered({"x": up.definition, "y": MISSING}, tokens=policy, audit=trail, access=HIDING) as hub,
    ):
        async with (
            httpx2.AsyncClient(headers={"authorization": f"Bearer {CALLER}"}, trust_env=False) as http,
            Client(streamable_http_client(f"{hub.base}/mcp", http_client=http)) as client,
        ):
            for name in ("x__get", "z__get"):
                with pytest.raises(MCPError, match="Unknown tool"):
                    await client.call_tool(name, {})
        trail.close()
        own = (await hub.ask("/api/activity", token=CALLER)).json()["records"]
        every = (await hub.ask("/api/activity", token=TOKEN)).json()["records"]
    assert {one["tool"]: one["server"] for one in own} == {"x__get": "", "z__get": ""}
    assert {one["tool"]: one["server"] for one in every} == {"x__get": "x", "z__get": ""}


@pytest.mark.requirement("SEC-20")
async def test_who_signed_in_at_another_issuer_is_not_known_after_the_hub_got_a_new_one() -> None:
    ids = SessionIds()

    async def verify(token: str, audience: str) -> None:
        return None

    def browsers(issuer: str) -> BrowserIdentity:
        client = SignInClient(issuer, "hub", redirect_uri="http://127.0.0.1:1/signin/callback", scope=(), verify=verify)
        tokens = TokenPolicy(tokens={"caller": CALLER})
        return BrowserIdentity(
            "http://127.0.0.1:1", ring=lambda: ids.keys.ring, ended=ids, tokens=tokens, issuer=client
        )

    response = Response()
    content = {"groups": ["admins"], "scopes": [], "id": "00" * 16, "name": "https://old#ada"}
    SealedCookies("http://127.0.0.1:1", lambda: ids.keys.ring, clock.time).put(response, "session", content)
    cookie = response.headers["set-cookie"].partition(";")[0].encode()
    request = Request({"type": "http", "headers": [(b"cookie", cookie)]})
    known = await browsers("https://old").identify(request)
    assert known is not None
    assert known.principal.groups == {"admins"}
    assert await browsers("https://new").identify(request) is None
