"""What the programs of a framework printed. They run once in a test run, whichever worker asks first."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integrations.environments import ROOT, Framework, Release, python_of

__all__ = ["Played", "Plays"]

PROGRAMS = Path(__file__).with_name("programs")
PAGES = ROOT / "docs" / "how-to" / "frameworks"
RUN_SECONDS = 300


@dataclass(frozen=True)
class Played:
    """The outputs of a framework's programs, by what they are for."""

    outputs: dict[str, dict[str, str]]

    @property
    def scenario(self) -> dict[str, Any]:
        """What the scripted model saw in the framework's own loop."""
        return self._reported("scenario")

    @property
    def drop_in(self) -> dict[str, Any]:
        """What a program saw in which one import was changed."""
        return self._reported("drop_in")

    @property
    def how_to(self) -> list[str]:
        """The lines that the program of the how-to printed."""
        return self._said("how_to").splitlines()

    def _reported(self, name: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self._said(name).splitlines()[-1])
        return report

    def _said(self, name: str) -> str:
        assert not self.outputs[name]["failed"], self.outputs[name]["failed"]
        return self.outputs[name]["said"]


class Plays:
    """The programs of each framework, and a folder in which the workers of this test run share what came of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, framework: Framework, release: Release) -> Played:
        """What came of a framework's programs; the first caller runs them, and the others wait for that."""
        kept = self._folder / f"{framework.name}-{release}.json"
        with kept.with_suffix(".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(self._run(framework, release)))
        return Played(json.loads(kept.read_text()))

    def _run(self, framework: Framework, release: Release) -> dict[str, dict[str, str]]:
        python = python_of(framework, release)
        home = self._folder / f"{framework.name}-{release}"
        home.mkdir(exist_ok=True)
        programs = {"scenario": PROGRAMS / f"{framework.name}_program.py"}
        if release == "current":
            programs["how_to"] = home / "how_to.py"
            programs["how_to"].write_text(_first_program(PAGES / framework.page))
            if framework.name == "langchain":
                programs["drop_in"] = PROGRAMS / "drop_in_program.py"
        done = subprocess.run(
            [python, PROGRAMS / "one_after_another.py", *programs.values()],
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
            cwd=home,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONWARNINGS": "ignore"},
        )
        assert done.returncode == 0, done.stderr
        outputs = json.loads(done.stdout.splitlines()[-1])
        return {name: outputs[str(program)] for name, program in programs.items()}


def _first_program(page: Path) -> str:
    return str(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[0])
