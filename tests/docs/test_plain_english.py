"""Texts that people read avoid words that a reader with little English has to look up."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

ARCHAIC = re.compile(
    r"\b(whoever|whosoever|whatever|nobody|lest|anew|thereof|for want of|it is told|be it|of which)\b", re.IGNORECASE
)

GENERATED = {"commands.md", "control-api.md", "doctor.md", "events.md", "metrics.md"}
"""Their words come from the source, and are checked there."""


def found(*paths: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in ARCHAIC.finditer(line)
    ]


def test_the_documentation_has_no_archaic_words() -> None:
    pages = [
        page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference" or page.name not in GENERATED
    ]
    assert found(*ROOT.glob("*.md"), *pages, *(ROOT / "docs").rglob("*.py"), ROOT / "tests/requirements.toml") == []
