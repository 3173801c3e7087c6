from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.core.lifecycle.table import State, diagram

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "lifecycle.md"


@pytest.mark.requirement("LIFE-2")
def test_the_diagram_in_the_docs_is_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    drawn = re.search(r"```mermaid\n(.*?)\n```", text, re.DOTALL)
    assert drawn is not None
    assert drawn[1] == diagram(), "paste the output of `python -m holdfast.core.lifecycle.table` into the page"


@pytest.mark.requirement("LIFE-2")
def test_the_docs_explain_every_state() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) == {state.shown for state in State}
