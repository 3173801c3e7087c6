"""The bodies of requests have a budget, in all and for each principal; one principal cannot use up another's."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.front.requests import SMALL_BODY, UNCOUNTED, BodyBudget, BodyLease, NoRoom

pytestmark = pytest.mark.requirement("SEC-11")

MIB = 1 << 20


def _budget(**more: Any) -> BodyBudget:
    return BodyBudget(most=96 * MIB, of_principal=lambda: 32 * MIB, **more)


def _lease(budget: BodyBudget, principal: str, size: int) -> BodyLease:
    lease = BodyLease(budget, principal)
    lease.hold(size)
    return lease


def test_a_principal_has_its_quota_and_others_have_room_beside_it() -> None:
    budget = _budget()
    for _ in range(2):
        _lease(budget, "ada", 15 * MIB)
    with pytest.raises(NoRoom) as refused:
        _lease(budget, "ada", 15 * MIB)
    assert refused.value.of_principal
    _lease(budget, "bob", 15 * MIB)
    _lease(budget, "bob", 15 * MIB)
    _lease(budget, "eve", 15 * MIB)


def test_any_number_of_principals_leaves_room_for_small_bodies() -> None:
    budget = _budget()
    for number, size in enumerate((15, 15, 15, 15, 15, 10, 5, 2, 1, 1)):
        _lease(budget, f"p{number}", size * MIB)
    with pytest.raises(NoRoom) as refused:
        _lease(budget, "another", 15 * MIB)
    assert not refused.value.of_principal
    assert budget.held <= 96 * MIB
    for number in range(30):
        _lease(budget, f"p{number}", SMALL_BODY)


def test_a_single_body_always_has_room() -> None:
    budget = BodyBudget(most=4 * MIB, of_principal=lambda: MIB)
    lease = _lease(budget, "ada", 16 * MIB)
    with pytest.raises(NoRoom):
        _lease(budget, "bob", 16 * MIB)
    lease.end()
    lease.end()
    assert budget.held == 0
    _lease(budget, "bob", 16 * MIB)


def test_a_body_that_grows_takes_more_room_and_gives_all_of_it_back() -> None:
    budget = _budget()
    lease = BodyLease(budget, "ada")
    for size in (100_000, 2_000_000, 1_000_000, 16 * MIB):
        lease.hold(size)
    assert budget.held == 16 * MIB
    lease.end()
    assert budget.held == 0


def test_the_smallest_bodies_are_not_counted() -> None:
    budget = _budget()
    request: Any = SimpleNamespace(lease=None)
    budget.hold(request, "ada", UNCOUNTED)
    assert request.lease is None


def test_what_comes_before_its_reader_asks_is_bounded_for_all_connections_together() -> None:
    budget = _budget(unknown=MIB)
    assert all(budget.wait(0, 100_000) for _ in range(10))
    assert not budget.wait(0, 100_000), "the one too much"
    assert budget.wait(0, 100), "a small request is served"
    assert budget.wait(100_000, 0), "what is given back is right"
    assert budget.wait(100_000, 50_000)


@pytest.mark.parametrize("seed", range(20))
def test_the_books_are_right_after_any_requests(seed: int) -> None:
    chance = random.Random(seed)
    budget = _budget()
    held: list[BodyLease] = []
    for _ in range(500):
        if held and chance.random() < 0.4:
            held.pop(chance.randrange(len(held))).end()
            continue
        lease = BodyLease(budget, chance.choice("abcd"))
        try:
            lease.hold(chance.choice((5_000, 60_000, MIB, 10 * MIB, 16 * MIB)))
        except NoRoom:
            assert lease.size == 0
        else:
            held.append(lease)
        assert budget.held == sum(one.size for one in held) <= 96 * MIB
    for lease in held:
        lease.end()
    assert (budget.held, budget._held) == (0, {})
