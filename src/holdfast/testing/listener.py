"""Closes a listener so that no connection is left without an owner."""

from __future__ import annotations

import asyncio

__all__ = ["stop_listening"]


async def stop_listening(listener: asyncio.Server) -> None:
    """Accept nothing more, let accepted connections reach their handler, then close.

    The event loop accepts a connection in one turn and makes its transport in the next. A server that is closed in
    between leaves that socket open without an owner, until it is garbage-collected.
    """
    loop = asyncio.get_running_loop()
    for accepting in listener.sockets:
        loop.remove_reader(accepting)
    try:
        await asyncio.sleep(0)  # one turn: after it, every accepted connection has its transport
    finally:
        listener.close()
