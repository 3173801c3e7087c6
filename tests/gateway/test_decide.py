from __future__ import annotations

from holdfast.gateway.bridge import (
    TRY_AGAIN,
    ConfigHistory,
    Decision,
    GatewayDown,
    GatewayRunning,
    GatewayState,
    GatewayView,
    decide,
)

PATIENCE = 10.0
SILENT = GatewayDown("nothing listens")


def runs(name: str) -> GatewayRunning:
    return GatewayRunning(f'{{"backends": [{{"name": "{name}"}}]}}'.encode())


NEW = "new"


def next_(history: ConfigHistory, view: GatewayView, *, at: float, wanted: str | None = NEW) -> Decision:
    """Decide, and do in the history what the bridge would do on disk."""
    decision = decide(wanted, history, view, now=at, patience=PATIENCE)
    if decision.write and wanted is not None:
        history.live, history.since = wanted, at
    if decision.restore:
        history.live, history.since = history.accepted, at
    return decision


def test_a_changed_config_is_written_and_an_unchanged_one_is_not() -> None:
    history = ConfigHistory(live="old", accepted="old")
    assert next_(history, runs("old"), at=0).write
    assert next_(history, runs("old"), at=1) == Decision(GatewayState.WAITING)
    assert next_(history, runs("new"), at=2) == Decision(GatewayState.TAKEN, accept=True)
    assert next_(history, runs("new"), at=99) == Decision(GatewayState.TAKEN)


def test_without_a_wanted_config_what_is_in_place_stays() -> None:
    history = ConfigHistory(live="old")
    assert next_(history, runs("old"), at=0, wanted=None) == Decision(GatewayState.TAKEN, accept=True)
    assert next_(history, SILENT, at=99, wanted=None) == Decision(GatewayState.DOWN)


def test_a_config_that_is_not_loaded_in_time_is_refused_and_the_accepted_one_put_back() -> None:
    history = ConfigHistory(live="new", accepted="old", since=0)
    assert next_(history, runs("old"), at=9.9) == Decision(GatewayState.WAITING)
    assert next_(history, runs("old"), at=10) == Decision(GatewayState.REFUSED, restore=True, newly_refused=True)
    assert next_(history, runs("old"), at=11) == Decision(GatewayState.REFUSED)
    assert history.live == "old"


def test_a_refused_config_is_offered_again_much_later_and_refused_again() -> None:
    history = ConfigHistory(live="old", accepted="old", refused={"new": 0.0})
    assert not next_(history, runs("old"), at=TRY_AGAIN - 1).write
    assert next_(history, runs("old"), at=TRY_AGAIN).write
    assert next_(history, runs("old"), at=TRY_AGAIN + 10) == Decision(
        GatewayState.REFUSED, restore=True, newly_refused=True
    )
    assert next_(history, runs("old"), at=TRY_AGAIN + 11) == Decision(GatewayState.REFUSED)


def test_another_config_than_the_refused_one_is_written_at_once() -> None:
    history = ConfigHistory(live="old", accepted="old", refused={"bad": 0.0})
    assert next_(history, runs("old"), at=1).write


def test_a_first_config_that_is_refused_stays_until_a_better_one_is_wanted() -> None:
    history = ConfigHistory(live="bad", since=0)
    assert next_(history, runs("nothing"), at=10, wanted="bad") == Decision(GatewayState.REFUSED, newly_refused=True)
    assert next_(history, runs("nothing"), at=11, wanted="bad") == Decision(GatewayState.REFUSED)
    assert next_(history, runs("nothing"), at=12).write


def test_a_gateway_that_goes_silent_with_a_new_config_gets_the_accepted_one_back_once() -> None:
    history = ConfigHistory(live="new", accepted="old", since=0)
    assert next_(history, SILENT, at=9) == Decision(GatewayState.DOWN)
    assert next_(history, SILENT, at=10) == Decision(GatewayState.DOWN, restore=True)
    for moment in range(11, 60):
        assert next_(history, SILENT, at=moment) == Decision(GatewayState.DOWN)
    assert next_(history, runs("old"), at=60).write


def test_a_mended_config_reaches_a_silent_gateway() -> None:
    history = ConfigHistory(live="old", accepted="old", held="bad")
    assert next_(history, SILENT, at=1).write


def test_a_silent_gateway_keeps_the_config_that_it_ran() -> None:
    history = ConfigHistory(live="new", accepted="new")
    assert next_(history, SILENT, at=99) == Decision(GatewayState.DOWN)


def test_a_file_that_another_program_changed_is_written_again_and_not_counted_as_refused() -> None:
    history = ConfigHistory(live="", accepted="new", since=0)
    assert next_(history, runs("strange"), at=99) == Decision(GatewayState.WAITING, write=True)
    assert history.refused == {}


def test_an_unwatched_gateway_is_neither_trusted_nor_blamed() -> None:
    history = ConfigHistory()
    assert next_(history, None, at=0) == Decision(GatewayState.NOT_WATCHED, write=True)
    assert next_(history, None, at=99) == Decision(GatewayState.NOT_WATCHED)


def test_a_config_that_was_refused_and_then_taken_counts_as_taken() -> None:
    """A slow gateway takes it late: after another config it can be written again at once."""
    history = ConfigHistory(live="slow", accepted="", refused={"slow": 0.0})
    assert next_(history, runs("slow"), at=20, wanted="other").write
    assert next_(history, runs("other"), at=30, wanted="slow").write
