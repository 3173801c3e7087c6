"""The file that the gateway reads. It is replaced atomically, and only one bridge writes it.

A write that fails, for example on a full disk, leaves the old content.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

__all__ = ["ConfigFile", "WriteLock"]

MODE = 0o640
"""The mode of a new file, because the URL of a target may hold a secret. An existing file keeps its mode."""


class ConfigFile:
    """A config file, and beside it the last config that the gateway ran."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._accepted = file.with_name(f"{file.name}.accepted")

    def read(self) -> bytes | None:
        """The current content; None if there is no file."""
        return _read(self.file)

    def write(self, data: bytes) -> None:
        """Replace the config. After an ``OSError`` nothing has changed."""
        _replace(self.file, data)

    def read_accepted(self) -> bytes | None:
        """The last config that the gateway ran, also from an earlier run of the bridge."""
        return _read(self._accepted)

    def keep_accepted(self, data: bytes) -> None:
        """Save a config that the gateway runs; ``OSError`` if it cannot be written."""
        _replace(self._accepted, data)


class WriteLock:
    """The right to write the config: held by one process, and released by the system when the process ends."""

    def __init__(self, file: Path) -> None:
        self._file = file.with_name(f"{file.name}.lock")
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this process holds it."""
        return self._descriptor is not None

    def acquire(self) -> bool:
        """Acquire it unless another process holds it. Returns whether it is held."""
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

    def release(self) -> None:
        """Release it. The lock file stays, because two processes could otherwise lock two different files."""
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
    """Make the rename durable. On a file system without that, the file itself is still complete."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
