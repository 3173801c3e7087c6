"""What the hub edits in a message that passes through, and nothing else does.

One protocol era has what the other must not have (``_meta`` keys, ``resultType``, output schemas), and at the
endpoint of many servers the resource URIs in results are rewritten so that a client can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

from holdfast.front.access.principals import CLIENT_META_KEY

__all__ = ["is_modern", "params_for_server", "relinked", "result_for_client", "tool_for_client"]

_ENVELOPE = frozenset(
    {PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, CLIENT_META_KEY, "progressToken"}
)
"""Keys of ``_meta`` that describe the client's connection, not the request."""

_MODERN_ONLY = frozenset({"resultType", "ttlMs", "cacheScope"})


def is_modern(version: str) -> bool:
    """Whether a protocol version is of the modern era."""
    return version in MODERN_PROTOCOL_VERSIONS


def params_for_server(params: Mapping[str, Any] | None, *, log_level: str | None) -> dict[str, Any]:
    """Return a client's parameters for the server, without the ``_meta`` keys of the client's connection."""
    params = dict(params or {})
    _require_text(params)
    meta = params.pop("_meta", None) or {}
    if not isinstance(meta, Mapping):
        raise MCPError(INVALID_PARAMS, "`_meta` is not an object")
    kept = {key: value for key, value in meta.items() if key not in _ENVELOPE}
    if log_level is not None:
        kept.setdefault(LOG_LEVEL_META_KEY, log_level)
    if kept:
        params["_meta"] = kept
    return params


def _require_text(params: Mapping[str, Any]) -> None:
    """Refuse lone surrogates: servers drop the whole message, and the client would wait for ever."""
    try:
        to_json(params)
    except ValueError as exc:
        raise MCPError(INVALID_PARAMS, "the request contains characters that are not valid Unicode text") from exc


def result_for_client(
    method: str, result: Mapping[str, Any], *, modern: bool, stamp: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a server's result in the form that the client's era expects."""
    if modern:
        return _modern(method, result, stamp)
    legacy = {key: value for key, value in result.items() if key not in _MODERN_ONLY}
    meta = legacy.get("_meta")
    if isinstance(meta, Mapping) and SERVER_INFO_META_KEY in meta:
        legacy["_meta"] = {key: value for key, value in meta.items() if key != SERVER_INFO_META_KEY}
    if not isinstance(legacy.get("structuredContent", {}), Mapping):
        del legacy["structuredContent"]  # the legacy era allows only objects; the text content says the same
    return legacy


def _modern(method: str, result: Mapping[str, Any], stamp: Mapping[str, Any]) -> dict[str, Any]:
    full: dict[str, Any] = {"resultType": "complete", **result}
    if method in CACHEABLE_METHODS and full["resultType"] == "complete":
        full = {"ttlMs": 0, "cacheScope": "private", **full}
    meta = full.get("_meta")
    full["_meta"] = {SERVER_INFO_META_KEY: dict(stamp), **(meta if isinstance(meta, Mapping) else {})}
    return full


def tool_for_client(item: Mapping[str, Any], *, modern: bool) -> Mapping[str, Any]:
    """Drop an output schema that makes a legacy client refuse the whole list."""
    schema = item.get("outputSchema")
    if modern or schema is None or (isinstance(schema, Mapping) and schema.get("type") == "object"):
        return item
    return {key: value for key, value in item.items() if key != "outputSchema"}


def relinked(result: Mapping[str, Any], shown: Callable[[str], str]) -> Mapping[str, Any]:
    """Return a result with every URI as the endpoint shows it; the same object if none changes."""
    changed: dict[str, Any] = {}
    if isinstance(blocks := result.get("content"), list):
        changed["content"] = [_block(block, shown) for block in blocks]
    if isinstance(messages := result.get("messages"), list):
        changed["messages"] = [_message(message, shown) for message in messages]
    if isinstance(contents := result.get("contents"), list):
        changed["contents"] = [_with_uri(one, shown) for one in contents]
    return {**result, **changed} if any(changed[key] != result[key] for key in changed) else result


def _message(message: Any, shown: Callable[[str], str]) -> Any:
    if not isinstance(message, Mapping):
        return message
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [_block(block, shown) for block in content]}
    return {**message, "content": _block(content, shown)} if isinstance(content, Mapping) else message


def _block(block: Any, shown: Callable[[str], str]) -> Any:
    if not isinstance(block, Mapping):
        return block
    if block.get("type") == "resource_link":
        return _with_uri(block, shown)
    if block.get("type") == "resource" and "resource" in block:
        return {**block, "resource": _with_uri(block.get("resource"), shown)}
    return block


def _with_uri(one: Any, shown: Callable[[str], str]) -> Any:
    uri = one.get("uri") if isinstance(one, Mapping) else None
    return {**one, "uri": shown(uri)} if isinstance(uri, str) else one
