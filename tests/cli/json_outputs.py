"""Every ``--json`` output that a test sees is checked against the published schema of its command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from schema.command_outputs import OUTPUTS
from schema.generate import command_schema

__all__ = ["check_output", "validator"]


def check_output(arguments: Sequence[str], out: str) -> None:
    """Fail if a command printed JSON that its schema does not describe."""
    command = command_of(arguments)
    if command is None or "--json" not in arguments or not out.strip():
        return
    assert command in OUTPUTS, f"`holdfast {command} --json` has no schema"
    for value in _values(out):
        problems = [f"{error.json_path}: {error.message[:300]}" for error in validator(command).iter_errors(value)]
        assert problems == [], f"`holdfast {command} --json` does not fit its schema"


def command_of(arguments: Sequence[str]) -> str | None:
    """The command as the schemas name it."""
    for length in (2, 1):
        if " ".join(arguments[:length]) in OUTPUTS:
            return " ".join(arguments[:length])
    return arguments[0] if arguments and not arguments[0].startswith("-") else None


@cache
def validator(command: str) -> Draft202012Validator:
    """Stricter than the published schema: a field that it does not describe is a mistake of ours."""
    return Draft202012Validator(_closed(command_schema(command)))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return {**closed, "additionalProperties": False} if isinstance(schema.get("properties"), dict) else closed


def _values(out: str) -> list[Any]:
    """One document, or one a line."""
    try:
        return [json.loads(out)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in out.splitlines()]
