"""Turns ``key=value`` pairs into the arguments of a tool, by the types in the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import UsageError

__all__ = ["parse_arguments"]


def parse_arguments(pairs: Sequence[str], as_json: str | None, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``--args``, overridden by the ``key=value`` pairs."""
    arguments = _object(as_json) if as_json is not None else {}
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"`{pair}` is not key=value", hint="put quotes around a value with spaces")
        arguments[key] = _value(key, text, _types(known.get(key)))
    return arguments


def _object(text: str) -> dict[str, Any]:
    hint = 'write an object, as in --args \'{"path": "."}\''
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"--args is not JSON: {exc}", hint=hint) from exc
    if not isinstance(value, dict):
        raise UsageError("--args is JSON, but not an object", hint=hint)
    return value


def _types(schema: object) -> set[str]:
    """The JSON types that a property may have; empty if its schema names none or is malformed."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    types = {named} if isinstance(named, str) else {name for name in _list(named) if isinstance(name, str)}
    for branch in (*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))):
        types |= _types(branch)
    return types


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _value(key: str, text: str, types: set[str]) -> Any:
    """``text`` parsed as JSON if the type fits, else as a string."""
    if types == {"string"}:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if not types or _type_of(value) & types:
        return value
    if "string" in types:
        return text
    raise UsageError(f"`{key}` takes {' or '.join(sorted(types))}, not `{text}`")


def _type_of(value: object) -> set[str]:
    match value:
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case dict():
            return {"object"}
        case _:
            return {"null"}
