"""What text is laid out on: so many cells wide, cut or not, with or without characters beyond ASCII.

Pure. On a terminal lines are cut and wrapped to its width; in a pipe the width decides what is shown, and nothing is
cut: a program, or ``grep``, wants the whole line.
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
"""Cells that a wrapped text gets, however narrow the page is: it is cut rather than set letter under letter."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One field of a table."""

    text: str
    style: str = ""
    right: bool = False


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is written on."""

    width: int
    cut: bool = True
    """Whether a wider line is cut or wrapped; else it is only laid out for that width."""
    ascii_only: bool = False

    @property
    def ellipsis(self) -> str:
        """What stands where something was cut."""
        return "..." if self.ascii_only else "…"

    @property
    def pointer(self) -> str:
        """What stands before a thing to do."""
        return "->" if self.ascii_only else "→"

    def fit(self, line: Text) -> Text:
        """A line that is no wider than the page."""
        if not self.cut or line.cell_len <= self.width:
            return line
        line = line.copy()
        line.truncate(max(0, self.width - len(self.ellipsis)))
        line.append(self.ellipsis)
        return line

    def short(self, text: str, cells: int) -> str:
        """A text in so many cells at most."""
        if not self.cut or cell_len(text) <= cells:
            return text
        return set_cell_size(text, cells - len(self.ellipsis)).rstrip() + self.ellipsis

    def block(self, prefix: str | Text, text: str, *, style: str = "") -> list[Text]:
        """A text after a prefix, wrapped under itself."""
        head = prefix if isinstance(prefix, Text) else Text(prefix)
        first, *rest = self._lines(text, max(LEAST, self.width - head.cell_len))
        indent = Text(" " * head.cell_len)
        lines = [(head, first), *((indent, line) for line in rest)]
        return [self.fit(Text.assemble(start, (line, style))) for start, line in lines]

    def _lines(self, text: str, width: int) -> list[str]:
        return list(_wrapped(text, width)) if self.cut and cell_len(text) > width else [text]

    def table(self, lines: Sequence[Sequence[Cell]]) -> list[Text]:
        """Lines of as many cells each, in columns as wide as their widest cell."""
        widths = [max(cell_len(cell.text) for cell in column) for column in zip(*lines, strict=True)]
        return [self.fit(_joined(line, widths)) for line in lines]


def page_of(console: Console) -> Page:
    """The page that a console is."""
    return Page(width=console.width, cut=console.is_terminal, ascii_only=console.options.ascii_only)


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Lines of so many cells at most, broken between words where that is possible; gaps inside a line stay."""
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
