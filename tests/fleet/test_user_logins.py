"""The logins of users in a fleet: hubs on a real Redis, a real authorization server, and no token is used twice."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from holdfast.auth import StoreUnusable
from holdfast.auth.credentials import Logins
from holdfast.auth.person_login import log_out
from holdfast.auth.token_store import Grant
from holdfast.config.read import config_from_mapping
from holdfast.core import TokenNotRenewed
from holdfast.errors import ServerFailure, UsageError
from holdfast.fleet import (
    CommandUserTokens,
    Fleet,
    FleetUserTokens,
    RedisAddress,
    RedisLeases,
    RedisStore,
    SignedStore,
    user_logins,
)
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub
from holdfast.keys import KeyRing
from holdfast.serve import command_user_tokens
from tests.auth.grants import grant
from tests.auth.logins import logged_in
from tests.harness.open_hubs import fleet_of
from tests.harness.served_hub import Person, Served, text_of
from tests.harness.users import TOKENS, client_of, listed, names
from tests.harness.waiting import all_blocked, asked, came_true
from tests.harness.web import serving
from tests.peers.guarded import PLANTED, Guarded, guarded
from tests.peers.redis import RedisPeer, has_redis

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requirement("AUTH-8", "SEC-13"),
    pytest.mark.skipif(not has_redis(), reason="redis-server is not installed"),
]

SESSION_KEY = b"s" * 32
OLD, NEW = b"the older key of users, 32 bytes", b"the newer key of users, 32 bytes"
PATIENCE = 30


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisPeer]:
    async with RedisPeer(tmp_path / "redis") as peer:
        yield peer


@pytest.fixture
async def peer() -> AsyncIterator[Guarded]:
    async with guarded() as one:
        yield one


def fleet_on(redis: RedisPeer, *keys: bytes) -> Fleet:
    address = RedisAddress.parse(redis.url)
    return Fleet(
        SignedStore(RedisStore(address), lambda: KeyRing([SESSION_KEY]), address.fleet),
        keys=lambda: KeyRing([SESSION_KEY]),
        leases=RedisLeases(address),
        user_keys=lambda: KeyRing(keys or [NEW]),
    )


def command_on(redis: RedisPeer, *keys: bytes) -> CommandUserTokens:
    address = RedisAddress.parse(redis.url)
    return CommandUserTokens(address, keys=KeyRing(keys or [NEW]), session_keys=KeyRing([SESSION_KEY]))


def logins_of(served: Served) -> FleetUserTokens:
    tokens = served.hub.registry.users.tokens
    assert isinstance(tokens, FleetUserTokens)
    return tokens


@asynccontextmanager
async def replicas(
    redis: RedisPeer, servers: dict[str, Any], count: int = 2, keys: tuple[bytes, ...] = ()
) -> AsyncIterator[list[Served]]:
    """Hubs that share their users' logins; each knows what the fleet has."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            fleet = fleet_on(redis, *keys)
            config = config_from_mapping({"mcpServers": servers})
            hub = Hub(config, fleet=fleet, has_local=False, user_tokens=fleet.users, chance=lambda: 0.0)
            app = create_app(hub, tokens=TOKENS)
            await stack.enter_async_context(hub)
            found.append(Served(hub, app, await stack.enter_async_context(serving(app))))
            await came_true(lambda fleet=fleet: fleet.member.synced)  # type: ignore[misc]
        yield found


async def put(served: Served, who: str, one: Grant) -> Grant:
    return await anyio.to_thread.run_sync(logins_of(served).of(who).put, one)


async def reaches(served: Served, who: str, token: str) -> None:
    """Wait until a replica knows this access token of a user."""
    await came_true(lambda: [one.access_token for one in logins_of(served).of(who).grants()] == [token])


