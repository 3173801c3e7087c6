"""The files of the status page. They contain no data of the hub: the page reads the control API. So they need no token.

The only texts that are filled in are the command that signs a browser in, and whether the browser is signed in already.
Their headers limit what they may do in a browser: only scripts, styles and requests of this hub, and no frame around
them.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from holdfast.core import command_line, is_loopback

__all__ = ["HEADERS", "page_routes", "sign_in_command"]

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
