"""A stdin that this process can end itself. A thread that reads it cannot be woken in another way."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

__all__ = ["EndableStdin"]

_CHUNK = 65536


class EndableStdin:
    """Replaces stdin by a socket, and copies the real input into it until one side ends."""

    def __init__(self) -> None:
        self._real = os.dup(0)
        self._feed, self._stdin = socket.socketpair()

    def __enter__(self) -> Self:
        os.dup2(self._stdin.fileno(), 0)
        self._stdin.close()
        # A daemon thread, because it may still wait for input when the program ends.
        threading.Thread(target=self._pump, name="stdin", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Let the reader see the end of its input. Idempotent."""
        with suppress(OSError):
            self._feed.shutdown(socket.SHUT_WR)

    def _pump(self) -> None:
        with suppress(OSError):
            while data := os.read(self._real, _CHUNK):
                self._feed.sendall(data)
        self.end()
