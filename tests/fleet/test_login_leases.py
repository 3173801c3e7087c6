"""The lease of a login: held until Redis has the new refresh token, and never given back while a renewal holds it."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from holdfast.auth import StoreUnusable
from holdfast.fleet import StoreUnavailable, user_logins
from holdfast.fleet.user_logins import Renewals
from tests.harness.waiting import all_blocked

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AUTH-8")]

PATIENCE = 10


class Leases:
    """The leases that Redis has."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.is_away = False
        self.slow: anyio.Event | None = None
        """What the next lease that is given back waits for."""

    async def take(self, name: str, value: str) -> bool:
        if self.is_away:
            raise StoreUnavailable("it is away")
        return self.held.setdefault(name, value) == value

    async def give_back(self, name: str, value: str) -> None:
        if self.is_away:
            raise StoreUnavailable("it is away")
        slow, self.slow = self.slow, None
        if slow is not None:
            await slow.wait()
        if self.held.get(name) == value:
            del self.held[name]


class Copy:
    """The copy of a replica, with records that the store does not have yet."""

    def __init__(self) -> None:
        self.changed = anyio.Event()
        self.unsent: dict[str, None] = {}
        self.member = SimpleNamespace(outbox=self)

    def now(self) -> float:
        return anyio.current_time()

    async def catch_up(self, within: float) -> bool:
        return within > 0


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def copy() -> Copy:
    return Copy()


@pytest.fixture
def renewals(leases: Leases, copy: Copy, monkeypatch: pytest.MonkeyPatch) -> Renewals:
    monkeypatch.setattr(user_logins, "STORED_SECONDS", 0.0)
    return Renewals(cast("Any", copy), cast("Any", leases), place="a test")


async def renewed(renewals: Renewals, copy: Copy, login: str) -> None:
    """A renewal whose answer Redis does not have yet: the lease is given back later."""
    async with renewals.held((login,)):
        copy.unsent[login] = None


async def test_a_renewal_that_finds_redis_away_does_not_end_the_lease_of_the_one_before(
    renewals: Renewals, leases: Leases, copy: Copy
) -> None:
    await renewed(renewals, copy, "ada")
    leases.is_away = True
    with pytest.raises(StoreUnusable):
        await renewed(renewals, copy, "ada")
    leases.is_away = False
    await renewals.give_back()
    assert leases.held.keys() == {"ada"}, "Redis has not the new refresh token: no other replica may use the old one"
    copy.unsent.clear()
    await renewals.give_back()
    assert leases.held == {}


async def test_a_lease_that_a_renewal_takes_again_is_not_given_back_under_it(
    renewals: Renewals, leases: Leases, copy: Copy
) -> None:
    for login in ("ada", "bob"):
        await renewed(renewals, copy, login)
    copy.unsent.clear()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            leases.slow = redis = anyio.Event()
            tasks.start_soon(renewals.give_back)
            await all_blocked()
            async with renewals.held(("bob",)):
                redis.set()
                await all_blocked()
                assert leases.held.keys() == {"bob"}
    assert leases.held == {}


@pytest.mark.requirement("SEC-4")
async def test_nothing_is_kept_of_logins_that_were_renewed(renewals: Renewals, copy: Copy) -> None:
    def locks() -> int:
        return sum(isinstance(one, anyio.Lock) for one in gc.get_objects())

    before = locks()
    for number in range(20):
        await renewed(renewals, copy, f"user-{number}")
    assert locks() == before


async def test_one_that_waits_for_a_lease_here_does_not_keep_the_holder_from_giving_it_back(
    renewals: Renewals, leases: Leases, copy: Copy
) -> None:
    async def logs_in() -> None:
        with pytest.raises(StoreUnusable):
            await renewed(renewals, copy, "ada")

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks, renewals.held(("ada",)):
            tasks.start_soon(logs_in)
            await all_blocked()
            leases.is_away = True
    assert leases.held.keys() == {"ada"}
    leases.is_away = False
    await renewals.give_back()
    assert leases.held == {}
