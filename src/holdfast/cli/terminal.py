"""A full-screen terminal: draws lines, reads keys, and always restores the terminal at the end.

It does not know what is drawn. Ctrl-C is an ordinary key here, so that one place decides how the program ends.
ADR 0014 gives the reason why the keys are decoded here and not by a library.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import anyio
from rich.console import Console
from rich.text import Text

__all__ = ["Screen", "decode"]

ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
"""Switch to the alternate screen, and hide the cursor."""

LEAVE = "\x1b[?25h\x1b[?1049l"

ESCAPE_SECONDS = 0.05
"""A key sequence arrives at once. An escape byte that is alone for this long is the escape key."""

CHUNK = 1024

_SEQUENCES = {
    b"\x1b": "escape",
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
    b"\x1b[5~": "page_up",
    b"\x1b[6~": "page_down",
}
_CONTROLS = {
    0x03: "ctrl-c",
    0x04: "ctrl-d",
    0x08: "backspace",
    0x0A: "enter",
    0x0C: "ctrl-l",
    0x0D: "enter",
    0x1A: "ctrl-z",
    0x7F: "backspace",
}


def decode(data: bytes) -> tuple[list[str], bytes]:
    """The keys in the input, and the start of a sequence that is still incomplete."""
    keys: list[str] = []
    while data:
        if data[0] == 0x1B:
            size = _sequence_size(data)
            if size == 0:
                return keys, data
            keys += [_SEQUENCES[data[:size]]] if data[:size] in _SEQUENCES else []
            data = data[size:]
        else:
            keys.append(_CONTROLS.get(data[0], chr(data[0])))
            data = data[1:]
    return keys, b""


class Screen:
    """The terminal in full-screen mode, while the block runs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._in = sys.stdin.fileno()
        self._out = sys.stdout.fileno()
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._in)
        try:
            self.enter_full_screen()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    @property
    def size(self) -> tuple[int, int]:
        """The current columns and lines."""
        size = os.get_terminal_size(self._out)
        return size.columns or 80, size.lines or 24

    def draw(self, lines: Sequence[Text]) -> None:
        """Draw the lines over the last picture, without flicker."""
        with self._console.capture() as capture:
            for line in lines:
                self._console.print(line, soft_wrap=True)
        # Each line is cleared before it is drawn: a clear after a full-width line would erase its last character.
        self._write("\x1b[H" + "\r\n".join(f"\x1b[K{line}" for line in capture.get().splitlines()))

    async def keys(self) -> AsyncIterator[str]:
        """Each pressed key, until the terminal closes."""
        rest = b""
        while True:
            with anyio.move_on_after(ESCAPE_SECONDS if rest else None) as waiting:
                await anyio.wait_readable(self._in)
            if waiting.cancelled_caught:
                keys, rest = ["escape"], b""
            else:
                data = _read(self._in)
                if not data:
                    return
                keys, rest = decode(rest + data)
            for key in keys:
                yield key

    def suspend(self) -> None:
        """Restore the terminal and stop the process (Ctrl-Z); continue when the shell resumes it."""
        self._restore()
        signal.raise_signal(signal.SIGTSTP)
        self.enter_full_screen()

    def enter_full_screen(self) -> None:
        """Enter full-screen mode; also after another program used the terminal."""
        tty.setcbreak(self._in, termios.TCSADRAIN)
        mode = termios.tcgetattr(self._in)
        mode[3] &= ~termios.ISIG
        mode[0] &= ~(termios.ICRNL | termios.IXON)
        termios.tcsetattr(self._in, termios.TCSADRAIN, mode)
        self._write(ENTER)

    def _restore(self) -> None:
        with suppress(OSError, termios.error):  # a closed terminal needs no restore
            self._write(LEAVE)
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _sequence_size(data: bytes) -> int:
    """The length of the sequence at the start of ``data``; 0 if it is incomplete."""
    if len(data) == 1:
        return 0
    if data[1:2] not in (b"[", b"O"):
        return 1
    for index in range(2, len(data)):
        if 0x40 <= data[index] <= 0x7E:
            return index + 1
    return 0


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, CHUNK)
    except OSError:  # Linux reports a closed terminal this way
        return b""
