"""Locks that hold between processes: given back by the system when their holder ends, however it ends."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio

from holdfast.auth.grant import GrantKey

__all__ = ["renewing", "writing"]

PAUSE = 0.05
"""Seconds between two tries: another process renews within a fraction of a second, and a try costs microseconds."""


@contextmanager
def writing(folder: Path, name: str = "auth.lock") -> Iterator[None]:
    """While a store is read, changed and written: a matter of milliseconds, so whoever comes second just waits."""
    descriptor = _open(folder / name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@asynccontextmanager
async def renewing(folder: Path, key: GrantKey) -> AsyncIterator[None]:
    """While one grant is renewed: of all processes one asks, and the others find what it was given."""
    which = hashlib.blake2s("\n".join(key).encode(), digest_size=8).hexdigest()
    descriptor = _open(folder / f"auth-{which}.lock")
    try:
        while not _taken(descriptor):  # noqa: ASYNC110 - another process's matter
            await anyio.sleep(PAUSE)
        yield
    finally:
        os.close(descriptor)


def _open(file: Path) -> int:
    """The file stays when the lock is given back: were it removed, two could each lock one of their own."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
