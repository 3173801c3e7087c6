"""The messages of clients: how they are read and written, and all that the hub edits in those that pass through.

Theory of operation. A client sends JSON-RPC. The hub reads the envelope of a message, and what it needs of the
parameters; arguments and results pass as the bytes that they came in (``Message`` keeps each part as bytes). A request
is checked here against JSON-RPC; what its method demands of its parameters is checked where the method is answered.

What must hold:

- Everything that is read has a bound: an id and a method, because each is kept and repeated; ``_meta`` and the
  parameters that the hub itself reads, because they become values.
- Two ids that are written differently may be equal: ``Message.key`` is the value, ``Message.id`` the bytes to answer
  with.
- A person approves what every reader reads: a key that stands twice in an object is refused (``read_strictly``).
- A client learns nothing of a fault in the hub itself: it is in the log (``error_of``).

What the hub edits is in the second half, and nowhere else. One protocol era has what the other must not have
(``_meta`` keys, ``resultType``, output schemas), and at the endpoint of many servers the resource URIs in results are
rewritten so that a client can read them. A result that needs no change passes as the same object.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from mcp import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    ErrorData,
)
from mcp_types.methods import CACHEABLE_METHODS
from pydantic import ValidationError

from holdfast.config import each_key_once
from holdfast.core import is_own_key
from holdfast.turns import Turns
from holdfast.wire import (
    LOADED_BYTES,
    RELATED_TASK,
    SMALL_BYTES,
    BadJson,
    Bytes,
    Fields,
    LoadedObject,
    NotAnObject,
    RawObject,
    dump_object,
    dumps,
    fields,
    have_lone_surrogate,
    is_array,
    is_object,
    is_text,
    items,
    join_fields,
    join_items,
    load_object,
    loads,
    may_begin,
    read_bytes,
    split,
    task_support,
    text_of,
    traced,
    without_task_support,
)

__all__ = [
    "Message",
    "canonical",
    "error_message",
    "error_of",
    "kind_of",
    "may_link",
    "notice_message",
    "params_for_server",
    "read_message",
    "read_strictly",
    "relinked",
    "request_message",
    "result_for_client",
    "result_message",
    "result_pieces",
    "settle",
    "tool_for_client",
    "with_related_task",
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


class Message(msgspec.Struct, eq=False):
    """One JSON-RPC message; its parts are the bytes that they came in."""

    id: Bytes | None
    key: str | int | None
    """The id as a value: two ids that are written differently may be equal."""
    method: str | None
    _raw_params: Bytes | None
    is_request: bool
    """Whether it wants an answer."""
    escapes: bool
    """Whether it may have characters that are written by their number."""
    result: Bytes | None = None
    error: Bytes | None = None
    _params: Fields | None = None
    _meta: Mapping[str, Any] | None = None

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
    is_large = len(body) > SMALL_BYTES
    try:
        members = await split(body) if is_large else fields(read_bytes(body))
    except BadJson as exc:
        code = INVALID_REQUEST if isinstance(exc, NotAnObject) else PARSE_ERROR
        raise MCPError(code, f"the message cannot be read: {exc}") from None
    escapes = is_large or b"\\u" in body
    version = members.get("jsonrpc")
    if version != _VERSION and text_of(version) != "2.0":
        raise MCPError(INVALID_REQUEST, "the message is not JSON-RPC 2.0")
    raw_id, written = members.get("id"), members.get("method")
    key = _key(raw_id) if raw_id is not None else None
    params = members.get("params")
    if written is None:
        result, error = members.get("result"), members.get("error")
        if raw_id is None or (result is None) == (error is None):
            raise MCPError(INVALID_REQUEST, "the message is neither a request, a notification nor a response")
        return Message(raw_id, key, None, params, False, escapes, result, error)
    method = _USUAL.get(bytes(written)) if len(written) <= LONGEST_ID else None
    if method is None:
        method = text_of(written)
        if method is None or not is_text(method):
            raise MCPError(INVALID_REQUEST, "the method is not a text")
        if len(method) > LONGEST_ID:
            raise MCPError(INVALID_REQUEST, "the method is too long")
    return Message(raw_id, key, method, params, raw_id is not None, escapes)


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
        body["data"] = dumps(error.data)
    raw_id = request_id if request_id is not None else b"null"
    return b"".join([b'{"jsonrpc":"2.0","id":', raw_id, b',"error":', *RawObject(body).pieces(), b"}"])


def notice_message(method: str, params: Mapping[str, Any] | None) -> bytes:
    """A notification."""
    if isinstance(params, LoadedObject):
        return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (dumps(method), params.raw)
    return dump_object({"jsonrpc": "2.0", "method": method} | ({"params": params} if params else {}))


def request_message(number: int, method: str, params: Mapping[str, Any] | None) -> bytes:
    """A request of the hub's own to a client."""
    return dump_object({"jsonrpc": "2.0", "id": number, "method": method} | ({"params": params} if params else {}))


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
        result = load_object(message.result) if message.result is not None else None
        said = load_object(message.error) if message.error is not None else None
    except BadJson as exc:
        question.set_exception(MCPError(INVALID_REQUEST, f"the client's answer cannot be read: {exc}"))
        return
    if message.error is not None:
        code, text = (said.get("code"), said.get("message")) if isinstance(said, dict) else (None, None)
        known = code if isinstance(code, int) else INTERNAL_ERROR
        question.set_exception(MCPError(known, str(text or "the client gave an error")))
    elif result is None:
        question.set_exception(MCPError(INVALID_REQUEST, "the client's answer does not follow the protocol"))
    else:
        question.set_result(result)


