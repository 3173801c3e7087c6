"""The search over tools: SQLite's full-text index in memory, optionally fused with static embeddings.

Theory of operation. The index holds one row for each listed tool. It follows the catalog, and the catalog is made of
one immutable object a server. So a search of another catalog first compares these objects with the ones that it has
indexed, and replaces the rows of the servers that differ. A first search indexes everything. The result is
the same as that of an index made from the beginning: ranks depend on the rows alone, and equal ranks are ordered by
name.

- Nothing here runs on the event loop: a worker thread does it, one search at a time. The catalog that a search was
  given is immutable, so the loop may publish the next one meanwhile.
- A query is data. Only words go into the expression, each in quotes, so no operator of the engine can be in it.
- A name that is not in the given catalog is never found: rows of older catalogs are gone before the search.
- SQLite finds the candidates, ranked by its bm25 with a weight for each column. They are ranked again by ``Ranking``
  (core/search.py), which knows synonyms, repeated words and the length of each part; bm25 knows one length for the
  whole row. Its words are SQLite's too: a second table cuts and stems texts, and its vocabulary is read back.
- With embeddings, both scores are divided by their best and added. The weights are measured; ADR 0030 has the figures.

An index that is never searched costs nothing.

The embeddings are the optional extra ``holdfast-mcp[find]``. The package ``wordllama`` ships a table with one vector
for each of 32,000 word pieces, and the tokenizer that belongs to it. The vector of a text is the mean over its pieces.
So "merge" and "combine" are near each other, which a search by words cannot know. No model runs, and a text costs
microseconds.

The package itself is never imported: its loader asks a server on the internet for the tokenizer that is in its own
folder (FIND-3 allows no network). Its two files are read directly instead.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from importlib.util import find_spec
from itertools import islice, repeat
from operator import mul
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.to_thread

from holdfast.core import (
    SYNONYMS,
    Catalog,
    CatalogEntry,
    CatalogSource,
    Health,
    Kind,
    Ranking,
    SearchText,
    first_sentence,
    for_user,
    meaning_text,
    query_words,
    search_text,
    signature,
)
from holdfast.types import FoundTool

__all__ = ["StaticEmbeddings", "ToolIndex", "VectorTable", "found_tool"]

_TABLE = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER = Path("tokenizers", "l2_supercat_tokenizer_config.json")

LONGEST_TEXT = 4_000
"""How many characters of a text are looked up; the mean over more of them says less."""


LEAST_SIMILAR = 0.05
"""A best similarity below this is none: dividing by it would turn noise into a score."""


class StaticEmbeddings:
    """Turns texts into vectors of length 1. Made once, in a thread: reading the table takes some 100 ms."""

    def __init__(self, folder: Path) -> None:
        import numpy as np  # noqa: PLC0415 - of the optional extra
        from tokenizers import Tokenizer  # noqa: PLC0415 - of the optional extra

        self._np = np
        self._tokenizer: Any = Tokenizer.from_file(str(folder / _TOKENIZER))
        with (folder / _TABLE).open("rb") as file:  # safetensors: the length of a JSON header, the header, the numbers
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            (described,) = (one for name, one in header.items() if name != "__metadata__")
            numbers = np.frombuffer(file.read(), dtype={"F16": np.float16, "F32": np.float32}[described["dtype"]])
        self._table: Any = numbers.reshape(described["shape"])

    @classmethod
    def installed(cls) -> StaticEmbeddings | None:
        """The embeddings, if the extra is installed."""
        if any(find_spec(name) is None for name in ("numpy", "tokenizers")):
            return None
        found = find_spec("wordllama")  # it is looked up, and not imported
        folders = found.submodule_search_locations if found is not None else None
        return cls(Path(folders[0])) if folders else None

    def vector(self, text: str) -> Any:
        """The mean over the pieces of a text, of length 1; zero if the text has none."""
        pieces = self._tokenizer.encode(text[:LONGEST_TEXT], add_special_tokens=False).ids
        if not pieces:
            return self._np.zeros(self._table.shape[1], self._np.float32)
        mean = self._table[pieces].astype(self._np.float32).mean(axis=0)
        return mean / (float(self._np.linalg.norm(mean)) or 1.0)

    def table(self, vectors: Iterable[Any]) -> Any:
        """Vectors as the rows of one table, so that one product compares them all."""
        return self._np.stack(list(vectors))

    def best(self, scores: Any, most: int) -> list[int]:
        """The places of the ``most`` highest scores, the highest first, equal ones in their order; all if negative."""
        np, rounded = self._np, scores.round(6)
        if 0 <= most < len(rounded):  # sorting ten thousand scores takes longer than all the rest
            candidates = np.sort(np.argpartition(-rounded, most)[:most])
        else:
            candidates = np.arange(len(rounded))
        order: list[int] = candidates[np.argsort(-rounded[candidates], kind="stable")].tolist()
        return order


class VectorTable:
    """The vectors of all tools, by name. The table for the product is made when it is first needed after a change."""

    def __init__(self, embeddings: StaticEmbeddings) -> None:
        self._embeddings = embeddings
        self._vectors: dict[str, Any] = {}
        self._made: tuple[list[str], dict[str, int], Any] | None = None

    def set(self, name: str, text: str) -> None:
        """Keep the vector of a tool's text."""
        self._vectors[name] = self._embeddings.vector(text)
        self._made = None

    def discard(self, name: str) -> None:
        """Forget a tool."""
        self._vectors.pop(name, None)
        self._made = None

    def fused(self, query: str, by_words: Mapping[str, float], weight: float, most: int) -> list[str]:
        """The ``most`` best names, by their scores for the words of a query and by its meaning; all if negative.

        Each score counts in parts of the best of its kind, so that neither scale matters. ``weight`` is what meaning
        counts beside 1 for words. Equal scores are in the order of names.
        """
        if not self._vectors:
            return []
        if self._made is None:
            names = sorted(self._vectors)
            table = self._embeddings.table(self._vectors[name] for name in names)
            self._made = names, {name: place for place, name in enumerate(names)}, table
        names, places, table = self._made
        scores = table @ self._embeddings.vector(query)
        scores *= weight / max(float(scores.max()), LEAST_SIMILAR)
        best = max(by_words.values(), default=1.0) or 1.0
        for name, score in by_words.items():
            scores[places[name]] += score / best
        return [names[place] for place in self._embeddings.best(scores, most)]

    def __repr__(self) -> str:
        return f"<VectorTable of {len(self._vectors)}>"


