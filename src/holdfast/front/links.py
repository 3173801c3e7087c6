"""Resource URIs in results, rewritten so that a client can read them at the endpoint of many servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["relinked"]


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