# What the hub edits in a message that passes through.

_ENVELOPE = frozenset({PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, "progressToken"})
"""Keys of ``_meta`` that describe the client's connection, not the request."""


def _is_envelope(key: str) -> bool:
    """Whether a key of ``_meta`` is not for the server. The hub's own say something to the hub, or nothing at all."""
    return key in _ENVELOPE or is_own_key(key)


_MODERN_ONLY = frozenset({"resultType", "ttlMs", "cacheScope"})

COMPLETE = b'"complete"'
"""The type of almost every result, as it is written."""


def kind_of(result: RawObject) -> str:
    """What a result is: ``complete``, ``input_required`` or ``task``. In the legacy era only a task says so."""
    said = result.get("resultType")
    kind = "complete" if said is None or said == COMPLETE else text_of(said) or ""
    return "task" if kind == "complete" and "task" in result.members else kind


def params_for_server(params: Fields, *, meta: Mapping[str, Any], escapes: bool, headers: Mapping[str, str]) -> Fields:
    """Return a client's parameters for the server, without the ``_meta`` keys of the client's connection.

    ``meta`` is the value of ``_meta``; ``escapes`` says whether they may have characters written by their number.
    """
    if escapes and (have_lone_surrogate(params.values()) or not all(map(is_text, params))):
        # Servers drop the whole message, and the client would wait for ever.
        raise MCPError(INVALID_PARAMS, "the request contains characters that are not valid Unicode text")
    raw = params.get("_meta")
    if "traceparent" in headers or not all(map(_is_envelope, meta)):
        said = traced(fields(raw) if raw is not None and is_object(raw) else {}, headers)
        kept = {key: value for key, value in said.items() if not _is_envelope(key)}
        if kept:
            return {**params, "_meta": join_fields(kept)}
    return {key: value for key, value in params.items() if key != "_meta"} if raw is not None else params


def result_for_client(method: str, result: RawObject, *, modern: bool, stamp: bytes) -> RawObject:
    """Return a server's result in the form that the client's era expects; as it came where that is the same."""
    if modern:
        return _modern(method, result, stamp)
    changes: dict[str, Bytes | None] = {}
    if not _MODERN_ONLY.isdisjoint(result.members):
        changes.update(dict.fromkeys(_MODERN_ONLY))
    meta = result.get("_meta")
    if meta is not None and is_object(meta) and SERVER_INFO_META_KEY in (members := fields(meta)):
        kept = {key: value for key, value in members.items() if key != SERVER_INFO_META_KEY}
        changes["_meta"] = join_fields(kept) if kept else None
    structured = result.get("structuredContent")
    if structured is not None and not is_object(structured):
        changes["structuredContent"] = None  # the legacy era allows only objects; the text content says the same
        content = result.get("content") or b"[]"
        is_empty = len(content) <= SMALL_BYTES and not bytes(content).strip(b"[] \t\r\n")
        if is_empty and (text := _as_text(structured)) != "null":
            changes["content"] = join_items([dumps({"type": "text", "text": text})])  # where there is none
    return result.changed(changes) if changes else result


def _as_text(value: Bytes) -> str:
    """A value of a result as text. Each character of it is written again, so a large one is left out."""
    if len(value) > LOADED_BYTES:
        return f"(Holdfast left out a structured result of {len(value):,} bytes: it is no object)"
    return bytes(value).decode()


