"""What depends on the operating system: commands to paste, and the resolver.

The system's resolver cannot be interrupted, and takes half a minute if the name server does not answer. It
runs in a daemon thread, so that deadlines, and the end of the program, come first.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from contextlib import suppress

from holdfast.doctor.report import shell

__all__ = ["LISTENERS", "SET_CLOCK", "lookup", "resolve", "show_route"]

_MAC = sys.platform == "darwin"

LISTENERS = "lsof -nP -iTCP -sTCP:LISTEN" if _MAC else "ss -ltn"
"""Lists the ports that are open on this machine."""

SET_CLOCK = "sudo sntp -sS time.apple.com" if _MAC else "sudo timedatectl set-ntp true"


def lookup(host: str) -> str:
    """The command that shows the addresses of a host."""
    return shell("dscacheutil", "-q", "host", "-a", "name", host) if _MAC else shell("getent", "hosts", "--", host)


def show_route(address: str) -> str:
    """The command that shows the route to an address."""
    return shell("route", "-n", "get", address) if _MAC else shell("ip", "route", "get", address)


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
