from __future__ import annotations

from holdfast.gateway.decide import TRY_AGAIN, Decision, Down, Ledger, NotWatched, Running, Sight, Take, decide
from holdfast.gateway.merge import Rendered

PATIENCE = 10.0
SILENT = Down("nothing listens")


def config(name: str) -> Rendered:
    return Rendered(text=name, mark=name, routes=1)


def runs(name: str) -> Running:
    return Running(f'{{"backends": [{{"name": "{name}"}}]}}'.encode())


NEW = config("new")


def next_(ledger: Ledger, sight: Sight, *, at: float, wanted: Rendered | None = NEW) -> Decision:
    """Decide, and do in the ledger what the bridge would do on disk."""
    decision = decide(wanted, ledger, sight, now=at, patience=PATIENCE)
    if decision.write and wanted is not None:
        ledger.live, ledger.since = wanted.mark, at
    if decision.restore:
        ledger.live, ledger.since = ledger.accepted, at
    return decision


def test_a_changed_config_is_written_and_an_unchanged_one_is_not() -> None:
    ledger = Ledger(live="old", accepted="old")
    assert next_(ledger, runs("old"), at=0).write
    assert next_(ledger, runs("old"), at=1) == Decision(Take.WAITING)
    assert next_(ledger, runs("new"), at=2) == Decision(Take.TAKEN, accept=True)
    assert next_(ledger, runs("new"), at=99) == Decision(Take.TAKEN)


def test_without_a_wanted_config_what_is_in_place_stays() -> None:
    ledger = Ledger(live="old")
    assert next_(ledger, runs("old"), at=0, wanted=None) == Decision(Take.TAKEN, accept=True)
    assert next_(ledger, SILENT, at=99, wanted=None) == Decision(Take.DOWN)


def test_a_config_that_is_not_loaded_in_time_is_refused_and_the_accepted_one_put_back() -> None:
    ledger = Ledger(live="new", accepted="old", since=0)
    assert next_(ledger, runs("old"), at=9.9) == Decision(Take.WAITING)
    assert next_(ledger, runs("old"), at=10) == Decision(Take.REFUSED, restore=True, newly_refused=True)
    assert next_(ledger, runs("old"), at=11) == Decision(Take.REFUSED)
    assert ledger.live == "old"


def test_a_refused_config_is_offered_again_much_later_and_refused_again() -> None:
    ledger = Ledger(live="old", accepted="old", refused={"new": 0.0})
    assert not next_(ledger, runs("old"), at=TRY_AGAIN - 1).write
    assert next_(ledger, runs("old"), at=TRY_AGAIN).write
    assert next_(ledger, runs("old"), at=TRY_AGAIN + 10) == Decision(Take.REFUSED, restore=True, newly_refused=True)
    assert next_(ledger, runs("old"), at=TRY_AGAIN + 11) == Decision(Take.REFUSED)


def test_another_config_than_the_refused_one_is_written_at_once() -> None:
    ledger = Ledger(live="old", accepted="old", refused={"bad": 0.0})
    assert next_(ledger, runs("old"), at=1).write


def test_a_first_config_that_is_refused_stays_until_a_better_one_is_wanted() -> None:
    ledger = Ledger(live="bad", since=0)
    assert next_(ledger, runs("nothing"), at=10, wanted=config("bad")) == Decision(Take.REFUSED, newly_refused=True)
    assert next_(ledger, runs("nothing"), at=11, wanted=config("bad")) == Decision(Take.REFUSED)
    assert next_(ledger, runs("nothing"), at=12).write


def test_a_gateway_that_goes_silent_with_a_new_config_gets_the_accepted_one_back_once() -> None:
    ledger = Ledger(live="new", accepted="old", since=0)
    assert next_(ledger, SILENT, at=9) == Decision(Take.DOWN)
    assert next_(ledger, SILENT, at=10) == Decision(Take.DOWN, restore=True)
    for moment in range(11, 60):
        assert next_(ledger, SILENT, at=moment) == Decision(Take.DOWN)
    assert next_(ledger, runs("old"), at=60).write


def test_a_mended_config_reaches_a_silent_gateway() -> None:
    ledger = Ledger(live="old", accepted="old", held="bad")
    assert next_(ledger, SILENT, at=1).write


def test_a_silent_gateway_keeps_the_config_that_it_ran() -> None:
    ledger = Ledger(live="new", accepted="new")
    assert next_(ledger, SILENT, at=99) == Decision(Take.DOWN)


def test_a_file_that_somebody_else_changed_is_written_again_and_not_counted_as_refused() -> None:
    ledger = Ledger(live="", accepted="new", since=0)
    assert next_(ledger, runs("strange"), at=99) == Decision(Take.WAITING, write=True)
    assert ledger.refused == {}


def test_an_unwatched_gateway_is_neither_trusted_nor_blamed() -> None:
    ledger = Ledger()
    assert next_(ledger, NotWatched(), at=0) == Decision(Take.NOT_WATCHED, write=True)
    assert next_(ledger, NotWatched(), at=99) == Decision(Take.NOT_WATCHED)
