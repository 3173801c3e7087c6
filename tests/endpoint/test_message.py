"""One message: how it is read, what its sender is told of one that is none, and what the hub edits in it (HUB-2)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, ErrorData

from holdfast.endpoint.exchange import is_batch, read_batch
from holdfast.endpoint.message import (
    LARGEST_READ,
    LONGEST_ID,
    Message,
    canonical,
    error_message,
    error_of,
    notice_message,
    read_message,
    read_strictly,
    relinked,
    request_message,
    result_message,
    result_pieces,
    settle,
    with_related_task,
)
from holdfast.wire import SMALL_BYTES, BadJson, RawObject

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2")]

CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "x/any"}


def written(**members: Any) -> bytes:
    return json.dumps(CALL | members).encode()


async def read(**members: Any) -> Message:
    return await read_message(written(**members))


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"{", PARSE_ERROR, "cannot be read"),
        (b"[]", INVALID_REQUEST, "cannot be read"),
        (written(jsonrpc="1.0"), INVALID_REQUEST, "not JSON-RPC 2.0"),
        (b'{"id": 1, "method": "ping"}', INVALID_REQUEST, "not JSON-RPC 2.0"),
        (written(id=1.5), INVALID_REQUEST, "neither a string nor an integer"),
        (written(id="i" * (LONGEST_ID - 1)), INVALID_REQUEST, "the id is too long"),
        (written(method=7), INVALID_REQUEST, "the method is not a text"),
        (written(method="m" * (LONGEST_ID + 1)), INVALID_REQUEST, "the method is too long"),
        (b'{"jsonrpc": "2.0", "id": 1}', INVALID_REQUEST, "neither a request"),
        (b'{"jsonrpc": "2.0", "result": {}}', INVALID_REQUEST, "neither a request"),
        (b'{"jsonrpc": "2.0", "id": 1, "result": {}, "error": {}}', INVALID_REQUEST, "neither a request"),
    ],
)
async def test_what_is_no_message_is_refused_with_the_reason(body: bytes, code: int, words: str) -> None:
    with pytest.raises(MCPError, match=words) as refused:
        await read_message(body)
    assert refused.value.error.code == code


async def test_the_longest_id_and_method_are_taken() -> None:
    assert (await read(id="i" * (LONGEST_ID - 2))).key == "i" * (LONGEST_ID - 2)
    assert (await read(method="m" * LONGEST_ID)).method == "m" * LONGEST_ID


@pytest.mark.parametrize(
    ("body", "is_request"),
    [
        (written(), True),
        (b'{"jsonrpc": "2.0", "method": "x/any"}', False),
        (b'{"jsonrpc": "2.0", "id": 1, "result": {}}', False),
    ],
)
async def test_a_message_with_a_method_and_an_id_is_a_request(body: bytes, is_request: bool) -> None:
    assert (await read_message(body)).is_request is is_request


async def test_a_message_knows_whether_it_has_characters_by_their_number() -> None:
    assert not (await read()).escapes
    assert (await read(params={"text": "é"})).escapes
    assert (await read(params={"text": "x" * SMALL_BYTES})).escapes, "a large one is not searched"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ([1], "the parameters are not an object"),
        ({"_meta": 7}, "`_meta` is not an object"),
        ({"_meta": {"x": "y" * SMALL_BYTES}}, "`_meta` has more than"),
    ],
)
async def test_parameters_that_are_none_are_refused_when_they_are_read(params: object, words: str) -> None:
    with pytest.raises(MCPError, match=words) as refused:
        _ = (await read(params=params)).meta
    assert refused.value.error.code == INVALID_PARAMS


async def test_no_more_parameters_are_read_than_the_bound() -> None:
    most = {str(n): "x" * (LARGEST_READ // 64 - 2) for n in range(64)}
    assert (await read(params=most)).values() == most
    with pytest.raises(MCPError, match="more than 1048576 bytes"):
        (await read(params={**most, "one": 1})).values()
    assert (await read()).values() == {}


@pytest.mark.parametrize(
    ("params", "key"), [({"requestId": 7}, 7), ({"requestId": "a"}, "a"), ({"requestId": 1.5}, None), ({}, None)]
)
async def test_a_cancellation_names_a_request_or_none(params: dict[str, Any], key: object) -> None:
    assert (await read(params=params)).cancelled_key() == key


async def test_a_cancellation_whose_parameters_are_no_object_names_none() -> None:
    assert (await read(params=[1])).cancelled_key() is None


def test_equal_arguments_have_the_same_form_unless_they_are_large_or_ambiguous() -> None:
    assert canonical(b'{"b": 1, "a": 2}') == b'{"a":2,"b":1}'
    assert canonical(b'{"a": 1, "a": 2}') == b'{"a": 1, "a": 2}'
    small, large = (b'{"b": 1, "a": "' + b"x" * (SMALL_BYTES - 17 + more) + b'"}' for more in (0, 1))
    assert canonical(small).startswith(b'{"a":')
    assert canonical(large) == large
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(ValueError, match="nested too deep"):
        read_strictly(deep)


def test_a_client_is_told_of_an_exception_by_its_kind(caplog: pytest.LogCaptureFixture) -> None:
    assert error_of(BadJson("no")).code == INVALID_PARAMS
    assert error_of(MCPError(-32000, "own")).message == "own"
    assert caplog.records == []
    assert error_of(OSError("secret")).code == INTERNAL_ERROR
    assert [record.levelname for record in caplog.records] == ["ERROR"], "what was not foreseen is in the log"


@pytest.mark.parametrize("result", [b'{"a":1}', RawObject.read(b'{"a":1}'), RawObject.of({"a": 1})])
def test_a_result_is_written_whole_and_in_pieces(result: RawObject | bytes) -> None:
    expected = b'{"jsonrpc":"2.0","id":7,"result":{"a":1}}'
    assert (result_message(b"7", result), b"".join(result_pieces(b"7", result))) == (expected, expected)


@pytest.mark.parametrize(("data", "written_data"), [(None, {}), ({"a": 1}, {"data": {"a": 1}})])
def test_an_error_is_written_with_its_data_and_without_an_id_that_is_not_known(
    data: Any, written_data: dict[str, Any]
) -> None:
    error = ErrorData(code=-1, message="no", data=data)
    told = json.loads(error_message(None, error))
    assert told == {"jsonrpc": "2.0", "id": None, "error": {"code": -1, "message": "no", **written_data}}
    assert json.loads(error_message(b"7", error))["id"] == 7


def test_parameters_are_written_only_where_there_are_some() -> None:
    assert json.loads(notice_message("n", None)) == {"jsonrpc": "2.0", "method": "n"}
    assert json.loads(notice_message("n", {"a": 1}))["params"] == {"a": 1}
    assert json.loads(request_message(7, "q", {})) == {"jsonrpc": "2.0", "id": 7, "method": "q"}
    assert json.loads(request_message(7, "q", {"a": 1}))["params"] == {"a": 1}


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ({"error": {"code": -1, "message": "no"}}, -1, "no"),
        ({"error": {"code": "x"}}, INTERNAL_ERROR, "the client gave an error"),
        ({"error": 7}, INTERNAL_ERROR, "the client gave an error"),
        ({"result": [1]}, INVALID_REQUEST, "does not follow the protocol"),
    ],
)
async def test_an_answer_that_is_no_result_is_an_error_for_the_server(
    answer: dict[str, Any], code: int, words: str
) -> None:
    question: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    settle(question, await read_message(json.dumps({"jsonrpc": "2.0", "id": 1, **answer}).encode()))
    with pytest.raises(MCPError, match=words) as refused:
        await question
    assert refused.value.error.code == code


async def test_an_answer_reaches_the_server_that_asked() -> None:
    question: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    settle(question, await read_message(b'{"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}}'))
    assert await question == {"action": "accept"}


def shown(uri: str) -> str:
    return uri if uri == "mem://same" else f"from-a+{uri}"


def link(uri: str) -> dict[str, Any]:
    return {"type": "resource_link", "uri": uri}


def embedded(uri: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "text": "x"}}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"content": [link("mem://x")]}, {"content": [link("from-a+mem://x")]}),
        (
            {"content": [link("mem://same"), embedded("mem://x"), {"type": "text", "text": "resource"}]},
            {"content": [link("mem://same"), embedded("from-a+mem://x"), {"type": "text", "text": "resource"}]},
        ),
        ({"contents": [{"uri": "mem://x"}, 7]}, {"contents": [{"uri": "from-a+mem://x"}, 7]}),
        (
            {"messages": [{"content": [link("mem://x")] * 1_998}, {"content": [link("mem://x")]}]},
            {"messages": [{"content": [link("from-a+mem://x")] * 1_998}, {"content": [link("mem://x")]}]},
        ),
        ({"messages": [{"content": link("mem://x")}]}, {"messages": [{"content": link("from-a+mem://x")}]}),
        (
            {"messages": [{"role": "user"}, {"content": [link("mem://x"), link("mem://same")]}]},
            {"messages": [{"role": "user"}, {"content": [link("from-a+mem://x"), link("mem://same")]}]},
        ),
    ],
)
@pytest.mark.anyio
async def test_uris_in_a_result_are_those_of_the_endpoint(result: dict[str, Any], expected: dict[str, Any]) -> None:
    assert json.loads((await relinked(RawObject.of(result), shown)).written()) == expected


@pytest.mark.parametrize(
    "result",
    [
        {"content": [link("mem://same")]},
        {"content": "resource"},
        {"content": ["resource", 7, {"type": "resource"}, {"type": "resource_link", "uri": 7}]},
        {"messages": [{"content": [link("mem://same")]}, "resource", {"content": "resource"}]},
        {"contents": [{"uri": "mem://x"}] * 2_001},
        {"structuredContent": link("mem://x")},
        {"content": [{"type": "text", "resource": {"uri": "mem://x"}}]},
    ],
)
@pytest.mark.anyio
async def test_a_result_without_a_uri_to_change_is_the_same_object(result: dict[str, Any]) -> None:
    raw = RawObject.of(result)
    assert await relinked(raw, shown) is raw


def test_a_question_names_the_task_as_its_client_knows_it() -> None:
    key = "io.modelcontextprotocol/related-task"
    asked = {"a": 1, "_meta": {key: {"taskId": "inner"}, "own": 1}}
    assert with_related_task(asked, "outer") == {"a": 1, "_meta": {key: {"taskId": "outer"}, "own": 1}}
    assert with_related_task(asked, None) == {"a": 1, "_meta": {"own": 1}}
    assert with_related_task({"_meta": {key: {}}}, None) == {}
    for plain in (None, {"a": 1}, {"_meta": {"own": 1}}):
        assert with_related_task(plain, "outer") is plain


async def test_a_batch_is_read_message_by_message_and_refuses_what_is_none() -> None:
    body = b" [" + b",".join([written(), b"7", written(method="initialize")]) + b"]"
    assert is_batch(body, "2025-03-26")
    assert not is_batch(body, "2025-11-25")
    assert not is_batch(written(), "2025-03-26")
    message, none, handshake = await read_batch(body)
    assert isinstance(message, Message)
    assert isinstance(none, bytes)
    assert isinstance(handshake, bytes)
    assert json.loads(none)["error"]["code"] == INVALID_REQUEST
    assert json.loads(handshake) == {
        "jsonrpc": "2.0",
        "id": 1,
        "error": {"code": INVALID_REQUEST, "message": "initialize may not be part of a batch"},
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[", "the batch cannot be read"),
        (b"[]", "a batch has 1 to 100 messages, in at most 128 KiB"),
        (b"[" + b",".join([b"7"] * 101) + b"]", "a batch has 1 to"),
        (b'["' + b"x" * SMALL_BYTES + b'"]', "a batch has 1 to"),
    ],
)
async def test_a_batch_that_is_empty_or_too_large_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(MCPError, match=words):
        await read_batch(body)


async def test_a_batch_has_one_message_at_least_and_as_many_as_the_bound() -> None:
    assert len(await read_batch(b"[7]")) == 1
    assert len(await read_batch(b"[" + b",".join([b"7"] * 100) + b"]")) == 100
