"""What the hub edits: in the parameters for a server, and in a result for a client of the other era."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp import MCPError

from holdfast.endpoint.message import kind_of, params_for_server, result_for_client, tool_for_client
from holdfast.wire import LOADED_BYTES, RawObject

STAMP = b'{"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}%s}'


@pytest.mark.requirement("HUB-7")
@pytest.mark.parametrize(("more", "left"), [(b"", None), (b', "mine": 1', {"mine": 1})])
def test_a_legacy_client_gets_the_meta_that_the_server_meant_for_it(more: bytes, left: object) -> None:
    said = RawObject.read(b'{"content": [], "resultType": "complete", "_meta": ' + STAMP % more + b"}")
    shown = json.loads(result_for_client("tools/call", said, modern=False, stamp=b"{}").written())
    assert shown == {"content": [], **({"_meta": left} if left else {})}


@pytest.mark.requirement("HUB-7")
@pytest.mark.parametrize(
    ("content", "structured", "left"),
    [
        (b"[]", b'[1, "\xc3\xbc"]', [{"type": "text", "text": '[1, "ü"]'}]),
        (b"[ ]", b"5", [{"type": "text", "text": "5"}]),
        (b"[]", b"null", []),
        (b'[{"type": "text", "text": "one"}]', b"[1]", [{"type": "text", "text": "one"}]),
    ],
)
def test_a_structured_result_that_is_no_object_reaches_a_legacy_client_as_text(
    content: bytes, structured: bytes, left: object
) -> None:
    said = RawObject.read(b'{"content": ' + content + b', "structuredContent": ' + structured + b"}")
    shown = json.loads(result_for_client("tools/call", said, modern=False, stamp=b"{}").written())
    assert shown == {"content": left}


@pytest.mark.requirement("HUB-7", "SEC-7")
def test_a_large_structured_result_that_is_no_object_is_left_out_for_a_legacy_client_and_that_is_said() -> None:
    said = RawObject.read(b'{"content": [], "structuredContent": "%b"}' % (b"x" * LOADED_BYTES))
    (block,) = json.loads(result_for_client("tools/call", said, modern=False, stamp=b"{}").written())["content"]
    assert block["text"] == "(Holdfast left out a structured result of 524,290 bytes: it is no object)"


@pytest.mark.requirement("LIFE-28", "SEC-21")
@pytest.mark.parametrize("mine", [{}, {"mine": [1.5]}])
@pytest.mark.parametrize("key", ["progressToken", "holdfast/principal", "io.modelcontextprotocol/protocolVersion"])
def test_what_a_client_says_of_its_own_connection_does_not_reach_a_server(key: str, mine: dict[str, object]) -> None:
    meta = {key: "theirs", **mine}
    params = {"name": b'"x"', "_meta": json.dumps(meta).encode()}
    sent = params_for_server(params, meta=meta, escapes=False, headers={})
    assert bytes(sent["name"]) == b'"x"'
    assert json.loads(bytes(sent.get("_meta", b"{}"))) == mine


INFO = "io.modelcontextprotocol/serverInfo"
HUB = {"name": "hub"}
CACHED = {"ttlMs": 0, "cacheScope": "private"}


@pytest.mark.requirement("HUB-7")
@pytest.mark.parametrize(
    ("method", "said", "shown"),
    [
        ("tools/call", {"a": 1}, {"a": 1, "resultType": "complete", "_meta": {INFO: HUB}}),
        ("tools/call", {"resultType": "task", "taskId": "1"}, {"resultType": "task", "taskId": "1"}),
        ("tools/call", {"resultType": "complete", "a": 1}, {"resultType": "complete", "a": 1}),
        ("tools/call", {"resultType": 7}, {"resultType": "complete"}),
        ("tools/list", {"tools": []}, {"tools": [], "resultType": "complete", **CACHED}),
        ("tools/list", {"resultType": "complete", "tools": []}, {"tools": [], "resultType": "complete", **CACHED}),
        ("tools/list", {"tools": [], "ttlMs": 5}, {"tools": [], "resultType": "complete", **CACHED, "ttlMs": 5}),
        ("resources/read", {"resultType": "input_required"}, {"resultType": "input_required"}),
        ("tools/call", {"_meta": 7}, {"resultType": "complete"}),
        ("tools/call", {"_meta": {"mine": 1}}, {"resultType": "complete", "_meta": {"mine": 1, INFO: HUB}}),
        ("tools/call", {"_meta": {INFO: {}}}, {"resultType": "complete", "_meta": {INFO: {}}}),
    ],
)
def test_a_modern_client_gets_a_result_of_a_kind_from_a_named_server(
    method: str, said: dict[str, Any], shown: dict[str, Any]
) -> None:
    result = result_for_client(method, RawObject.of(said), modern=True, stamp=json.dumps(HUB).encode())
    assert json.loads(result.written()) == {"_meta": {INFO: HUB}, **shown}


@pytest.mark.requirement("HUB-7")
@pytest.mark.parametrize(
    "said", [{"content": []}, {"content": [], "_meta": {"mine": 1}, "structuredContent": {}}, {"_meta": 7}]
)
def test_a_result_that_a_legacy_client_knows_passes_as_it_is(said: dict[str, Any]) -> None:
    result = RawObject.of(said)
    assert result_for_client("tools/call", result, modern=False, stamp=b"{}") is result


@pytest.mark.requirement("HUB-7")
def test_a_legacy_client_gets_nothing_that_only_the_modern_era_has() -> None:
    said = RawObject.of({"tools": [], "resultType": "complete", **CACHED})
    assert result_for_client("tools/list", said, modern=False, stamp=b"{}").written() == b'{"tools":[]}'


@pytest.mark.requirement("HUB-7", "HUB-16")
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({}, "complete"),
        ({"resultType": "complete"}, "complete"),
        ({"resultType": "input_required"}, "input_required"),
        ({"resultType": "task"}, "task"),
        ({"task": {"taskId": "1"}}, "task"),
        ({"task": {}, "resultType": "input_required"}, "input_required"),
        ({"resultType": 7}, ""),
    ],
)
def test_a_result_says_what_it_is_and_a_legacy_task_by_its_task(said: dict[str, Any], kind: str) -> None:
    assert kind_of(RawObject.of(said)) == kind


TRACED = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}


@pytest.mark.requirement("LIFE-28", "OBS-2")
@pytest.mark.parametrize(
    ("meta", "headers", "left"),
    [
        (None, {}, None),
        (None, TRACED, TRACED),
        ({}, TRACED, TRACED),
        ({"progressToken": 1}, TRACED, TRACED),
        ({"mine": 1}, TRACED, {"mine": 1, **TRACED}),
        ({"progressToken": 1}, {"traceparent": "none"}, None),
        (None, {"traceparent": "none"}, None),
        ({"mine": 1}, {}, {"mine": 1}),
        ({}, {}, None),
    ],
)
def test_a_server_gets_the_meta_of_the_request_and_its_trace(
    meta: dict[str, Any] | None, headers: dict[str, str], left: dict[str, Any] | None
) -> None:
    params = {"name": b'"x"', **({"_meta": json.dumps(meta).encode()} if meta is not None else {})}
    sent = params_for_server(params, meta=meta or {}, escapes=False, headers=headers)
    assert {key: json.loads(bytes(value)) for key, value in sent.items()} == {
        "name": "x",
        **({"_meta": left} if left is not None else {}),
    }


@pytest.mark.requirement("HUB-2")
@pytest.mark.parametrize("params", [{"name": rb'"\ud800"'}, {"\ud800": b"1"}])
def test_parameters_with_half_of_a_pair_reach_no_server(params: dict[str, bytes]) -> None:
    with pytest.raises(MCPError, match="not valid Unicode text"):
        params_for_server(params, meta={}, escapes=True, headers={})
    whole = {"name": rb'"\u00e9"'}
    assert params_for_server(whole, meta={}, escapes=True, headers={}) is whole


PLAIN = {"name": "x", "inputSchema": {}}
OBJECT = {**PLAIN, "outputSchema": {"type": "object"}}


@pytest.mark.requirement("HUB-7", "HUB-16")
@pytest.mark.parametrize(
    ("item", "legacy", "modern"),
    [
        (PLAIN, PLAIN, PLAIN),
        (OBJECT, OBJECT, OBJECT),
        ({**PLAIN, "outputSchema": {"type": "array"}}, PLAIN, {**PLAIN, "outputSchema": {"type": "array"}}),
        ({**PLAIN, "outputSchema": 7}, PLAIN, {**PLAIN, "outputSchema": 7}),
        (
            {**PLAIN, "execution": {"taskSupport": "required"}},
            {**PLAIN, "execution": {"taskSupport": "optional"}},
            PLAIN,
        ),
        (
            {**PLAIN, "execution": {"taskSupport": "forbidden"}},
            {**PLAIN, "execution": {"taskSupport": "forbidden"}},
            {**PLAIN, "execution": {"taskSupport": "forbidden"}},
        ),
    ],
)
def test_a_tool_is_listed_in_the_form_of_the_era(
    item: dict[str, Any], legacy: dict[str, Any], modern: dict[str, Any]
) -> None:
    assert (tool_for_client(item, modern=False), tool_for_client(item, modern=True)) == (legacy, modern)
