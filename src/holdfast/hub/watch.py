"""Look from outside whether somebody listens again: a bare TCP connect, closed at once (LIFE-22)."""

from __future__ import annotations

import anyio

__all__ = ["look"]

LOOK_SECONDS = 1.0
"""A host that takes longer to accept a connection does not listen yet."""


async def look(host: str, port: int) -> bool:
    """Whether a connection was accepted."""
    try:
        with anyio.fail_after(LOOK_SECONDS):
            stream = await anyio.connect_tcp(host, port, happy_eyeballs_delay=0.1)
    except (OSError, TimeoutError, ValueError):  # the last for a name that no resolver can be asked for
        return False
    await anyio.aclose_forcefully(stream)
    return True
