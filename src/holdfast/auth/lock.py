"""The lock that one process holds while it renews a grant."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from holdfast.auth.grant import GrantKey
from holdfast.files import FileLock, private_folder

__all__ = ["renewing"]

LOCK_PAUSE = 0.05
"""Seconds between two tries: another process renews within a fraction of a second, and a try costs microseconds."""


@asynccontextmanager
async def renewing(folder: Path, key: GrantKey) -> AsyncIterator[None]:
    """Hold the lock of one grant: one process asks the authorization server, the others find the result."""
    which = hashlib.blake2s("\n".join(key).encode(), digest_size=8).hexdigest()
    lock = FileLock(private_folder(folder) / f"auth-{which}.lock")
    try:
        while not lock.try_acquire():  # noqa: ASYNC110 - the lock belongs to another process
            await anyio.sleep(LOCK_PAUSE)
        yield
    finally:
        lock.release()
