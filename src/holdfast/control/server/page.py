"""The files of the status page, served unchanged. They contain no data: the page reads the control API.

So they need no token. Their headers limit what they may do in a browser: only scripts, styles and requests of this
hub, and no frame around them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

__all__ = ["HEADERS", "page_routes"]

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


def page_routes() -> list[Route]:
    """Return the routes ``/`` and ``/static/…``."""
    kept = _files()
    shell = kept["index.html"]

    async def page(request: Request) -> Response:
        return _answer(request, shell)

    async def static(request: Request) -> Response:
        found = kept.get(request.path_params["name"])
        if found is None:
            return JSONResponse({"error": "there is no such file"}, status_code=404)
        return _answer(request, found)

    return [Route("/", page), Route("/static/{name}", static)]


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
