"""What a message has in one protocol era and must not have in the other."""

from __future__ import annotations

from collections.abc import Mapping
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
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import to_json

from holdfast.front.identity import CLIENT_META_KEY

__all__ = ["for_client", "forwarded", "is_modern", "listed_for"]

_ENVELOPE = frozenset(
    {PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, CLIENT_META_KEY, "progressToken"}
)
"""What belongs to the connection that a request came on, and not to the request."""

_MODERN_ONLY = frozenset({"resultType", "ttlMs", "cacheScope"})


def is_modern(version: str) -> bool:
    """Whether a protocol version is of the modern era."""
    return version in MODERN_PROTOCOL_VERSIONS


def forwarded(params: Mapping[str, Any] | None, *, log_level: str | None) -> dict[str, Any]:
    """A client's parameters as they go on to a server: ``_meta`` without what was the client's connection's."""
    params = dict(params or {})
    _refuse_no_text(params)
    meta = params.pop("_meta", None) or {}
    if not isinstance(meta, Mapping):
        raise MCPError(INVALID_PARAMS, "`_meta` is not an object")
    kept = {key: value for key, value in meta.items() if key not in _ENVELOPE}
    if log_level is not None:
        kept.setdefault(LOG_LEVEL_META_KEY, log_level)
    if kept:
        params["_meta"] = kept
    return params


def _refuse_no_text(params: Mapping[str, Any]) -> None:
    """A lone surrogate is no text: servers drop the whole message, and its sender would wait for nothing."""
    try:
        to_json(params)
    except ValueError as exc:
        raise MCPError(INVALID_PARAMS, "the request holds characters that are no text") from exc


def for_client(method: str, result: Mapping[str, Any], *, modern: bool, stamp: Mapping[str, Any]) -> dict[str, Any]:
    """A server's result as a client of this era expects it."""
    if modern:
        return _modern(method, result, stamp)
    legacy = {key: value for key, value in result.items() if key not in _MODERN_ONLY}
    meta = legacy.get("_meta")
    if isinstance(meta, Mapping) and SERVER_INFO_META_KEY in meta:
        legacy["_meta"] = {key: value for key, value in meta.items() if key != SERVER_INFO_META_KEY}
    if not isinstance(legacy.get("structuredContent", {}), Mapping):
        del legacy["structuredContent"]  # the legacy era knows objects alone; the text beside it says the same
    return legacy


def _modern(method: str, result: Mapping[str, Any], stamp: Mapping[str, Any]) -> dict[str, Any]:
    full: dict[str, Any] = {"resultType": "complete", **result}
    if method in CACHEABLE_METHODS and full["resultType"] == "complete":
        full = {"ttlMs": 0, "cacheScope": "private", **full}
    meta = full.get("_meta")
    full["_meta"] = {SERVER_INFO_META_KEY: dict(stamp), **(meta if isinstance(meta, Mapping) else {})}
    return full


def listed_for(item: Mapping[str, Any], *, modern: bool) -> Mapping[str, Any]:
    """A listed tool without an output schema that a legacy client would refuse the whole list for."""
    schema = item.get("outputSchema")
    if modern or schema is None or (isinstance(schema, Mapping) and schema.get("type") == "object"):
        return item
    return {key: value for key, value in item.items() if key != "outputSchema"}
