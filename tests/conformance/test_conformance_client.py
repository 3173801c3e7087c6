from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.client_scenarios import scenario_runner
from tests.conformance.runner import REQUIRED_OF_CLIENTS, Requirements, run_client_suite

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("AUTH-1", "AUTH-4")
@pytest.mark.parametrize("requirements", ["2025-11-25", "2026-07-28"])
async def test_holdfast_fulfils_all_that_a_revision_requires_of_a_client(
    requirements: Requirements, tmp_path: Path
) -> None:
    async with scenario_runner(tmp_path) as command:
        score = await run_client_suite(command, requirements, folder=tmp_path)
    assert len(score.required) == REQUIRED_OF_CLIENTS[requirements]
    assert score.fulfilled == score.required, str(score)
