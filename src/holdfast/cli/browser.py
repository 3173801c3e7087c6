"""Opens an address in the user's browser without showing it to other users of the machine (SEC-10).

Every user can read the command line of every process, and the address of a sign-in is as good as a password. So the
browser gets another address: that of a small web server in this process, which redirects to the real one, once. On
Linux it redirects only a browser of this user: the kernel tells who is at the other end of a connection. Elsewhere the
browser opens a private file with a secret address of that server. A file alone would not do on Linux: browsers from
Snap and Flatpak cannot read it.
"""

from __future__ import annotations

import html
import os
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from holdfast.access import PeerUids

__all__ = ["open_privately"]

FETCH_SECONDS: Final = 60.0
"""How long a browser may take to come for the address: it may have to start first."""

REQUEST_SECONDS: Final = 2.0
"""A browser that connected sends its request at once."""

LONGEST_HEAD: Final = 16 * 1024

_SAFE: Final = "%/:?#[]@!$&'()*+,;=~-._"
"""The characters of an address that stay as they are."""

_HEADERS: Final = "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nContent-Length: 0\r\nConnection: close"


def open_privately(address: str, *, within: float = FETCH_SECONDS) -> bool:
    """Open an address; True when the browser of this user has it. Waits for that, and for a browser that blocks."""
    uids = PeerUids.open()
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            secret = secrets.token_urlsafe(24)
            own = f"http://127.0.0.1:{listener.getsockname()[1]}/{secret}"
            with _told(own, in_file=uids is None) as told:
                browser = _Browser(told)
                if not _redirect(listener, f"/{secret}", address, uids, browser, time.monotonic() + within):
                    return False
            browser.join()
            return True
    finally:
        if uids is not None:
            uids.close()


class _Browser(threading.Thread):
    """Runs the browser: some return at once, some when they are closed."""

    def __init__(self, address: str) -> None:
        super().__init__(name="browser", daemon=True)  # Ctrl-C ends the command, not the browser
        self._address = address
        self.failed = False
        self.start()

    def run(self) -> None:
        """Open the address."""
        try:
            self.failed = not webbrowser.open(self._address)
        except (webbrowser.Error, OSError):
            self.failed = True


@contextmanager
def _told(own: str, *, in_file: bool) -> Iterator[str]:
    """What the browser is told: the address itself, or that of a private file that leads to it."""
    if not in_file:
        yield own
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:  # only this user may enter it
        file = Path(folder) / "open.html"
        file.touch(mode=0o600)
        place = html.escape(own, quote=True)
        file.write_text(
            '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0;url={place}"><a href="{place}">Continue</a>\n',
            encoding="utf-8",
        )
        yield file.as_uri()


def _redirect(
    listener: socket.socket, path: str, address: str, uids: PeerUids | None, browser: _Browser, until: float
) -> bool:
    """Redirect the one who may have the address; False if no such browser came in time, or none could be opened."""
    listener.settimeout(0.1)  # then it is looked whether the browser failed
    while (left := until - time.monotonic()) > 0:
        if browser.failed:
            return False
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection, suppress(OSError):
            connection.settimeout(min(REQUEST_SECONDS, left))
            if uids is not None and uids.of(connection) != os.geteuid():
                continue  # another user: it may hold up no one
            asked = _asked(connection)
            if secrets.compare_digest(asked.encode(), path.encode()):
                place = quote(address, safe=_SAFE)  # an authorization server names a part of it
                connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {place}\r\n{_HEADERS}\r\n\r\n".encode())
                return True
            connection.sendall(f"HTTP/1.1 404 Not Found\r\n{_HEADERS}\r\n\r\n".encode())
    return False


def _asked(connection: socket.socket) -> str:
    """The path of a request; empty if it is none."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < LONGEST_HEAD:
        part = connection.recv(4096)
        if not part:
            break
        head += part
    words = head.split(b"\r\n", 1)[0].split(b" ")
    return words[1].decode("latin-1") if len(words) == 3 and words[0] == b"GET" else ""
