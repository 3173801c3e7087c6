"""How the commands print: data on stdout, everything else on stderr, colour only on a terminal.

``Page`` lays text out: a page has a width, may cut lines, and may be limited to ASCII.

Pure. On a terminal, lines are cut and wrapped to the width. In a pipe the width selects the columns of a table, and no
line is cut, because a program or ``grep`` needs the whole line.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.text import Text

from holdfast.core import Redactor, counted, plain, span, visible_json

if TYPE_CHECKING:
    from holdfast.types import MCPServerLoadOutcome

__all__ = [
    "DIFF_STYLES",
    "GAP",
    "Cell",
    "Page",
    "ServerProgress",
    "counted",
    "data_console",
    "first_names",
    "json_text",
    "keep_quiet",
    "page_of",
    "print_diff",
    "print_error",
    "print_json",
    "print_json_line",
    "print_line",
    "print_note",
    "print_try",
    "side_console",
    "until",
    "working",
]


def data_console() -> Console:
    """The console for results."""
    return _console(quiet=_silent)


def side_console() -> Console:
    """The console for progress, warnings and errors."""
    return _console(stderr=True, quiet=_quiet)


Part: TypeAlias = str | Text | tuple[str, str]
"""A part of a line: a text, or a text and its style."""


def print_line(*parts: Part) -> None:
    """Print a line of the result on stdout. It is neither wrapped nor cut."""
    data_console().print(Text.assemble(*parts), soft_wrap=True)


def print_note(*parts: Part) -> None:
    """Print a line for people on stderr; ``-q`` leaves it out."""
    side_console().print(Text.assemble(*parts), soft_wrap=True)


DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
"""The style of a line of a diff, by its first character."""

LONGEST_DIFF_LINE = 160
"""A file without line ends is one long line."""


def print_diff(lines: Iterable[str], secrets: Iterable[str]) -> None:
    """Print the lines of a diff on stderr, with secrets masked."""
    mask = Redactor(secrets).mask
    for line in lines:
        shown = plain(mask(line))
        cut = shown if len(shown) <= LONGEST_DIFF_LINE else f"{shown[:LONGEST_DIFF_LINE]}…"
        print_note((cut, DIFF_STYLES.get(line[:1], "")))


def print_try(outcome: MCPServerLoadOutcome, *, but: str = "") -> int:
    """Print whether a server works that was tried once. Returns the exit code."""
    if outcome.status == "available":
        print_line(f"It works: {counted(len(outcome.tools), 'tool')}.")
        return 0
    print_note(f"{but}{outcome.message}")
    if outcome.hint:
        print_note(("hint: ", "bold cyan"), outcome.hint)
    return 1


_quiet = False
_silent = False


@contextmanager
def keep_quiet(*, silent: bool = False) -> Iterator[None]:
    """Print results and errors alone, for the length of the block: ``-q``. If ``silent``, errors and JSON alone.

    A command that does its work in the words of a conversation is silent with ``--json``.
    """
    global _quiet, _silent
    before, (_quiet, _silent) = (_quiet, _silent), (True, silent or _silent)
    try:
        yield
    finally:
        _quiet, _silent = before


def _console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console. ``NO_COLOR`` means no styles at all: bold and underlined text are codes too."""
    styles: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return _Console(stderr=stderr, quiet=quiet, color_system=styles, highlight=False, markup=False, emoji=False)


JSON_VERSION = 1
"""The version of every JSON output. A new field keeps it; a removed or changed one needs a new version."""


def print_json(value: Mapping[str, object]) -> None:
    """Print one JSON object on stdout, with its version."""
    sys.stdout.write(json_text({"version": JSON_VERSION, **value}, indent=2) + "\n")


def print_json_line(value: Mapping[str, object]) -> None:
    """Print one JSON object on one line, with its version, and flush it."""
    sys.stdout.write(json_text({"version": JSON_VERSION, **value}) + "\n")
    sys.stdout.flush()


def json_text(value: object, *, indent: int | None = None) -> str:
    """JSON that this terminal can show."""
    is_ascii = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    return visible_json(value, indent=indent, ascii_only=is_ascii)


def print_error(message: str, hint: str = "") -> None:
    """Print an error, and a hint what to do next."""
    console = _console(stderr=True)
    console.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    if hint:
        console.print()
        console.print(Text.assemble(("hint: ", "bold cyan"), hint), soft_wrap=True)


class _Console(Console):
    """A console that reports a broken pipe to its caller."""

    def on_broken_pipe(self) -> None:
        """Rich calls this inside the error handler. Its own version exits the program."""
        raise  # noqa: PLE0704 - see above


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show a progress line on a terminal while the block runs. It yields a function that changes the text."""
    console = side_console()
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda _: None
        return
    with console.status(Text(text)) as status:  # a `Text` is never read as markup
        yield lambda changed: status.update(Text(changed))


class ServerProgress:
    """The progress line of a command that waits for many servers: how many are done, and what the next ones do."""

    def __init__(self, servers: Iterable[str], verb: str, update: Callable[[str], None]) -> None:
        self._waiting = list(dict.fromkeys(servers))
        self._total = len(self._waiting)
        self._verb = verb
        self._starts: dict[str, str] = {}
        self._show = update
        self._show(str(self))

    def done(self, server: str) -> None:
        """A server has its outcome."""
        if server in self._waiting:
            self._waiting.remove(server)
            self._show(str(self))

    def starting(self, server: str, words: str) -> None:
        """What the process of a server does before it answers."""
        self._starts[server] = words
        self._show(str(self))

    def __str__(self) -> str:
        said = f"{self._total - len(self._waiting)} of {counted(self._total, 'server')} {self._verb}"
        if not self._waiting:
            return said
        start = next((f"; {name}: {self._starts[name]}" for name in self._waiting if name in self._starts), "")
        return f"{said}; waiting for {first_names(self._waiting)}{start}"


def first_names(names: Sequence[str], most: int = 3) -> str:
    """A list of names on a progress line: ``a, b, c and 4 more``."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def until(moment: float | None, now: float | None = None) -> str:
    """``in 42 min``, ``2 h ago``; ``moment`` is in seconds since 1970."""
    if moment is None:
        return "at an unknown time"
    left = moment - (time.time() if now is None else now)
    return f"in {span(left)}" if left >= 0 else f"{span(-left)} ago"


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
    full_screen: bool = False
    """Whether each line has one row of the screen, so that a long line is not wrapped by the terminal."""

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
        room = max(LEAST, self.width - head.cell_len)
        first, *rest = _wrapped(text, room) if self.cut and cell_len(text) > room else [text]
        indent = Text(" " * head.cell_len)
        lines = [(head, first), *((indent, line) for line in rest)]
        return [self.fit(Text.assemble(start, (line, style))) for start, line in lines]

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
