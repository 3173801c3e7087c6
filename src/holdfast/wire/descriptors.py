"""File descriptors: a hub that runs out of them says so, and blames no server for it (LIFE-30).

A connection that needs a descriptor of the last few is refused, so that clients of the hub can still connect.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import time

from holdfast.core import OutOfDescriptors
from holdfast.errors import ServerFailure

__all__ = ["descriptor_shortage", "raise_descriptor_limit", "require_descriptors"]

log = logging.getLogger("holdfast.hub")

ENOUGH = 65_536
"""The limit to ask for. Some programs close every possible descriptor when they start, so more costs time."""

MOST_RESERVED = 64
"""How many descriptors are kept for clients, the state file and the log; an eighth of a small limit."""

SAY_AGAIN_SECONDS = 60.0


def raise_descriptor_limit() -> None:
    """Raise the soft limit of this process, as far as the system allows; call it once, at start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as exc:
        log.warning("the limit of %d file descriptors could not be raised: %s", soft, exc)
    else:
        log.debug("the limit of file descriptors was raised from %d to %d", soft, wanted)


def require_descriptors() -> None:
    """Raise ``ServerFailure`` if only the reserved descriptors are free."""
    limit = _limit()
    try:
        lowest_free = os.dup(_ANY)
    except OSError as exc:
        if exc.errno not in _NONE_FREE:
            return
        lowest_free = limit
    else:
        os.close(lowest_free)
    if lowest_free >= limit - min(MOST_RESERVED, limit // 8):
        _say(limit)
        raise ServerFailure(OutOfDescriptors(limit=limit))


def descriptor_shortage(exc: BaseException) -> OutOfDescriptors | None:
    """The evidence of an exception, or of what caused it, if the process had no free descriptor."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [exc]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, OSError) and one.errno in _NONE_FREE:
            _say(limit := _limit())
            return OutOfDescriptors(limit=limit)
        inner = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        pending += [one.__cause__, one.__context__, getattr(one, "os_error", None), *inner]
    return None


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def _say(limit: int) -> None:
    """Log it, once in a while: every dial of a large fleet meets the same limit."""
    global _said_at  # noqa: PLW0603 - there is one process, and one limit
    now = time.monotonic()
    if _said_at is None or now - _said_at > SAY_AGAIN_SECONDS:
        _said_at = now
        log.error("the hub has no free file descriptors (limit %d): it makes no new connections until some are", limit)


_said_at: float | None = None
_NONE_FREE = (errno.EMFILE, errno.ENFILE)
_ANY = 0
