"""The file that the gateway reads. It is replaced atomically, and only one bridge writes it.

A write that fails, for example on a full disk, leaves the old content.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.files import replace_file

__all__ = ["GatewayConfigFile"]

MODE = 0o640
"""The mode of a new file, because the URL of a target may hold a secret. An existing file keeps its mode."""


class GatewayConfigFile:
    """A config file, and beside it the last config that the gateway ran."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._accepted = file.with_name(f"{file.name}.accepted")

    def read(self) -> bytes | None:
        """The current content; None if there is no file."""
        return _read(self.file)

    def write(self, data: bytes) -> None:
        """Replace the config. After an ``OSError`` nothing has changed."""
        replace_file(self.file, data, mode=MODE, keep_mode=True)

    def read_accepted(self) -> bytes | None:
        """The last config that the gateway ran, also from an earlier run of the bridge."""
        return _read(self._accepted)

    def keep_accepted(self, data: bytes) -> None:
        """Save a config that the gateway runs; ``OSError`` if it cannot be written."""
        replace_file(self._accepted, data, mode=MODE, keep_mode=True)


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
