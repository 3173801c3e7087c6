"""How an item of the catalog is shown: as its server described it, with what the hub has to add in ``_meta`` alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.catalog import Entry

__all__ = ["UNVERIFIED", "shown"]

UNVERIFIED = "holdfast/unverified"
"""The key in ``_meta`` that is true for what is known from before a restart and not yet listed anew (LIFE-21)."""


def shown(entry: Entry) -> Mapping[str, Any]:
    """What the server said of it; marked if it has not said so in this run."""
    raw = entry.item.raw
    if entry.verified:
        return raw
    said = raw.get("_meta")
    return {**raw, "_meta": {**(said if isinstance(said, Mapping) else {}), UNVERIFIED: True}}
