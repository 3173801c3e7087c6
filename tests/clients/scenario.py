"""The scenario that every client runs, and the report that it brings back.

A client is a small program on another library: it is given the server's URL and an era, runs the scenario and
prints its report as one JSON object. The report is the same for every library and era, with and without the hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.conformance.inventory import PROMPTS, RESOURCES, TEMPLATES, TOOLS

__all__ = ["ANSWERS", "EXPECTED", "MODEL_SAYS", "STEPS", "difference"]

STEPS = 5
"""How many reports of progress the client asks for."""

ANSWERS = {"username": "ada", "email": "ada@example.com"}
"""What the client's user fills in."""

MODEL_SAYS = "forty-two"
"""What the client's model answers."""

EXPECTED: Mapping[str, Any] = {
    "tools": sorted(tool.name for tool in TOOLS),
    "prompts": sorted(prompt.name for prompt in PROMPTS),
    "resources": sorted(resource.uri for resource in RESOURCES),
    "templates": sorted(template.uri_template for template in TEMPLATES),
    "echo": "hello",
    "error": "This tool intentionally returns an error for testing",
    "prompt": "Prompt with arguments: arg1='one', arg2='two'",
    "resource": "This is the content of the static text resource.",
    "progress": [1, 2, 3, 4, 5],
    "elicitation": 'User response: action: accept, content: {"username": "ada", "email": "ada@example.com"}',
    "sampling": "LLM response: forty-two",
    "cancelled": "this call was cancelled",
}


def difference(report: Mapping[str, Any], *, only: frozenset[str] | None = None) -> dict[str, tuple[Any, Any]]:
    """What was reported and what should have been, where they differ."""
    keys = EXPECTED.keys() if only is None else only
    return {key: (report.get(key), EXPECTED[key]) for key in sorted(keys) if report.get(key) != EXPECTED[key]}
