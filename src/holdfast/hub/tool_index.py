"""The search over tools: SQLite's full-text index in memory, optionally fused with static embeddings.

Theory of operation. The index holds one row for each listed tool. It follows the catalog, and the catalog is made of
one immutable object a server. So a search first compares these objects with the ones that it has indexed, and replaces
the rows of the servers that differ. Most searches find nothing to do; a first search indexes everything. The result is
the same as that of an index made from the beginning: ranks depend on the rows alone, and equal ranks are ordered by
name.

- Nothing here runs on the event loop: a worker thread does it, one search at a time. The catalog that a search was
  given is immutable, so the loop may publish the next one meanwhile.
- A query is data. Only words go into the expression, each in quotes, so no operator of the engine can be in it.
- A name that is not in the given catalog is never found: rows of older catalogs are gone before the search.
- SQLite ranks by bm25 with a weight for each column. With embeddings, both ranks are divided by their best and added.
  The weights are measured; ADR 0030 has the figures.

An index that is never searched costs nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import islice

import anyio
import anyio.to_thread

from holdfast.core import (
    Catalog,
    CatalogEntry,
    CatalogSource,
    Health,
    Kind,
    first_sentence,
    for_user,
    meaning_text,
    query_words,
    search_text,
    signature,
)
from holdfast.hub.static_embeddings import StaticEmbeddings, VectorTable
from holdfast.types import FoundTool

__all__ = ["ToolIndex", "found_tool"]

WEIGHTS = "3.0, 2.0, 1.0, 0.5"
"""What a word counts in the name, the server, the description and the parameters."""

MEANING = 2.0
"""What similarity of meaning counts, beside 1 for the words."""

CANDIDATES, EVERY = 200, -1
"""How many of the tools that match by words are looked at first, and what SQLite takes for no limit."""

ROW_BYTES = 7
"""Bytes of a row's number: SQLite has eight with a sign, and two names share such a number in no catalog."""


