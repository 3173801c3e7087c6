from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx2
import pytest

from holdfast.auth.credentials import Logins, status_of
from holdfast.auth.discovery import AuthorizationServer, discover
from holdfast.auth.flows import answer_in, authorization_request, code_in, redirect_listener
from holdfast.auth.person_login import PendingLogin, begin_login, finish_login, log_in, log_out
from holdfast.auth.token_endpoint import OAuthClient, is_safe, may_lead_to
from holdfast.auth.token_store import TokenStore
from holdfast.core.evidence import Challenge
from holdfast.errors import LoginFailed
from holdfast.hub.loader import Loader
from holdfast.wire.http.client import HttpAnswer
from tests.auth.grants import grant
from tests.auth.logins import PATIENCE, aged, logged_in, renewal
from tests.peers.browser import Browser
from tests.peers.guarded import Guarded

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AUTH-4")]

EVIL = "https://evil.example"


async def no_sleep(_: float) -> None:
    """Time goes by."""


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"iss": EVIL}, r"came by `https://evil\.example`"),
        ({"iss": "-"}, "came without an issuer"),
        ({"issuer": EVIL}, "says that it is"),
        ({"resource": f"{EVIL}/mcp"}, "says that it is"),
        ({"resource": "https://[evil"}, "says that it is"),
        ({"audience": f"{EVIL}/mcp"}, "a token for another server"),
        ({"audience": "https://[evil"}, "a token for another server"),
    ],
)
async def test_an_answer_that_is_not_to_be_believed_is_not_taken(
    how: dict[str, str], words: str, peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(**how)
    with pytest.raises(LoginFailed, match=words):
        await logged_in(peer.spec(), store)
    assert store.grants() == ()
    taken = await peer.seen("token")
    assert len(taken) == (1 if "audience" in how else 0), "no code is taken to a server that is not trusted"


async def test_an_answer_to_another_question_is_not_taken_from_whoever_pastes_it(
    peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(state="another")
    with pytest.raises(LoginFailed, match="an answer to another request"):
        await logged_in(peer.spec(), store, how="paste")
    assert await peer.seen("token") == []


async def test_an_answer_to_another_question_does_not_end_the_login_that_waits_for_its_own(
    peer: Guarded, store: TokenStore
) -> None:
    class Crowded(Browser):
        """Another page sends an answer of its own first."""

        async def _open(self, address: str) -> None:
            place = dict(parse_qsl(urlsplit(address).query))["redirect_uri"]
            forged = ("code=1&state=another", "error=access_denied&state=another", "error=access_denied")
            async with httpx2.AsyncClient(trust_env=False) as http:
                turned_away.extend([(await http.get(f"{place}?{query}")).status_code for query in forged])
            await super()._open(address)

    turned_away: list[int] = []
    async with Crowded() as crowded:
        with anyio.fail_after(PATIENCE):
            kept = await log_in(peer.spec(), store=store, person=crowded)
    assert turned_away == [400, 400, 400]
    assert store.grants() == (kept,)


@pytest.mark.parametrize("audience", ["api://files", "urn:files", ""])
async def test_an_audience_that_is_no_address_is_for_the_server_to_judge(
    audience: str, peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(audience=audience)
    kept, _ = await logged_in(peer.spec(), store)
    assert store.grants() == (kept,)


async def test_an_audience_that_is_the_server_or_its_parent_is_good(peer: Guarded, store: TokenStore) -> None:
    for audience in (peer.url, peer.address):
        await peer.behave(audience=audience)
        await logged_in(peer.spec(), store)


@pytest.mark.requirement("SEC-3")
async def test_no_code_and_no_token_follows_a_redirect_to_another_origin(
    peer: Guarded, store: TokenStore, thief: Guarded
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    await peer.behave(redirects_to=f"{thief.address}/token", end_tokens=True)
    loader = Loader(peer.config(), logins=Logins(store), sleep=no_sleep)
    assert (await loader.load()).outcomes[0].status == "transient"
    assert await thief.seen("token") == []
    assert store.get(kept.key) == kept, "the refresh token is not lost by it"


@pytest.mark.requirement("SEC-3")
async def test_metadata_is_not_followed_to_another_origin(peer: Guarded, store: TokenStore, thief: Guarded) -> None:
    await peer.behave(redirects_to=f"{thief.address}/.well-known/oauth-authorization-server")
    with pytest.raises(LoginFailed, match="redirects to"):
        await logged_in(peer.spec(), store)


@pytest.mark.requirement("SEC-3")
async def test_no_code_goes_to_an_issuer_that_the_server_names_after_the_person_agreed(
    peer: Guarded, store: TokenStore, thief: Guarded
) -> None:
    spec = peer.spec()
    spec = replace(spec, oauth=replace(spec.oauth, redirect_uri="http://127.0.0.1:8765/callback"))
    await peer.behave(names_itself=False)
    await thief.behave(names_itself=False)
    address, pending = await begin_login(spec, store=store, agreed=peer.address)
    assert address.startswith(peer.address)
    kept = PendingLogin.read(json.loads(json.dumps(asdict(pending))))
    await peer.behave(authorization_server=thief.address)
    with pytest.raises(LoginFailed, match="another authorization server than"):
        await begin_login(spec, store=store, agreed=peer.address)
    with pytest.raises(LoginFailed, match="another authorization server than"):
        await finish_login(spec, store=store, pending=kept, answer={"state": pending.state, "code": "planted-code"})
    assert await thief.seen("token") + await thief.seen("register") == []
    assert store.grants() == ()


@pytest.mark.requirement("SEC-3")
async def test_a_token_is_sent_to_the_server_that_somebody_logged_in_to_and_no_other(
    peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(resource=peer.address)
    kept, _ = await logged_in(peer.spec(), store)
    assert kept.resource == peer.address, "the token is good for the whole origin"
    logins = Logins(store)
    here, beside = logins.authorize(peer.spec()), logins.authorize(peer.spec(url=f"{peer.address}/other"))
    assert here is not None
    assert beside is not None
    assert await here.token() == kept.access_token
    assert await beside.token() is None


@pytest.mark.requirement("SEC-3")
async def test_nobody_logs_in_over_plain_http_beyond_this_machine(store: TokenStore, peer: Guarded) -> None:
    with pytest.raises(LoginFailed, match="unencrypted over plain http") as failed:
        await logged_in(peer.spec(url="http://files.example/mcp"), store)
    assert "allowPlainHttp" in failed.value.hint


@pytest.mark.requirement("SEC-3")
async def test_a_kept_token_is_not_sent_over_plain_http_beyond_this_machine(store: TokenStore, peer: Guarded) -> None:
    url = "http://files.invalid/mcp"
    store.put(grant(servers=(url,)))
    outcome = (await Loader(peer.config(url=url), logins=Logins(store)).load()).outcomes[0]
    assert outcome.error == "its credentials would travel unencrypted over plain http"


@pytest.mark.requirement("SEC-3")
async def test_a_place_to_give_tokens_back_that_is_unencrypted_is_not_kept(store: TokenStore, peer: Guarded) -> None:
    await peer.behave(revokes_at="http://auth.example/revoke")
    kept, _ = await logged_in(peer.spec(), store)
    assert kept.revocation_endpoint == "", "and the login is good without it"


@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize("address", ["http://evil.example\\@127.0.0.1/authorize", "https://evil.example\\@as.example/"])
def test_an_address_that_a_browser_reads_as_another_host_is_not_safe(address: str) -> None:
    assert not is_safe(address)
    assert not is_safe(address, allow_plain_http=True)


@pytest.mark.requirement("SEC-3")
async def test_no_kept_secret_leaves_for_an_unencrypted_address_of_the_authorization_server(
    store: TokenStore, peer: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    async def note(method: str, url: str, **_: object) -> HttpAnswer:
        sent.append(f"{method} {url}")
        return HttpAnswer(status=200, headers={}, body=b'{"access_token": "planted-newer"}')

    monkeypatch.setattr("holdfast.auth.token_endpoint.exchange", note)
    open_roads: dict[str, Any] = {
        "token_endpoint": "http://auth.example/token",
        "revocation_endpoint": "http://auth.example/revoke",
    }
    store.put(grant(servers=(peer.url,), **open_roads))
    assert await renewal(peer.spec(), store) == "unreachable"
    gone = await log_out(peer.spec(), store=store)
    assert gone is not None
    assert not gone.revoked
    assert sent == []
    store.put(grant(servers=(peer.url,), **open_roads))
    assert await renewal(peer.spec(allowPlainHttp=True), store) == "renewed"
    assert sent == ["POST http://auth.example/token"], "where the definition says so, it is sent"


@pytest.mark.requirement("SEC-3")
async def test_a_server_elsewhere_does_not_lead_a_login_to_this_machine(peer: Guarded) -> None:
    there, elsewhere = "http://127.0.0.1:9000/token", "https://files.example/mcp"
    assert not may_lead_to(there, peer.spec(url=elsewhere))
    assert not may_lead_to(there, peer.spec(url=elsewhere, oauth={"issuer": "http://127.0.0.1:9001"}))
    assert may_lead_to(there, peer.spec(url=elsewhere, oauth={"issuer": "http://127.0.0.1:9000/tenant"}))
    assert may_lead_to(there, peer.spec(url=elsewhere, allowPlainHttp=True))
    assert may_lead_to(there, peer.spec(url="http://localhost/mcp"))
    assert may_lead_to("https://auth.example/token", peer.spec(url=elsewhere))
    assert not may_lead_to("http://auth.example/token", peer.spec(url="http://localhost/mcp"))
    assert not may_lead_to("https://[auth", peer.spec(url=elsewhere))


@pytest.mark.requirement("SEC-3")
async def test_metadata_at_this_machine_is_not_asked_for_in_the_name_of_a_server_elsewhere(peer: Guarded) -> None:
    named = Challenge(resource_metadata=f"{peer.address}/.well-known/oauth-protected-resource/mcp")
    with pytest.raises(LoginFailed, match="is at an unencrypted address") as failed:
        await discover(peer.spec(url="https://files.example/mcp"), named)
    assert "oauth.issuer" in failed.value.hint


async def test_a_scope_that_is_no_scope_does_not_get_into_a_command(peer: Guarded, store: TokenStore) -> None:
    await logged_in(peer.spec(), store)
    await peer.behave(needs="$(touch${IFS}/tmp/x) `id` ok:scope")
    outcome = (await Loader(peer.config(), logins=Logins(store)).load()).outcomes[0]
    assert outcome.status == "denied"
    assert (outcome.error or "").endswith("run `holdfast login files`")


async def test_the_listener_takes_nothing_but_an_answer_at_its_own_path() -> None:
    async with redirect_listener() as place, httpx2.AsyncClient(trust_env=False) as http:
        base = place.redirect_uri.removesuffix("/callback")
        assert (await http.get(f"{base}/favicon.ico")).status_code == 404
        assert (await http.get(place.redirect_uri)).status_code == 404
        assert (await http.post(f"{place.redirect_uri}?code=1")).status_code == 404
        place.expect("y")
        assert (await http.get(f"{place.redirect_uri}?code=1&state=x")).status_code == 400
        port = urlsplit(base).port
        assert port is not None
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"\x00\xff no browser\r\n\r\n")
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"GET //[ HTTP/1.1\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 404")
        page = await http.get(f"{place.redirect_uri}?code=<script>x</script>&state=y")
        assert "script" not in page.text
        with anyio.fail_after(PATIENCE):
            assert answer_in(await place.answer()) == {"code": "<script>x</script>", "state": "y"}


def test_an_answer_fits_its_own_question_alone() -> None:
    server = AuthorizationServer(
        issuer="https://auth.example",
        authorization_endpoint="https://auth.example/authorize?tenant=1",
        token_endpoint="https://auth.example/token",
    )
    asked, other = (
        authorization_request(
            server, OAuthClient(id="c"), resource="r", scope=("a", "offline_access"), redirect_uri="http://127.0.0.1/"
        )
        for _ in range(2)
    )
    fields = dict(parse_qsl(urlsplit(asked.url).query))
    assert fields["tenant"] == "1"
    assert fields["prompt"] == "consent"
    assert code_in({"code": "1", "state": asked.state}, server=server, state=asked.state) == "1"
    whole = {"code": "1", "state": asked.state, "iss": "https://auth.example"}
    assert code_in(whole, server=server, state=asked.state) == "1"
    for answer in (
        {"code": "1", "state": other.state},
        {"code": "1"},
        {"code": "1", "state": asked.state, "iss": "https://auth.example/"},
        {"error": "access_denied", "state": asked.state, "iss": EVIL},
        {"state": asked.state},
    ):
        with pytest.raises(LoginFailed):
            code_in(answer, server=server, state=asked.state)
    assert asked.state not in repr(asked)
    assert asked.verifier not in repr(asked)


async def test_an_authorization_server_that_echoes_tokens_puts_none_into_a_message(
    peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    await peer.behave(revoke=True)
    aged(store, kept)
    bearer = Logins(store).authorize(peer.spec())
    assert bearer is not None
    await bearer.token()
    refused = store.get(kept.key)
    assert refused is not None
    assert refused.refused == "invalid_grant"
    assert await renewal(peer.spec(), store) == "refused"
    assert "hf-planted" not in repr(status_of(peer.spec(), store))
