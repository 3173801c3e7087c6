"""Whoever sits at the terminal, as a login asks them: shown an address or a code, and listened to."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Mapping
from contextlib import suppress

import anyio
from rich.text import Text

from holdfast.auth.device import DeviceCode
from holdfast.cli.output import side_console
from holdfast.core.redact import plain

__all__ = ["AtTerminal", "has_browser"]

LONGEST_LINE = 64 * 1024


class AtTerminal:
    """A person at the terminal (the ``Person`` of ``holdfast.auth.login``)."""

    def __init__(self, server: str, *, opens: bool, pastes: bool) -> None:
        self._server = server
        self._opens = opens
        self._pastes = pastes
        self._console = side_console()

    def asked_for(self, scope: tuple[str, ...], issuer: str) -> None:
        """Say it before anything is asked: what will be granted is for the person to judge."""
        what = " ".join(scope) if scope else "whatever it grants by default"
        self._say(f"Logging in to {self._server} at {plain(issuer)}, asking for: {plain(what)}")

    def visit(self, address: str) -> None:
        """Open the browser if there is one here, and show the address in any case."""
        if self._opens:
            self._say("Opening your browser. If nothing opens, visit this address:")
            threading.Thread(target=_open, args=(address,), name="browser", daemon=True).start()
        else:
            self._say("Visit this address with a browser:")
        self._show(address)
        if self._pastes:
            self._say("If the browser ends up at a page that cannot be loaded, paste its address here:")

    def enter(self, code: DeviceCode) -> None:
        """Show the code."""
        self._say("Visit this address with any browser, on any machine:")
        self._show(code.complete_address or code.address)
        self._console.print(Text.assemble("and enter the code ", (code.user_code, "bold")), soft_wrap=True)
        self._say(f"It is good for {code.expires_in / 60:.0f} min. Waiting …")

    async def paste(self) -> str:
        """The next line that is typed; waits for ever where nobody types."""
        line = b""
        while self._pastes and b"\n" not in line and len(line) < LONGEST_LINE:
            with suppress(PermissionError):  # a plain file: it can be read at any time, and not be waited for
                await anyio.wait_readable(sys.stdin)
            part = os.read(sys.stdin.fileno(), LONGEST_LINE)
            if not part:
                break
            line += part
        if line.strip():
            return line.decode("utf-8", "replace").strip()
        await anyio.sleep_forever()
        raise AssertionError("that never ends")

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _show(self, address: str) -> None:
        """On a line of its own, whole, so that it can be copied."""
        self._console.print(Text(f"\n  {plain(address)}\n", style="cyan"), soft_wrap=True)


def has_browser(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a browser that opens here is one that the person sees; a text browser would take over the terminal."""
    names = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(environ.get(name) for name in names)


def _open(address: str) -> None:
    """In a thread: some browsers come back only when they are closed. One that fails leaves the address to be read."""
    try:
        webbrowser.open(address)
    except webbrowser.Error:
        return
