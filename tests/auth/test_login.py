from __future__ import annotations

import threading
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import anyio
import pytest

from holdfast.auth.credentials import Logins
from holdfast.auth.flows import redirect_listener
from holdfast.auth.person_login import LoggedOut, LoginMethod, log_in, log_out
from holdfast.auth.token_store import Grant, GrantKey, TokenStore, renewing
from holdfast.errors import LoginFailed
from holdfast.hub.loader import Loader
from tests.auth.grants import grant
from tests.auth.logins import PATIENCE, logged_in
from tests.peers.browser import Browser
from tests.peers.guarded import PLANTED, Guarded

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AUTH-1")]


async def loads(peer: Guarded, store: TokenStore) -> str:
    outcome = (await Loader(peer.config(), logins=Logins(store)).load()).outcomes[0]
    return outcome.status


@pytest.mark.parametrize("how", ["browser", "paste", "device"])
async def test_whichever_way_somebody_logs_in_the_server_is_available(
    how: str, peer: Guarded, store: TokenStore
) -> None:
    assert await loads(peer, store) == "denied"
    await logged_in(peer.spec(), store, how=how)  # type: ignore[arg-type]  # the list above
    assert await loads(peer, store) == "available"


@pytest.mark.requirement("AUTH-4")
async def test_the_authorization_request_has_pkce_a_state_and_the_resource(peer: Guarded, store: TokenStore) -> None:
    _, browser = await logged_in(peer.spec(), store)
    asked = dict(parse_qsl(urlsplit(browser.visited[0]).query))
    assert asked["code_challenge_method"] == "S256"
    assert len(asked["code_challenge"]) == 43
    assert len(asked["state"]) >= 32
    assert asked["resource"] == peer.url
    assert asked["scope"] == "files:read"
    assert urlsplit(asked["redirect_uri"]).hostname == "127.0.0.1"
    (exchange,) = await peer.seen("token", grant_type="authorization_code")
    assert exchange["resource"] == peer.url


@pytest.mark.requirement("SEC-7")
async def test_a_login_never_waits_for_its_store_on_the_event_loop(peer: Guarded, tmp_path: Path) -> None:
    """A keyring waits for a person, and another process may hold the file of users for seconds."""

    threads = set[int]()

    class Noting(TokenStore):
        def grants(self) -> tuple[Grant, ...]:
            threads.add(threading.get_ident())
            return super().grants()

    store = Noting(tmp_path / "state", vault=lambda: None)
    for _ in range(2):  # the second one finds the client that the first one registered
        await logged_in(peer.spec(), store)
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.requirement("AUTH-4")
async def test_a_client_that_nobody_knows_is_registered_once(peer: Guarded, store: TokenStore) -> None:
    first, _ = await logged_in(peer.spec(), store)
    second, _ = await logged_in(peer.spec(), store)
    assert first.client.origin == "registered"
    assert second.client == first.client
    assert len(await peer.seen("register")) == 1


@pytest.mark.requirement("AUTH-4")
async def test_a_registration_that_was_forgotten_or_is_for_another_place_is_made_anew(
    peer: Guarded, store: TokenStore, free_port: int
) -> None:
    first, _ = await logged_in(peer.spec(), store)
    await peer.behave(forgets_clients=True)
    with pytest.raises(LoginFailed, match="invalid_client"):
        await logged_in(peer.spec(), store)
    await peer.behave(forgets_clients=False)
    second, _ = await logged_in(peer.spec(), store)
    third, _ = await logged_in(peer.spec(oauth={"callbackPort": free_port}), store)
    assert len({first.client.id, second.client.id, third.client.id}) == 3
    assert third.client.redirect_uri == f"http://localhost:{free_port}/callback"


