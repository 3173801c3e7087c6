"""Checks whether a server listens again: one bare TCP connect, closed at once (LIFE-22)."""

from __future__ import annotations

import anyio

__all__ = ["is_listening"]

LOOK_SECONDS = 1.0
"""A host that takes longer to accept a connection is not listening yet."""


async def is_listening(host: str, port: int) -> bool:
    """Whether a connection was accepted."""
    try:
        with anyio.fail_after(LOOK_SECONDS):
            stream = await anyio.connect_tcp(host, port, happy_eyeballs_delay=0.1)
    except (OSError, TimeoutError, ValueError):  # ValueError: a host name that no resolver accepts
        return False
    await anyio.aclose_forcefully(stream)
    return True
