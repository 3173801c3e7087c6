"""The published schemas: every command with ``--json`` has one, and it is the one that the program makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from holdfast.cli.entry import COMMANDS
from holdfast.cli.runner import command_named
from schema.command_outputs import OUTPUTS
from schema.generate import schemas
from tests.cli.in_process import Inside
from tests.cli.json_outputs import check_output, validator

pytestmark = pytest.mark.requirement("DX-4")

FOLDER = Path(__file__).parents[2] / "schema"


def commands_with_json() -> set[str]:
    found = set()
    for name in COMMANDS:
        command = command_named(name)
        own = getattr(command, "commands", {"": command})
        for sub, one in own.items():
            if any("--json" in parameter.opts for parameter in one.params):
                found.add(f"{name} {sub}".strip())
        if any("--json" in parameter.opts for parameter in command.params):
            found.add(name)
    return found


def test_every_command_with_json_has_a_schema_and_no_other_has() -> None:
    assert commands_with_json() == set(OUTPUTS)


def test_the_published_schemas_are_those_of_the_program() -> None:
    published = {file: file.read_text() for file in FOLDER.rglob("*.json")}
    assert published == schemas(), "run `make schema`"
    for text in published.values():
        Draft202012Validator.check_schema(json.loads(text))


def test_a_field_that_is_missing_wrong_or_unknown_is_noticed() -> None:
    good = {"version": 1, "file": "mcp.json", "trusted": True, "changed": False}
    assert validator("trust").is_valid(good)
    for bad in ({**good, "version": 0}, {**good, "more": 1}, {"version": 1}, {**good, "trusted": "yes"}):
        with pytest.raises(AssertionError, match="does not fit its schema"):
            check_output(["trust", "--json"], json.dumps(bad))


def test_local_commands_print_what_their_schemas_say(inside: Inside) -> None:
    """The others run in the tests of each command: the helper that runs them checks every output."""
    for arguments in (
        ("add", "one", "--json", "--no-check", "--", "true"),
        ("list", "--json", "--config", ".config/holdfast/mcp.json"),
        ("auth", "status", "--json", "--config", ".config/holdfast/mcp.json"),
        ("tools", "--json", "--config", ".config/holdfast/mcp.json"),
        ("doctor", "--json", "--config", ".config/holdfast/mcp.json"),
        ("remove", "one", "--json"),
        ("remove", "--undo", "--json"),
        ("trust", "--list", "--json"),
        ("import", "--json"),
        ("service", "status", "--json"),
        ("service", "install", "--dry-run", "--json"),
        ("service", "uninstall", "--json"),
    ):
        ran = inside(*arguments)
        assert json.loads(ran.out)["version"], arguments