async def test_a_login_at_one_replica_brings_the_user_s_server_back_at_all(
    redis: RedisPeer, peer: Guarded, ada: Person, bob: Person
) -> None:
    async with (
        replicas(redis, {"files": peer.defined(sharing="per-user")}) as (one, other),
        client_of(ada, one.all) as here,
        client_of(bob, other.all) as there,
    ):
        with anyio.fail_after(PATIENCE):
            assert await names(here) == await names(there) == {"holdfast_login", "holdfast_status"}
            await peer.behave(person="ada")
            await logged_in(peer.spec(sharing="per-user"), logins_of(other).of("ada"))
            assert "files__of_ada" in await listed(here, ada, "files__of_ada")
            assert text_of(await here.call_tool("files__read", {})) == "read done for ada"
            assert "holdfast_login" in await names(there), "another user has no login by it"


async def test_two_replicas_that_renew_one_login_at_once_ask_once(redis: RedisPeer, peer: Guarded) -> None:
    async with replicas(redis, {}) as (one, other):
        with anyio.fail_after(PATIENCE):
            kept, _ = await logged_in(peer.spec(), logins_of(one).of("ada"))
            await reaches(other, "ada", kept.access_token)
            await peer.behave(token_delay=0.3)
            async with anyio.create_task_group() as tasks:
                for served in (one, other):
                    renewer = Logins(logins_of(served).of("ada"))
                    tasks.start_soon(partial(renewer.renew, kept.key, instead_of=kept.access_token))
            assert await peer.renewals() == 1
            assert not await peer.seen("reuse")
            assert logins_of(one).of("ada").grants() == logins_of(other).of("ada").grants()
            assert await redis.command("KEYS", "*:lease:*") == [], "the lease was given back"


async def test_a_replica_that_has_not_heard_of_a_renewal_never_uses_the_old_refresh_token(
    redis: RedisPeer, peer: Guarded
) -> None:
    """One replica renews and its write is late: the other one gets no lease, or reads the answer first."""
    async with replicas(redis, {}) as (one, other):
        with anyio.fail_after(PATIENCE):
            kept, _ = await logged_in(peer.spec(), logins_of(one).of("ada"))
            await reaches(other, "ada", kept.access_token)
            renew = partial(Logins(logins_of(one).of("ada")).renew, kept.key, instead_of=kept.access_token)
            renewed = await renew()
            assert renewed is not None
            # The other one is asked at once, with what it knew before.
            found = await Logins(logins_of(other).of("ada")).renew(kept.key, instead_of=kept.access_token)
            assert found is not None
            assert found.access_token == renewed.access_token
            assert await peer.renewals() == 1


@pytest.mark.requirement("FLEET-3")
async def test_while_redis_is_gone_a_valid_token_is_used_and_none_is_renewed(
    redis: RedisPeer, peer: Guarded, ada: Person
) -> None:
    async with (
        replicas(redis, {"files": peer.defined(sharing="per-user")}, count=1) as (served,),
        client_of(ada, served.all) as client,
    ):
        with anyio.fail_after(PATIENCE):
            await peer.behave(person="ada")
            kept, _ = await logged_in(peer.spec(sharing="per-user"), logins_of(served).of("ada"))
            await listed(client, ada, "files__of_ada")
            await redis.kill()
            assert text_of(await client.call_tool("files__read", {})) == "read done for ada"
            with pytest.raises(ServerFailure) as refused:
                await Logins(logins_of(served).of("ada")).renew(kept.key, instead_of=kept.access_token)
            assert "renewed when it does" in str(refused.value)
            assert await peer.renewals() == 0, "the refresh token was not used"
            await redis.start()
            await came_true(lambda: fleet_of(served.hub).state.is_shared)
            renewed = await Logins(logins_of(served).of("ada")).renew(kept.key, instead_of=kept.access_token)
            assert renewed is not None
            assert renewed.refresh_token != kept.refresh_token


