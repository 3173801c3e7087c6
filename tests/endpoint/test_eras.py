"""What the hub edits: in the parameters for a server, and in a result for a client of the other era."""

from __future__ import annotations

import json

import pytest

from holdfast.endpoint.message import params_for_server, result_for_client
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
