"""The order of switches that were made on replicas which did not hear of each other."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core import FleetRecord, record_key
from holdfast.fleet import Fleet
from holdfast.keys import KeyRing


def ring() -> KeyRing:
    return KeyRing([b"k" * 32])


def record_of(fleet: Fleet) -> FleetRecord:
    record = fleet.member.book.get(record_key("switch", "s"))
    assert record is not None
    return record


@pytest.mark.requirement("FLEET-3")
def test_a_later_switch_wins_though_it_changed_nothing_where_it_was_made() -> None:
    """The replica that was cut off brings its earlier switch: the later one was acknowledged, and stays."""
    time, store = [1000.0], object()
    cut_off, other = (Fleet(store_of(store), replica=name, keys=ring, wall=lambda: time[0]) for name in ("r0", "r1"))
    other.decisions.note_switch("s", disabled=False)
    cut_off.member.book.merge(record_of(other))
    time[0] += 10
    cut_off.decisions.note_switch("s", disabled=True)
    time[0] += 10
    other.decisions.note_switch("s", disabled=False)
    assert cut_off.member.book.merge(record_of(other))
    assert not other.member.book.merge(record_of(cut_off))
    assert record_of(other).value == '{"off":false}'


def store_of(store: object) -> Any:
    """A store that nothing is asked of."""
    return store
