"""How the commands print: data on stdout, everything else on stderr, colour only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.status import Status
from rich.text import Text

__all__ = ["data_console", "print_error", "print_json", "print_json_line", "side_console", "working"]


def data_console() -> Console:
    """For what the user asked for."""
    return _Console(highlight=False, markup=False, emoji=False)


def side_console() -> Console:
    """For progress, warnings and errors."""
    return _Console(stderr=True, highlight=False, markup=False, emoji=False)


def print_json(value: object) -> None:
    """For programs: one JSON document on stdout, in whatever encoding that has."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=_ascii_only()) + "\n")


def print_json_line(value: object) -> None:
    """For programs that read as it happens: one JSON document in a line, at once."""
    sys.stdout.write(json.dumps(value, ensure_ascii=_ascii_only()) + "\n")
    sys.stdout.flush()


def _ascii_only() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"


def print_error(message: str, hint: str = "") -> None:
    """What went wrong, and what to do next."""
    console = side_console()
    console.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    if hint:
        console.print()
        console.print(Text.assemble(("hint: ", "bold cyan"), hint), soft_wrap=True)


class _Console(Console):
    """Leaves it to whoever runs the command what to do about a reader that went away."""

    def on_broken_pipe(self) -> None:
        """Called while the error is handled; by itself it would end the program in the middle of whatever runs."""
        raise  # noqa: PLE0704 - see above


@contextmanager
def working(text: str) -> Iterator[MovingLine]:
    """A moving line on a terminal while something takes time; nothing elsewhere."""
    console = side_console()
    if not console.is_terminal or console.is_dumb_terminal:
        yield _Quiet()
        return
    with console.status(Text(text)) as status:
        yield _Shown(status)


class MovingLine(Protocol):
    """What ``working`` gives: a line whose text can be changed."""

    def update(self, text: str) -> None:
        """Show another text."""


class _Shown:
    """The moving line of a terminal. Names and a server's words go in as they are: they are no markup."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def update(self, text: str) -> None:
        """Show another text."""
        self._status.update(Text(text))


class _Quiet:
    """Stands for the moving line where there is no terminal."""

    def update(self, text: str) -> None:
        """Nobody sees it."""
