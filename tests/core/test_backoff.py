"""How long to wait: the formula, its jitter, and a server's own wish."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from holdfast.core.lifecycle.backoff import JITTER, RETRY_AFTER_CAP, delay

bases = st.floats(min_value=0, max_value=60)
attempts = st.integers(min_value=1, max_value=20)
chances = st.floats(min_value=0, max_value=1, exclude_max=True)


@pytest.mark.requirement("LOAD-9")
def test_without_chance_the_delay_doubles_from_the_base() -> None:
    assert [delay(n, base=0.25, chance=0.0) for n in (1, 2, 3, 4)] == [0.25, 0.5, 1.0, 2.0]


@pytest.mark.requirement("LOAD-9")
@given(attempts, bases, chances)
def test_jitter_adds_a_share_of_the_delay_and_never_takes_away(attempt: int, base: float, chance: float) -> None:
    plain = base * 2 ** (attempt - 1)
    assert plain <= delay(attempt, base=base, chance=chance) <= plain * (1 + JITTER)


def test_chance_spreads_servers_that_failed_together() -> None:
    assert len({delay(1, base=0.25, chance=chance / 10) for chance in range(10)}) == 10


@pytest.mark.requirement("LOAD-9")
@given(attempts, bases, chances, st.floats(min_value=0, max_value=1e9))
def test_a_server_is_given_the_time_it_asks_for_up_to_the_cap(
    attempt: int, base: float, chance: float, asked: float
) -> None:
    ours = delay(attempt, base=base, chance=chance)
    assert delay(attempt, base=base, chance=chance, retry_after=asked) == max(ours, min(asked, RETRY_AFTER_CAP))


def test_a_server_that_asks_for_less_than_our_own_delay_gets_ours() -> None:
    assert delay(3, base=1.0, chance=0.0, retry_after=0.1) == 4.0


@given(st.integers(min_value=1, max_value=10**9), bases)
def test_any_number_of_attempts_has_a_finite_delay(attempt: int, base: float) -> None:
    assert math.isfinite(delay(attempt, base=base, chance=0.999))
