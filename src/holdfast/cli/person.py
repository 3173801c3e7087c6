"""The login dialog on a terminal: shows an address or a code, and reads a pasted address."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from rich.text import Text

from holdfast.cli.output import side_console
from holdfast.core.redact import plain

if TYPE_CHECKING:
    from holdfast.auth.device import DeviceCode

__all__ = ["LoginPrompt", "has_browser"]

LONGEST_LINE = 64 * 1024


class LoginPrompt:
    """The user at a terminal, as ``holdfast.auth.login`` needs it."""

    def __init__(self, server: str, *, opens: bool, pastes: bool) -> None:
        self._server = server
        self._opens = opens
        self._pastes = pastes
        self._console = side_console()

    def asked_for(self, scope: tuple[str, ...], issuer: str) -> None:
        """Show the requested scopes first, so that the user can judge them."""
        what = " ".join(scope) if scope else "its default scopes"
        self._say(f"Logging in to {self._server} at {plain(issuer)}, requested scopes: {plain(what)}")

    def visit(self, address: str) -> None:
        """Open the browser if there is one, and show the address in any case."""
        if self._opens:
            self._say("Opening your browser. If nothing opens, visit this address:")
            threading.Thread(target=_open, args=(address,), name="browser", daemon=True).start()
        else:
            self._say("Visit this address with a browser:")
        self._show(address)
        if self._pastes:
            self._say("If the browser ends at a page that does not load, paste the address of that page here:")

    def enter(self, code: DeviceCode) -> None:
        """Show the device code."""
        self._say("Visit this address with any browser, on any machine:")
        self._show(code.complete_address or code.address)
        self._console.print(Text.assemble("and enter the code ", (code.user_code, "bold")), soft_wrap=True)
        self._say(f"The code is valid for {code.expires_in / 60:.0f} min. Waiting …")

    async def paste(self) -> str:
        """The next line of input. Waits forever if no line comes."""
        line = b""
        while self._pastes and b"\n" not in line and len(line) < LONGEST_LINE:
            with suppress(PermissionError):  # a plain file cannot be waited for, and can always be read
                await anyio.wait_readable(sys.stdin)
            part = os.read(sys.stdin.fileno(), LONGEST_LINE)
            if not part:
                break
            line += part
        if line.strip():
            return line.decode("utf-8", "replace").strip()
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _show(self, address: str) -> None:
        """Show an address on its own line, uncut, so that it can be copied."""
        self._console.print(Text(f"\n  {plain(address)}\n", style="cyan"), soft_wrap=True)


def has_browser(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a graphical browser can open. A text browser would take over the terminal."""
    names = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(environ.get(name) for name in names)


def _open(address: str) -> None:
    """Runs in a thread, because some browsers block until they are closed. After a failure the user has the address."""
    try:
        webbrowser.open(address)
    except webbrowser.Error:
        return
