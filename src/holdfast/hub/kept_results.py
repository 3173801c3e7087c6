"""Large results: the beginning goes out, the whole is kept for its caller, and ``read_result`` reads on (FIND-6).

Theory of operation. A tool may answer with more text than a model can take. With ``holdfast.largeResults`` in the
configuration, a result with more characters than that is kept here, and its caller gets the beginning, the size, a link
and a handle. What must hold:

- Nothing is lost. A result that was kept stays until the time that its answer told. So there is no eviction: where the
  bounds on memory leave no room, a result goes out whole, as without the setting.
- Nothing is rewritten. The pieces are parts of the text as it is. Blocks that are no text (images, links) stay in the
  result. What a text block has beside its text stands in the contents of the resource.
- Nothing is shown to another. A handle has 128 random bits and belongs to one principal. For every other one it is as
  unknown as a handle that was never given out.
- A tool that is listed with ``outputSchema`` is left alone: a client checks its structured result, and a part of it is
  not valid. So is a tool that is not listed, since its schema is not known.
- No step on the event loop grows with the result: searching and writing go in slices (SEC-7).

The text of a result is one document: the texts of its blocks in their order, then its structured content as it came,
joined by line ends. Offsets count characters of it.

In a fleet a handle names its replica before the dot. The endpoint takes a handle of another replica there.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from holdfast.config import LargeResultSettings
from holdfast.core import STATUS_URI, Catalog, NameKey, query_words
from holdfast.turns import Turns
from holdfast.wire import (
    BadJson,
    Bytes,
    Fields,
    RawObject,
    dumps,
    fields,
    is_array,
    is_object,
    items,
    join_fields,
    join_items,
    long_text,
    text_of,
)

__all__ = ["READ_RESULT", "RESULTS_URI", "KeptResults", "has_output_schema", "read_result_tool"]

READ_RESULT: Final = "read_result"
RESULTS_URI: Final = STATUS_URI.partition("://")[0] + "://results/"

HANDLE_BYTES: Final = 16
PRINCIPAL_BYTES: Final = 16 << 20
ALL_BYTES: Final = 64 << 20
"""What is kept for one principal and for all, in each process. Over it, results go out whole."""

ENTRY_BYTES: Final = 1_024
"""What a kept result costs beside its text, about: many small ones are bounded too."""

SHORTEST_PIECE: Final = 200
SLICE: Final = 64 << 10
"""Characters that are searched or written in one step."""

LONGEST_QUERY: Final = 1_000
MOST_EXCERPTS, EXCERPT_SIDE, MOST_QUERY_WORDS = 5, 200, 8


class _Part(NamedTuple):
    """One text of a result: where it is in the document, and what stood beside it."""

    start: int
    end: int
    mime: str
    beside: Fields
    """The rest of its block."""


@dataclass(frozen=True, eq=False)
class _Kept:
    """A result that is kept."""

    principal: str
    text: str
    parts: tuple[_Part, ...]
    piece: int
    until: float

    @property
    def size(self) -> int:
        return sys.getsizeof(self.text) + ENTRY_BYTES * (1 + len(self.parts))

    def __repr__(self) -> str:
        return f"<_Kept {len(self.text)} characters for {self.principal}>"


class KeptResults:
    """The large results of one hub."""

    def __init__(self, settings: Callable[[], LargeResultSettings], now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._kept: dict[str, _Kept] = {}

    @property
    def is_on(self) -> bool:
        """Whether the configuration sets a bound."""
        return self._settings().over > 0

    async def shortened(
        self, result: RawObject, tool: str, *, principal: str, replica: str = "", links: bool = True
    ) -> RawObject:
        """The result of a tool as its caller gets it: the same, or its beginning and a handle on the whole.

        ``replica`` names this one for the others; ``links`` is whether the caller's protocol has links to resources.
        """
        settings = self._settings()
        if not settings.over or result.size <= settings.over:
            return result
        content = result.get("content")
        if content is None or not is_array(content):
            return result
        try:
            document = await _Document.read(result, content)
        except BadJson:
            return result  # it is odd, or has a huge number of parts: it goes out as it came
        text = document.text()
        if len(text) <= settings.over:
            return result
        piece = max(settings.over // 2, SHORTEST_PIECE)
        kept = _Kept(principal, text, tuple(document.parts), piece, self._now() + settings.lifetime)
        # Whole, not cut: a model that was promised the rest must get it, and without room there is none to give.
        if not self._has_room(kept):
            return result
        handle = (f"{replica}." if replica else "") + secrets.token_hex(HANDLE_BYTES)
        self._kept[handle] = kept
        begun, shown = document.beginning(piece)
        told = (
            f"Holdfast: this result has {len(text):,} characters; the first {shown:,} are above. The whole is kept for"
            f" {settings.lifetime / 60:g} min under the handle {handle}. {READ_RESULT} with this handle reads on with"
            f" `offset` {shown}, and searches in it with `query`."
        )
        link = {
            "type": "resource_link",
            "uri": RESULTS_URI + handle,
            "name": f"the whole result of {tool}",
            "mimeType": "text/plain",
        }
        own = [{"type": "text", "text": told}, *([link] if links else [])]
        return result.changed({"content": join_items([*begun, *map(dumps, own)]), "structuredContent": None})

    def knows(self, handle: str, principal: str) -> bool:
        """Whether a result is kept here for this principal under this handle."""
        return self._find(handle, principal) is not None

    async def read(self, values: Mapping[str, Any], principal: str) -> RawObject:
        """The result of ``read_result``: a piece of a kept result, or excerpts with what was searched for."""
        handle, offset, query = values.get("handle"), values.get("offset", 0), values.get("query")
        whole = isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0
        if not isinstance(handle, str) or not whole or not isinstance(query, str | None):
            needed = f"{READ_RESULT} needs `handle`, a text; `offset` is a number from 0 on, and `query` a text"
            return _said(needed, is_error=True)
        kept = self._find(handle, principal)
        if kept is None:
            return _said(
                "Unknown handle: there is no such result for this caller. Its time may be over, or the hub that kept"
                " it was restarted. Call the tool again.",
                is_error=True,
            )
        if query is not None and query.strip():
            return await _excerpts(kept, query.strip()[:LONGEST_QUERY], offset)
        if offset >= len(kept.text):
            behind = f"The result has {len(kept.text):,} characters; `offset` {offset:,} is behind its end."
            return _said(behind, is_error=True)
        end = min(offset + kept.piece, len(kept.text))
        more = f"read on with `offset` {end}" if end < len(kept.text) else "this is the end"
        told = f"Holdfast: characters {offset:,} to {end:,} of {len(kept.text):,}; {more}."
        piece = b'{"type":"text","text":%b}' % await _written(kept.text[offset:end])
        blocks: list[Bytes] = [piece, dumps({"type": "text", "text": told})]
        return RawObject({"content": join_items(blocks), "isError": b"false"})

    async def contents(self, uri: str, principal: str) -> RawObject | None:
        """A kept result as the contents of its resource, each text for itself; None if there is none."""
        kept = self._find(uri.removeprefix(RESULTS_URI), principal)
        if kept is None:
            return None
        written: list[Bytes] = []
        for part in kept.parts:
            members: Fields = {"uri": dumps(uri), "mimeType": dumps(part.mime)}
            members["text"] = await _written(kept.text[part.start : part.end])
            if part.beside:
                members["_meta"] = join_fields({"holdfast/block": join_fields(part.beside)})
            written.append(join_fields(members))
        return RawObject({"contents": join_items(written)})

    def _find(self, handle: str, principal: str) -> _Kept | None:
        kept = self._kept.get(handle)
        return kept if kept is not None and kept.principal == principal and kept.until > self._now() else None

    def _has_room(self, more: _Kept) -> bool:
        """Whether one more fits within the bounds, after those whose time is over are gone."""
        now = self._now()
        self._kept = {handle: one for handle, one in self._kept.items() if one.until > now}
        # Counted again each time, not kept as a sum: an entry ends by its time alone, and no step of ours marks that.
        own = sum(one.size for one in self._kept.values() if one.principal == more.principal)
        everything = sum(one.size for one in self._kept.values())
        return own + more.size <= PRINCIPAL_BYTES and everything + more.size <= ALL_BYTES

    def close(self) -> None:
        """Forget all."""
        self._kept.clear()

    def __repr__(self) -> str:
        return f"<KeptResults {len(self._kept)}>"


def has_output_schema(catalog: Catalog, key: NameKey) -> bool:
    """Whether a tool is listed with the schema of its result, or is not listed at all."""
    name = catalog.names.get(key)
    entry = catalog.entry(name) if name is not None else None
    return entry is None or entry.item.raw.get("outputSchema") is not None


def read_result_tool() -> dict[str, Any]:
    """The tool, for lists."""
    return {
        "name": READ_RESULT,
        "description": "Read on in a large result that was kept under a handle: from an offset, or around the places"
        " where a text occurs in it.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "handle": {"type": "string"},
                "offset": {"type": "integer", "minimum": 0, "default": 0},
                "query": {"type": "string", "description": "Show where this text occurs, from the offset on"},
            },
            "required": ["handle"],
        },
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }


class _Document:
    """The texts of a result, while it is taken apart."""

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self._texts: list[str] = []
        self._blocks: list[tuple[Bytes, int | None]] = []
        """The blocks of the result; each with the number of its text, if it has one."""
        self._length = 0

    @classmethod
    async def read(cls, result: RawObject, content: Bytes) -> _Document:
        """Take a result apart; raises ``BadJson``."""
        document, turns = cls(), Turns()
        for block in items(content):
            await turns.offer()
            document._blocks.append((block, document._add_block(fields(block) if is_object(block) else {})))
        if (structured := result.get("structuredContent")) is not None:
            document._add(bytes(structured).decode(), "application/json", {"type": dumps("structuredContent")})
        await turns.offer()
        return document

    def _add_block(self, block: Fields) -> int | None:
        kind = text_of(block.get("type"))
        if kind == "text":
            inner: Fields = block
            rest = {key: value for key, value in block.items() if key not in ("type", "text")}
        elif kind == "resource" and is_object(block.get("resource")):
            inner = fields(block["resource"])
            rest = {**block, "resource": join_fields({key: one for key, one in inner.items() if key != "text"})}
        else:
            return None
        text = long_text(inner.get("text"))
        return None if text is None else self._add(text, text_of(inner.get("mimeType")) or "text/plain", rest)

    def _add(self, text: str, mime: str, beside: Fields) -> int:
        start = self._length + bool(self._texts)  # the line end between two texts
        self._length = start + len(text)
        self._texts.append(text)
        self.parts.append(_Part(start, self._length, mime, beside))
        return len(self._texts) - 1

    def text(self) -> str:
        return "\n".join(self._texts)

    def beginning(self, room: int) -> tuple[list[Bytes], int]:
        """The blocks whose texts fit into the room, the first that does not cut; and how much of the document it is."""
        shown, whole = 0, True
        blocks: list[Bytes] = []
        for block, number in self._blocks:
            if number is None:
                blocks.append(block)
                continue
            part, text = self.parts[number], self._texts[number]
            if whole and part.end <= room:
                blocks.append(block)
                shown = part.end
            elif whole:
                whole = False
                members = fields(block)
                if "text" in members and part.start < room:
                    blocks.append(join_fields({**members, "text": dumps(text[: room - part.start])}))
                    shown = room
        return blocks, shown


async def _excerpts(kept: _Kept, query: str, offset: int) -> RawObject:
    """The places from an offset on where a text occurs; where it occurs nowhere, those of its words."""
    found = await _places(kept.text, [query], offset)
    words = list(query_words(query))[:MOST_QUERY_WORDS]
    about = ""
    if not found and words != [query.lower()]:
        found = await _places(kept.text, words, offset)
        about = "the query does not occur as it stands; here are its words. "
    if not found:
        return _said(f"Holdfast: nothing matches, from `offset` {offset:,} on, in {len(kept.text):,} characters.")
    excerpts = [f"[offset {start}]\n{kept.text[start:end]}" for start, end in found]
    after = found[-1][1]
    more = f"; search on with `offset` {after}" if len(found) == MOST_EXCERPTS else ""
    return _said("\n\n".join(excerpts), f"Holdfast: {about}{len(found)} places{more}.")


async def _places(text: str, wanted: list[str], offset: int) -> list[tuple[int, int]]:
    """Where one of some texts occurs, in any case, each place with some text around it; places do not overlap."""
    # Not one regular expression of all: on a text of one letter repeated it takes the product of both lengths, and
    # `find` their sum. The text is foreign, and each slice is one step of the event loop.
    lowered = [one.lower() for one in wanted]
    overlap = max(map(len, lowered), default=1)
    found: list[tuple[int, int]] = []
    at, turns = offset, Turns()
    while at < len(text) and len(found) < MOST_EXCERPTS:
        window = _lowered(text[at : at + SLICE + overlap])
        places = [place for one in lowered if (place := window.find(one)) >= 0]
        if places:
            place = at + min(places)
            start, end = max(offset, place - EXCERPT_SIDE), min(len(text), place + overlap + EXCERPT_SIDE)
            found.append((max(start, found[-1][1]) if found else start, end))
            at = end
        else:
            at += SLICE
        await turns.offer()
    return found


def _lowered(text: str) -> str:
    """A text in lower case, character by character: its places must stay the same."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(low if len(low := one.lower()) == 1 else one for one in text)


async def _written(text: str) -> bytes:
    """A text as JSON, written in slices."""
    pieces, turns = [], Turns()
    for at in range(0, len(text), SLICE):
        pieces.append(dumps(text[at : at + SLICE])[1:-1])
        await turns.offer()
    return b'"%b"' % b"".join(pieces)


def _said(*texts: str, is_error: bool = False) -> RawObject:
    return RawObject.of({"content": [{"type": "text", "text": text} for text in texts], "isError": is_error})
