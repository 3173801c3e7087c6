from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from holdfast.auth.credentials import Bearer, Logins, status_of
from holdfast.auth.token_endpoint import IssuedTokens
from holdfast.auth.token_store import TokenStore, renewing
from holdfast.core.classify import classify_evidence
from holdfast.core.evidence import TokenNotRenewed
from holdfast.errors import ServerFailure
from tests.auth.grants import grant
from tests.auth.logins import PATIENCE, aged, logged_in, renewal
from tests.peers.guarded import Guarded

pytestmark = pytest.mark.anyio


class Clock:
    """The time of day, as a test has it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def bearer(peer: Guarded, store: TokenStore, now: Clock | None = None) -> Bearer:
    logins = Logins(store, now=now) if now is not None else Logins(store)
    found = logins.authorize(peer.spec())
    assert found is not None
    return found


@pytest.mark.requirement("AUTH-2")
async def test_a_token_that_has_ended_is_renewed_and_the_rotated_refresh_token_is_kept(
    peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    aged(store, kept)
    token = await bearer(peer, store).token()
    renewed = store.get(kept.key)
    assert renewed is not None
    assert token == renewed.access_token != kept.access_token
    assert renewed.refresh_token != kept.refresh_token
    assert renewed.login == kept.login, "a renewal is no login"
    assert await peer.renewals() == 1


@pytest.mark.requirement("AUTH-2")
@pytest.mark.parametrize("how", [{"omits_refresh_on_renewal": True}, {"rotates": False}])
async def test_a_refresh_token_that_the_answer_leaves_out_is_carried_forward(
    how: dict[str, bool], peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    await peer.behave(**how)
    for times in (1, 2):
        renewed = aged(store, store.get(kept.key) or kept)
        assert await bearer(peer, store).token() != renewed.access_token
        now = store.get(kept.key)
        assert now is not None
        assert now.refresh_token == kept.refresh_token
        assert now.scope == kept.scope
        assert await peer.renewals() == times


@pytest.mark.requirement("AUTH-2")
async def test_many_who_need_a_token_at_once_cause_one_renewal(peer: Guarded, store: TokenStore) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    aged(store, kept)
    await peer.behave(token_delay=0.1)
    one, tokens = bearer(peer, store), set[str | None]()

    async def ask() -> None:
        tokens.add(await one.token())

    async with anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(ask)
    assert len(tokens) == 1
    assert await peer.renewals() == 1


_RENEWER = """
import sys, anyio
from pathlib import Path
from holdfast.auth.credentials import Logins
from holdfast.auth.token_store import TokenStore
from holdfast.config.spec import ServerSpec
spec = ServerSpec(id="files", transport="http", url=sys.argv[2])
bearer = Logins(TokenStore(Path(sys.argv[1]), vault=lambda: None)).authorize(spec)
print("ready", flush=True)
sys.stdin.readline()
print(anyio.run(bearer.token))
"""


@pytest.fixture
def renewers(peer: Guarded, store: TokenStore) -> Iterator[list[subprocess.Popen[str]]]:
    root = Path(__file__).parents[2]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _RENEWER, str(store.folder), peer.url],
            env={"PYTHONPATH": f"{root}:{root / 'src'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    yield started
    for one in started:
        one.kill()
        one.communicate()


@pytest.mark.requirement("AUTH-2")
async def test_processes_that_need_a_token_at_once_cause_one_renewal(
    peer: Guarded, store: TokenStore, renewers: list[subprocess.Popen[str]]
) -> None:
    """With rotation a second renewal by the same refresh token would end the login."""
    kept, _ = await logged_in(peer.spec(), store)
    aged(store, kept)
    await peer.behave(token_delay=0.3)

    def all_at_once() -> set[str]:
        for one in renewers:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in renewers:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        return {one.stdout.readline() for one in renewers if one.stdout is not None}

    tokens = await anyio.to_thread.run_sync(all_at_once)
    renewed = store.get(kept.key)
    assert renewed is not None
    assert tokens == {f"{renewed.access_token}\n"}
    assert await peer.renewals() == 1
    assert await peer.seen("reuse") == []


@pytest.mark.requirement("AUTH-5")
@pytest.mark.parametrize(
    "how",
    [
        {"token_status": 503},
        {"token_status": 429},
        {"token_cut": True},
        {"token_status": 400, "token_error": "some proxy's own"},
        {"token_status": 403, "token_error": "invalid_grant"},
        {"token_status": 404, "token_error": "not_found"},
    ],
)
async def test_an_outage_in_the_middle_of_a_renewal_is_transient_and_loses_nothing(
    how: dict[str, object], peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    kept, clock = aged(store, kept), Clock()
    await peer.behave(**how)
    one = bearer(peer, store, clock)
    with pytest.raises(ServerFailure) as failed:
        await one.token()
    verdict = classify_evidence(failed.value.evidence)
    assert verdict.status == "transient"
    assert "login files" not in verdict.reason + verdict.hint, "no login is asked for"
    assert store.get(kept.key) == kept
    await peer.behave(token_status=0, token_cut=False)
    clock.now += 60
    assert await one.token() != kept.access_token


@pytest.mark.requirement("AUTH-5")
async def test_an_authorization_server_that_is_away_is_asked_less_and_less_often(
    peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    aged(store, kept)
    clock = Clock()
    await peer.behave(token_status=500)
    renewer = Logins(store, now=clock, chance=lambda: 0.0)

    async def tried() -> float:
        with pytest.raises(ServerFailure) as failed:
            await renewer.renew(kept.key, instead_of=kept.access_token)
        assert isinstance(failed.value.evidence, TokenNotRenewed)
        return failed.value.evidence.retry_after or 0.0

    waits = []
    for _ in range(8):
        waits.append(await tried())
        before = await peer.renewals()
        clock.now += waits[-1] - 0.5
        assert 0 < await tried() <= 0.5
        assert await peer.renewals() == before, "it is left alone meanwhile"
        clock.now += 0.5
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.requirement("AUTH-5")
@pytest.mark.parametrize(("status", "error"), [(400, "invalid_grant"), (401, "invalid_client"), (400, "invalid_scope")])
async def test_a_refusal_in_the_words_of_a_token_endpoint_ends_a_login(
    status: int, error: str, peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    await peer.behave(token_status=status, token_error=error)
    assert await renewal(peer.spec(), store) == "refused"
    refused = store.get(kept.key)
    assert refused is not None
    assert refused.refused == error


@pytest.mark.requirement("AUTH-5")
async def test_a_clock_that_is_set_back_does_not_make_the_pause_longer(peer: Guarded, store: TokenStore) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    kept, clock = aged(store, kept), Clock()
    renewer = Logins(store, now=clock)
    await peer.behave(token_status=503)
    with pytest.raises(ServerFailure):
        await renewer.renew(kept.key, instead_of=kept.access_token)
    await peer.behave(token_status=0)
    clock.now -= 86_400
    assert await renewer.renew(kept.key, instead_of=kept.access_token) is not None


@pytest.mark.requirement("AUTH-5")
async def test_a_token_that_has_not_ended_yet_is_used_while_it_cannot_be_renewed(
    peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    clock = Clock()
    aged(store, kept, expires_at=clock.now + 10)
    await peer.behave(token_status=503)
    assert await bearer(peer, store, clock).token() == kept.access_token
    assert await peer.renewals() == 1


@pytest.mark.requirement("AUTH-2", "AUTH-3")
async def test_a_refresh_token_that_the_authorization_server_lost_is_asked_with_once(
    peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    aged(store, kept)
    await peer.behave(revoke=True)
    one = bearer(peer, store)
    assert await one.token() == kept.access_token, "it is for the server to say that it has ended"
    assert not await one.renewed(kept.access_token)
    assert await one.token() == kept.access_token
    assert await peer.renewals() == 1
    refused = store.get(kept.key)
    assert refused is not None
    assert (refused.refused, refused.refresh_token) == ("invalid_grant", kept.refresh_token)
    assert one.login().state.value == "refused"


async def test_a_token_that_was_just_renewed_and_is_refused_again_is_not_renewed_for_ever(
    peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    one = bearer(peer, store)
    assert await one.renewed(kept.access_token)
    fresh = await one.token()
    assert fresh is not None
    assert not await one.renewed(fresh)
    assert await peer.renewals() == 1


@pytest.mark.requirement("AUTH-5")
async def test_whoever_gives_up_waiting_does_not_take_the_new_tokens_with_them(
    peer: Guarded, store: TokenStore
) -> None:
    """The old refresh token is worth nothing once the new one is given: its answer must be kept."""
    kept, _ = await logged_in(peer.spec(), store)
    aged(store, kept)
    await peer.behave(token_delay=0.3)
    renewer = Logins(store)
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            await renewer.renew(kept.key, instead_of=kept.access_token)

        tasks.start_soon(ask)
        with anyio.fail_after(PATIENCE):
            while not await peer.seen("waits"):
                pass
        tasks.cancel_scope.cancel()
    renewed = store.get(kept.key)
    assert renewed is not None
    assert renewed.access_token != kept.access_token
    assert await bearer(peer, store).token() == renewed.access_token


async def test_whoever_waits_for_another_process_can_be_cancelled(store: TokenStore) -> None:
    kept = store.put(grant())
    async with renewing(store.folder, kept.key):
        with anyio.move_on_after(0.1) as scope:
            await Logins(store).renew(kept.key, instead_of=kept.access_token)
    assert scope.cancelled_caught


async def test_a_store_that_cannot_be_written_is_told_of_as_what_it_is(
    peer: Guarded, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    aged(store, kept)

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(ServerFailure) as failed:
        await bearer(peer, store).token()
    assert "No space left on device" in classify_evidence(failed.value.evidence).reason


@pytest.mark.requirement("AUTH-5")
async def test_a_rotated_refresh_token_that_the_store_did_not_take_is_kept_at_the_next_chance(
    peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    aged(store, kept)
    one = bearer(peer, store)
    with pytest.MonkeyPatch.context() as full:
        full.setattr("os.fsync", no_space)
        for _ in range(2):
            with pytest.raises(ServerFailure):
                await one.token()
    token = await one.token()
    renewed = store.get(kept.key)
    assert renewed is not None
    assert token == renewed.access_token != kept.access_token
    assert renewed.refresh_token != kept.refresh_token
    assert await peer.renewals() == 1, "what was given once is not asked for again"


@pytest.mark.requirement("AUTH-5")
async def test_a_grant_that_could_not_be_kept_does_not_replace_a_newer_login(peer: Guarded, store: TokenStore) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    aged(store, kept)
    one = bearer(peer, store)
    with pytest.MonkeyPatch.context() as full:
        full.setattr("os.fsync", no_space)
        with pytest.raises(ServerFailure):
            await one.token()
    newer, _ = await logged_in(peer.spec(), store)
    assert await one.renewed(newer.access_token)
    now = store.get(kept.key)
    assert now is not None
    assert now.login == newer.login


@pytest.mark.requirement("AUTH-1")
async def test_a_renewal_that_ends_after_a_login_elsewhere_does_not_undo_it(peer: Guarded, store: TokenStore) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    aged(store, kept)
    newer = replace(kept, issuer="https://auth2.example", access_token="planted-elsewhere", login="newer")

    async def slowly(*_: object, **__: object) -> IssuedTokens:
        store.put(newer)  # the person logs in at another issuer, while the old one takes its time to answer
        return IssuedTokens(access_token="planted-late", refresh_token="planted-late-refresh")

    renewer = Logins(store, request=slowly)
    await renewer.renew(kept.key, instead_of=kept.access_token)
    used = store.of(kept.servers[0])
    assert used is not None
    assert (used.issuer, used.access_token) == (newer.issuer, newer.access_token)


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.requirement("AUTH-1")
async def test_the_status_says_where_a_login_is_from_and_whether_it_lasts(peer: Guarded, store: TokenStore) -> None:
    assert status_of(peer.spec(), store).kind == "none"
    assert status_of(peer.spec(headers={"authorization": "Bearer x"}), store).kind == "header"
    assert status_of(peer.spec(oauth=False), store).kind == "off"
    kept, _ = await logged_in(peer.spec(), store)
    status = status_of(peer.spec(), store)
    assert (status.kind, status.place) == ("login", str(store.file))
    assert status.grant is not None
    assert status.grant.source == "file"
    assert status.grant.usable(0)
    assert not status.grant.expired(0)
    assert status.grant.refreshable
    aged(store, replace(kept, refresh_token=None))
    ended = status_of(peer.spec(), store).grant
    assert ended is not None
    assert ended.expired(2)
    assert not ended.usable(2)


async def test_a_renewal_succeeds_or_waits_for_an_outage_or_is_refused_for_good(
    peer: Guarded, store: TokenStore
) -> None:
    await logged_in(peer.spec(), store)
    assert await renewal(peer.spec(), store) == "renewed"
    await peer.behave(token_status=503)
    assert await renewal(peer.spec(), store) == "unreachable"
    await peer.behave(token_status=0, revoke=True)
    assert await renewal(peer.spec(), store) == "refused"
    assert await renewal(peer.spec(), store) == "refused"
