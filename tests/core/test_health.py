"""When the next try comes: one answer for every view, from the plans of the hub and of the breaker."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.breaker import BreakerState
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health

pytestmark = pytest.mark.requirement("MSG-9")


def health(state: State, **known: Any) -> Health:
    base: dict[str, Any] = {
        "server": "a",
        "state": state,
        "reason": "",
        "generation": None,
        "failures": 0,
        "attempts": 0,
        "breaker": BreakerState.CLOSED,
        "retry_in": None,
    }
    return Health(**{**base, **known})


@pytest.mark.parametrize(
    ("state", "known", "seconds"),
    [
        # Connected: only a breaker or a denial has a time.
        (State.CONNECTED, {"retry_in": 5.0}, None),
        (State.CONNECTED, {"breaker_retry_in": 7.0, "retry_in": 5.0}, 7.0),
        (State.CONNECTED, {"breaker_retry_in": 7.0, "call_asks_in": 3.0}, 3.0),
        # Parked on transient evidence: the hub tries soon, and calls have no time of their own.
        (State.PERMANENTLY_FAILED, {"retry_in": 20.0, "call_asks_in": 4.0, "evidence": "transient"}, 20.0),
        # Parked on permanent evidence: what comes first, the slow probe or a call.
        (State.PERMANENTLY_FAILED, {"retry_in": 200.0, "call_asks_in": 4.0, "evidence": "permanent"}, 4.0),
        (State.PERMANENTLY_FAILED, {"retry_in": 200.0, "call_asks_in": 0.0, "evidence": "permanent"}, 200.0),
        (State.PERMANENTLY_FAILED, {"call_asks_in": 4.0, "evidence": "permanent"}, 4.0),
        # Denied: the same. Once the next call asks, only the hub's own try has a time.
        (State.DENIED, {"retry_in": 30.0, "call_asks_in": 10.0}, 10.0),
        (State.DENIED, {"retry_in": 30.0, "call_asks_in": 0.0}, 30.0),
        (State.DENIED, {"call_asks_in": 0.0}, None),
        # Everything else: the earlier one.
        (State.RECONNECTING, {"retry_in": 2.0}, 2.0),
        (State.DISABLED, {}, None),
    ],
)
def test_the_next_try_is_the_one_that_happens_first(state: State, known: dict[str, Any], seconds: float | None) -> None:
    assert health(state, **known).next_try == seconds


@pytest.mark.parametrize("state", [State.IDLE, State.DISABLED, State.DISABLING, State.CONNECTED])
def test_a_server_that_is_well_idle_or_off_has_no_failure(state: State) -> None:
    assert health(state).failure is None


def test_a_spent_budget_is_that_of_a_parked_server_or_of_one_that_is_tried_again() -> None:
    for state, spent, told in (
        (State.PERMANENTLY_FAILED, False, True),
        (State.RECONNECTING, True, True),
        (State.RECONNECTING, False, False),
    ):
        failure = health(state, spent=spent, evidence="transient", reason="x").failure
        assert failure is not None
        assert failure.spent is told
