"""Takes the hub's own keys (``holdfast/…``) out of the ``_meta`` of everything that a server sends (SEC-21).

A client that reads such a key believes that the hub says it. So it is taken out where a message comes in: in results,
in the blocks of their content, in requests and notifications, and in the data of errors. Items of lists are read as
values, see ``listing``. What has no such key passes as the bytes that it came in.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.core import is_own_key, without_own_keys
from holdfast.wire.raw_json import (
    SMALL_BYTES,
    BadJson,
    Bytes,
    LoadedObject,
    RawObject,
    fields,
    is_array,
    is_object,
    items,
    join_fields,
    join_items,
    load_object,
)

__all__ = ["clean_data", "clean_result", "load_params"]

_CONTAINERS: Final = ("content", "contents", "messages", "resource", "inputRequests", "params", "result", "task")
"""The members in which the protocol has further objects with a ``_meta``. What is in others is the server's data."""

_DEEPEST: Final = 4
"""A message of a prompt has a block, which has a resource."""


def clean_result(result: RawObject) -> RawObject:
    """A result without the hub's keys; the same object if it has none."""
    return _cleaned(result, _DEEPEST) or result


def load_params(data: Bytes) -> dict[str, Any] | None:
    """The parameters of a server's message, as ``load_object`` gives them, without the hub's keys."""
    found = load_object(data)
    if not isinstance(found, LoadedObject):
        return dict(without_own_keys(found)) if found is not None else None
    cleaned = _cleaned(RawObject.read(data), 0)
    return load_object(cleaned.written()) if cleaned is not None else found


def clean_data(data: object) -> object:
    """The data of an error without the hub's keys."""
    return without_own_keys(data) if isinstance(data, dict) else data


def _cleaned(one: RawObject, deeper: int) -> RawObject | None:
    """The object without the hub's keys; None if it has none."""
    changes: dict[str, Bytes | None] = {}
    meta = one.get("_meta")
    if meta is not None and is_object(meta):
        changes |= _changes_of(meta)
    for key in _CONTAINERS if deeper else ():
        raw = one.get(key)
        if raw is not None and _may_have_meta(raw) and (new := _container(raw, deeper - 1)) is not None:
            changes[key] = new
    return one.changed(changes) if changes else None


def _changes_of(meta: Bytes) -> dict[str, Bytes | None]:
    try:
        members = fields(meta)
    except BadJson:  # too large to be read: then it cannot be known what it says
        return {"_meta": None}
    if not any(map(is_own_key, members)):
        return {}
    kept = {key: value for key, value in members.items() if not is_own_key(key)}
    return {"_meta": join_fields(kept) if kept else None}


def _may_have_meta(raw: Bytes) -> bool:
    """Whether there may be a ``_meta`` in it, also with letters that are written by their numbers."""
    view = memoryview(raw)
    if len(view) <= SMALL_BYTES:
        data = bytes(view)
        return b"_meta" in data or b"\\u00" in data
    # In steps, because a copy of the whole would cost more than the search.
    return any(b"_meta" in bytes(view[at : at + SMALL_BYTES + 8]) for at in range(0, len(view), SMALL_BYTES))


def _container(raw: Bytes, deeper: int) -> bytes | None:
    """An object or a list of objects; None if nothing changes. Raises ``BadJson`` for more parts than are read."""
    if is_object(raw):
        return _written(_cleaned_members(raw, deeper) if deeper else None)
    if not is_array(raw):
        return None
    parts = items(raw)
    new = [_written(_cleaned(RawObject.read(one), deeper)) if is_object(one) else None for one in parts]
    if not any(one is not None for one in new):
        return None
    return join_items([cleaned or old for cleaned, old in zip(new, parts, strict=True)])


def _cleaned_members(raw: Bytes, deeper: int) -> RawObject | None:
    """One object; its members may be the objects themselves, as in the questions of an ``input_required`` result."""
    one = RawObject.read(raw)
    own = _cleaned(one, deeper)
    asked: dict[str, Bytes | None] = {
        key: new
        for key, value in one.members.items()
        if key not in ("_meta", *_CONTAINERS) and is_object(value) and "method" in fields(value)
        if (new := _written(_cleaned(RawObject.read(value), deeper))) is not None
    }
    return (own or one).changed(asked) if asked else own


def _written(one: RawObject | None) -> bytes | None:
    return one.written() if one is not None else None
