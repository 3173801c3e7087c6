"""``MultiServerMCPClient`` on a hub: the same arguments and tools as in ``langchain-mcp-adapters``."""

from __future__ import annotations

import pytest

from tests.integrations.environments import FRAMEWORKS
from tests.integrations.played import Plays


@pytest.mark.requirement("INT-3")
@pytest.mark.timeout(600)
def test_a_program_changes_one_import_and_survives_an_outage(plays: Plays) -> None:
    (langchain,) = (framework for framework in FRAMEWORKS if framework.name == "langchain")
    seen = plays(langchain, "current").drop_in
    assert {"forecast", "picture", "reading"} <= set(seen["names"])
    assert seen["one"] == ["forecast"]
    assert seen["prefixed"] == ["weather_forecast"]
    assert seen["before"] == "sunny"
    assert seen["down"][0] == "error"
    assert "weather" in seen["down"][1]
    assert seen["after"] == "sunny"
    auth, transport, typo = seen["refused"]
    assert "holdfast login" in auth
    assert "streamable_http" in transport
    assert "unknown key `tranport`" in typo
    assert "shared" in seen["session"]
