"""Files that several processes of one user share: replace atomically, lock, set aside, keep private.

The module knows nothing of what the files hold. It imports nothing of Holdfast, so every package may use it.
All functions block for a moment; an async caller runs them in a thread where that matters.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

__all__ = [
    "PRIVATE_FILE",
    "PRIVATE_FOLDER",
    "FileLock",
    "FileStamp",
    "NotPrivate",
    "file_stamp",
    "locked",
    "make_private",
    "make_secret",
    "private_folder",
    "read_private",
    "read_secret",
    "replace_file",
    "require_private",
    "set_aside",
    "set_aside_once",
]

PRIVATE_FILE = 0o600
"""The mode of a file that only its owner may read."""

PRIVATE_FOLDER = 0o700
"""The mode of a folder that only its owner may enter."""


FileStamp: TypeAlias = "tuple[int, ...] | None"


def replace_file(file: Path, content: str | bytes, *, mode: int = PRIVATE_FILE, keep_mode: bool = False) -> None:
    """Replace a file atomically: a reader sees the old content or the new one, never a part.

    The content is on the disk before the name changes, so a full disk or a power cut leaves the old file. The
    temporary file is private from the moment it exists. With ``keep_mode``, a file that exists keeps its mode and
    ``mode`` is for a new one. Line ends are written as they are. Raises ``OSError``; then nothing has changed.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    if keep_mode:
        with suppress(FileNotFoundError):
            mode = file.stat().st_mode & 0o7777
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(temporary, file)  # noqa: PTH105 - the atomic call, named as in the documentation
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108 - mkstemp gave a text
        raise
    _sync_folder(file.parent)


def file_stamp(file: Path) -> FileStamp:
    """Identifies one state of a file; None if it does not exist. Links are followed."""
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


def set_aside(file: Path) -> Path:
    """Rename a damaged file to ``NAME.corrupt-N``, with the first free number; returns its new path."""
    number = 1
    while (aside := file.with_name(f"{file.name}.corrupt-{number}")).exists():
        number += 1
    os.replace(file, aside)  # noqa: PTH105 - the atomic call, named as in the documentation
    return aside


def set_aside_once(file: Path, seen: FileStamp) -> Path | None:
    """Set aside the damaged file that was ``seen``; None if another process did, and the name is that of a new file."""
    with locked(file.with_name(f"{file.name}.lock")):
        now = file_stamp(file)
        if seen is None or now is None or now[:2] != seen[:2]:
            return None
        return set_aside(file)


def private_folder(folder: Path) -> Path:
    """Create a folder that only its owner may enter, with its parents. One that exists keeps its mode.

    The parents are private too, as the XDG specification asks; ``mkdir(parents=True)`` would open them to others.
    """
    for parent in reversed(folder.parents):
        if not parent.exists():
            parent.mkdir(exist_ok=True, mode=PRIVATE_FOLDER)
    folder.mkdir(exist_ok=True, mode=PRIVATE_FOLDER)
    return folder


def make_private(folder: Path) -> list[Path]:
    """Take a folder of our own, and every file in it, from other users; returns what was open to them.

    Links are not followed, and what belongs to another user is left alone.
    """
    corrected: list[Path] = []
    below = [Path(at) / name for at, folders, files in os.walk(folder) for name in (*folders, *files)]
    for path in (folder, *below):
        with suppress(OSError):
            found = path.lstat()
            is_link = stat.S_ISLNK(found.st_mode)
            if not is_link and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
                # No bit is added: a file that its owner may not write stays so.
                path.chmod(stat.S_IMODE(found.st_mode) & PRIVATE_FOLDER)
                corrected.append(path)
    return corrected


LARGEST_SECRET = 1 << 20
"""Bytes; a file with tokens or keys is smaller."""


class NotPrivate(PermissionError):
    """Other users can read or write a file that holds a secret; ``command`` corrects it."""

    def __init__(self, file: Path) -> None:
        super().__init__(f"other users of this machine can read or write {file}")
        self.command = f"chmod 600 {shlex.quote(str(file))}"


def read_secret(file: Path) -> str:
    """The text of a file that only its owner can read; raises ``NotPrivate``, ``OSError`` or ``UnicodeDecodeError``."""
    return read_private(file).decode("utf-8")


def read_private(file: Path, *, largest: int = LARGEST_SECRET) -> bytes:
    """The first bytes of a file that only its owner can read; raises ``NotPrivate`` or ``OSError``.

    The checked file is the one that is read, also if its path changes meanwhile.
    """
    with file.open("rb") as stream:
        _check_private(file, os.fstat(stream.fileno()))
        return stream.read(largest)


def make_secret(file: Path) -> bool:
    """Make a file with a random secret where there is none; whether it was made now. Raises ``OSError``.

    Two processes that start together must not make two secrets: what one of them sealed would be lost.
    """
    with locked(file.with_name(f"{file.name}.lock")):
        if file.exists():
            return False
        replace_file(file, f"{os.urandom(48).hex()}\n")
        return True


def require_private(file: Path) -> None:
    """Raise ``NotPrivate`` if other users can read or write a file."""
    _check_private(file, file.stat())


def _check_private(file: Path, found: os.stat_result) -> None:
    """A file of root may be readable by its group: so a container gets a mounted secret, which it does not own."""
    allowed = 0o740 if found.st_uid == 0 else 0o700
    if stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) & ~allowed & 0o077:
        raise NotPrivate(file)


class FileLock:
    """A lock between processes. The system releases it when its holder ends, also after a kill.

    The lock file stays after a release. If it were removed, two processes could each lock a file of their own.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free; returns whether this object holds it now."""
        if self._descriptor is None:
            try:
                self._descriptor = _lock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def release(self) -> None:
        """Let another process have the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock while the block runs; waits for it. Use it for steps that take milliseconds.

    The folder of the lock file is created, private, where there is none.
    """
    private_folder(file.parent)
    descriptor = _lock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(file: Path, operation: int) -> int:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, operation)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut. Where a file system cannot do that, the file is whole all the same."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
