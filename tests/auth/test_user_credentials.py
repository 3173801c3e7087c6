"""The ladder of credentials against real providers: whose token a server sees, and who gets none (AUTH-6)."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import jwt
import pytest
from mcp import Client

from holdfast.auth.credentials import Logins
from holdfast.auth.token_store import TokenStore
from holdfast.auth.user_credentials import Ladder, Ladders, SubjectTokens
from holdfast.auth.user_tokens import UserTokens
from holdfast.config.read import config_from_mapping
from holdfast.core.evidence import TokenNotRenewed
from holdfast.core.lifecycle.table import State
from holdfast.errors import ServerFailure
from holdfast.hub.slot import remedy_for
from tests.auth.issuer import Person as Browsing
from tests.auth.ladder_field import GATEWAY_SECRET, KEYS, STATIC, Field, LadderHub, client_with, running_field
from tests.auth.logins import logged_in
from tests.harness.served_hub import Person, text_of
from tests.peers.guarded import Guarded
from tests.peers.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AUTH-6")]


@pytest.fixture(scope="module")
def processes() -> Iterator[Field]:
    with running_field() as one:
        yield one


@pytest.fixture
async def field(processes: Field) -> Field:
    await processes.begin()
    return processes


@pytest.fixture
def ada() -> Person:
    return Person("ada")


@pytest.fixture
def bob() -> Person:
    return Person("bob")


async def whoami(client: Client) -> str:
    with anyio.fail_after(30):
        return text_of(await client.call_tool("tracker__whoami", {}))


async def names(client: Client) -> set[str]:
    with anyio.fail_after(30):
        return {tool.name for tool in (await client.list_tools()).tools}


def sent_to_server(seen: list[dict[str, Any]]) -> set[str]:
    return {one["authorization"].removeprefix("Bearer ") for one in seen if one["grant"] == "mcp"}


@pytest.mark.requirement("SEC-13")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_each_user_s_token_for_the_hub_becomes_her_own_token_for_the_server(
    era: str, field: Field, tmp_path: Path
) -> None:
    hub_tokens = {name: await field.hub_token(name) for name in ("ada", "bob")}
    async with (
        LadderHub.open(field, tmp_path, field.defined(exchange=field.exchange())) as served,
        client_with(hub_tokens["ada"], served.all, Person("ada"), era) as ada,
        client_with(hub_tokens["bob"], served.all, Person("bob"), era) as bob,
    ):
        assert "tracker__of_ada" in await names(ada)
        assert "tracker__of_ada" not in await names(bob)
        assert await whoami(ada) == "ada by issuer"
        assert await whoami(bob) == "bob by issuer"
        assert "holdfast_login" not in await names(ada)
    seen = await field.seen()
    exchanged = [one for one in seen if one["grant"] == "exchange"]
    assert [one["subject_token"] for one in exchanged] == list(hub_tokens.values()), "one exchange for each of them"
    assert not sent_to_server(seen) & {*hub_tokens.values()}, "a token for the hub reached the server"
    assert not served.tokens.file.exists(), "what was exchanged is nowhere at rest"


async def test_the_on_behalf_of_form_of_entra_works_too(field: Field, tmp_path: Path, ada: Person) -> None:
    token = await field.hub_token("ada")
    exchange = field.exchange(form="on-behalf-of", scope="files:read")
    async with (
        LadderHub.open(field, tmp_path, field.defined(exchange=exchange)) as served,
        client_with(token, served.all, ada) as client,
    ):
        assert await whoami(client) == "ada by issuer"
    (asked,) = await field.seen("on-behalf-of")
    assert (asked["assertion"], asked["requested_token_use"]) == (token, "on_behalf_of")
    assert "resource" not in asked


async def signed_in(name: str, field: Field) -> Browsing:
    """Someone signs in to the hub at its issuer, by the pages."""
    person = Browsing(name)
    with anyio.fail_after(30):
        await person.visit(f"{field.hub}/signin?to=/healthz")
    return person


async def test_the_issuer_vouches_for_a_user_who_signed_in_and_others_use_the_next_rung(
    field: Field, tmp_path: Path, ada: Person, bob: Person
) -> None:
    definition = field.defined(assertion=field.assertion(), exchange=field.exchange())
    async with LadderHub.open(field, tmp_path, definition) as served:
        await signed_in("ada", field)
        async with (
            client_with(await field.hub_token("ada"), served.all, ada) as one,
            client_with(await field.hub_token("bob"), served.all, bob) as other,
        ):
            assert await whoami(one) == "ada by authority"
            assert await whoami(other) == "bob by issuer"
        (row,) = served.tokens.of(field.name("ada")).grants()
        assert not served.tokens.of(field.name("bob")).grants()
        assert row.access_token.encode() not in (tmp_path / "user-tokens.sqlite").read_bytes(), "it is encrypted"
    seen = await field.seen()
    asserted, taken = ([one for one in seen if one["grant"] == grant] for grant in ("id-jag", "jwt-bearer"))
    assert [one["subject_token"] for one in asserted] == [row.access_token]
    assert [one["client"] for one in taken] == ["hub-at-authority"]
    assert row.access_token not in sent_to_server(seen), "an ID token reached the server"
    assert row.access_token not in {one["assertion"] for one in taken}, "an ID token reached another issuer"


async def test_a_sign_out_ends_what_the_issuer_vouches_for(field: Field, tmp_path: Path, ada: Person) -> None:
    definition = field.defined(assertion=field.assertion())
    async with LadderHub.open(field, tmp_path, definition) as served:
        browser = await signed_in("ada", field)
        assert len(served.tokens.of(field.name("ada")).grants()) == 1
        await browser.http.post(f"{field.hub}/signout", headers={"origin": field.hub})
        assert not served.tokens.of(field.name("ada")).grants()
        async with client_with(await field.hub_token("ada"), served.all, ada) as client:
            assert "holdfast_login" in await names(client)
            status = text_of(await client.call_tool("holdfast_status", {}))
            assert "holdfast login tracker" in status
    assert not await field.seen("id-jag")


async def test_an_id_token_is_renewed_and_one_of_another_person_is_not_taken(
    field: Field, tmp_path: Path, ada: Person
) -> None:
    """The mutant that does not compare the person takes the ID token of mallory."""
    definition = field.defined(assertion=field.assertion())
    await field.control(seconds={"id": 20})
    async with LadderHub.open(field, tmp_path, definition) as served:
        await signed_in("ada", field)
        name = field.name("ada")
        (before,) = served.tokens.of(name).grants()
        renewed = await served.id_tokens.current(name)
        assert renewed is not None
        assert renewed.access_token != before.access_token
        assert (renewed.login, renewed.ends_at) == (before.login, before.ends_at), "it ends with the sign-in"
        await field.control(say={"sub": "mallory"})
        assert await served.id_tokens.current(name) is None
        assert served.tokens.of(name).grants()[0].refused == "unusable_id_token"
        async with client_with(await field.hub_token("ada"), served.all, ada) as client:
            assert "holdfast_login" in await names(client)
    assert not await field.seen("id-jag")


async def test_no_id_token_is_kept_where_no_server_takes_assertions(field: Field, tmp_path: Path) -> None:
    async with LadderHub.open(field, tmp_path, field.defined(exchange=field.exchange())) as served:
        await signed_in("ada", field)
        assert not served.tokens.of(field.name("ada")).grants()


async def test_no_token_of_a_caller_is_kept_where_no_server_exchanges(
    field: Field, tmp_path: Path, ada: Person
) -> None:
    async with LadderHub.open(field, tmp_path, field.defined()) as served:
        async with client_with(await field.hub_token("ada"), served.all, ada) as client:
            await names(client)
        assert served.subjects.of(field.name("ada")) is None


# Refusals.


@pytest.mark.parametrize("code", ["access_denied", "invalid_target", "unauthorized_client"])
async def test_a_refusal_that_is_a_decision_is_this_user_s_denial_with_the_words_of_the_issuer(
    code: str, field: Field, tmp_path: Path, ada: Person
) -> None:
    await field.control(refuse={"exchange": code})
    definition = field.defined(exchange=field.exchange(), shared=True)
    async with (
        LadderHub.open(field, tmp_path, definition) as served,
        client_with(await field.hub_token("ada"), served.all, ada) as client,
    ):
        assert await names(client) == {"holdfast_status"}, "a login would go around the decision"
        status = text_of(await client.call_tool("holdfast_status", {}))
        assert "tracker: denied" in status
        assert code in status
        refused = await client.call_tool("tracker__whoami", {})
        assert refused.is_error
    assert not await field.seen("mcp"), "the server was not asked"


@pytest.mark.parametrize("code", ["consent_required", "interaction_required", "invalid_grant"])
async def test_a_refusal_that_a_person_can_answer_leads_to_her_own_login_and_never_to_the_shared_one(
    code: str, field: Field, tmp_path: Path, ada: Person
) -> None:
    """The mutant that falls from a personal credential to the shared one lists the tools of the hub's own login."""
    await field.control(refuse={"exchange": code})
    definition = field.defined(exchange=field.exchange(), shared=True)
    own = await own_login(field, tmp_path)
    async with (
        LadderHub.open(field, tmp_path, definition, own=own) as served,
        client_with(await field.hub_token("ada"), served.all, ada) as client,
    ):
        assert await names(client) == {"holdfast_login", "holdfast_status"}
        link = served.links.link(field.name("ada"), "tracker", "test")
        assert "Logged in to tracker" in (await Browsing("ada").log_in(link)).text
        with anyio.fail_after(30):
            while "tracker__of_ada" not in await names(client):
                await ada.until(lambda: "notifications/tools/list_changed" in ada.notices)
                ada.notices.clear()
        assert await whoami(client) == "ada by authority"
    assert not sent_to_server(await field.seen()) & {one.access_token for one in own.grants()}


