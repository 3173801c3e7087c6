"""How a catalog entry is shown: as its server described it; the hub adds to ``_meta`` alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.catalog import Entry

__all__ = ["UNVERIFIED", "shown"]

UNVERIFIED = "holdfast/unverified"
"""The key in ``_meta`` of an entry from before a restart that its server has not listed since (LIFE-21)."""


def shown(entry: Entry) -> Mapping[str, Any]:
    """The server's description; marked if the server has not listed the entry in this run."""
    raw = entry.item.raw
    if entry.verified:
        return raw
    meta = raw.get("_meta")
    return {**raw, "_meta": {**(meta if isinstance(meta, Mapping) else {}), UNVERIFIED: True}}