COLUMNS = ", ".join(SearchText._fields)
WEIGHTS = "3.0, 2.0, 1.0, 1.0, 0.5"
"""What a word counts in each column, for the choice of candidates."""

MEANING = 1.0
"""What similarity of meaning counts, beside 1 for the words."""

RANKED = 40
"""How many candidates are ranked again. More change next to nothing that was measured."""

CANDIDATES, EVERY = 200, -1
"""How many of the tools that match are looked at first, and what SQLite takes for no limit."""

MOST_REPEATED = 5
"""How often a word of a query counts at most."""

TOKENIZE = "tokenize = 'porter unicode61'"
_PARTS = {name: number for number, name in enumerate(SearchText._fields)}

ROW_BYTES = 7
"""Bytes of a row's number: SQLite has eight with a sign, and two names share such a number in no catalog."""


Shown: TypeAlias = Callable[[str], CatalogEntry | None]
"""The tool of a name, if it is listed and may be shown."""


class ToolIndex:
    """Finds listed tools by words. Share one: its lock keeps searches apart."""

    def __init__(
        self,
        embeddings: Callable[[], StaticEmbeddings | None] = StaticEmbeddings.installed,
        *,
        meaning: float = MEANING,
        ranking: Ranking | None = None,
    ) -> None:
        self._load_embeddings = embeddings
        self._meaning = meaning
        self._ranking = ranking or Ranking()
        self._lock = anyio.Lock()
        self._indexed: dict[str, CatalogSource] = {}
        """What the rows of each server are of."""
        self._rows: dict[str, list[int]] = {}
        """The rows of each server."""
        self._keys: dict[int, str] = {}
        """The name of the tool that each row stands for."""
        self._words = _IndexedWords(self._ranking)
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
        # A query is a client's text: it may hold what SQLite refuses, and the search must not fail by that.
        query = _storable(query)
        asked = query_words(query)
        if not asked:
            return []

        def shown(name: str) -> CatalogEntry | None:
            entry = catalog.entry(name)
            return entry if entry is not None and allowed(entry) else None

        scores = self._scores(asked, shown)
        if self._vectors is None:
            best = sorted(scores, key=lambda row: (-scores[row], row))[:limit]
            return [entry for row in best if (entry := shown(self._keys[row])) is not None]
        by_words = {self._keys[row]: score for row, score in scores.items()}
        found: list[CatalogEntry] = []
        for most in (CANDIDATES, EVERY):
            ranked = self._vectors.fused(query, by_words, self._meaning, most)
            found = list(islice((entry for name in ranked if (entry := shown(name)) is not None), limit))
            if len(found) == limit or len(ranked) != most:
                break  # else there are more tools than were looked at, and most of those may not be shown
        return found

    async def close(self) -> None:
        """Free the memory, after the search that is under way."""
        async with self._lock:
            if self._database is not None:
                self._database.close()
            self._database = self._vectors = None
            self._indexed, self._rows, self._keys = {}, {}, {}
            self._words = _IndexedWords(self._ranking)

    # The rows.

    def _follow(self, catalog: Catalog) -> None:
        """Replace the rows of the servers that the catalog holds differently."""
        rows = self._opened()
        changed = [name for name, source in catalog.servers.items() if self._indexed.get(name) is not source]
        gone = [name for name in self._indexed if name not in catalog.servers]
        for server in (*gone, *changed):
            # Old rows before new ones: a tool that moved to another server keeps its name, and so its row.
            for row in self._rows.pop(server, ()):
                rows.execute("DELETE FROM tools WHERE rowid = ?", (row,))
                self._words.discard(row)
                key = self._keys.pop(row)
                if self._vectors is not None:
                    self._vectors.discard(key)
            self._indexed.pop(server, None)
        for server in changed:
            source = catalog.servers[server]
            texts: dict[int, Sequence[str]] = {}
            tools = (entry for entry in source.entries if entry.key.kind is Kind.TOOL and not source.withdrawn)
            self._rows[server] = [self._add(rows, entry, texts) for entry in tools]
            self._words.add(_stemmed(rows, texts))
            self._indexed[server] = source  # last: if a step before it fails, the next search begins it again

    def _add(self, rows: sqlite3.Connection, entry: CatalogEntry, texts: dict[int, Sequence[str]]) -> int:
        described = entry.server, entry.original, entry.item.raw
        row = _row_of(entry)
        text = texts.setdefault(row, tuple(map(_storable, search_text(*described))))
        rows.execute(
            f"INSERT INTO tools(rowid, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608 - a constant
            (row, *text),
        )
        self._keys[row] = entry.name
        if self._vectors is not None:
            self._vectors.set(entry.name, _storable(meaning_text(*described)))
        return row

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            # The threads differ from search to search; the lock lets one in at a time.
            database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
            database.execute(f"CREATE VIRTUAL TABLE tools USING fts5({COLUMNS}, {TOKENIZE})")
            database.execute(f"CREATE VIRTUAL TABLE cut USING fts5({COLUMNS}, {TOKENIZE}, content = '')")
            database.execute("CREATE VIRTUAL TABLE cut_words USING fts5vocab(cut, instance)")
            self._words.relate(_stemmed(database, {number: [group] for number, group in enumerate(SYNONYMS, 1)}))
            embeddings = self._load_embeddings()
            self._vectors = VectorTable(embeddings) if embeddings is not None else None
            self._database = database
        return self._database

    # The ranks.

    def _scores(self, asked: Mapping[str, int], shown: Shown) -> dict[int, float]:
        """The scores of the best tools that have one of the words and may be shown; of few, those with synonyms too."""
        database = self._opened()
        stems: dict[str, int] = {}
        repeated = (word for word, count in asked.items() for _ in range(min(count, MOST_REPEATED)))
        for (word, _), count in _stemmed(database, {1: [" ".join(repeated)]}).get(1, {}).items():
            stems[word] = stems.get(word, 0) + count
        rows = self._candidates(database, asked, shown)
        if len(rows) < RANKED and (more := self._words.related_to(stems)):
            rows = list(dict.fromkeys((*rows, *self._candidates(database, more, shown))))
        return self._words.scores(stems, rows)

    def _candidates(self, database: sqlite3.Connection, words: Iterable[str], shown: Shown) -> list[int]:
        expression = " OR ".join(f'"{word}"' for word in words)
        chosen: list[int] = []
        for most in (RANKED, EVERY):
            found = database.execute(
                f"SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY round(bm25(tools, {WEIGHTS}), 6), rowid LIMIT ?",  # noqa: S608 - a constant
                (expression, most),
            ).fetchall()
            chosen = list(islice((row for (row,) in found if shown(self._keys[row]) is not None), RANKED))
            if len(chosen) == RANKED or len(found) != most:
                break  # else more tools match than were looked at, and some of those may not be shown
        return chosen

    def __repr__(self) -> str:
        fused = ", with embeddings" if self._vectors is not None else ""
        return f"<ToolIndex of {len(self._keys)} tools{fused}>"


