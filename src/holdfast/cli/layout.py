"""Text layout: a page has a width, may cut lines, and may be limited to ASCII.

Pure. On a terminal, lines are cut and wrapped to the width. In a pipe the width selects the columns of a table, and
no line is cut, because a program or ``grep`` needs the whole line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.text import Text

__all__ = ["GAP", "Cell", "Page", "page_of"]

GAP = "  "
"""Between two columns."""

LEAST = 20
"""The least width of a wrapped text. On a narrower page it is cut instead of wrapped letter by letter."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One field of a table."""

    text: str
    style: str = ""
    right: bool = False


@dataclass(frozen=True, kw_only=True)
class Page:
    """The width and the limits of the output."""

    width: int
    cut: bool = True
    """Whether lines that are too wide are cut or wrapped."""
    ascii_only: bool = False

    @property
    def ellipsis(self) -> str:
        """The mark of a cut."""
        return "..." if self.ascii_only else "…"

    @property
    def pointer(self) -> str:
        """The mark in front of an action."""
        return "->" if self.ascii_only else "→"

    def fit(self, line: Text) -> Text:
        """The line, cut to the width of the page."""
        if not self.cut or line.cell_len <= self.width:
            return line
        line = line.copy()
        line.truncate(max(0, self.width - len(self.ellipsis)))
        line.append(self.ellipsis)
        return line

    def short(self, text: str, cells: int) -> str:
        """The text, cut to this many cells."""
        if not self.cut or cell_len(text) <= cells:
            return text
        return set_cell_size(text, cells - len(self.ellipsis)).rstrip() + self.ellipsis

    def block(self, prefix: str | Text, text: str, *, style: str = "") -> list[Text]:
        """A prefix and a text; further lines of the text are indented below its first."""
        head = prefix if isinstance(prefix, Text) else Text(prefix)
        first, *rest = self._lines(text, max(LEAST, self.width - head.cell_len))
        indent = Text(" " * head.cell_len)
        lines = [(head, first), *((indent, line) for line in rest)]
        return [self.fit(Text.assemble(start, (line, style))) for start, line in lines]

    def _lines(self, text: str, width: int) -> list[str]:
        return list(_wrapped(text, width)) if self.cut and cell_len(text) > width else [text]

    def table(self, lines: Sequence[Sequence[Cell]]) -> list[Text]:
        """Rows as lines. Each column is as wide as its widest cell."""
        widths = [max(cell_len(cell.text) for cell in column) for column in zip(*lines, strict=True)]
        return [self.fit(_joined(line, widths)) for line in lines]


def page_of(console: Console) -> Page:
    """The page of a console."""
    return Page(width=console.width, cut=console.is_terminal, ascii_only=console.options.ascii_only)


def _wrapped(text: str, width: int) -> Iterator[str]:
    """The text in lines of this width, broken between words if possible. Spaces inside a line stay."""
    line = ""
    for word in text.split(" "):
        if line and cell_len(line) + 1 + cell_len(word) <= width:
            line += f" {word}"
        elif word:
            if line:
                yield line.rstrip()
            *whole, line = chop_cells(word, width)
            yield from whole
    if line:
        yield line.rstrip()


def _joined(cells: Sequence[Cell], widths: Sequence[int]) -> Text:
    line = Text()
    for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        padding = " " * (width - cell_len(cell.text))
        line.append(GAP if index else "")
        line.append(padding if cell.right else "")
        line.append(cell.text, style=cell.style)
        line.append("" if cell.right else padding)
    line.rstrip()
    return line
