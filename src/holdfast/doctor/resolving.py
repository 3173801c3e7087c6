"""Looks up a host's addresses in a daemon thread.

The system's resolver cannot be interrupted, and takes half a minute if the name server does not answer. The
thread lets deadlines, and the end of the program, come first.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

__all__ = ["resolve"]


async def resolve(host: str, port: int) -> tuple[str, ...]:
    """The addresses of a host, without duplicates; raises ``socket.gaierror``."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[str, ...]] = loop.create_future()

    def look_up() -> None:
        found = _looked_up(host, port)
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(_settle, answer, found)

    threading.Thread(target=look_up, name=f"resolve {host}", daemon=True).start()
    return await answer


def _looked_up(host: str, port: int) -> tuple[str, ...] | OSError:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as exc:
        return exc
    except UnicodeError:
        return socket.gaierror(socket.EAI_NONAME, "not a valid host name")
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def _settle(answer: asyncio.Future[tuple[str, ...]], found: tuple[str, ...] | OSError) -> None:
    if answer.done():
        return
    if isinstance(found, OSError):
        answer.set_exception(found)
    else:
        answer.set_result(found)