async def own_login(field: Field, folder: Path) -> TokenStore:
    """The login of the hub itself, as a person made it on its machine."""
    store = TokenStore(folder / "own", vault=lambda: None)
    spec = config_from_mapping({"mcpServers": {"tracker": {"url": field.mcp}}}).servers["tracker"]
    await logged_in(spec, store)
    return store


async def test_only_a_user_without_any_credential_of_her_own_acts_as_the_hub_where_the_config_says_so(
    field: Field, tmp_path: Path, ada: Person, bob: Person
) -> None:
    own = await own_login(field, tmp_path)
    definition = field.defined(exchange=field.exchange(), shared=True)
    async with (
        LadderHub.open(field, tmp_path, definition, own=own) as served,
        client_with(STATIC, served.all, bob) as carol,
        client_with(await field.hub_token("ada"), served.all, ada) as client,
    ):
        assert await whoami(carol) == "someone by authority"
        assert await whoami(client) == "ada by issuer"


async def test_a_user_who_cannot_have_an_exchange_is_told_why(field: Field, tmp_path: Path, bob: Person) -> None:
    own = await own_login(field, tmp_path)
    async with (
        LadderHub.open(field, tmp_path, field.defined(exchange=field.exchange()), own=own) as served,
        client_with(STATIC, served.all, bob) as carol,
    ):
        assert await names(carol) == {"holdfast_login", "holdfast_status"}, "the shared login is not for her"
        slot = served.hub.registry.users.slot("carol", "tracker")
        assert "a token exchange needs a JWT, and the user sends a static token" in remedy_for(slot).hint


