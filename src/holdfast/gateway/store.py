"""The file that the gateway reads: replaced whole or not at all, and by one bridge alone.

A write that fails, for want of space or for any other reason, leaves what stood there before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

__all__ = ["Place", "Store"]

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
        _replace(self.file, data)

    def read_accepted(self) -> bytes | None:
        """The last config that was seen to run, from an earlier life of the bridge too."""
        return _read(self._accepted)

    def keep_accepted(self, data: bytes) -> None:
        """Remember a config that runs; ``OSError`` if there is no room for it."""
        _replace(self._accepted, data)


class Place:
    """The right to write: held by one process, given back by the system when that one ends, however it ends."""

    def __init__(self, file: Path) -> None:
        self._file = file.with_name(f"{file.name}.lock")
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether it is ours."""
        return self._descriptor is not None

    def take(self) -> bool:
        """Take it unless another process has it."""
        if self.held:
            return True
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def give_back(self) -> None:
        """Let another have it. The file stays: were it removed, two could each lock one of their own."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _replace(file: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), _mode(file))
            os.fsync(stream.fileno())
        temporary.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(file.parent)


def _mode(file: Path) -> int:
    try:
        return file.stat().st_mode & 0o777
    except FileNotFoundError:
        return MODE


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut; where a file system cannot, the file itself is still whole."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
