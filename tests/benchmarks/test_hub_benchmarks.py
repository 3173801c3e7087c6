"""The hub's benchmarks run and count what they claim to count. No time is judged; time that is counted is the hub's."""

from __future__ import annotations

import shutil

import pytest

from benchmarks import dead_server, hub_calls, status_page

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("LIFE-22")
async def test_a_server_that_refuses_from_the_start_is_looked_at_briskly_then_rarely() -> None:
    seen = await dead_server.bothered("refuses from the start")
    assert min(seen.gaps[:60]) >= 0.99
    assert seen.within(0, 60) == 60
    assert max(seen.gaps) <= 30.0
    assert seen.within(60, 300) == 17


@pytest.mark.requirement("LIFE-22")
async def test_a_server_that_went_away_is_not_hammered() -> None:
    seen = await dead_server.bothered("refuses after it was up")
    assert seen.within(0, 10) <= 40 + dead_server.DIALS
    assert seen.within(0, 60) <= dead_server.KNOWN_LOOKS + dead_server.DIALS
    assert seen.within(60, 300) <= dead_server.SLOW_AT_MOST
    assert max(seen.gaps) <= 30.0


@pytest.mark.requirement("LIFE-22", "LIFE-25")
async def test_a_server_that_listens_again_and_is_never_well_is_asked_every_2_s_for_a_minute_then_less_often() -> None:
    seen = await dead_server.bothered("listens again and is never well")
    assert seen.within(0, 60) <= dead_server.STARTING_DIALS + dead_server.DIALS
    assert seen.within(70, 300) <= dead_server.SLOW_AT_MOST
    assert max(seen.gaps) <= 30.0


@pytest.mark.requirement("LIFE-24")
async def test_a_server_that_denies_is_asked_again_by_the_slow_self_probe_alone() -> None:
    assert (await dead_server.bothered("denies")).at == (0.0, 300.0)


@pytest.mark.requirement("BRK-10", "LIFE-5", "LIFE-25")
async def test_a_server_that_dies_after_each_listing_is_parked_after_its_budget_and_tried_every_30_s() -> None:
    seen = await dead_server.bothered("dies after each listing")
    # The first start, one reconnect at once, and the rest of the budget; then a retry every 30 s.
    assert seen.within(0, 60) == 6
    assert len(seen.at) <= 15


def test_the_hub_is_measured_beside_a_bare_connection() -> None:
    report = hub_calls.measure(rounds=2, calls=3)
    assert [row.label for row in report.rows if row.ratio is not None] == [
        f"{path}, {hub_calls.HUB}" for path in hub_calls.PATHS
    ]
    assert all(row.time is not None and row.time.median > 0 for row in report.rows)


@pytest.mark.long
@pytest.mark.requirement("HUB-5")
def test_the_cost_of_event_streams_is_compared_with_that_of_none() -> None:
    report = status_page.measure(rounds=1, servers=2, seconds=0.1)
    labels = [row.label for row in report.rows]
    assert labels[:2] == ["no event stream", f"{status_page.STREAMS} event streams are open"]
    assert len(labels) == (5 if shutil.which("chromedriver") else 2)
    assert all(row.time is not None and row.time.median > 0 for row in report.rows[2:])
