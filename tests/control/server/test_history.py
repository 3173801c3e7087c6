"""Calls counted in steps of time, and lines kept within bounds."""

from __future__ import annotations

import pytest

from holdfast.control.server import log_buffer as bounds
from holdfast.control.server.log_buffer import LogBuffer
from holdfast.control.server.views import STEP_SECONDS, STEPS, History, Tally
from holdfast.core.lifecycle.events import Transition
from holdfast.core.lifecycle.table import State
from holdfast.core.redact import Redactor
from holdfast.hub.journal import CallEnded, CallOutcome


def ended(tally: Tally, at: float, seconds: float) -> None:
    step = tally.step(at)
    step.calls += 1
    step.times.append(seconds)


@pytest.mark.requirement("HUB-5")
def test_calls_fall_into_the_step_in_which_they_ended() -> None:
    tally = Tally()
    for at, seconds in ((0.1, 0.010), (0.2, 0.030), (0.3, 0.020), (STEP_SECONDS + 0.1, 0.5)):
        ended(tally, at, seconds)
    failed = tally.step(STEP_SECONDS + 0.2)
    failed.calls += 1
    failed.errors += 1
    picture = tally.activity(STEP_SECONDS + 1)
    assert picture is not None
    assert (picture.calls[-2:], picture.errors[-2:]) == ((3, 2), (0, 1))
    assert picture.milliseconds[-2:] == (20.0, 500.0)
    assert picture.until == 2 * STEP_SECONDS
    assert len(picture.calls) == len(picture.errors) == len(picture.milliseconds) == STEPS


@pytest.mark.requirement("HUB-5")
def test_the_step_that_runs_is_drawn_anew_with_each_call() -> None:
    tally = Tally()
    ended(tally, 0.1, 0.010)
    first = tally.activity(1.0)
    ended(tally, 0.2, 0.030)
    second = tally.activity(1.0)
    assert first is not None
    assert second is not None
    assert (first.milliseconds[-1], second.milliseconds[-1]) == (10.0, 20.0)


@pytest.mark.requirement("HUB-5")
def test_what_is_long_past_is_not_drawn() -> None:
    tally = Tally()
    assert tally.activity(0.0) is None
    ended(tally, 1.0, 0.1)
    assert tally.activity(1.0 + (STEPS - 1) * STEP_SECONDS) is not None
    assert tally.activity(1.0 + STEPS * STEP_SECONDS) is None


def _call(outcome: CallOutcome, reason: str = "") -> CallEnded:
    return CallEnded(server="x", method="m", outcome=outcome, waited=0.0, seconds=0.1, at=0.0, reason=reason)


@pytest.mark.requirement("HUB-5", "BRK-3")
def test_no_answer_counts_as_an_error() -> None:
    history = History(wall=lambda: 1.0)
    fine: tuple[CallOutcome, ...] = ("completed", "tool_error", "rpc_error", "denied", "cancelled")
    wrong: tuple[CallOutcome, ...] = ("failed", "timed_out", "refused")
    for outcome in fine:
        history.called(_call(outcome))
    assert (history.servers["x"].calls, history.servers["x"].errors) == (5, 0)
    for outcome in wrong:
        history.called(_call(outcome, f"it {outcome}"))
    assert (history.servers["x"].calls, history.servers["x"].errors) == (8, 3)
    error = history.servers["x"].last_error
    assert error is not None
    assert error.text == "it timed_out"


def _move(old: State, new: State) -> Transition:
    return Transition(server="x", old=old, new=new, cause="c", at=0.0, generation=1, reason="why")


@pytest.mark.requirement("HUB-5")
def test_coming_back_counts_and_coming_up_does_not() -> None:
    history = History(wall=lambda: 1.0)
    for old, new in (
        (State.CONNECTING, State.RECONNECTING),
        (State.RECONNECTING, State.CONNECTED),
        (State.CONNECTED, State.IDLE),
        (State.IDLE, State.CONNECTING),
        (State.CONNECTING, State.CONNECTED),
    ):
        history.moved(_move(old, new))
    assert history.servers["x"].reconnects == 0
    history.moved(_move(State.CONNECTED, State.PERMANENTLY_FAILED))
    history.moved(_move(State.PERMANENTLY_FAILED, State.CONNECTED))
    assert history.servers["x"].reconnects == 1


@pytest.mark.requirement("SEC-4")
@pytest.mark.anyio
async def test_a_flood_of_lines_is_kept_within_bounds() -> None:
    lines = LogBuffer(wall=lambda: 1.0)
    for number in range(5_000):
        lines.add_stderr("x", b"%d" % number, Redactor())
    assert [line.text for line in await lines.last("x", 2)] == ["4998", "4999"]
    assert len(await lines.last("x", 100_000)) == bounds.MOST_LINES
    for _ in range(100):
        lines.add_stderr("x", b"y" * 8192, Redactor())
    kept = await lines.last("x", 100_000)
    assert sum(len(line.text) for line in kept) <= bounds.MOST_BYTES


@pytest.mark.requirement("MSG-6")
@pytest.mark.anyio
async def test_a_secret_that_was_learned_since_is_masked_too() -> None:
    lines, redactor = LogBuffer(wall=lambda: 1.0), Redactor(["one-secret"])
    lines.add_stderr("x", b"one-secret other-secret \x1b[31mred", redactor)
    redactor.learn("other-secret")
    assert [line.text for line in await lines.last("x", 1)] == ["*** *** red"]
