"""Resources that a result mentions, under URIs by which its reader can read them where many servers stand together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["relinked"]


def relinked(result: Mapping[str, Any], shown: Callable[[str], str]) -> Mapping[str, Any]:
    """A result of a tool, a prompt or a resource with every URI as it is shown; the same one where none differs."""
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