# The wrong token, or the wrong place.


async def test_a_token_for_another_server_is_not_sent_to_this_one(field: Field, tmp_path: Path, ada: Person) -> None:
    """The mutant that does not look at the audience sends the token of another server."""
    await field.control(say={"audience": "https://payroll.example/mcp"})
    async with (
        LadderHub.open(field, tmp_path, field.defined(exchange=field.exchange())) as served,
        client_with(await field.hub_token("ada"), served.all, ada) as client,
    ):
        assert await names(client) == {"holdfast_status"}
        assert "for another server" in text_of(await client.call_tool("holdfast_status", {}))
    assert not await field.seen("mcp")


async def test_an_assertion_for_another_authorization_server_does_not_leave_the_hub(
    field: Field, tmp_path: Path, ada: Person
) -> None:
    """The mutant that does not look at the audience of the assertion sends it to this authorization server."""
    await field.control(say={"assertionFor": "https://elsewhere.example"})
    async with LadderHub.open(field, tmp_path, field.defined(assertion=field.assertion())) as served:
        await signed_in("ada", field)
        async with client_with(await field.hub_token("ada"), served.all, ada) as client:
            assert await names(client) == {"holdfast_status"}
    seen = await field.seen()
    assert [one["grant"] for one in seen if one["grant"] in ("id-jag", "jwt-bearer")] == ["id-jag"]


