"""Listings as text: the same after the way there and back, in small pieces, and within bounds."""

from __future__ import annotations

import base64
import json
import zlib

import pytest

from holdfast.core import Item, Listing
from holdfast.fleet.shared_records import LARGEST_UNPACKED, packed, unpacked
from holdfast.hub.state_store import listing_from, listing_pieces


def listing(tools: int = 2, *, text: str = "x") -> Listing:
    made = tuple(Item(f"t{number}", {"name": f"t{number}", "description": text}) for number in range(tools))
    prompts = (Item("é\ud800", {"name": "é\ud800", "arguments": []}),)
    return Listing(server="s", generation=0, tools=made, prompts=prompts, resources=(), templates=())


@pytest.mark.requirement("LIFE-21")
@pytest.mark.parametrize("tools", [0, 1, 3])
def test_a_listing_is_the_same_after_the_way_there_and_back(tools: int) -> None:
    text = "".join(listing_pieces(listing(tools)))
    assert listing_from("s", json.loads(text)) == listing(tools)
    digest, content = packed(listing(tools))
    assert unpacked("s", content) == listing(tools)
    assert packed(listing(tools)) == (digest, content)
    assert packed(listing(tools, text="y"))[0] != digest or not tools


@pytest.mark.requirement("SEC-7")
def test_a_large_listing_is_written_item_by_item() -> None:
    """The encoder holds the interpreter for each piece, and so the event loop, also from a thread."""
    assert max(map(len, listing_pieces(listing(1_000, text="x" * 1_000)))) < 2_000


@pytest.mark.requirement("SEC-7", "FLEET-2")
def test_a_listing_that_takes_long_to_read_is_shared_as_its_hash_alone() -> None:
    large = listing(1_000, text="x" * 1_000)
    digest, content = packed(large)
    assert content is None
    assert digest != packed(listing(1_000, text="y" * 1_000))[0]


@pytest.mark.requirement("SEC-7", "FLEET-2")
@pytest.mark.parametrize("size", [LARGEST_UNPACKED, LARGEST_UNPACKED + 1])
def test_a_content_that_inflates_beyond_the_bound_or_is_too_deep_is_not_used(size: int) -> None:
    assert unpacked("s", base64.b64encode(zlib.compress(b"[" * size)).decode()) is None
    fits = "".join(listing_pieces(listing())).encode().ljust(min(size, LARGEST_UNPACKED + 1))
    assert (unpacked("s", base64.b64encode(zlib.compress(fits)).decode()) is None) is (size > LARGEST_UNPACKED)
