"""Where the MCP endpoint is, if it is not where the definition says: the usual places on the same origin are dialed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast
from urllib.parse import urlsplit

import anyio

from holdfast.config.spec import ServerSpec, Transport
from holdfast.core.evidence import HttpStatus
from holdfast.doctor.case import Case
from holdfast.doctor.findings import Finding, finding, shell
from holdfast.doctor.probe import Probe, probe

__all__ = ["Place", "find_elsewhere", "nowhere", "wrong_place"]

SEARCH_SECONDS = 4.0
"""How long all the places together may take; the server's own deadline may be nearer."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Somewhere that an endpoint answered."""

    url: str
    transport: Transport
    asks_for_credentials: bool = False


async def find_elsewhere(case: Case) -> Place | None:
    """The first of the usual places where an endpoint answers; all are asked side by side."""
    places = list(_usual_places(case.spec))
    found: dict[int, Place] = {}
    deadline = anyio.current_time() + min(SEARCH_SECONDS, case.left)

    async def ask(number: int, place: Place) -> None:
        spec = replace(case.spec, url=place.url, transport=place.transport)
        seen = await probe(
            spec,
            dialer=case.tools.dialer,
            turnstile=case.tools.turnstile,
            redactor=case.redactor,
            deadline=deadline,
        )
        if seen.version or _asks_for_credentials(seen):
            found[number] = replace(place, asks_for_credentials=not seen.version)

    async with anyio.create_task_group() as tasks:
        for number, place in enumerate(places):
            tasks.start_soon(ask, number, place)
    ranked = sorted(found.items(), key=lambda item: (item[1].asks_for_credentials, item[0]))
    return ranked[0][1] if ranked else None


def wrong_place(case: Case, place: Place, why: str) -> Finding:
    """The finding for an endpoint that answers elsewhere."""
    edits = case.url_edit(place.url, transport=place.transport)
    path = urlsplit(place.url).path or "/"
    then = " (it asks for credentials there)" if place.asks_for_credentials else ""
    if place.transport == case.spec.transport:
        words = f"{why}; an MCP endpoint answers at {path}{then}"
        return finding("HF-PATH", words, "write that address", edits=edits)
    if place.transport == "sse":
        words = f"{why}; it is an SSE server, at {path}{then}"
        return finding("HF-TYPE-SSE", words, "write that type and address", edits=edits)
    words = f"{why}; it is a streamable HTTP server, at {path}{then}"
    return finding("HF-TYPE-HTTP", words, "write that type and address", edits=edits)


def nowhere(case: Case, why: str) -> Finding:
    """The finding for an endpoint that answers nowhere."""
    paths = dict.fromkeys(urlsplit(place.url).path or "/" for place in _usual_places(case.spec))
    words = f"{why}; nor does an MCP endpoint answer at {', '.join(paths)}"
    text = "look up the path in the server's documentation and write it into `url`; this shows what answers now"
    return finding("HF-PATH", words, text, shell("curl", "-i", case.target))


def _usual_places(spec: ServerSpec) -> Iterator[Place]:
    """The same path with the other transport or slash, then the usual paths; each once, in the order of likelihood."""
    parts = urlsplit(spec.url)
    path = parts.path or "/"
    bare = path.rstrip("/")
    other = "http" if spec.transport == "sse" else "sse"
    wanted = [
        (bare or "/", spec.transport),
        (f"{bare}/", spec.transport),
        (f"{bare}/mcp", "http"),
        ("/mcp", "http"),
        ("/mcp/", "http"),
        (path, other),
        (f"{bare}/sse", "sse"),
        ("/sse", "sse"),
    ]
    for there, transport in dict.fromkeys(wanted):
        if (there, transport) != (path, spec.transport):
            yield Place(url=parts._replace(path=there).geturl(), transport=cast("Transport", transport))


def _asks_for_credentials(seen: Probe) -> bool:
    return isinstance(seen.evidence, HttpStatus) and seen.evidence.status == 401