async def test_a_redirect_of_the_token_endpoint_to_another_origin_is_not_followed(
    field: Field, tmp_path: Path, ada: Person, thief: Guarded
) -> None:
    """The mutant that follows it sends the user's token to a stranger."""
    await field.control(redirect=f"{thief.address}/token")
    async with (
        LadderHub.open(field, tmp_path, field.defined(exchange=field.exchange(), shared=True)) as served,
        client_with(await field.hub_token("ada"), served.all, ada) as client,
    ):
        assert await names(client) == {"holdfast_status"}
        assert "tracker: reconnecting" in text_of(await client.call_tool("holdfast_status", {}))
        assert not await thief.seen("token"), "the user's token reached a stranger"
        await field.control(redirect="")
        with anyio.fail_after(30):
            while "tracker__of_ada" not in await names(client):
                await ada.until(lambda: "notifications/tools/list_changed" in ada.notices)
                ada.notices.clear()


async def test_a_token_that_has_ended_is_not_exchanged_and_what_was_made_of_it_ends_with_it(
    field: Field, tmp_path: Path
) -> None:
    """The mutant that does not look at the time sends it, or goes on with the exchanged token."""
    now = time.time()
    clock = lambda: now  # noqa: E731 - the time stands still
    definition = field.defined(exchange=field.exchange(), shared=True)
    own = Logins(await own_login(field, tmp_path))
    spec = config_from_mapping({"mcpServers": {"tracker": definition}}).servers["tracker"]
    subjects = SubjectTokens(needed=lambda: True, now=clock)
    ladders = Ladders(UserTokens(tmp_path, keys=KEYS), own, subjects=subjects, now=clock)
    name = field.name("ada")
    subjects.note(name, await field.hub_token("ada", seconds=600))
    ladder = ladders.authorize(name, spec)
    assert ladder is not None
    first = await ladder.token()
    now += 590
    assert await ladder.token() == first, "it lives for an hour, and the user's own token for 10 s more"
    assert len(await field.seen("exchange")) == 1
    now += 11
    with pytest.raises(ServerFailure) as failed:
        await ladder.token()
    assert isinstance(failed.value.evidence, TokenNotRenewed), "it is not a denial: her client brings another"
    assert not await field.seen("exchange")
    subjects.note(name, await field.hub_token("ada", seconds=1200))
    assert ladders.has_news(name, "tracker")
    second = await ladder.token()
    assert second not in (None, first)
    subjects.note(name, await field.hub_token("ada", seconds=2400))
    now += 600
    assert await ladder.token() not in (None, second), "what was made of the token before ended with it"


@pytest.mark.requirement("SEC-11")
async def test_users_who_gave_way_are_forgotten_also_while_the_issuer_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.auth.user_credentials.MOST_KEPT", 1)
    address = f"http://127.0.0.1:{free_port()}/token"
    definition = {
        "url": "http://127.0.0.1:1/mcp",
        "sharing": "per-user",
        "credentials": {"exchange": {"tokenUrl": address, "clientId": "hub", "audience": "files"}},
    }
    spec = config_from_mapping({"mcpServers": {"tracker": definition}}).servers["tracker"]
    subjects = SubjectTokens(needed=lambda: True)
    ladders = Ladders(UserTokens(tmp_path, keys=KEYS), Logins(TokenStore(tmp_path)), subjects=subjects)
    kept = []
    for name in ("https://id.example#ada", "https://id.example#bob"):
        subjects.note(name, jwt.encode({"exp": time.time() + 600}, "k" * 32))
        ladder = ladders.authorize(name, spec)
        assert isinstance(ladder, Ladder)
        with pytest.raises(ServerFailure):
            await ladder.token()
        kept.append(weakref.ref(ladder._rungs[0]))
        del ladder
    gc.collect()
    assert [one() is not None for one in kept] == [False, True]


