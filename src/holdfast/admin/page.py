"""The status page's files, served as they are: a shell without data, which asks the control API for everything.

They hold nothing that is anyone's, so they need no token. What they may do in a browser is said in their
headers: scripts and styles of this hub alone, requests to this hub alone, no frame around them.
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
        # No script can turn a text into markup: whatever a server calls itself stays a text.
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Asked for again each time, and answered with 304 while it is the same: a new hub never meets an old page.
    "cache-control": "no-cache",
}

# What a machine's own registry says about these differs; with nosniff a wrong answer is an empty page.
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}


@dataclass(frozen=True)
class _File:
    body: bytes
    kind: str
    tag: str


def page_routes() -> list[Route]:
    """``/`` and ``/static/…``, to be put among the routes of the hub's application."""
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


def _files() -> dict[str, _File]:
    folder = files("holdfast.admin") / "static"
    return {file.name: _file(file.name, file.read_bytes()) for file in folder.iterdir() if file.is_file()}


def _file(name: str, body: bytes) -> _File:
    kind = _KINDS[name[name.rfind(".") :]]
    return _File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _answer(request: Request, file: _File) -> Response:
    headers = {**HEADERS, "etag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.kind, headers=headers)
