"""What a program that uses the hub wrongly is told."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Hub

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DX-13")]


def test_a_file_name_instead_of_a_config_names_the_right_call() -> None:
    wrong: Any = "mcp.json"
    with pytest.raises(TypeError, match=r"use Hub\.from_config"):
        Hub(wrong)