class ToolIndex:
    """Finds listed tools by words. Share one: its lock keeps searches apart."""

    def __init__(
        self,
        embeddings: Callable[[], StaticEmbeddings | None] = StaticEmbeddings.installed,
        *,
        meaning: float = MEANING,
    ) -> None:
        self._load_embeddings = embeddings
        self._meaning = meaning
        self._lock = anyio.Lock()
        self._indexed: dict[str, CatalogSource] = {}
        self._rows: dict[str, list[int]] = {}
        """The rows of each server."""
        self._keys: dict[int, str] = {}
        """The name of the tool that each row stands for."""
        self._database: sqlite3.Connection | None = None
        self._vectors: VectorTable | None = None

    async def search(
        self, catalog: Catalog, query: str, *, limit: int, allowed: Callable[[CatalogEntry], bool]
    ) -> list[CatalogEntry]:
        """The best listed tools for a query that ``allowed`` lets pass, the best first. It runs in a thread."""
        async with self._lock:
            return await anyio.to_thread.run_sync(self.search_now, catalog, query, limit, allowed)

    def search_now(
        self, catalog: Catalog, query: str, limit: int, allowed: Callable[[CatalogEntry], bool]
    ) -> list[CatalogEntry]:
        """Search in the calling thread, for programs without an event loop. One search at a time."""
        self._follow(catalog)
        query = _storable(query)
        found: list[CatalogEntry] = []
        for most in (CANDIDATES, EVERY):
            ranked = self._ranked(query, most)
            entries = (catalog.entry(name) for name in ranked)
            found = list(islice((entry for entry in entries if entry is not None and allowed(entry)), limit))
            if len(found) == limit or len(ranked) != most:
                break  # else more tools match than were looked at, and most of those may not be shown
        return found

    async def close(self) -> None:
        """Free the memory, after the search that is under way."""
        async with self._lock:
            if self._database is not None:
                self._database.close()
            self._database = self._vectors = None
            self._indexed, self._rows, self._keys = {}, {}, {}

    # The rows.

    def _follow(self, catalog: Catalog) -> None:
        """Replace the rows of the servers that the catalog holds differently."""
        rows = self._opened()
        changed = [name for name, source in catalog.servers.items() if self._indexed.get(name) is not source]
        gone = [name for name in self._indexed if name not in catalog.servers]
        if not changed and not gone:
            return
        for server in (*gone, *changed):
            for row in self._rows.pop(server, ()):
                rows.execute("DELETE FROM tools WHERE rowid = ?", (row,))
                key = self._keys.pop(row)
                if self._vectors is not None:
                    self._vectors.discard(key)
            self._indexed.pop(server, None)
        for server in changed:
            source = catalog.servers[server]
            self._rows[server] = [self._add(rows, entry) for entry in _tools(source)]
            self._indexed[server] = source

    def _add(self, rows: sqlite3.Connection, entry: CatalogEntry) -> int:
        described = entry.server, entry.original, entry.item.raw
        # The number of a row follows from the name alone: SQLite orders equal ranks by it, in any index.
        row = int.from_bytes(blake2b(entry.name.encode("utf-8", "surrogatepass"), digest_size=ROW_BYTES).digest())
        rows.execute(
            "INSERT INTO tools(rowid, name, server, description, parameters) VALUES (?, ?, ?, ?, ?)",
            (row, *map(_storable, search_text(*described))),
        )
        self._keys[row] = entry.name
        if self._vectors is not None:
            self._vectors.set(entry.name, _storable(meaning_text(*described)))
        return row

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            # The threads differ from search to search; the lock lets one in at a time.
            database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
            database.execute(
                "CREATE VIRTUAL TABLE tools"
                " USING fts5(name, server, description, parameters, tokenize = 'porter unicode61')"
            )
            embeddings = self._load_embeddings()
            self._vectors = VectorTable(embeddings) if embeddings is not None else None
            self._database = database
        return self._database

    # The ranks.

    def _ranked(self, query: str, most: int) -> list[str]:
        """The names of the ``most`` best tools; with embeddings every tool matches, more or less."""
        words = query_words(query)
        if not words:
            return []
        by_words = self._by_words(words, most)
        return list(by_words) if self._vectors is None else self._vectors.fused(query, by_words, self._meaning, most)

    def _by_words(self, words: list[str], most: int) -> dict[str, float]:
        """The best tools that have at least one of the words, in their order, each with its score."""
        expression = " OR ".join(f'"{word}"' for word in words)
        found = self._opened().execute(
            f"SELECT rowid, -round(bm25(tools, {WEIGHTS}), 6) AS score FROM tools WHERE tools MATCH ?"  # noqa: S608 - a constant
            " ORDER BY score DESC, rowid LIMIT ?",
            (expression, most),
        )
        return {self._keys[row]: score for row, score in found}

    def __repr__(self) -> str:
        fused = ", with embeddings" if self._vectors is not None else ""
        return f"<ToolIndex of {len(self._keys)} tools{fused}>"


def found_tool(entry: CatalogEntry, name: str, health: Health) -> FoundTool:
    """A hit as users see it, under the name that they call it by."""
    available, failure = health.status in ("available", "idle"), health.failure
    return FoundTool(
        name=name,
        server_id=entry.server,
        signature=signature(name, entry.item.raw),
        summary=first_sentence(str(entry.item.raw.get("description") or "")),
        available=available,
        state=health.shown_state,
        reason="" if available else for_user(failure) if failure is not None else health.reason,
        retry_in=None if available else health.next_try,
    )


def _tools(source: CatalogSource) -> Iterator[CatalogEntry]:
    if not source.withdrawn:
        yield from (entry for entry in source.entries if entry.key.kind is Kind.TOOL)


def _storable(text: str) -> str:
    """A text that SQLite and the tokenizer take: JSON may hold halves of surrogate pairs, which UTF-8 cannot write."""
    return text.encode("utf-8", "replace").decode()
