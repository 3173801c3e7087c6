"""Agent programs with a scripted model, in a network that has only loopback: what their models read is true.

One run of a program goes through everything (agents/visit.py). The table is written to ``docs/reference/agents.md`` by
``make clients``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.field.agents import results
from tests.field.agents.programs import PROGRAMS, Program

pytestmark = [pytest.mark.field, pytest.mark.timeout(900)]

_ALONE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""A network of its own, and processes of its own: daemons that a program leaves behind end with it."""
_AS_ROOT = [] if os.geteuid() == 0 else ["--map-root-user"]


FINDING = ("Codex", "opencode", "Gemini CLI", "llm")
"""The programs that are run in find mode too."""

alone = pytest.mark.skipif(shutil.which("unshare") is None or shutil.which("ip") is None, reason="needs unshare and ip")


def visited(program: Program, way: str, tmp_path: Path) -> dict[str, Any]:
    """What the model of a program read, on its way through everything."""
    program.environment.ready()
    command = [sys.executable, "-m", "tests.field.agents.visit", program.name, way, str(tmp_path)]
    ran = subprocess.run(
        [*_ALONE, *_AS_ROOT, "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=Path(__file__).parents[2],
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    seen: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    results.note(program.name, way, program.versions, seen)
    return seen


def is_available(hit: str) -> bool:
    """What a hit says; Codex gives its model the structured content."""
    return "[available]" in hit or '"available":true' in hit


@alone
@pytest.mark.requirement("FIND-1", "FIND-2", "FIND-7")
@pytest.mark.parametrize("program", [one for one in PROGRAMS if one.name in FINDING], ids=str)
def test_a_model_finds_describes_and_calls_a_tool_and_reads_of_an_outage_in_the_hit(
    program: Program, tmp_path: Path
) -> None:
    seen = visited(program, "find", tmp_path)
    told = seen["results"]
    assert "one__echo(" in told.get("find", ""), seen["output"]
    assert is_available(told["find"]), told
    assert "inputSchema" in told["describe"], told
    assert "hello" in told["call"], told
    assert "'one'" in told["outage in the call"], told
    assert "one__echo(" in told["outage in the hit"], told
    assert not is_available(told["outage in the hit"]), told
    assert "back" in told["recovery in the call"], told
    assert is_available(told["recovery in the hit"]), told
    assert not [name for name in seen["listed"]["find"] if "one__echo" in name], "it must be found"


@alone
@pytest.mark.requirement("HUB-15", "HUB-3", "MSG-8")
@pytest.mark.parametrize("way", ["http", "stdio"])
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_the_model_of_an_agent_program_reads_what_is_true(program: Program, way: str, tmp_path: Path) -> None:
    seen = visited(program, way, tmp_path)
    told = seen["results"]
    assert "hello" in told.get("call", ""), seen["output"]
    assert "'one'" in told["outage"], told
    assert "refused" in told["outage"] or "closed" in told["outage"], told
    assert "starting up" not in told["outage"], told
    assert "back" in told["server restart"], told
    assert all(seen["listed"].values()), "an outage took the tool off the list"
    assert seen["longest"] <= 64, "a provider refuses longer names"
    if way == "http":
        assert "again" in told["hub restart"], told
