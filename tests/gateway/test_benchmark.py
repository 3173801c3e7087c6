from __future__ import annotations

import pytest

from benchmarks.gateway import BEFORE, PLAIN, PLAIN_LATER, RETRIES, TIMEOUT, measure
from tests.gateway.authorized_servers import PROTOCOLS


@pytest.mark.long
@pytest.mark.requirement("GW-7")
def test_the_benchmark_compares_every_way_over_both_protocols_and_finds_none_unavailable_as_shipped() -> None:
    report = measure(rounds=1, routes=6)
    ways = (BEFORE, TIMEOUT, RETRIES, PLAIN, PLAIN_LATER)
    assert [row.label for row in report.rows] == [f"{protocol}: {way}" for protocol in PROTOCOLS for way in ways]
    shipped = [row.note for row in report.rows if row.label.endswith((TIMEOUT, RETRIES)) and "SDK" not in row.label]
    assert shipped == ["0 of 6 unavailable; 6 of 6 denials told"] * 4
    assert report.met, [check for check in report.checks if not check.met]