class _IndexedWords:
    """What each word counts in each row, in how many rows it stands, and the synonyms."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self._rows: dict[int, tuple[tuple[str, ...], array[float]]] = {}
        """The words of each row and what each counts: compact, because ten thousand tools have half a million."""
        self._frequency: dict[str, int] = {}
        self._related: dict[str, frozenset[str]] = {}

    def relate(self, groups: Mapping[int, Mapping[tuple[str, int], int]]) -> None:
        """Take groups of words that mean much the same."""
        related: dict[str, set[str]] = {}
        for group in groups.values():
            words = {word for word, _ in group}
            for word in words:
                related.setdefault(word, set()).update(words - {word})
        self._related = {word: frozenset(others) for word, others in related.items()}

    def related_to(self, stems: Mapping[str, int]) -> list[str]:
        """The synonyms of a query's words that some tool has."""
        also = {other for word in stems for other in self._related.get(word, ()) if other not in stems}
        return sorted(also & self._frequency.keys())

    def add(self, counted: Mapping[int, Mapping[tuple[str, int], int]]) -> None:
        for row, counts in counted.items():
            impacts = self._ranking.impacts(counts)
            self._rows[row] = tuple(map(sys.intern, impacts)), array("f", impacts.values())
            for word in impacts:
                self._frequency[word] = self._frequency.get(word, 0) + 1

    def discard(self, row: int) -> None:
        words, _ = self._rows.pop(row, ((), None))
        for word in words:
            self._frequency[word] -= 1
            if not self._frequency[word]:
                del self._frequency[word]

    def scores(self, stems: Mapping[str, int], rows: Iterable[int]) -> dict[int, float]:
        """The scores of some rows for a query."""
        worth = self._ranking.wanted(stems, self._related, len(self._rows), self._frequency)
        scores: dict[int, float] = {}
        for row in rows:
            words, impacts = self._rows[row]
            # In C from end to end: a loop over the words would take half of the time of a search.
            scores[row] = round(sum(map(mul, map(worth.get, words, repeat(0.0)), impacts)), 6)
        return scores


