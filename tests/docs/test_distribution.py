"""The distribution is `holdfast-mcp`: `holdfast` on the package index belongs to another project."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "docs", "deploy", "schema")

NAME = r"(?<![\w./@-])holdfast(?![\w-])"
"""The bare name: not `holdfast-mcp`, not a path, not the import name of a submodule."""

FOREIGN = re.compile(
    rf"""
    \b(?:pip3?|pipx|uv|poetry|pdm|conda)\b [^\n`]*? \b(?:install|add|inject|upgrade|run)\b [^\n`;&|]*? {NAME}
    | \b(?:uvx|pipx\ run)\b [^\n`]*? {NAME}
    | {NAME} \[ [a-z]
    | \b(?:version|distribution|metadata|requires|files)\( ["']holdfast["']
    """,
    re.VERBOSE,
)
"""A text that installs, runs or asks for the foreign package."""

OWN_COMMAND = re.compile(r"(--from|--spec)[ =]'?holdfast-mcp(\[[\w,-]+\])?'? holdfast\b")
"""``uvx --from holdfast-mcp holdfast`` runs our command."""


def texts() -> Iterator[Path]:
    for path in [*ROOT.glob("*"), *(found for folder in FOLDERS for found in (ROOT / folder).rglob("*"))]:
        if path.is_file() and "__pycache__" not in path.parts and _is_text(path):
            yield path


def _is_text(path: Path) -> bool:
    try:
        path.read_text()
    except UnicodeDecodeError:
        return False
    return True


def foreign(text: str) -> list[str]:
    """The places in a text that mean the foreign package."""
    return [found.group() for found in FOREIGN.finditer(OWN_COMMAND.sub("", text))]


def test_the_distribution_is_named_holdfast_mcp_and_the_command_holdfast() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "holdfast-mcp"
    assert list(project["scripts"]) == ["holdfast", "holdfast-mcp"], "uvx runs the command of the package's name"


def test_no_text_tells_anyone_to_install_the_foreign_package() -> None:
    found = {str(path.relative_to(ROOT)): places for path in texts() if (places := foreign(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install holdfast",
        "pip install 'holdfast[otel]'",
        "python -m pip install --upgrade holdfast",
        "pipx install holdfast",
        "pipx run holdfast serve",
        "uv tool install holdfast",
        "uv pip install holdfast==0.1.0",
        "uv add holdfast",
        "uvx holdfast serve",
        "the extra `holdfast[gateway]`",
        'importlib.metadata.version("holdfast")',
    ],
)
def test_the_foreign_package_is_recognised(text: str) -> None:
    assert foreign(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'holdfast-mcp[otel]'",
        "pipx install holdfast-mcp",
        "uvx --from holdfast-mcp holdfast serve",
        "pip install . gives you the `holdfast` command",
        "pip --python /opt/holdfast/bin/python install dist/*.whl",
        "holdfast import cursor --apply",
    ],
)
def test_our_own_package_and_command_are_allowed(text: str) -> None:
    assert foreign(text) == []
