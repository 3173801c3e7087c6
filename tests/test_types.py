"""The types that users hold: the result of a load, an outcome for each server, a handle on a tool."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, get_args

import pytest

from holdfast import LoadResult, MCPServerLoadOutcome, Tool
from holdfast.types import CallResult, LoadStatus, ProgressFn

pytestmark = pytest.mark.anyio


async def answer(
    name: str, args: Mapping[str, Any], on_progress: ProgressFn | None, within: float | None
) -> CallResult:
    if on_progress is not None:
        await on_progress(1.0, None, None)
    return CallResult(content=({"type": "text", "text": f"{name} {dict(args)}"},))


def tool(server_id: str, name: str = "echo") -> Tool:
    raw = {"title": "Echo", "description": "Says it again", "inputSchema": {"type": "object"}}
    return Tool(server_id, name, raw, answer)


def outcomes() -> list[MCPServerLoadOutcome]:
    return [
        MCPServerLoadOutcome(server_id="z", status="permanent", error="nothing listens"),
        MCPServerLoadOutcome(server_id="a", status="available", tools=[tool("a"), tool("a", "add")]),
        MCPServerLoadOutcome(server_id="t", status="transient", error="HTTP 503", attempts=3),
        MCPServerLoadOutcome(server_id="d", status="denied", error="HTTP 401"),
        MCPServerLoadOutcome(server_id="b", status="available", tools=[tool("b")]),
    ]


@pytest.mark.requirement("LOAD-7")
def test_a_result_is_a_triple_of_tools_failed_servers_and_their_errors() -> None:
    result = LoadResult(outcomes())
    tools, failed, errors = result
    assert isinstance(result, tuple)
    assert len(result) == 3
    assert [(tool.server_id, tool.name) for tool in tools] == [("a", "echo"), ("a", "add"), ("b", "echo")]
    assert failed == ["z", "t", "d"]
    assert errors == {"z": "nothing listens", "t": "HTTP 503", "d": "HTTP 401"}


@pytest.mark.requirement("LOAD-7")
def test_a_result_also_tells_each_outcome_each_status_and_the_ids_of_each_class() -> None:
    result = LoadResult(outcomes())
    assert result.outcomes == outcomes_of(result)
    assert result.status == {"z": "permanent", "a": "available", "t": "transient", "d": "denied", "b": "available"}
    assert result.available == ["a", "b"]
    assert result.transient == ["t"]
    assert result.permanent == ["z"]
    assert result.denied == ["d"]
    assert result.tools is result[0]


def outcomes_of(result: LoadResult) -> list[MCPServerLoadOutcome]:
    return [next(o for o in result.outcomes if o.server_id == name) for name in result.status]


@pytest.mark.requirement("LOAD-6")
def test_an_outcome_has_its_fields_with_one_attempt_and_no_error_on_the_success_path() -> None:
    outcome = MCPServerLoadOutcome(server_id="a", status="available", tools=[tool("a")])
    assert (outcome.server_id, outcome.status, outcome.error, outcome.attempts) == ("a", "available", None, 1)
    assert outcome.message == ""
    assert outcome.failure is None
    assert get_args(LoadStatus) == ("available", "transient", "permanent", "denied")


@pytest.mark.requirement("MSG-1", "MSG-2", "MSG-3")
def test_the_words_for_people_and_models_come_from_the_outcomes() -> None:
    result = LoadResult(outcomes())
    assert [bool(outcome.message) for outcome in result.outcomes] == [True, False, True, True, False]
    assert len(result.model_message.splitlines()) == 3
    assert LoadResult([]).model_message == ""


def test_a_result_says_in_its_repr_what_became_of_the_servers() -> None:
    expected = "<LoadResult 3 tools; 2 available, 1 transient, 1 permanent, 1 denied>"
    assert repr(LoadResult(outcomes())) == expected
    assert repr(LoadResult([])) == "<LoadResult 0 tools; no servers>"


def test_a_result_can_be_copied() -> None:
    result = LoadResult(outcomes())
    again = copy.copy(result)
    assert again == result
    assert again.outcomes == result.outcomes


@pytest.mark.requirement("LOAD-7")
async def test_a_tool_is_a_handle_that_says_what_it_is_and_can_be_called() -> None:
    steps: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    handle = tool("a")
    assert (handle.name, handle.title, handle.description, handle.server_id) == ("echo", "Echo", "Says it again", "a")
    assert (await handle.call()).text == "echo {}"
    assert (await handle.call({"text": "hi"}, on_progress=on_progress)).text == "echo {'text': 'hi'}"
    assert steps == [1.0]
    assert repr(handle) == "<Tool 'echo' of 'a'>"


@pytest.mark.requirement("LOAD-7")
def test_a_load_without_failures_compares_equal_to_empty_lists() -> None:
    _, failed, errors = result = LoadResult(outcomes()[1:2])
    assert failed == []
    assert errors == {}
    assert (result.transient, result.permanent, result.denied) == ([], [], [])


@pytest.mark.requirement("LOAD-7")
def test_the_schemas_of_a_tool_are_plain_copies() -> None:
    inner = MappingProxyType({"type": "string", "enum": ("a", "b")})
    frozen = MappingProxyType({"type": "object", "properties": MappingProxyType({"x": inner})})
    handle = Tool("a", "echo", {"inputSchema": frozen, "outputSchema": frozen, "_meta": frozen}, answer)
    plain = {"type": "object", "properties": {"x": {"type": "string", "enum": ["a", "b"]}}}
    assert json.loads(json.dumps(handle.input_schema)) == plain
    assert (handle.output_schema, handle.meta) == (plain, plain)
    handle.input_schema["properties"]["x"]["type"] = "number"
    assert handle.input_schema == plain


def test_importing_the_types_imports_neither_the_hub_nor_a_transport() -> None:
    program = "import sys, holdfast.types; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"holdfast.hub", "holdfast.wire", "mcp", "anyio"} & {*ran.stdout.split()}
