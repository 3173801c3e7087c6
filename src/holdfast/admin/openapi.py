"""The OpenAPI document of the control API, generated from the table of operations and the models."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic.json_schema import JsonSchemaMode, models_json_schema

from holdfast._version import __version__
from holdfast.admin.feed import EVENTS
from holdfast.admin.operations import MOST_LINES, OPERATIONS, Operation
from holdfast.control.models import ApiError, LogLine, Shape

__all__ = ["document"]

_REASONS = {
    401: "The token is missing or not valid",
    403: "The Origin or the token has no access",
    404: "There is nothing with that name",
    409: "The state of the server does not allow it",
    421: "The Host is not served here",
    422: "The body or the query is not valid",
    502: "The server failed; the error gives the reason",
}

_REF = "#/components/schemas/{model}"


@cache
def document() -> dict[str, Any]:
    """Return the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast control API", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


_ABOUT = (
    "Watch and control a running hub. "
    "Times are seconds since the epoch (`at`, `since`) or seconds from now (`retry_in`). "
    "Keys may be added; none changes its meaning."
)


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "security": [] if operation.needs == "nothing" else [{"token": []}],
        "responses": {"200": _answer(operation), **{str(code): _error(code) for code in sorted(_errors(operation))}},
    }
    if parameters := [*_in_path(operation), *_in_query(operation)]:
        described["parameters"] = parameters
    if operation.body is not None:
        schema = {"$ref": _REF.format(model=operation.body.__name__)}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if operation.name == "follow_events":
        described["description"] = "\n".join(f"- `{name}`: {words}" for name, words in EVENTS.items())
    return described


def _answer(operation: Operation) -> dict[str, Any]:
    if operation.answer is not None:
        schema: dict[str, Any] = {"$ref": _REF.format(model=operation.answer.__name__)}
    else:
        schema = {"type": "string"} if operation.media_type == "text/event-stream" else {"type": "object"}
    return {"description": operation.summary, "content": {operation.media_type: {"schema": schema}}}


def _errors(operation: Operation) -> set[int]:
    always = {403, 421} if operation.needs == "nothing" else {401, 403, 421}
    unfit = {422} if operation.body is not None or operation.query else set()
    return {*always, *unfit, *operation.errors}


def _error(code: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REF.format(model=ApiError.__name__)}}}
    return {"description": _REASONS[code], "content": content}


def _in_path(operation: Operation) -> list[dict[str, Any]]:
    names = [part.strip("{}") for part in operation.path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _in_query(operation: Operation) -> list[dict[str, Any]]:
    schema = {"type": "integer", "minimum": 1, "maximum": MOST_LINES}
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name in operation.query]


def _schemas() -> dict[str, Any]:
    """Describe an answer with every key that is written, and a body with the keys that may be sent."""
    shapes: dict[type[Shape], JsonSchemaMode] = {ApiError: "serialization", LogLine: "serialization"}
    for operation in OPERATIONS:
        if operation.answer is not None:
            shapes[operation.answer] = "serialization"
        if operation.body is not None:
            shapes[operation.body] = "validation"
    _, definitions = models_json_schema(list(shapes.items()), ref_template=_REF)
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas
