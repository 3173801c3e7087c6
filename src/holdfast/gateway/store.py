"""The file that the gateway reads: replaced whole or not at all, and by one bridge alone.

A write that fails, for want of space or for any other reason, leaves what stood there before.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.files import replace_file

__all__ = ["Store"]

MODE = 0o640
"""For a new file: a target's address may hold a secret. An existing file keeps the mode it has."""


class Store:
    """A config file, and beside it the last one that the gateway was seen to run."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._accepted = file.with_name(f"{file.name}.accepted")

    def read(self) -> bytes | None:
        """What the gateway would read now."""
        return _read(self.file)

    def write(self, data: bytes) -> None:
        """Put a config in place; ``OSError`` if that failed, and then nothing has changed."""
        replace_file(self.file, data, mode=MODE, keep_mode=True)

    def read_accepted(self) -> bytes | None:
        """The last config that was seen to run, from an earlier life of the bridge too."""
        return _read(self._accepted)

    def keep_accepted(self, data: bytes) -> None:
        """Remember a config that runs; ``OSError`` if there is no room for it."""
        replace_file(self._accepted, data, mode=MODE, keep_mode=True)


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
