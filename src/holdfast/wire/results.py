"""What the hub does to a message of a server before anything else sees it: takes its own keys out, and checks results.

A client that reads a key ``holdfast/…`` in ``_meta`` believes that the hub says it (SEC-21). So such keys are taken out
where a message comes in: in results, in the blocks of their content, in requests and notifications, and in the data of
errors. Items of lists are read as values, see ``listing``. What has no such key passes as the bytes that it came in.

A tool's result is passed on unread, but for the form of its blocks: one that is malformed costs some clients their
whole session. What else the hub edits, for a client's era and for the links of an endpoint, is in
``endpoint/message.py``; what it adds to a request is in ``session``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from mcp_types.methods import validate_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from holdfast.core import is_own_key, without_own_keys
from holdfast.wire.raw_json import (
    BadJson,
    Bytes,
    LoadedObject,
    RawObject,
    dumps,
    fields,
    is_array,
    is_object,
    items,
    join_fields,
    join_items,
    load_object,
    may_begin,
    text_of,
)

__all__ = ["check_result", "clean_data", "clean_result", "load_params"]

CHECKED_BYTES = 256 * 1024
"""Up to this size results are checked against the protocol. Another pass over a large one costs more than it gives."""

_IN_PLACE_OF_CONTENT = ("resultType", "structuredContent", "task")

_BLOCKS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"text"}),
    "image": frozenset({"data", "mimeType"}),
    "audio": frozenset({"data", "mimeType"}),
    "resource": frozenset({"resource"}),
    "resource_link": frozenset({"uri", "name"}),
}
"""The blocks of a tool's result, and what each must have."""

_WRITTEN_BLOCKS: Mapping[bytes, frozenset[str]] = {dumps(kind): wanted for kind, wanted in _BLOCKS.items()}

_CONTAINERS: Final = ("content", "contents", "messages", "resource", "inputRequests", "params", "result", "task")
"""The members in which the protocol has further objects with a ``_meta``. What is in others is the server's data."""

_META: Final = b"_meta"

_DEEPEST: Final = 4
"""A message of a prompt has a block, which has a resource."""

MOST_PARTS: Final = 5_000
"""In how many objects and members of a result the hub's keys are looked for: each takes a few microseconds."""


class _PartCount:
    """Counts what is looked at in one result."""

    def __init__(self) -> None:
        self._left = MOST_PARTS

    def take(self, number: int) -> None:
        self._left -= number
        if self._left < 0:
            raise BadJson(f"it has a `_meta`, and more than {MOST_PARTS} parts that may have one")

    def __repr__(self) -> str:
        return f"<_PartCount {self._left} left>"


def clean_result(result: RawObject) -> RawObject:
    """A result without the hub's keys; the same object if it has none. Raises ``BadJson`` for too many parts."""
    if result.source is not None and not may_begin(result.source, _META):
        return result  # almost every one
    return _cleaned(result, _DEEPEST, _PartCount()) or result


def load_params(data: Bytes) -> dict[str, Any] | None:
    """The parameters of a server's message, as ``load_object`` gives them, without the hub's keys."""
    found = load_object(data)
    if not isinstance(found, LoadedObject):
        return dict(without_own_keys(found)) if found is not None else None
    cleaned = _cleaned(RawObject.read(data), 0, _PartCount())
    return load_object(cleaned.written()) if cleaned is not None else found


def clean_data(data: object) -> object:
    """The data of an error without the hub's keys."""
    return without_own_keys(data) if isinstance(data, dict) else data


def _cleaned(one: RawObject, deeper: int, parts: _PartCount) -> RawObject | None:
    """The object without the hub's keys; None if it has none."""
    changes: dict[str, Bytes | None] = {}
    meta = one.get("_meta")
    if meta is not None and is_object(meta):
        changes |= _changes_of(meta, parts)
    for key in _CONTAINERS if deeper else ():
        raw = one.get(key)
        if raw is not None and may_begin(raw, _META) and (new := _container(raw, deeper - 1, parts)) is not None:
            changes[key] = new
    return one.changed(changes) if changes else None


def _changes_of(meta: Bytes, parts: _PartCount) -> dict[str, Bytes | None]:
    try:
        members = fields(meta)
    except BadJson:  # too large to be read: then it cannot be known what it says
        return {"_meta": None}
    parts.take(len(members))
    if not any(map(is_own_key, members)):
        return {}
    kept = {key: value for key, value in members.items() if not is_own_key(key)}
    return {"_meta": join_fields(kept) if kept else None}


def _container(raw: Bytes, deeper: int, parts: _PartCount) -> bytes | None:
    """An object or a list of objects; None if nothing changes."""
    if is_object(raw):
        return _written(_cleaned_members(raw, deeper, parts) if deeper else None)
    if not is_array(raw):
        return None
    listed = items(raw)
    parts.take(len(listed))
    new = [_written(_cleaned(RawObject.read(one), deeper, parts)) if is_object(one) else None for one in listed]
    if not any(one is not None for one in new):
        return None
    return join_items([cleaned or old for cleaned, old in zip(new, listed, strict=True)])


def _cleaned_members(raw: Bytes, deeper: int, parts: _PartCount) -> RawObject | None:
    """One object; its members may be the objects themselves, as in the questions of an ``input_required`` result."""
    one = RawObject.read(raw)
    parts.take(len(one.members))
    own = _cleaned(one, deeper, parts)
    asked: dict[str, Bytes | None] = {
        key: new
        for key, value in one.members.items()
        if key not in ("_meta", *_CONTAINERS) and is_object(value) and "method" in fields(value)
        if (new := _written(_cleaned(RawObject.read(value), deeper, parts))) is not None
    }
    return (own or one).changed(asked) if asked else own


def _written(one: RawObject | None) -> bytes | None:
    return one.written() if one is not None else None


def check_result(method: str, result: RawObject, version: str) -> None:
    """Raise ``BadJson`` or ``ValidationError`` for a result that no client can read; a large one passes unread."""
    if method == "tools/call":
        content = result.get("content")
        if content is not None and not is_array(content):
            raise BadJson("content: it is not a list")
        if content is None and not any(key in result.members for key in _IN_PLACE_OF_CONTENT):
            raise BadJson("content: it is missing")
        if content is not None and len(content) <= CHECKED_BYTES:
            _check_blocks(content)
        return
    if result.size > CHECKED_BYTES:
        return
    with suppress(KeyError):
        validate_server_result(method, version or LATEST_HANDSHAKE_VERSION, result.value())


def _check_blocks(content: Bytes) -> None:
    """Refuse a block that no client can read: one that is malformed costs some clients their whole session."""
    for place, raw in enumerate(items(content)):
        block = fields(raw) if is_object(raw) else {}
        kind = block.get("type")
        wanted = _WRITTEN_BLOCKS.get(bytes(kind)) if kind is not None else None
        if wanted is None and kind is not None:
            wanted = _BLOCKS.get(text_of(kind) or "")
        if wanted is None or not wanted <= block.keys():
            raise BadJson(f"content.{place}: it is no block that the protocol knows")
