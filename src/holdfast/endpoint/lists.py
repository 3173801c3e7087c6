"""The lists of one endpoint: tools, prompts, resources and templates, page by page.

A page is made once for each catalog and era, and then given out as it is. Its digest is that of the page without the
marks of the hub: from the digests that a session was given it is known after a restart whether its lists changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from mcp import MCPError
from mcp_types import INVALID_PARAMS

from holdfast.config import Config
from holdfast.core import Catalog, Kind
from holdfast.endpoint.eras import tool_for_client
from holdfast.endpoint.find_tools import find_definitions, listed_for_find
from holdfast.endpoint.instructions import status_resource, status_tool
from holdfast.endpoint.view import LIST_METHODS, View
from holdfast.turns import Turns
from holdfast.wire import Fields, RawObject, dumps, join_fields, join_items

__all__ = ["Lists"]

PAGE = 1_000
"""How many items one answer lists. Some clients read only the first page, so it is large."""

PAGE_BYTES = 8 * 1024 * 1024
"""How large a page may become."""

DIGEST_BYTES = 8
"""Of a list that a client was given: enough to tell whether it changed."""


class Lists:
    """The pages of one endpoint."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._pages: dict[tuple[str, bool, int], tuple[Catalog, Config, RawObject, bytes]] = {}

    async def page(self, method: str, cursor: object, *, modern: bool) -> tuple[RawObject, int, bytes]:
        """One page, where it begins, and its digest; raises ``MCPError`` if the cursor is of no page."""
        start = _offset(cursor)
        return await self._page(method, start, modern=modern)

    async def differs(self, method: str, seen: str) -> bool:
        """Whether the pages that a legacy client was given look different now."""
        given = ""
        for start in map(int, seen.split(":")[:-1]):
            try:
                _, _, digest = await self._page(method, start, modern=False)
            except MCPError:
                return True  # there is no such page any more
            given = next_digest(given, start, digest)
        return given != seen

    async def _page(self, method: str, start: int, *, modern: bool) -> tuple[RawObject, int, bytes]:
        catalog, config = self._view.hub.catalog, self._view.hub.config
        made = self._pages.get((method, modern, start))
        if made is not None and made[0] is catalog and made[1] is config:
            return made[2], start, made[3]
        kind, key = LIST_METHODS[method]
        entries = self._view.entries(kind)
        # The hub's own items count as one: they are on the page of the last item, or on one of their own.
        own = self._own_items(kind)
        units = len(entries) + bool(own)
        if start and start >= units:
            raise MCPError(INVALID_PARAMS, "Invalid cursor")
        page: list[bytes] = []
        digest = blake2b(digest_size=DIGEST_BYTES)
        size, turns = 0, Turns()
        for entry in entries[start : start + PAGE]:
            page.append(_written(kind, self._listed(self._view.item(entry)), modern=modern))
            plain = self._view.unmarked_item(entry)
            digest.update(page[-1] if plain is None else _written(kind, plain, modern=modern))
            size += len(page[-1])
            if size > PAGE_BYTES:
                break
            await turns.offer()
        following = start + len(page)
        if own and following == len(entries) and len(page) < PAGE:
            written_own = [_written(kind, item, modern=modern) for item in own]
            page += written_own
            digest.update(b"".join(written_own))
            following += 1
        more: Fields = {"nextCursor": dumps(str(following))} if following < units else {}
        members: Fields = {key: join_items([*page]), **more}
        digest.update(more.get("nextCursor", b""))
        written = RawObject(members, join_fields(members))
        if self._view.hub.catalog is catalog:
            self._pages[method, modern, start] = catalog, config, written, digest.digest()
        return written, start, digest.digest()

    def _own_items(self, kind: Kind) -> list[dict[str, Any]]:
        """The items of the hub itself."""
        if kind is Kind.TOOL and self._view.tools == "find":
            return [listed_for_find(tool) for tool in (*find_definitions(self._view.servers), status_tool())]
        if self._view.server is not None or kind not in (Kind.TOOL, Kind.RESOURCE):
            return []
        return [status_tool() if kind is Kind.TOOL else status_resource()]

    def _listed(self, item: dict[str, Any]) -> dict[str, Any]:
        return listed_for_find(item) if self._view.tools == "find" and "inputSchema" in item else item

    def __repr__(self) -> str:
        return f"<Lists of {self._view.server or 'all servers'}: {len(self._pages)} pages made>"


def next_digest(before: str, start: int, digest: bytes) -> str:
    """What a client has of a list after one more page: where each page began, and one digest of them all.

    A page that does not follow the ones before begins again: a client that reads one page for ever costs no more.
    """
    *starts, last = before.split(":")
    if starts and start <= int(starts[-1]):
        starts, last = [], ""
    both = blake2b(bytes.fromhex(last) + digest, digest_size=DIGEST_BYTES).hexdigest()
    return ":".join((*starts, str(start), both))


def _written(kind: Kind, item: Mapping[str, Any], *, modern: bool) -> bytes:
    return dumps(dict(tool_for_client(item, modern=modern)) if kind is Kind.TOOL else item)


def _offset(cursor: object) -> int:
    if cursor is None:
        return 0
    if isinstance(cursor, str) and cursor.isascii() and cursor.isdigit() and len(cursor) < 10:
        return int(cursor)
    raise MCPError(INVALID_PARAMS, "Invalid cursor")
