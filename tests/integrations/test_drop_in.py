"""``MultiServerMCPClient`` on a hub: the same arguments and tools as in ``langchain-mcp-adapters``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integrations.environments import python_with

PROGRAM = Path(__file__).parent / "programs" / "drop_in_program.py"


@pytest.mark.requirement("INT-3")
@pytest.mark.timeout(600)
def test_a_program_changes_one_import_and_survives_an_outage() -> None:
    python = python_with("langchain-current", ["langchain", "mcp>=2.3,<3"])
    done = subprocess.run([python, PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
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
