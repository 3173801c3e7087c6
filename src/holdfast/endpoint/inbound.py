"""What a client sends, read as far as the hub needs it: the envelope, and nothing of arguments and results.

A request is checked here against JSON-RPC; what its method demands of its parameters is the server's matter.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, ErrorData
from pydantic import ValidationError

from holdfast.config import each_key_once
from holdfast.wire import (
    SMALL_BYTES,
    BadJson,
    Bytes,
    Fields,
    LoadedObject,
    NotAnObject,
    RawObject,
    RawValue,
    dump_object,
    dumps,
    fields,
    is_text,
    load_object,
    loads,
    split,
    text_of,
)

__all__ = [
    "Message",
    "canonical",
    "error_message",
    "error_of",
    "notice_message",
    "read_message",
    "read_strictly",
    "request_message",
    "result_message",
    "result_pieces",
    "settle",
]

log = logging.getLogger("holdfast.front")

LARGEST_READ: Final = 1024 * 1024
"""Bytes of the parameters that the hub itself reads; those of a call pass unread."""

LONGEST_ID: Final = 1_024
"""Bytes; no client needs a longer id, and each is kept and repeated."""

_USUAL: Final = {
    b'"%b"' % name.encode(): name for name in ("tools/call", "tools/list", "resources/read", "prompts/get")
}
"""The most frequent methods as they are usually written: they need no further look."""

_VERSION: Final = msgspec.Raw(b'"2.0"')

_ID: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(str | int)


class Message:
    """One JSON-RPC message; its parts are the bytes that they came in."""

    __slots__ = ("_meta", "_params", "_raw_params", "error", "escapes", "id", "is_request", "key", "method", "result")

    def __init__(self, members: Fields) -> None:
        self.id: Bytes | None = members.get("id")
        self.key: str | int | None = None
        """The id as a value: two ids that are written differently may be equal."""
        method = members.get("method")
        usual = _USUAL.get(bytes(method)) if method is not None and len(method) <= LONGEST_ID else None
        self.method: str | None = usual or text_of(method)
        self.is_request = self.method is not None and self.id is not None
        """Whether it wants an answer."""
        self._raw_params: Bytes | None = members.get("params")
        self._params: Fields | None = None
        self._meta: Mapping[str, Any] | None = None
        self.escapes = True
        """Whether it may have characters that are written by their number."""
        self.result: Bytes | None = None
        self.error: Bytes | None = None
        version = members.get("jsonrpc")
        if version != _VERSION and text_of(version) != "2.0":
            raise MCPError(INVALID_REQUEST, "the message is not JSON-RPC 2.0")
        if self.id is not None:
            self.key = _key(self.id)
        if method is None:
            self.result, self.error = members.get("result"), members.get("error")
            if self.id is None or (self.result is None) == (self.error is None):
                raise MCPError(INVALID_REQUEST, "the message is neither a request, a notification nor a response")
        elif usual is None:
            if self.method is None or not is_text(self.method):
                raise MCPError(INVALID_REQUEST, "the method is not a text")
            if len(self.method) > LONGEST_ID:
                raise MCPError(INVALID_REQUEST, "the method is too long")

    @property
    def params(self) -> Fields:
        """The members of its parameters; they are read once, and nothing changes them. Raises ``MCPError``."""
        if self._params is None:
            try:
                self._params = fields(self._raw_params) if self._raw_params is not None else {}
            except BadJson:
                raise MCPError(INVALID_PARAMS, "the parameters are not an object") from None
        return self._params

    @property
    def meta(self) -> Mapping[str, Any]:
        """``_meta`` as a value; it is read once. Raises ``MCPError``."""
        if self._meta is None:
            raw = self.params.get("_meta")
            self._meta = _read_meta(raw) if raw is not None else _NO_META
        return self._meta

    def values(self) -> dict[str, Any]:
        """All parameters as values, for methods whose parameters the hub itself reads; raises ``MCPError``."""
        params = self.params
        if sum(len(value) for value in params.values()) > LARGEST_READ:
            raise MCPError(INVALID_PARAMS, f"the parameters have more than {LARGEST_READ} bytes")
        try:
            return {key: loads(value) for key, value in params.items()}
        except BadJson as exc:
            raise MCPError(INVALID_PARAMS, f"the parameters cannot be read: {exc}") from None

    def cancelled_key(self) -> str | int | None:
        """The id of the request that a ``notifications/cancelled`` names; None where it names none."""
        try:
            raw = self.params.get("requestId")
            return _key(raw) if raw is not None else None
        except MCPError:
            return None

    def __repr__(self) -> str:
        kind = "request" if self.is_request else "notification" if self.method is not None else "response"
        return f"<Message {kind} {self.method or ''} id={self.key!r}>"


_NO_META: Final[Mapping[str, Any]] = {}


async def read_message(body: bytes) -> Message:
    """One message; raises ``MCPError`` with the code that its sender is told. Only a large one takes a wait."""
    try:
        message = Message(await split(body))
    except BadJson as exc:
        code = INVALID_REQUEST if isinstance(exc, NotAnObject) else PARSE_ERROR
        raise MCPError(code, f"the message cannot be read: {exc}") from None
    message.escapes = len(body) > SMALL_BYTES or b"\\u" in body
    return message


def _read_meta(raw: Bytes) -> Mapping[str, Any]:
    if len(raw) > SMALL_BYTES:
        raise MCPError(INVALID_PARAMS, f"`_meta` has more than {SMALL_BYTES} bytes")
    try:
        meta = loads(raw)
    except BadJson as exc:
        raise MCPError(INVALID_PARAMS, f"`_meta` cannot be read: {exc}") from None
    if not isinstance(meta, dict):
        raise MCPError(INVALID_PARAMS, "`_meta` is not an object")
    return meta


def read_strictly(raw: Bytes) -> Any:
    """A value as every reader reads it; raises ``ValueError`` where two may differ: what a person approves."""
    try:
        return json.loads(bytes(raw).decode("utf-8", "surrogatepass"), object_pairs_hook=each_key_once)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def canonical(raw: Bytes) -> bytes:
    """The same bytes for the same value, however it is written; what is large must be written the same."""
    if len(raw) > SMALL_BYTES:
        return bytes(raw)
    try:
        return json.dumps(read_strictly(raw), sort_keys=True, separators=(",", ":")).encode()
    except ValueError:
        return bytes(raw)


def error_of(exc: Exception) -> ErrorData:
    """What a client is told of an exception; what was not foreseen stays in the log."""
    if isinstance(exc, MCPError):
        return exc.error
    if isinstance(exc, BadJson):
        return ErrorData(code=INVALID_PARAMS, message=f"the parameters cannot be read: {exc}")
    if isinstance(exc, ValidationError):
        return ErrorData(code=INVALID_PARAMS, message="Invalid request parameters", data="")
    log.error("a request failed in the hub itself", exc_info=exc)
    return ErrorData(code=INTERNAL_ERROR, message="Internal server error")


def result_message(request_id: Bytes, result: RawObject | bytes) -> bytes:
    """The answer to a request."""
    raw = result if isinstance(result, bytes) else result.raw
    if raw is not None:
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, raw)
    return b"".join(result_pieces(request_id, result))


def result_pieces(request_id: Bytes, result: RawObject | bytes) -> list[Bytes]:
    """The same in pieces: those of a large result are the bytes that it came in."""
    pieces = [result] if isinstance(result, bytes) else result.pieces()
    return [b'{"jsonrpc":"2.0","id":', request_id, b',"result":', *pieces, b"}"]


def error_message(request_id: Bytes | None, error: ErrorData) -> bytes:
    """The refusal of a request; without an id where it could not be made out."""
    body: Fields = {"code": dumps(error.code), "message": dumps(error.message)}
    if error.data is not None:
        body["data"] = error.data if isinstance(error.data, RawValue) else dumps(error.data)
    raw_id = request_id if request_id is not None else b"null"
    return b"".join([b'{"jsonrpc":"2.0","id":', raw_id, b',"error":', *RawObject(body).pieces(), b"}"])


def notice_message(method: str, params: Mapping[str, Any] | None) -> bytes:
    """A notification."""
    if isinstance(params, LoadedObject):
        return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (dumps(method), params.raw)
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params:
        message["params"] = params
    return dump_object(message)


def request_message(number: int, method: str, params: Mapping[str, Any] | None) -> bytes:
    """A request of the hub's own to a client."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": number, "method": method}
    if params:
        message["params"] = params
    return dump_object(message)


def _key(raw: Bytes) -> str | int:
    if len(raw) > LONGEST_ID:
        raise MCPError(INVALID_REQUEST, "the id is too long")
    try:
        key: str | int = _ID.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MCPError(INVALID_REQUEST, "the id is neither a string nor an integer") from None
    return key


def settle(question: asyncio.Future[dict[str, Any]], message: Message) -> None:
    """Give a client's response to the request that waits for it."""
    try:
        _settle(question, message)
    except BadJson as exc:
        question.set_exception(MCPError(INVALID_REQUEST, f"the client's answer cannot be read: {exc}"))


def _settle(question: asyncio.Future[dict[str, Any]], message: Message) -> None:
    if message.error is not None:
        said = load_object(message.error)
        code, text = (said.get("code"), said.get("message")) if isinstance(said, dict) else (None, None)
        question.set_exception(
            MCPError(code if isinstance(code, int) else INTERNAL_ERROR, str(text or "the client gave an error"))
        )
        return
    result = load_object(message.result) if message.result is not None else None
    if result is not None:
        question.set_result(result)
    else:
        question.set_exception(MCPError(INVALID_REQUEST, "the client's answer does not follow the protocol"))
