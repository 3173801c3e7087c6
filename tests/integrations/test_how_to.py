"""The program of each framework's how-to runs, and prints what the page says."""

from __future__ import annotations

import pytest

from tests.integrations.environments import FRAMEWORKS, Framework
from tests.integrations.played import Plays


@pytest.mark.requirement("INT-2")
@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
@pytest.mark.timeout(600)
def test_the_program_of_a_how_to_shows_the_outage(framework: Framework, plays: Plays) -> None:
    before, during, after = plays(framework, "current").how_to
    assert before == "before: sunny"
    assert during.startswith("during: ")
    assert "weather" in during
    assert after == "after: sunny"
