"""An answer that cannot be used fails its own call at once; what JSON allows passes."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from holdfast.config.settings import Limits
from holdfast.config.spec import ServerSpec
from holdfast.core.evidence import NetworkFailure, NetworkFault, NotMcp, NotMcpFault, OverBound, ProcessExit
from holdfast.core.redact import Redactor
from holdfast.errors import ServerFailure
from holdfast.wire import stdio_transport
from holdfast.wire.dial import Dialer
from holdfast.wire.raw_json import BadJson, RawObject, loads, read_bytes
from holdfast.wire.rpc import answered_id
from holdfast.wire.session import Connection
from holdfast.wire.warden import Warden

pytestmark = pytest.mark.anyio

SERVER = r"""
import json, os, sys
out = sys.stdout.buffer
def say(data):
    out.write(data + b"\n"); out.flush()
for line in sys.stdin:
    message = json.loads(line)
    method, number = message["method"], message.get("id")
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "x", "version": "1"}
        say(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode())
    elif method == "tools/call":
        name, args = message["params"]["name"], message["params"]["arguments"]
        if name == "raw":
            say(args["line"].replace("$ID", str(number)).encode("latin-1"))
        elif name == "die":
            sys.exit(7)
        elif name == "mute":
            os.close(1); sys.stdin.read()
        else:
            text = {"content": [{"type": "text", "text": "fine"}]}
            say(json.dumps({"jsonrpc": "2.0", "id": number, "result": text}).encode())
    elif number is not None:
        say(json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no"}}).encode())
"""


@asynccontextmanager
async def dialed(limits: Limits | None = None) -> AsyncIterator[Connection]:
    spec = ServerSpec(id="raw", transport="stdio", command=sys.executable, args=("-S", "-c", SERVER))
    async with Warden() as warden:
        dialer = Dialer(warden=warden, limits=limits or Limits())
        async with dialer.connect(spec, within=20, redactor=Redactor()) as connection:
            yield connection


async def answered(connection: Connection, line: str) -> dict[str, object]:
    """The result of a call that the server answers with this line; ``$ID`` in it is the id of the request."""
    with anyio.fail_after(10):
        params = {"name": "raw", "arguments": {"line": line}}
        result = await connection.request("tools/call", RawObject.of(params).members, idle=60, within=60)
        return result.value()


def result(text: str) -> str:
    return '{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"SECRET-CONTENT"}],' + text + "}}"


@pytest.mark.requirement("LIFE-28")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        (result('"x":"\xff"'), "it is not UTF-8"),
        (result('"x":NaN'), "NaN and Infinity are not JSON"),
        (result('"x":-Infinity'), "NaN and Infinity are not JSON"),
        (result('"x":' + "[" * 100_000 + "]" * 100_000), "it is nested too deep"),
        (result('"x":}'), "it is not JSON"),
        ('{"result":{"x":NaN},"id":$ID}', "NaN and Infinity are not JSON"),
        ('{"result":{"x":NaN},"id":$ID,"jsonrpc":"2.0"}', "NaN and Infinity are not JSON"),
    ],
)
async def test_an_answer_that_is_not_json_fails_its_own_call_at_once_and_no_other(line: str, why: str) -> None:
    async with dialed() as connection:
        with pytest.raises(ServerFailure) as failed:
            await answered(connection, line)
        assert failed.value.evidence == NotMcp(fault=NotMcpFault.BAD_RESULT, detail=why)
        assert (await connection.call_tool("fine", {}, idle=5, within=5)).text == "fine"


@pytest.mark.requirement("LIFE-28")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"x":"cut \ud83d"', "cut \ud83d"),
        (r'"x":"\ude00\ud83d reversed"', "\ude00\ud83d reversed"),
        (r'"x":"whole \ud83d\ude00"', "whole 😀"),
        ('"x":' + "9" * 4000, int("9" * 4000)),
        ('"x":123456789012345678901234567890', 123456789012345678901234567890),
        ('"x":1e400', float("inf")),
        ('"x":{"b":1,"a":2,"unknown":{"deep":[null]}}', {"b": 1, "a": 2, "unknown": {"deep": [None]}}),
    ],
)
async def test_what_json_allows_passes(text: str, value: object) -> None:
    async with dialed() as connection:
        found = await answered(connection, result(text))
    assert found["x"] == value
    if isinstance(value, dict):
        assert list(found["x"]) == list(value)  # type: ignore[call-overload]  # it is a dict, as was just seen


@pytest.mark.requirement("LIFE-28", "SEC-4")
async def test_an_answer_over_the_bound_fails_its_own_call_and_the_connection_goes_on() -> None:
    async with dialed(Limits(message_bytes=10_000)) as connection:
        padded = result('"x":"' + "y" * 9_000 + "\\u0079" * 1_000 + '"')
        with pytest.raises(ServerFailure) as failed:
            await answered(connection, padded)
        assert isinstance(failed.value.evidence, OverBound)
        assert (await connection.call_tool("fine", {}, idle=5, within=5)).text == "fine"


@pytest.mark.requirement("LIFE-28", "SEC-4")
async def test_a_line_without_an_end_ends_the_connection() -> None:
    async with dialed(Limits(message_bytes=10_000)) as connection:
        with pytest.raises(ServerFailure):
            await answered(connection, result('"x":"' + "y" * 9_000 + "\\u0079" * 1_000 + '"') * 9)
        with pytest.raises(ServerFailure) as failed:
            await connection.call_tool("fine", {}, idle=5, within=5)
    assert isinstance(failed.value.evidence, OverBound)


@pytest.mark.requirement("LIFE-28", "MSG-6")
async def test_the_content_of_an_unusable_answer_is_no_reason_for_a_later_exit() -> None:
    async with dialed() as connection:
        with pytest.raises(ServerFailure):
            await answered(connection, result('"x":NaN'))
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.3):  # an unusable line that answers nothing is no answer to this call
                await answered(connection, "SECRET-CONTENT, printed by the server")
        with pytest.raises(ServerFailure) as failed:
            await connection.call_tool("die", {}, idle=10, within=10)
    assert isinstance(failed.value.evidence, ProcessExit)
    assert "SECRET-CONTENT" not in repr(failed.value.evidence)


async def test_a_process_that_closes_its_stdout_and_lives_on_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio_transport, "EXIT_SECONDS", 0.02)
    async with dialed() as connection:
        with anyio.fail_after(10), pytest.raises(ServerFailure) as failed:
            await connection.call_tool("mute", {}, idle=60, within=60)
    assert failed.value.evidence == NetworkFailure(fault=NetworkFault.CLOSED, stood=True, detail="it closed its stdout")


@pytest.mark.requirement("SEC-4")
async def test_empty_lines_without_end_are_too_much_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio_transport, "NOISE_BOUND", 100)
    async with dialed() as connection:
        assert await answered(connection, "\n" * 50 + result('"n":1'))
        with pytest.raises(ServerFailure) as failed:
            await answered(connection, "\n" * 60 + result('"n":1'))
    assert failed.value.evidence == NotMcp(fault=NotMcpFault.NOT_JSON, detail="it printed too much that is no message")


def test_the_id_is_found_where_json_rpc_puts_it() -> None:
    assert answered_id(b'{"jsonrpc":"2.0","id":7,"result":NaN}') == 7
    assert answered_id(b' { "id" : "a b" , "result":') == "a b"
    assert answered_id(b'{"result":{"id":1},"id":8}') == 8
    assert answered_id(b'{"result":{"id":1}') is None
    assert answered_id(b'{"method":"x","params":{"id":1,') is None
    assert answered_id(b"") is None


def test_decoding_keeps_what_json_allows_and_says_why_it_refuses() -> None:
    assert loads(read_bytes(b'{"a":"\\ud83d"}')) == {"a": "\ud83d"}
    assert json.dumps(loads(read_bytes(b'{"a":"\\ud83d"}'))) == '{"a": "\\ud83d"}'
    for data in (b"", b"{", b"nul", b"\xff", b"[NaN]"):
        with pytest.raises(BadJson):
            loads(read_bytes(data))
