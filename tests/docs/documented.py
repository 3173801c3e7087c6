"""The commands that the documentation prints, in their order."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["ROOT", "commands_of", "documented_pages"]

ROOT = Path(__file__).parents[2]


def documented_pages() -> list[str]:
    """README, the rules for contributors, and every page of the documentation."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(page.relative_to(ROOT)) for page in pages]


def commands_of(page: str) -> list[str]:
    """The commands after a ``$``, each whole, without its comment."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    found = [one for block in blocks for one in re.findall(r"^\$ (.*(?:(?<=\\)\n.*)*)", block, flags=re.MULTILINE)]
    return [re.sub(r"\s{2,}# .*$", "", command).strip() for command in found]