def _stemmed(database: sqlite3.Connection, texts: Mapping[int, Sequence[str]]) -> dict[int, dict[tuple[str, int], int]]:
    """How often each word stands in each part of some texts, cut and stemmed as SQLite does it."""
    for row, parts in texts.items():
        filled = (*parts, *[""] * (len(SearchText._fields) - len(parts)))
        database.execute(f"INSERT INTO cut(rowid, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", (row, *filled))  # noqa: S608 - a constant
    counted: dict[int, dict[tuple[str, int], int]] = {row: {} for row in texts}
    for word, row, column in database.execute("SELECT term, doc, col FROM cut_words"):
        counts, key = counted[row], (word, _PARTS[column])
        counts[key] = counts.get(key, 0) + 1
    database.execute("INSERT INTO cut(cut) VALUES ('delete-all')")
    return counted


def _row_of(entry: CatalogEntry) -> int:
    """The number of a tool's row. It follows from the name alone: SQLite orders equal ranks by it, in any index."""
    return int.from_bytes(blake2b(entry.name.encode("utf-8", "surrogatepass"), digest_size=ROW_BYTES).digest())


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


def _storable(text: str) -> str:
    """A text that SQLite and the tokenizer take: JSON may hold halves of surrogate pairs, which UTF-8 cannot write."""
    return text.encode("utf-8", "replace").decode()
