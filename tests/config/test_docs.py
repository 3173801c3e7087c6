"""The reference page cannot rot: its examples are read, and it tells of every key with its default."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from holdfast.config.definition import keys_of
from holdfast.config.fields import TRANSPORTS
from holdfast.config.file_models import ConfigFile, OAuthFile, ServerFile, SettingsFile, ToolsFile
from holdfast.config.read import parse_config
from schema.generate import config_schema

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```jsonc?\n(.*?)```", TEXT, re.DOTALL)
ROWS = dict(re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", TEXT, re.MULTILINE))


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_a_good_configuration(example: str) -> None:
    config = parse_config(example, environ={})
    assert all(not server.problems for server in config.servers.values()), config


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("model", [ConfigFile, ServerFile, ToolsFile, OAuthFile, SettingsFile])
def test_every_key_is_mentioned(model: type[BaseModel]) -> None:
    missing = [key for key in keys_of(model) if not re.search(rf"[`.\"]{re.escape(key)}[`.\"]", TEXT)]
    assert not missing


def test_every_spelling_of_a_transport_is_mentioned() -> None:
    assert not [spelling for spelling in TRANSPORTS if f"`{spelling}`" not in TEXT]


def settings(group: str = "holdfast", before: str = "") -> Iterator[tuple[str, object]]:
    """Every setting of the schema, and its default; None if that is said in words."""
    for key, one in config_schema()["$defs"][group]["properties"].items():
        if "$ref" in one:
            yield from settings(one["$ref"].rpartition("/")[2], f"{before}{key}.")
        else:
            yield f"{before}{key}", one.get("default")


def test_every_setting_is_there_with_its_default() -> None:
    for key, default in settings():
        assert key in ROWS
        if default is not None:
            assert ROWS[key] == (default if isinstance(default, str) else json.dumps(default).removesuffix(".0")), key
