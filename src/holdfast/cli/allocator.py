"""Keeps the memory that large messages used for the next ones.

The C library gives large pieces back to the system, and gets them again page by page. A message of 10 MB took some 300
pages, and up to a fifth more CPU time for them on a virtual machine (PERF-6).
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

__all__ = ["keep_freed_memory"]

KEPT_BYTES: Final = 32 * 1024 * 1024
"""How much free memory stays with the process: two messages of the largest size."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """From now on. A C library other than glibc goes on as it does."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, KEPT_BYTES)
