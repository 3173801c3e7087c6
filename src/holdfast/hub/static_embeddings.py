"""Meanings of words from a table, for the search over tools: the optional extra ``holdfast-mcp[find]``.

The package ``wordllama`` ships a table with one vector for each of 32,000 word pieces, and the tokenizer that belongs
to it. The vector of a text is the mean over its pieces. So "merge" and "combine" are near each other, which a search
by words cannot know. No model runs, and a text costs microseconds.

The package itself is never imported: its loader asks a server on the internet for the tokenizer that is in its own
folder (FIND-3 allows no network). Its two files are read directly instead.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["StaticEmbeddings", "VectorTable"]

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
