"""Ends a listener so that no connection is left without an owner. It serves nothing itself."""

from __future__ import annotations

import asyncio

__all__ = ["stop_listening"]


async def stop_listening(listener: asyncio.Server) -> None:
    """Accept nothing more, let those who were just accepted reach their handler, then close.

    A server that is closed between the moment when the event loop accepts a connection and the moment when it
    makes a transport for it (a turn later) leaves that socket open, and to nobody, until it is collected as garbage.
    """
    loop = asyncio.get_running_loop()
    for accepting in listener.sockets:
        loop.remove_reader(accepting)
    try:
        await asyncio.sleep(0)  # one turn: whatever was accepted before it has its transport after it
    finally:
        listener.close()
