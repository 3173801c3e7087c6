"""The threat model names a test for every claim, and those tests exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)


def names_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.requirement("SEC-10", "SEC-11", "SEC-12")
def test_every_test_that_the_threat_model_names_exists() -> None:
    assert len(NAMED) > 40
    missing = [f"{file}::{name}" for file, name in NAMED if name not in names_in(ROOT / file)]
    assert missing == []


@pytest.mark.requirement("SEC-10", "SEC-11", "SEC-12")
def test_every_claim_of_the_threat_model_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("|---")]
    claims = [row for row in rows if not row.rstrip().endswith("| proof |")]
    assert len(claims) > 30
    assert [row for row in claims if "::test_" not in row] == []


def test_every_kind_of_attacker_has_what_is_not_stopped() -> None:
    sections = PAGE.split("\n## ")[2:]
    assert [section.splitlines()[0] for section in sections if "\nNot stopped: " not in section] == []
