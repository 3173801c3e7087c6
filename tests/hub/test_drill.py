"""The outage drill in small: servers die under load and come back. ``python -m benchmarks drill`` plays it in full."""

from __future__ import annotations

import logging
import re

import anyio
import pytest

from benchmarks.drill import BROKEN, BYSTANDER, drill
from tests.peers.leaks import no_leaks

pytestmark = pytest.mark.anyio

ROUNDS = 5
TRUE_REASONS = r"refused|reset|closed before the answer|killed by signal 9|not ready yet"


@pytest.mark.requirement("LIFE-4", "LIFE-6", "LIFE-9", "LIFE-11", "LIFE-12", "LIFE-14", "LIFE-22")
async def test_servers_that_die_under_load_come_back_and_nothing_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with no_leaks(settle=10):
        with anyio.fail_after(110):
            found = await drill(ROUNDS)
    assert found.wrong == []
    assert {name: len(found.recoveries[name]) for name in BROKEN} == dict.fromkeys(BROKEN, ROUNDS)
    assert found.refused[BYSTANDER] == 0
    assert all(found.answered[name] for name in (*BROKEN, BYSTANDER))
    assert [reason for reason in found.reasons if not re.search(TRUE_REASONS, reason)] == []
    assert not caplog.records, caplog.text