async def test_an_answer_that_redis_did_not_take_is_used_here_and_the_lease_stays_until_it_has_it(
    redis: RedisPeer, peer: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_logins, "STORED_SECONDS", 0.2)
    async with replicas(redis, {}) as (one, other):
        with anyio.fail_after(PATIENCE):
            kept, _ = await logged_in(peer.spec(), logins_of(one).of("ada"))
            await reaches(other, "ada", kept.access_token)
            here = logins_of(one).of("ada")
            async with here.renewing(kept.key):
                redis.stop()
                newer = await put(one, "ada", replace(kept, access_token="planted-newer", refresh_token="planted-next"))
            assert here.grants() == (newer,), "this replica goes on with it"
            redis.go_on()
            await reaches(other, "ada", "planted-newer")

            async def given_back() -> object:
                return await redis.command("KEYS", "*:lease:*") == []

            await asked(given_back)


async def test_an_emptied_redis_gets_the_logins_again_and_a_logout_stays_one(redis: RedisPeer) -> None:
    async with replicas(redis, {}) as (one, other):
        with anyio.fail_after(PATIENCE):
            await put(one, "ada", grant(1))
            await put(one, "bob", grant(2))
            await reaches(other, "ada", "planted-access-1")
            await anyio.to_thread.run_sync(logins_of(other).of("bob").remove, grant(2).key)
            await came_true(lambda: not logins_of(one).of("bob").grants())
            await redis.command("FLUSHALL")
            fresh = fleet_on(redis)
            async with Hub(config_from_mapping({"mcpServers": {}}), fleet=fresh, user_tokens=fresh.users):
                users = fresh.users
                assert users is not None
                await came_true(lambda: users.of("ada").grants() == (grant(1),))
                assert users.of("bob").grants() == ()


async def test_redis_shows_no_token_and_no_name_and_a_copied_value_opens_for_no_other_user(redis: RedisPeer) -> None:
    async with replicas(redis, {}, count=1) as (served,):
        with anyio.fail_after(PATIENCE):
            await put(served, "ada@lovelace", grant())
            await came_true(lambda: not fleet_of(served.hub).member.outbox.unsent)
            kept = await redis.command("HGETALL", "holdfast2:{default}:records")
            content = b" ".join([*kept, *kept.values()])
            assert b"login/" in content
            for secret in (b"planted", b"lovelace", b"example", PLANTED.encode()):
                assert secret not in content
            state = logins_of(served)._state
            name = next(record.key for record in state.member.book.values() if record.key.startswith("login/"))
            for other in logins_of(served)._seal.records("bob", grant().key):
                state.write(other, state.kept(name))
                logins_of(served).learn(other.partition("/")[2], {})
            assert logins_of(served).of("bob").grants() == ()
            assert logins_of(served).of("ada@lovelace").grants() == (grant(),)