def _modern(method: str, result: RawObject, stamp: bytes) -> RawObject:
    said = result.get("resultType")
    kind = None if said is None else "complete" if bytes(said) == COMPLETE else text_of(said)
    lead: Fields = {}
    if method in CACHEABLE_METHODS and kind in (None, "complete"):
        lead |= {"ttlMs": b"0", "cacheScope": b'"private"'}
    if kind is None:
        lead["resultType"] = b'"complete"'
        result = result.changed({"resultType": None}) if "resultType" in result.members else result
    meta = result.get("_meta")
    if meta is None or not is_object(meta):
        lead["_meta"] = join_fields({SERVER_INFO_META_KEY: stamp})
        result = result.changed({"_meta": None}) if meta is not None else result
    elif SERVER_INFO_META_KEY not in (members := fields(meta)):
        result = result.changed({"_meta": join_fields({SERVER_INFO_META_KEY: stamp, **members})})
    return result.led_by(lead)


def tool_for_client(item: Mapping[str, Any], *, modern: bool) -> Mapping[str, Any]:
    """Drop an output schema that makes a legacy client refuse the whole list, and what a tool says of tasks.

    The hub makes a plain call of any tool, so none needs a task; a modern client knows no such annotation.
    """
    if task_support(item) != "forbidden":
        item = without_task_support(item)
        if not modern:
            item = {**item, "execution": {**item.get("execution", {}), "taskSupport": "optional"}}
    schema = item.get("outputSchema")
    if modern or (isinstance(schema, Mapping) and schema.get("type") == "object"):
        return item
    return {key: value for key, value in item.items() if key != "outputSchema"}


def may_link(result: RawObject) -> bool:
    """Whether a result may have URIs of resources: almost none has, and needs no further look."""
    source = result.source
    return "contents" in result.members or source is None or may_begin(source, b"resource")


async def relinked(result: RawObject, shown: Callable[[str], str]) -> RawObject:
    """Return a result with every URI as the endpoint shows it; the same object if none changes.

    Blocks that are no resources, and everything in them, pass unread.
    """
    changes: dict[str, Bytes | None] = {}
    links = _Links(shown)
    for key, change in (("content", links.block), ("messages", links.message), ("contents", links.resource)):
        raw = result.get(key)
        if raw is not None and is_array(raw) and (key == "contents" or may_begin(raw, b"resource")):
            new = await links.each(raw, change)
            if new is not None:
                changes[key] = new
    return result.changed(changes) if changes else result


MOST_BLOCKS = 2_000
"""Parts of one result, messages and blocks. What has more than any client reads passes as it is."""


class _Links:
    """Gives the URIs in the parts of one result as the endpoint shows them. Each part that does not change is None."""

    def __init__(self, shown: Callable[[str], str]) -> None:
        self._shown = shown
        self._turns = Turns()
        self._left = MOST_BLOCKS

    async def each(self, raw: Bytes, change: Callable[[Bytes], Awaitable[bytes | None]]) -> bytes | None:
        """The parts of a list."""
        await self._turns.offer()
        try:
            parts = items(raw)
        except BadJson:
            return None
        self._left -= len(parts)
        if self._left < 0:
            return None
        changed = list[bytes | None]()
        for one in parts:
            await self._turns.offer()
            changed.append(await change(one))
        if all(one is None for one in changed):
            return None
        return join_items([new or old for new, old in zip(changed, parts, strict=True)])

    async def message(self, raw: Bytes) -> bytes | None:
        """A message of a prompt: one block, or a list of them."""
        message = _object(raw)
        content = message.get("content")
        if content is None:
            return None
        new = await (self.each(content, self.block) if is_array(content) else self.block(content))
        return message.changed({"content": new}).written() if new is not None else None

    async def block(self, raw: Bytes) -> bytes | None:
        """A block: a link to a resource, or one that has the resource in it."""
        block = _object(raw)
        kind, inner = text_of(block.get("type")), block.get("resource")
        if kind == "resource_link":
            return await self.resource(raw)
        new = await self.resource(inner) if kind == "resource" and inner is not None else None
        return block.changed({"resource": new}).written() if new is not None else None

    async def resource(self, raw: Bytes) -> bytes | None:
        """What has a URI of its own."""
        one = _object(raw)
        uri = text_of(one.get("uri"))
        if uri is None or (new := self._shown(uri)) == uri:
            return None
        return one.changed({"uri": dumps(new)}).written()


def _object(raw: Bytes) -> RawObject:
    return RawObject.read(raw) if is_object(raw) else RawObject({})


def with_related_task(params: Mapping[str, Any] | None, task: str | None) -> Mapping[str, Any] | None:
    """A server's request with the task as its client knows it; without, if the client made no task."""
    meta = (params or {}).get("_meta")
    if params is None or not isinstance(meta, Mapping) or RELATED_TASK not in meta:
        return params
    rest = {key: value for key, value in meta.items() if key != RELATED_TASK}
    if task is not None:
        rest[RELATED_TASK] = {"taskId": task}
    plain = {key: value for key, value in params.items() if key != "_meta"}
    return {**plain, "_meta": rest} if rest else plain
