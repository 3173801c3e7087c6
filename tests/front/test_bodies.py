"""The bodies of requests have a budget, in all and for each principal; one principal cannot use up another's."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.access.quotas import Quotas
from holdfast.config.settings import QuotaSettings
from holdfast.front.requests import SMALL_BODY, UNCOUNTED, BodyBudget, NoRoom

pytestmark = pytest.mark.requirement("SEC-11")

MIB = 1 << 20


def _budget(own: int = 32 * MIB, **more: Any) -> BodyBudget:
    return BodyBudget(Quotas(lambda: QuotaSettings(body_bytes=own)), **more)


def _request(principal: str) -> Any:
    return SimpleNamespace(principal=SimpleNamespace(name=principal), held=0)


def _held(budget: BodyBudget, principal: str, size: int) -> Any:
    request = _request(principal)
    budget.hold(request, size)
    return request


def test_a_principal_has_its_quota_and_others_have_room_beside_it() -> None:
    budget = _budget()
    for _ in range(2):
        _held(budget, "ada", 15 * MIB)
    with pytest.raises(NoRoom) as refused:
        _held(budget, "ada", 15 * MIB)
    assert refused.value.status == 429
    _held(budget, "bob", 15 * MIB)
    _held(budget, "bob", 15 * MIB)
    _held(budget, "eve", 15 * MIB)


def test_any_number_of_principals_leaves_room_for_small_bodies() -> None:
    budget = _budget()
    for number, size in enumerate((15, 15, 15, 15, 15, 10, 5, 2, 1, 1)):
        _held(budget, f"p{number}", size * MIB)
    with pytest.raises(NoRoom) as refused:
        _held(budget, "another", 15 * MIB)
    assert refused.value.status == 503
    assert budget.held <= 96 * MIB
    for number in range(30):
        _held(budget, f"p{number}", SMALL_BODY)


def test_a_single_body_always_has_room() -> None:
    budget = _budget(MIB, most=4 * MIB)
    request = _held(budget, "ada", 16 * MIB)
    with pytest.raises(NoRoom):
        _held(budget, "bob", 16 * MIB)
    budget.give_back(request)
    budget.give_back(request)
    assert budget.held == 0
    _held(budget, "bob", 16 * MIB)


def test_a_body_that_grows_takes_more_room_and_gives_all_of_it_back() -> None:
    budget = _budget()
    request = _request("ada")
    for size in (100_000, 2_000_000, 1_000_000, 16 * MIB):
        budget.hold(request, size)
    assert budget.held == 16 * MIB
    budget.give_back(request)
    assert budget.held == 0


def test_the_smallest_bodies_are_not_counted() -> None:
    budget = _budget()
    assert _held(budget, "ada", UNCOUNTED).held == 0


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
    held: list[Any] = []
    for _ in range(500):
        if held and chance.random() < 0.4:
            budget.give_back(held.pop(chance.randrange(len(held))))
            continue
        request = _request(chance.choice("abcd"))
        try:
            budget.hold(request, chance.choice((5_000, 60_000, MIB, 10 * MIB, 16 * MIB)))
        except NoRoom:
            assert request.held == 0
        else:
            held.append(request)
        assert budget.held == sum(one.held for one in held) <= 96 * MIB
    for request in held:
        budget.give_back(request)
    assert (budget.held, budget._held) == (0, {})
