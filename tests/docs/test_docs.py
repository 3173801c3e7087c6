"""The documentation cannot rot: what it shows is run, what is made from the program is fresh, names are complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.doctor.codes import CODES
from tests.docs.documented import commands_of

ROOT = Path(__file__).parents[2]
HOLDFAST = Path(sys.executable).with_name("holdfast")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    path = f"{HOLDFAST.parent}{os.pathsep}{os.environ['PATH']}"  # as a reader has it, who types `holdfast`
    env = {**os.environ, "PATH": path, "HOLDFAST_TEST_WARM": "1"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env=env)


def shown(page: str) -> list[tuple[str, str]]:
    """Every ``$ holdfast …`` of a page with the output that it shows under it."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    examples = re.findall(r"^\$ (holdfast .*)\n((?:(?!\$ ).*\n)*)", "".join(blocks), flags=re.MULTILINE)
    return [(command, output) for command, output in examples if "--config" in command]


def steady(text: str) -> str:
    """Without what differs from run to run: times, how far columns are apart, and where this folder is."""
    text = text.replace(f"{ROOT}/", "")
    return re.sub(r"\d+\.\d+ s", "N s", re.sub(r" +", " ", text)).strip()


@pytest.mark.requirement("DX-1")
@pytest.mark.parametrize(("command", "output"), shown("README.md") + shown("docs/tutorial.md"))
def test_what_the_docs_show_is_what_the_program_prints(command: str, output: str) -> None:
    ran = run(str(HOLDFAST), *shlex.split(command)[1:])
    if output:
        assert steady(ran.stdout + ran.stderr) == steady(output)
    assert "Traceback" not in ran.stderr


@pytest.mark.requirement("DOC-8", "DX-6")
def test_every_finding_that_a_page_names_is_one_of_doctor() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {code for page in pages for code in re.findall(r"HF-[A-Z]+(?:-[A-Z0-9]+)+", page.read_text())}
    assert named - CODES.keys() == set()


def test_the_readme_shows_something() -> None:
    assert len(shown("README.md")) == 3


def test_the_python_of_the_tutorial_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), flags=re.DOTALL)
    script = tmp_path / "tutorial.py"
    script.write_text(program)
    ran = run(sys.executable, str(script))
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[-1] == "6"


def test_the_pages_made_from_the_program_are_fresh() -> None:
    assert run(sys.executable, "docs/generate.py", "--check").returncode == 0, "run `make docs`"


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs/reference/python.md").read_text()
    missing = [name for name in holdfast.__all__ if f"`{name}" not in page]
    assert missing == []


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.requirement("DX-1")
def test_the_first_commands_of_the_readme_are_those_that_a_clone_alone_can_run() -> None:
    """A fresh machine has Python and make: what follows needs an installer, or a release."""
    assert [command.split("#")[0].strip() for command in commands_of("README.md")[:2]] == ["make serve", "make test"]
