"""What the hub edits in a message that passes through, and nothing else does.

One protocol era has what the other must not have (``_meta`` keys, ``resultType``, output schemas), and at the
endpoint of many servers the resource URIs in results are rewritten so that a client can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from mcp import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INVALID_PARAMS,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)
from mcp_types.methods import CACHEABLE_METHODS

from holdfast.core import is_own_key
from holdfast.wire import (
    BadJson,
    Bytes,
    Fields,
    RawObject,
    dumps,
    fields,
    have_lone_surrogate,
    is_array,
    is_object,
    is_text,
    items,
    join_fields,
    join_items,
    may_begin,
    task_support,
    text_of,
    traced,
    without_task_support,
)

__all__ = ["kind_of", "params_for_server", "relinked", "result_for_client", "tool_for_client"]

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


def params_for_server(
    params: Fields, *, meta: Mapping[str, Any], escapes: bool, headers: Mapping[str, str], log_level: str | None
) -> Fields:
    """Return a client's parameters for the server, without the ``_meta`` keys of the client's connection.

    ``meta`` is the value of ``_meta``; ``escapes`` says whether they may have characters written by their number.
    """
    if escapes and (have_lone_surrogate(params.values()) or not all(map(is_text, params))):
        # Servers drop the whole message, and the client would wait for ever.
        raise MCPError(INVALID_PARAMS, "the request contains characters that are not valid Unicode text")
    raw = params.get("_meta")
    if raw is None and log_level is None and "traceparent" not in headers:
        return params
    if log_level is None and "traceparent" not in headers and all(map(_is_envelope, meta)):
        return {key: value for key, value in params.items() if key != "_meta"}
    said = traced(fields(raw) if raw is not None and is_object(raw) else {}, headers)
    kept = {key: value for key, value in said.items() if not _is_envelope(key)}
    if log_level is not None and LOG_LEVEL_META_KEY not in kept:
        kept[LOG_LEVEL_META_KEY] = dumps(log_level)
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
    return result.changed(changes) if changes else result


@lru_cache(maxsize=4)
def _stamped(stamp: bytes) -> tuple[Fields, bytes]:
    """``_meta`` with the hub's own name and version, as members and written."""
    lead: Fields = {"_meta": join_fields({SERVER_INFO_META_KEY: stamp})}
    return lead, join_fields(lead)


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
    if meta is None and not lead:
        return result.led_by(*_stamped(stamp))  # almost every result
    if meta is None or not is_object(meta):
        lead["_meta"] = _stamped(stamp)[0]["_meta"]
        result = result.changed({"_meta": None}) if meta is not None else result
    elif SERVER_INFO_META_KEY not in (members := fields(meta)):
        result = result.changed({"_meta": join_fields({SERVER_INFO_META_KEY: stamp, **members})})
    return result.led_by(lead)


def tool_for_client(item: Mapping[str, Any], *, modern: bool) -> Mapping[str, Any]:
    """Drop an output schema that makes a legacy client refuse the whole list, and what a tool says of tasks.

    The hub makes a plain call of any tool, so none needs a task; a modern client knows no such annotation.
    """
    support = task_support(item)
    if support != "forbidden":
        item = without_task_support(item)
        if not modern:
            item = {**item, "execution": {**item.get("execution", {}), "taskSupport": "optional"}}
    schema = item.get("outputSchema")
    if modern or schema is None or (isinstance(schema, Mapping) and schema.get("type") == "object"):
        return item
    return {key: value for key, value in item.items() if key != "outputSchema"}


def relinked(result: RawObject, shown: Callable[[str], str]) -> RawObject:
    """Return a result with every URI as the endpoint shows it; the same object if none changes.

    Blocks that are no resources, and everything in them, pass unread.
    """
    changes: dict[str, Bytes | None] = {}
    for key, change in (("content", _block), ("messages", _message), ("contents", _with_uri)):
        raw = result.get(key)
        if raw is None or not is_array(raw) or (key != "contents" and not may_begin(raw, b"resource")):
            continue
        blocks = _blocks(raw)
        changed = [change(one, shown) for one in blocks]
        if any(one is not None for one in changed):
            changes[key] = join_items([new or old for new, old in zip(changed, blocks, strict=True)])
    return result.changed(changes) if changes else result


MOST_BLOCKS = 2_000
"""A list with more blocks than any client reads passes as it is."""


def _blocks(raw: Bytes) -> list[Bytes]:
    try:
        blocks = items(raw)
    except BadJson:
        return []
    return blocks if len(blocks) <= MOST_BLOCKS else []


def _message(raw: Bytes, shown: Callable[[str], str]) -> bytes | None:
    message = RawObject.read(raw) if is_object(raw) else None
    content = message.get("content") if message is not None else None
    if message is None or content is None:
        return None
    if is_array(content):
        blocks = _blocks(content)
        changed = [_block(one, shown) for one in blocks]
        if not any(one is not None for one in changed):
            return None
        new: bytes | None = join_items([new or old for new, old in zip(changed, blocks, strict=True)])
    else:
        new = _block(content, shown)
    return message.changed({"content": new}).written() if new is not None else None


def _block(raw: Bytes, shown: Callable[[str], str]) -> bytes | None:
    block = RawObject.read(raw) if is_object(raw) else None
    kind = text_of(block.get("type")) if block is not None else None
    if kind == "resource_link":
        return _with_uri(raw, shown)
    inner = block.get("resource") if block is not None and kind == "resource" else None
    if block is None or inner is None or (new := _with_uri(inner, shown)) is None:
        return None
    return block.changed({"resource": new}).written()


def _with_uri(raw: Bytes, shown: Callable[[str], str]) -> bytes | None:
    one = RawObject.read(raw) if is_object(raw) else None
    uri = text_of(one.get("uri")) if one is not None else None
    if one is None or uri is None or (new := shown(uri)) == uri:
        return None
    return one.changed({"uri": dumps(new)}).written()
