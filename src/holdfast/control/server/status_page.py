"""The status page: its files, and the codes that sign a browser in to it.

The files contain no data of the hub: the page reads the control API. So they need no token. The only texts that are
filled in are the command that signs a browser in, and whether the browser is signed in already. Their headers limit
what they may do in a browser: only scripts, styles and requests of this hub, and no frame around them.

Two may use the control API without being a principal (``BrowserSessions``): the holder of the control token, and a
browser that signed in with a code. A code signs in one browser, once and for a short time; the browser gets a token of
its own, for a working day. Codes and tokens are signed and say when they expire, so nothing has to be remembered of
them, and every worker of one supervisor accepts what another one made: they have the same key. Only the use of a code
is remembered. Workers make a file for it, because a file can be made once; a hub alone keeps a list. A wrong code
counts as a wrong credential (``access.guard``): after many of them the answers come late, and a valid one is never
locked out.

What must never happen: a code works twice, one kind passes for the other, or something outlives a change of the control
token. So each kind is a purpose of its own, and the control token is bound to what is sealed.

The supervisor of workers makes codes too. It imports this module alone, so nothing here needs the API.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from holdfast.core import command_line, is_loopback
from holdfast.keys import KeyRing

__all__ = ["CODE_SECONDS", "HEADERS", "Access", "BrowserSessions", "page_routes", "sign_in_command"]

HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        # No script can turn text into markup, so the name of a server stays text.
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # A browser asks each time and gets 304 if nothing changed: a new hub never meets an old page.
    "cache-control": "no-cache",
}

# The registry of a machine may give other types; with nosniff a wrong type leaves the page empty.
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}


@dataclass(frozen=True)
class _StaticFile:
    body: bytes
    kind: str
    tag: str


def page_routes(
    *, by_issuer: bool = False, is_known: Callable[[Request], Awaitable[bool]] | None = None
) -> list[Route]:
    """Return the routes ``/`` and ``/static/…``. With ``by_issuer`` the page offers a sign-in at the issuer.

    ``is_known`` says whether a browser is signed in by what no script of the page can read.
    """
    kept = _files()
    shell = kept["index.html"]
    if by_issuer:
        shell = _file("index.html", shell.body.replace(b'data-issuer="no"', b'data-issuer="yes"'))
    known = _file("index.html", shell.body.replace(b'data-known="no"', b'data-known="yes"'))

    async def page(request: Request) -> Response:
        found = known if is_known is not None and await is_known(request) else shell
        return _answer(request, _with_command(found, sign_in_command(request)))

    async def static(request: Request) -> Response:
        found = kept.get(request.path_params["name"])
        if found is None:
            return JSONResponse({"error": "there is no such file"}, status_code=404)
        return _answer(request, found)

    return [Route("/", page), Route("/static/{name}", static)]


SIGN_IN = "holdfast status --open"
"""The command in the page as it is stored."""


def sign_in_command(request: Request) -> str:
    """The command that signs a browser in, for the one who asks.

    A path of this machine is told only on this machine: others could learn the name of a user from it.
    """
    client = request.client.host if request.client is not None else ""
    is_here = (
        is_loopback(client) and is_loopback(request.url.hostname or "") and "x-forwarded-for" not in request.headers
    )
    return command_line("status", "--open") if is_here else SIGN_IN


def _with_command(shell: _StaticFile, command: str) -> _StaticFile:
    if command == SIGN_IN:
        return shell
    return _file("index.html", shell.body.replace(SIGN_IN.encode(), html.escape(command).encode()))


def _files() -> dict[str, _StaticFile]:
    folder = files(__package__) / "static"
    return {file.name: _file(file.name, file.read_bytes()) for file in folder.iterdir() if file.is_file()}


def _file(name: str, body: bytes) -> _StaticFile:
    kind = _KINDS[name[name.rfind(".") :]]
    return _StaticFile(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _answer(request: Request, file: _StaticFile) -> Response:
    headers = {**HEADERS, "etag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.kind, headers=headers)


# Codes, and the tokens of signed-in pages.

Access: TypeAlias = Literal["control", "session"]

CODE_SECONDS: Final = 600.0
"""How long a code is valid: long enough for a person who reads the terminal before opening the page."""

SESSION_SECONDS: Final = 12 * 3600.0
"""How long a signed-in page may read and act: a working day. Then it must sign in again."""

TIME_BYTES: Final = 6


class BrowserSessions:
    """The control token, and the codes and browser tokens of one hub, or of all workers that have the same key."""

    def __init__(
        self,
        control_token: str,
        *,
        key: bytes = b"",
        used_in: Path | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Without a ``key`` it makes one. ``used_in`` is the folder in which workers note the codes that were used."""
        self._control_token = control_token
        self._ring = KeyRing([key or secrets.token_bytes(32)])
        self._used_in = used_in
        self._used: dict[str, float] = {}
        """The used codes, and when each expires."""
        self._wall = wall

    def __repr__(self) -> str:
        return f"<BrowserSessions {len(self._used)} codes used here>"

    def use_control_token(self, token: str) -> None:
        """Accept another control token from now on; pages that signed in with the old one are signed out."""
        self._control_token = token

    def access(self, token: str) -> Access | None:
        """The access that a bearer token gives; None if it is unknown."""
        if hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._control_token.encode()):
            return "control"
        return "session" if self.left(token) is not None else None

    def left(self, token: str) -> float | None:
        """How many seconds the token of a signed-in page is still valid; None if it is not."""
        return self._left("token", token)

    def new_code(self) -> str:
        """Make a code that signs in one browser."""
        return self._made("code", CODE_SECONDS)

    def sign_in(self, code: str) -> str | None:
        """Exchange a code for a token; None if the code is not valid. A code works once."""
        left = self._left("code", code)
        return self._made("token", SESSION_SECONDS) if left is not None and self._use(code, left) else None

    def _use(self, code: str, left: float) -> bool:
        """Use up a valid code; False if it was used already."""
        name, now = hashlib.sha256(code.encode()).hexdigest(), self._wall()
        if self._used_in is not None:
            return _made_file(self._used_in, name, now)
        self._used = {one: until for one, until in self._used.items() if until > now}
        if name in self._used:
            return False
        self._used[name] = now + left
        return True

    def _made(self, kind: Literal["code", "token"], seconds: float) -> str:
        until = int(self._wall() + seconds).to_bytes(TIME_BYTES, "big")
        return self._ring.seal_text(until, purpose=f"browser {kind}", about=self._about())

    def _left(self, kind: Literal["code", "token"], text: str) -> float | None:
        until = self._ring.open_text(text, purpose=f"browser {kind}", about=self._about())
        if until is None:
            return None
        seconds = int.from_bytes(until, "big") - self._wall()
        return seconds if seconds > 0 else None

    def _about(self) -> bytes:
        return hashlib.sha256(self._control_token.encode("utf-8", "surrogateescape")).digest()


def _made_file(folder: Path, name: str, now: float) -> bool:
    """Whether this is the first worker that makes the file. Files of codes that expired are removed."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    for old in folder.iterdir():
        with suppress(OSError):
            if old.stat().st_mtime < now - 2 * CODE_SECONDS:
                old.unlink()
    return True