async def test_a_new_key_in_front_seals_all_again_and_a_lost_key_leaves_them_where_they_are(
    redis: RedisPeer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.replicas.member.SETTLED_SECONDS", 0.2)
    with anyio.fail_after(PATIENCE):
        async with replicas(redis, {}, count=1, keys=(OLD,)) as (served,):
            await put(served, "ada", grant(1))
        async with replicas(redis, {}, count=1, keys=(b"a key of no one, it has 32 bytes",)) as (served,):
            await came_true(lambda: "no key in force opens 1 logins" in caplog.text)
            assert logins_of(served).of("ada").grants() == ()
            assert [one.grant is not None for one in logins_of(served).rows()] == [False]
            await put(served, "ada", grant(2))
        async with replicas(redis, {}, count=1, keys=(NEW, OLD)) as (served,):
            await came_true(lambda: logins_of(served).of("ada").grants() == (grant(1),))
            newest = logins_of(served)._seal.records("ada", grant(1).key)[0]
            await came_true(lambda: logins_of(served)._state.kept(newest) is not None)
        async with replicas(redis, {}, count=1, keys=(NEW,)) as (served,):
            await came_true(lambda: logins_of(served).of("ada").grants() == (grant(1),))


async def test_a_command_logs_a_user_in_and_out_without_being_a_replica(
    redis: RedisPeer, peer: Guarded, ada: Person
) -> None:
    servers = {"files": peer.defined(sharing="per-user")}
    async with replicas(redis, servers, count=1) as (served,), client_of(ada, served.all) as client:
        with anyio.fail_after(PATIENCE):
            assert "holdfast_login" in await names(client)
            await peer.behave(person="ada")
            await logged_in(peer.spec(sharing="per-user"), command_on(redis).of("ada"))
            await listed(client, ada, "files__of_ada")
            seen = await anyio.to_thread.run_sync(command_on(redis).rows)
            assert [(one.principal, one.grant is not None) for one in seen] == [("ada", True)]
            renewed = Logins(command_on(redis).of("ada"))
            kept = (await anyio.to_thread.run_sync(command_on(redis).of("ada").grants))[0]
            assert await renewed.renew(kept.key, instead_of=kept.access_token) is not None
            assert len(fleet_of(served.hub).member.peers) == 1
            assert await log_out(peer.spec(sharing="per-user"), store=command_on(redis).of("ada")) is not None
            await listed(client, ada, "holdfast_login")


async def leases_are_back(redis: RedisPeer) -> None:
    async def given_back() -> object:
        return await redis.command("KEYS", "*:lease:*") == []

    await asked(given_back)


async def test_a_command_whose_renewal_fails_leaves_no_lease_behind(redis: RedisPeer) -> None:
    logins = command_on(redis).of("ada")
    with anyio.fail_after(PATIENCE):
        with pytest.raises(ServerFailure):
            await fail(logins.renewing(grant().key))
        assert await redis.command("KEYS", "*:lease:*") == []


@pytest.mark.parametrize("gives_up", [True, False], ids=["no answer", "cancelled"])
async def test_a_renewal_that_never_hears_of_its_lease_leaves_none_behind(redis: RedisPeer, gives_up: bool) -> None:
    async with replicas(redis, {}, count=1) as (served,):
        with anyio.fail_after(PATIENCE):
            logins = logins_of(served).of("ada")
            async with logins.renewing(grant().key):
                pass  # from now on there is a connection for it
            renewing = logins.renewing(grant().key)
            redis.stop()
            if gives_up:
                with pytest.raises(StoreUnusable):
                    await hold(renewing)
            else:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(hold, renewing)
                    await all_blocked()
                    tasks.cancel_scope.cancel()
            redis.go_on()
            await came_true(lambda: fleet_of(served.hub).state.is_shared)
            await leases_are_back(redis)


async def fail(lease: AbstractAsyncContextManager[None]) -> None:
    async with lease:
        raise ServerFailure(TokenNotRenewed(reason="the authorization server is down"))


async def hold(lease: AbstractAsyncContextManager[None]) -> None:
    async with lease:
        await anyio.sleep_forever()


async def test_a_command_says_what_it_lacks(redis: RedisPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"HOLDFAST_FLEET": redis.url}
    with pytest.raises(UsageError, match="needs the session key"):
        command_user_tokens(environ)
    monkeypatch.delenv("HOLDFAST_USER_KEY", raising=False)
    with pytest.raises(UsageError, match="a key for the logins of users that all of them have"):
        command_user_tokens({**environ, "HOLDFAST_SESSION_KEY": "s" * 32})
    monkeypatch.setitem(os.environ, "HOLDFAST_USER_KEY", NEW.decode())
    tokens = command_user_tokens({**environ, "HOLDFAST_SESSION_KEY": "s" * 32})
    assert await anyio.to_thread.run_sync(tokens.rows) == []
    await redis.kill()
    with pytest.raises(StoreUnusable):
        await anyio.to_thread.run_sync(tokens.rows)


async def test_a_command_that_asks_for_one_user_sees_no_login_of_another(redis: RedisPeer) -> None:
    async with replicas(redis, {}, count=1) as (served,):
        with anyio.fail_after(PATIENCE):
            for number, name in enumerate(("ada", "bob"), 1):
                await put(served, name, grant(number))
            await came_true(lambda: not fleet_of(served.hub).member.outbox.unsent)

            async def principals(name: str | None) -> list[str]:
                return sorted(one.principal for one in await anyio.to_thread.run_sync(command_on(redis).rows, name))

            assert await principals(None) == ["ada", "bob"]
            assert (await principals("ada"), await principals("bob"), await principals("eve")) == (["ada"], ["bob"], [])
