"""The examples of the how-to run as they stand there."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[2] / "docs/how-to/test-with-holdfast.md"


def examples() -> list[Callable[[], Awaitable[None]]]:
    """Every test function that the page shows."""
    found: list[Callable[[], Awaitable[None]]] = []
    for program in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        names: dict[str, Any] = {}
        exec(compile(program, str(PAGE), "exec"), names)
        found += [value for name, value in names.items() if name.startswith("test_")]
    return found


def test_the_page_has_examples() -> None:
    assert len(examples()) == 2


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.__name__)
async def test_the_example_runs(example: Callable[[], Awaitable[None]]) -> None:
    with anyio.fail_after(60):
        await example()
