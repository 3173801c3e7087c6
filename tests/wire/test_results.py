"""What is done to a server's message before anything else sees it: the hub's keys are gone, and its form is checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from holdfast.wire.raw_json import SMALL_BYTES, BadJson, LoadedObject, RawObject, dump_object
from holdfast.wire.request_form import CHECKED_BYTES, MOST_PARTS, check_result, clean_data, clean_result, load_params

OWN = {"holdfast/held": True}
BLOCK = {"type": "text", "text": "x"}


def read(value: Any) -> RawObject:
    return RawObject.read(json.dumps(value).encode())


def cleaned(value: Any) -> Any:
    return json.loads(clean_result(read(value)).written())


def _tool_result(meta: Any) -> Any:
    """A block of a message that a server asks a model about, with a block that has a resource."""
    resource = {"type": "resource", "resource": {"uri": "x", **meta}}
    return {"type": "tool_result", "toolUseId": "1", "content": [resource]}


@pytest.mark.requirement("SEC-21")
def test_a_meta_among_the_questions_loses_the_hubs_keys_though_it_has_a_meta_of_its_own() -> None:
    questions = {"inputRequests": {"_meta": {**OWN, "_meta": OWN}}}
    assert cleaned(questions) == {"inputRequests": {"_meta": {"_meta": OWN}}}


@pytest.mark.requirement("SEC-21")
@pytest.mark.parametrize(
    "wrap",
    [
        lambda meta: meta,
        lambda meta: {"content": [BLOCK, {**BLOCK, **meta}, "odd"]},
        lambda meta: {"contents": [{"uri": "a:b", "text": "x", **meta}]},
        lambda meta: {
            "messages": [{"role": "user", "content": {"type": "resource", "resource": {"uri": "x", **meta}}}]
        },
        lambda meta: {"task": {"taskId": "1", **meta}},
        lambda meta: {"inputRequests": {"1": {"method": "roots/list", **meta}, "2": "odd"}},
        lambda meta: {"inputRequests": {"1": {"method": "roots/list", "params": {"x": 1, **meta}}}},
        lambda meta: {"inputRequests": {"1": {"params": {"messages": [{"content": _tool_result(meta)}]}}}},
    ],
)
def test_the_hubs_keys_are_taken_out_wherever_the_protocol_has_a_meta(wrap: Any) -> None:
    assert cleaned(wrap({"_meta": {**OWN, "own": 1}})) == wrap({"_meta": {"own": 1}})
    assert cleaned(wrap({"_meta": OWN})) == wrap({})
    for said in ({"_meta": {"own": 1}}, {}, {"_meta": "odd"}):
        untouched = read(wrap(said))
        assert clean_result(untouched) is untouched


@pytest.mark.requirement("SEC-7", "SEC-21")
@pytest.mark.parametrize(
    "wrap",
    [
        lambda many: {"content": [{"_meta": {}}, *[{}] * many]},
        lambda many: {"messages": [{"content": [{"_meta": {}}, *[{}] * (many // 2)]}] * 2},
        lambda many: {"inputRequests": {"_meta": {}, **{str(number): {} for number in range(many)}}},
        lambda many: {"content": [{"_meta": {str(number): 0 for number in range(many)}}]},
    ],
)
def test_a_result_with_more_parts_than_are_looked_at_is_refused(wrap: Any) -> None:
    few, many = wrap(MOST_PARTS - 10), wrap(MOST_PARTS + 10)
    assert cleaned(few) == few
    with pytest.raises(BadJson, match="more than 5000 parts"):
        cleaned(many)


@pytest.mark.requirement("SEC-21")
def test_what_is_a_servers_data_stays_as_it_is() -> None:
    data = {"structuredContent": {"_meta": OWN}, "content": [{**BLOCK, "data": {"_meta": OWN}}], "params": "_meta"}
    assert cleaned(data) == data


@pytest.mark.requirement("SEC-21")
@pytest.mark.parametrize("size", [1, SMALL_BYTES])
def test_parameters_and_errors_lose_the_hubs_keys_at_every_size(size: int) -> None:
    said = {"_meta": {**OWN, "own": 1}, "data": "x" * size}
    given = load_params(json.dumps(said).encode())
    assert given is not None
    assert given["_meta"] == {"own": 1}
    assert json.loads(dump_object(given)) == {**said, "_meta": {"own": 1}}
    assert isinstance(given, LoadedObject) == (size > 1)
    plain = {"a": 1, "data": "x" * size}
    unchanged = load_params(json.dumps(plain).encode())
    assert unchanged is not None
    assert unchanged["a"] == 1
    assert clean_data(said) == {**said, "_meta": {"own": 1}}
    assert clean_data("odd") == "odd"
    assert load_params(b"[1]") is None


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"content": "text"},
        {"content": ["text"]},
        {"content": [{"text": "no type"}]},
        {"content": [{"type": "image", "data": ""}]},
        {"content": [BLOCK, {"type": "unknown"}]},
        {"content": [{"type": 1}]},
    ],
)
def test_a_tools_result_that_no_client_can_read_is_refused(result: dict[str, Any]) -> None:
    with pytest.raises(BadJson, match=r"^content"):
        check_result("tools/call", read(result), "")


def test_a_tools_result_may_have_any_known_block_or_something_in_place_of_blocks() -> None:
    resource = {"type": "resource", "resource": {"uri": "a:b", "text": ""}}
    link = {"type": "resource_link", "uri": "a:b", "name": "x"}
    escaped = b'{"content": [{"type": "te\\u0078t", "text": ""}]}'
    check_result("tools/call", read({"content": [BLOCK, resource, link]}), "")
    check_result("tools/call", RawObject.read(escaped), "")
    for key in ("structuredContent", "task", "resultType"):
        check_result("tools/call", read({key: {}}), "")


def test_another_result_is_checked_for_its_method_and_version_unless_it_is_large_or_not_known() -> None:
    odd = {"contents": "odd"}
    for version in ("", LATEST_HANDSHAKE_VERSION):
        with pytest.raises(ValidationError):
            check_result("resources/read", read(odd), version)
    check_result("resources/read", read({**odd, "more": "x" * CHECKED_BYTES}), "")
    check_result("vendor/method", read(odd), "")
    check_result("tools/call", read({"content": [{"type": "odd", "x": "x" * CHECKED_BYTES}]}), "")
