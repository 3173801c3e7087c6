"""A stdin that we can end ourselves: whoever reads it in a thread could not be woken otherwise."""

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
    """While it is entered, our stdin is fed with what comes from outside, until either end of it has enough."""

    def __init__(self) -> None:
        self._real = os.dup(0)
        self._feed, self._stdin = socket.socketpair()

    def __enter__(self) -> Self:
        os.dup2(self._stdin.fileno(), 0)
        self._stdin.close()
        # A daemon: it may be waiting for input that never comes when the program ends.
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
