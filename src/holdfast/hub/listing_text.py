"""The listing of a server as text: in the state file, and in the store of a fleet.

A listing may have tens of megabytes. It is written item by item, because a JSON encoder holds the interpreter until it
is done, also in a thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.core import Item, Kind, Listing

__all__ = ["listing_from", "listing_pieces"]


def listing_pieces(listing: Listing, *, sort_keys: bool = False) -> Iterator[str]:
    """The text in pieces, of one item at most."""
    lead = "{"
    for kind in sorted(Kind, key=lambda kind: kind.value):
        yield f"{lead}{json.dumps(kind.value)}: ["
        between = ""
        for item in listing.of(kind):
            yield between + json.dumps([item.name, item.raw], sort_keys=sort_keys)
            between = ", "
        yield "]"
        lead = ", "
    yield "}"


def listing_from(server: str, read: Mapping[str, Iterable[tuple[str, Mapping[str, Any]]]]) -> Listing:
    """The listing that such a text is; raises ``KeyError``, ``TypeError`` or ``ValueError`` if it is none."""

    def items(kind: Kind) -> tuple[Item, ...]:
        return tuple(Item(str(name), dict(raw)) for name, raw in read[kind.value])

    return Listing(
        server=server,
        generation=0,
        tools=items(Kind.TOOL),
        prompts=items(Kind.PROMPT),
        resources=items(Kind.RESOURCE),
        templates=items(Kind.TEMPLATE),
    )
