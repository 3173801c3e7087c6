"""The names that are the hub's own (SEC-21): no server can take one, so that what bears one is said by the hub.

Case does not count: a model, and some clients, read ``Holdfast_Status`` as the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["is_own_key", "is_own_name", "is_own_uri", "without_own_keys"]

_TOOLS: Final = frozenset({"find_tools", "describe_tools", "call_tool", "call_readonly_tool", "read_result"})
_LEAD: Final = "holdfast_"
_SCHEME: Final = "holdfast:"
_KEYS: Final = "holdfast/"


def is_own_name(name: str) -> bool:
    """Whether a listed name of a tool or a prompt is the hub's own."""
    lowered = name.lower()
    return lowered.startswith(_LEAD) or lowered in _TOOLS


def is_own_uri(uri: str) -> bool:
    """Whether a URI, or a template of URIs, is the hub's own."""
    return uri[:LONGEST_SPACE].lstrip()[: len(_SCHEME)].lower() == _SCHEME


LONGEST_SPACE: Final = 256
"""How much of a URI is looked at: readers of URIs drop spaces at their beginning."""


def is_own_key(key: str) -> bool:
    """Whether a key of ``_meta`` is the hub's own."""
    return key[: len(_KEYS)].lower() == _KEYS


def without_own_keys(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object of a server, without the hub's keys in its ``_meta``; the same object if it has none."""
    meta = value.get("_meta")
    if not isinstance(meta, dict) or not any(map(is_own_key, meta)):
        return value
    return {**value, "_meta": {key: one for key, one in meta.items() if not is_own_key(key)}}