@pytest.mark.requirement("AUTH-4")
async def test_a_registration_that_was_forgotten_ends_no_other_login_made_with_it(
    peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    other = store.put(grant(issuer=kept.issuer, client=kept.client))
    await peer.behave(forgets_clients=True)
    with pytest.raises(LoginFailed, match="invalid_client"):
        await logged_in(peer.spec(), store)
    for key in (kept.key, other.key):
        now = store.get(key)
        assert now is not None
        assert now.refreshable
    await peer.behave(forgets_clients=False)
    newer, _ = await logged_in(peer.spec(), store)
    assert newer.client.id != kept.client.id, "no login uses it again"


@pytest.mark.requirement("AUTH-4")
async def test_a_registration_moves_to_another_port_if_its_own_is_taken(peer: Guarded, store: TokenStore) -> None:
    first, _ = await logged_in(peer.spec(), store)
    async with redirect_listener(first.client.redirect_uri):
        second, _ = await logged_in(peer.spec(), store)
    assert second.client.redirect_uri != first.client.redirect_uri


@pytest.mark.parametrize("pasted", ["http://127.0.0.1:8765/callback", "http://[x?code=1"])
async def test_what_is_pasted_and_holds_no_answer_is_told_as_that(
    pasted: str, peer: Guarded, store: TokenStore
) -> None:
    class Hasty(Browser):
        async def paste(self) -> str:
            return pasted

    async with Hasty(elsewhere=True) as hasty:
        with pytest.raises(LoginFailed, match="that address contains no answer") as failed:
            await log_in(peer.spec(), store=store, person=hasty, how="paste")
    assert "the whole address" in failed.value.hint


@pytest.mark.requirement("AUTH-4")
async def test_a_configured_client_needs_no_registration_and_proves_itself(peer: Guarded, store: TokenStore) -> None:
    await peer.behave(registers=False, methods=["client_secret_basic"])
    oauth = {"clientId": "mine", "clientSecret": PLANTED + "configured", "issuer": peer.address}
    kept, _ = await logged_in(peer.spec(oauth=oauth), store)
    assert (kept.client.id, kept.client.origin) == ("mine", "configured")
    (exchange,) = await peer.seen("token")
    assert (exchange["client"], exchange["basic"]) == ("mine", True)


@pytest.mark.requirement("AUTH-4")
@pytest.mark.parametrize("how", ["browser", "device"])
async def test_a_configured_secret_goes_to_nobody_whom_the_definition_does_not_name(
    how: LoginMethod, peer: Guarded, store: TokenStore
) -> None:
    secret = {"clientId": "mine", "clientSecret": PLANTED + "configured"}
    with pytest.raises(LoginFailed, match=r"`oauth\.clientSecret` would be sent to") as failed:
        await logged_in(peer.spec(oauth=secret), store, how=how)
    assert f'"oauth": {{"issuer": "{peer.address}"}}' in failed.value.hint
    assert await peer.seen("token") == []
    urls = {"authorizationUrl": f"{peer.address}/authorize", "tokenUrl": f"{peer.address}/token"}
    urls["deviceAuthorizationUrl"] = f"{peer.address}/device"
    kept, _ = await logged_in(peer.spec(oauth=secret | urls), store, how=how)
    assert kept.client.id == "mine"


@pytest.mark.requirement("AUTH-4")
async def test_a_metadata_document_is_the_client_s_id_where_it_is_taken(peer: Guarded, store: TokenStore) -> None:
    document = "https://holdfast.example/client.json"
    spec = peer.spec(oauth={"clientMetadataUrl": document})
    await peer.behave(takes_documents=True)
    kept, _ = await logged_in(spec, store)
    assert (kept.client.id, kept.client.origin) == (document, "document")
    assert await peer.seen("register") == []
    await peer.behave(takes_documents=False)
    kept, _ = await logged_in(spec, store)
    assert kept.client.origin == "registered"


@pytest.mark.requirement("AUTH-4")
async def test_a_secret_of_a_registration_is_used(peer: Guarded, store: TokenStore) -> None:
    await peer.behave(methods=["client_secret_post"])
    kept, _ = await logged_in(peer.spec(), store)
    assert kept.client.method == "client_secret_post"
    assert (await peer.seen("token"))[0]["client"] == kept.client.id


async def test_where_nobody_registers_clients_the_error_says_what_to_write(peer: Guarded, store: TokenStore) -> None:
    await peer.behave(registers=False)
    with pytest.raises(LoginFailed, match="has no dynamic registration") as failed:
        await logged_in(peer.spec(), store)
    assert '"oauth": {"clientId": "…"' in failed.value.hint


@pytest.mark.requirement("AUTH-4")
async def test_more_scope_is_asked_for_only_when_told_and_keeps_what_was_granted(
    peer: Guarded, store: TokenStore
) -> None:
    await logged_in(peer.spec(), store)
    kept, browser = await logged_in(peer.spec(), store, scope=("files:write",))
    assert browser.scopes == [("files:read", "files:write")]
    assert kept.scope == "files:read files:write"
    again, _ = await logged_in(peer.spec(), store)
    assert again.scope == "files:read files:write"


async def test_the_definition_s_scope_stands_instead_of_what_the_server_names(peer: Guarded, store: TokenStore) -> None:
    _, browser = await logged_in(peer.spec(oauth={"scopes": ["files:read", "files:write"]}), store)
    assert browser.scopes == [("files:read", "files:write")]


async def test_a_server_that_describes_nothing_is_its_own_authorization_server(
    peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(metadata=False)
    kept, _ = await logged_in(peer.spec(), store)
    assert kept.issuer == peer.address
    assert await loads(peer, store) == "available"


async def test_a_server_that_answers_everybody_needs_no_login_unless_it_describes_one(
    peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(open=True)
    await logged_in(peer.spec(), store)
    await peer.behave(metadata=False)
    with pytest.raises(LoginFailed, match="the server `files` asks for no login: it answers without one"):
        await logged_in(peer.spec(), store)


async def test_a_server_that_takes_a_key_and_knows_no_login_is_told_as_that(peer: Guarded, store: TokenStore) -> None:
    await peer.behave(metadata=False, registers=False)
    with pytest.raises(LoginFailed, match="does not say how to log in") as failed:
        await logged_in(peer.spec(), store)
    assert '"headers": {"Authorization"' in failed.value.hint


async def test_endpoints_of_the_definition_need_no_metadata(peer: Guarded, store: TokenStore) -> None:
    await peer.behave(metadata=False, registers=False)
    oauth = {"authorizationUrl": f"{peer.address}/authorize", "tokenUrl": f"{peer.address}/token", "clientId": "mine"}
    kept, _ = await logged_in(peer.spec(oauth=oauth), store)
    assert (kept.issuer, kept.client.id) == (peer.address, "mine")


async def test_a_redirect_uri_of_the_definition_is_where_the_browser_comes_back_to(
    peer: Guarded, store: TokenStore, free_port: int
) -> None:
    _, browser = await logged_in(peer.spec(oauth={"clientId": "mine", "callbackPort": free_port}), store)
    asked = dict(parse_qsl(urlsplit(browser.visited[0]).query))
    assert asked["redirect_uri"] == f"http://localhost:{free_port}/callback"


@pytest.mark.parametrize("how", ["browser", "device"])
async def test_a_person_who_says_no_is_believed(how: str, peer: Guarded, store: TokenStore) -> None:
    await peer.behave(denies=True, device_pending=0)
    with pytest.raises(LoginFailed, match="access was denied"):
        await logged_in(peer.spec(), store, how=how)  # type: ignore[arg-type]  # the list above
    assert store.grants() == ()


async def test_a_login_that_nobody_makes_ends(peer: Guarded, store: TokenStore) -> None:
    class Absent(Browser):
        def visit(self, address: str) -> None:
            """It stays unopened."""

    async with Absent() as absent:
        with pytest.raises(LoginFailed, match=r"no login within 0\.2 s"):
            await log_in(peer.spec(), store=store, person=absent, within=0.2)


async def test_where_there_is_no_device_login_the_error_names_the_key_for_its_address(
    peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(device=False)
    with pytest.raises(LoginFailed, match="has no device login") as failed:
        await logged_in(peer.spec(), store, how="device")
    assert "deviceAuthorizationUrl" in failed.value.hint
    assert "--paste" in failed.value.hint


async def test_a_failed_login_leaves_the_one_there_was(peer: Guarded, store: TokenStore) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    await peer.behave(denies=True)
    with pytest.raises(LoginFailed):
        await logged_in(peer.spec(), store)
    assert store.grants() == (kept,)


async def test_logging_out_removes_the_tokens_and_takes_them_back(peer: Guarded, store: TokenStore) -> None:
    await logged_in(peer.spec(), store)
    gone = await log_out(peer.spec(), store=store)
    assert gone is not None
    assert gone.revoked
    assert PLANTED not in store.file.read_text()
    assert await loads(peer, store) == "denied"
    assert await log_out(peer.spec(), store=store) is None


async def test_logging_out_takes_back_what_a_renewal_under_way_brought(
    peer: Guarded, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    gone: list[LoggedOut | None] = []
    waits = anyio.Event()

    def noted(folder: Path, key: GrantKey) -> AbstractAsyncContextManager[None]:
        waits.set()
        return renewing(folder, key)

    monkeypatch.setattr("holdfast.auth.token_store.renewing", noted)

    async def out() -> None:
        gone.append(await log_out(peer.spec(), store=store))

    async with anyio.create_task_group() as tasks, renewing(store.folder, kept.key):
        tasks.start_soon(out)
        with anyio.fail_after(PATIENCE):
            await waits.wait()
        store.put(replace(kept, refresh_token="planted-newer"))
    assert gone[0] is not None
    assert gone[0].grant.refresh_token == "planted-newer"


async def test_an_outage_of_the_authorization_server_is_no_answer_about_it(peer: Guarded, store: TokenStore) -> None:
    await peer.behave(token_status=503)
    with pytest.raises(LoginFailed, match="HTTP 503"):
        await logged_in(peer.spec(), store)


async def test_a_server_that_is_not_there_says_so(store: TokenStore, free_port: int, peer: Guarded) -> None:
    spec = peer.spec(url=f"http://127.0.0.1:{free_port}/mcp")
    with pytest.raises(LoginFailed, match="nothing listens at its address"):
        await logged_in(spec, store)
