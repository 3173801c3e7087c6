"""The program of each framework's how-to runs, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.integrations.environments import ROOT, python_with

PAGES = ROOT / "docs" / "how-to" / "frameworks"
FRAMEWORKS = {
    "langchain": ("langchain.md", "langchain"),
    "openai_agents": ("openai-agents.md", "openai-agents"),
    "pydantic_ai": ("pydantic-ai.md", "pydantic-ai-slim"),
    "google_adk": ("google-adk.md", "google-adk[mcp]"),
}


@pytest.mark.requirement("INT-2")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.timeout(600)
def test_the_program_of_a_how_to_shows_the_outage(framework: str, tmp_path: Path) -> None:
    page, requirement = FRAMEWORKS[framework]
    program = tmp_path / "program.py"
    program.write_text(re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)[0])
    python = python_with(f"{framework}-current", [requirement, "mcp>=2.3,<3"])
    done = subprocess.run([python, program], capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before, during, after = done.stdout.splitlines()
    assert before == "before: sunny"
    assert during.startswith("during: ")
    assert "weather" in during
    assert after == "after: sunny"