async def test_a_user_comes_back_with_the_next_token_that_her_client_sends(
    field: Field, tmp_path: Path, ada: Person
) -> None:
    await field.control(refuse={"exchange": "access_denied"})
    async with LadderHub.open(field, tmp_path, field.defined(exchange=field.exchange())) as served:
        async with client_with(await field.hub_token("ada"), served.all, ada) as client:
            assert (await client.call_tool("tracker__whoami", {})).is_error
            await field.control(refuse={})
            assert (await client.call_tool("tracker__whoami", {})).is_error, "nothing new is known"
        async with client_with(await field.hub_token("ada", seconds=7200), served.all, ada) as client:
            assert await whoami(client) == "ada by issuer"


async def test_a_token_that_the_server_ends_is_exchanged_again_within_the_call(
    field: Field, tmp_path: Path, ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.auth.user_credentials.SETTLED", 0.0)
    async with (
        LadderHub.open(field, tmp_path, field.defined(exchange=field.exchange())) as served,
        client_with(await field.hub_token("ada"), served.all, ada) as client,
    ):
        assert await whoami(client) == "ada by issuer"
        await field.control(end=True)
        assert await whoami(client) == "ada by issuer"
        assert served.hub.registry.users.slot(field.name("ada"), "tracker").state is State.CONNECTED
    assert len(await field.seen("exchange")) == 2


async def test_an_outage_of_the_authorization_server_is_no_denial_and_changes_no_identity(
    field: Field, tmp_path: Path, ada: Person
) -> None:
    nothing = f"http://127.0.0.1:{free_port()}/token"
    definition = field.defined(exchange=field.exchange(tokenUrl=nothing), shared=True)
    own = await own_login(field, tmp_path)
    await field.seen()
    async with (
        LadderHub.open(field, tmp_path, definition, own=own) as served,
        client_with(await field.hub_token("ada"), served.all, ada) as client,
    ):
        assert await names(client) == {"holdfast_status"}
        status = text_of(await client.call_tool("holdfast_status", {}))
        assert "the hub could not get this user's token" in status
        assert "denied" not in status
    assert not await field.seen("mcp")


# Behind a gateway.


@pytest.mark.parametrize(("holder", "expected"), [("ada", True), ("bob", False)])
async def test_a_token_that_a_gateway_passes_on_counts_only_if_it_is_of_the_user_that_the_gateway_names(
    holder: str, expected: bool, field: Field, tmp_path: Path, ada: Person
) -> None:
    """The mutant that does not compare them lets ada act with a token of bob."""
    headers = {"holdfast-gateway-secret": GATEWAY_SECRET, "x-forwarded-user": "ada"}
    definition = field.defined(exchange=field.exchange())
    async with (
        LadderHub.open(field, tmp_path, definition, gateway=True) as served,
        client_with(await field.hub_token(holder), served.all, ada, headers=headers) as client,
    ):
        assert ("tracker__of_ada" in await names(client)) is expected
        assert "tracker__of_bob" not in await names(client)
    assert bool(await field.seen("exchange")) is expected


async def test_a_token_for_another_audience_is_neither_a_caller_nor_exchanged(
    field: Field, tmp_path: Path, ada: Person
) -> None:
    """The mutant that notes tokens before they are verified exchanges one that is not for this hub."""
    foreign = await field.hub_token("ada", audience="https://other.example")
    headers = {"holdfast-gateway-secret": GATEWAY_SECRET, "x-forwarded-user": "ada"}
    definition = field.defined(exchange=field.exchange())
    async with (
        LadderHub.open(field, tmp_path, definition, gateway=True) as served,
        client_with(foreign, served.all, ada, headers=headers) as client,
    ):
        assert "holdfast_login" in await names(client)
        assert served.subjects.of("gateway#ada") is None
    assert not await field.seen("exchange")
