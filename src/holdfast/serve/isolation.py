"""Keeps the secrets of this process from the servers that it starts, which run as the same user (SEC-21).

The environment, the memory and the descriptors of a process are files under ``/proc`` that its user may read. A
process that is not dumpable is an exception: only root may. That also means: no core dumps, and no debugger or
profiler without root. A process is dumpable again after ``exec``. So one that this program starts again (a worker, a
successor) gets its variables by a descriptor, which it reads once it is closed to others; ``/proc/…/environ`` shows
what a process began with, and nothing that was set later.

macOS has no such setting. A hub that runs as root has servers that are root: they may read everything.
"""

from __future__ import annotations

import ctypes
import os
import socket
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping
    from typing import Final

__all__ = ["ENVIRON_VARIABLE", "hidden_environment", "isolate"]

ENVIRON_VARIABLE: Final = "HOLDFAST_ENVIRON"
"""Names the descriptor from which a process that we started reads its variables."""

_PR_SET_DUMPABLE: Final = 4

_OPEN: Final = (
    *("HOME", "LANG", "LC_", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "VIRTUAL_ENV", "PYTHON", "__PYVENV_LAUNCHER__"),
    *("LD_", "DYLD_", "MALLOC_", "GLIBC_TUNABLES", "COVERAGE_", "COV_CORE_", "HOLDFAST_TEST_"),
)
"""How the names begin that the loader, the C library and Python read before our first line runs. The rest is hidden."""

_MOST_HIDDEN: Final = 128 * 1024
"""Bytes: all of them must find room in the buffer of a socket. More than that is passed on as usual."""

_READ_SECONDS: Final = 10.0


def isolate(environ: MutableMapping[str, str] = os.environ) -> None:
    """Close this process to others of its user, and let no child inherit what its launcher left open."""
    with suppress(OSError, AttributeError):  # not on this system
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):  # noqa: PTH208 - every command runs this: names are enough
            with suppress(OSError, ValueError):  # that of the listing itself is closed again
                if int(name) > 2:
                    os.set_inheritable(int(name), False)
    _take_hidden(environ)


@contextmanager
def hidden_environment(environ: Mapping[str, str]) -> Iterator[tuple[dict[str, str], int]]:
    """The variables to start a process of this program with, and the descriptor to pass on, which has the others."""
    hidden = {name: value for name, value in environ.items() if not name.startswith(_OPEN)}
    data = b"\0".join(os.fsencode(f"{name}={value}") for name, value in hidden.items())
    if len(data) > _MOST_HIDDEN:
        hidden, data = {}, b""
    ours, theirs = socket.socketpair()  # a pipe or a file could be opened under /proc until the process is closed
    with theirs:
        with ours:
            for end, room in ((ours, socket.SO_SNDBUF), (theirs, socket.SO_RCVBUF)):
                end.setsockopt(socket.SOL_SOCKET, room, 2 * _MOST_HIDDEN)  # macOS has 8 KiB, and then this would hang
            ours.sendall(data)
        shown = {name: value for name, value in environ.items() if name not in hidden}
        yield {**shown, ENVIRON_VARIABLE: str(theirs.fileno())}, theirs.fileno()


def _take_hidden(environ: MutableMapping[str, str]) -> None:
    text = environ.pop(ENVIRON_VARIABLE, "")
    if not text.isdigit():
        return
    data = b""
    with suppress(OSError), socket.socket(fileno=int(text)) as given:
        given.settimeout(_READ_SECONDS)
        while part := given.recv(64 * 1024):
            data += part
    for one in filter(None, data.split(b"\0")):
        name, _, value = os.fsdecode(one).partition("=")
        environ[name] = value
