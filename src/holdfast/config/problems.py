"""Turns pydantic's errors into problems: the key, its position, and what to write instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.config.durations import Unfit
from holdfast.config.expand import Expansion
from holdfast.config.fields import kind_of
from holdfast.config.places import KeyPath, SourceMap, joined, quoted
from holdfast.errors import Problem

__all__ = ["key_hint", "keys_of", "unknown_key", "validation_problems"]

_KEY = "[key]"  # pydantic's mark for an error in a key, not in its value
_EXPECTED = {
    "dict_type": "an object",
    "model_type": "an object",
    "list_type": "a list",
    "tuple_type": "a list",
}


def validation_problems(
    error: ValidationError, model: type[BaseModel], path: KeyPath, source_map: SourceMap, *, known: Expansion
) -> list[Problem]:
    """Every error of the value at ``path`` that does not fit ``model``.

    Errors in texts of ``known`` whose expansion failed are left out: the failed expansion is reported already.
    """
    return [
        _problem(details, model, path, source_map)
        for details in error.errors(include_url=False)
        if not known.broken((*path, *details["loc"]))
    ]


def unknown_key(path: KeyPath, known: Iterable[str], source_map: SourceMap) -> Problem:
    """The problem for an unknown key, with the nearest known one."""
    name = str(path[-1])
    return source_map.problem(path, f"unknown key {quoted(name)}", hint=key_hint(name, known), at_key=True)


def key_hint(name: str, known: Iterable[str]) -> str:
    """A hint with the known key nearest to ``name``, or with all of them."""
    folded = {_fold(key): key for key in known}
    nearest = difflib.get_close_matches(_fold(name), folded, n=1, cutoff=0.6)
    if nearest:
        return f"did you mean {quoted(folded[nearest[0]])}?"
    return f"the keys here are {', '.join(sorted(folded.values(), key=str.lower))}"


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys of a model, as they are written in a file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _fold(key: str) -> str:
    return re.sub(r"[-_\s]", "", key).lower()


def _problem(details: ErrorDetails, model: type[BaseModel], path: KeyPath, source_map: SourceMap) -> Problem:
    inside: KeyPath = tuple(step for step in details["loc"] if step != _KEY)
    if details["type"] == "extra_forbidden":
        return unknown_key((*path, *inside), keys_of(_model_at(model, inside[:-1])), source_map)
    message, hint = _words(details)
    subject = quoted(joined(inside)) if inside else "this"
    return source_map.problem((*path, *inside), f"{subject} {message}", hint=hint, at_key=_KEY in details["loc"])


def _words(details: ErrorDetails) -> tuple[str, str]:
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, Unfit):
        return cause.message, cause.hint
    expected = _EXPECTED.get(details["type"], "another kind of value")
    return f"must be {expected}, not {kind_of(details['input'])}", ""


def _model_at(model: type[BaseModel], inside: KeyPath) -> type[BaseModel]:
    for step in inside:
        field = next(f for name, f in model.model_fields.items() if (f.alias or name) == step)
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model
