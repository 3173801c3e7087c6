"""Finds the MCP endpoint if it is not at the configured URL: dials the usual paths on the same origin."""

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

__all__ = ["Endpoint", "find_endpoint", "no_endpoint", "wrong_endpoint"]

SEARCH_SECONDS = 4.0
"""The longest time in seconds for all endpoints together; the server's own deadline may end earlier."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A URL and a transport at which an endpoint may answer."""

    url: str
    transport: Transport
    asks_for_credentials: bool = False


async def find_endpoint(case: Case) -> Endpoint | None:
    """The most likely endpoint that answers; all are dialed at the same time."""
    endpoints = list(_usual_endpoints(case.spec))
    found: dict[int, Endpoint] = {}
    deadline = anyio.current_time() + min(SEARCH_SECONDS, case.left)

    async def ask(number: int, endpoint: Endpoint) -> None:
        spec = replace(case.spec, url=endpoint.url, transport=endpoint.transport)
        seen = await probe(
            spec,
            dialer=case.tools.dialer,
            turnstile=case.tools.turnstile,
            redactor=case.redactor,
            deadline=deadline,
        )
        if seen.version or _asks_for_credentials(seen):
            found[number] = replace(endpoint, asks_for_credentials=not seen.version)

    async with anyio.create_task_group() as tasks:
        for number, endpoint in enumerate(endpoints):
            tasks.start_soon(ask, number, endpoint)
    ranked = sorted(found.items(), key=lambda item: (item[1].asks_for_credentials, item[0]))
    return ranked[0][1] if ranked else None


def wrong_endpoint(case: Case, endpoint: Endpoint, why: str) -> Finding:
    """The finding for an endpoint at another URL."""
    edits = case.url_edit(endpoint.url, transport=endpoint.transport)
    path = urlsplit(endpoint.url).path or "/"
    then = " (it asks for credentials there)" if endpoint.asks_for_credentials else ""
    if endpoint.transport == case.spec.transport:
        words = f"{why}; an MCP endpoint answers at {path}{then}"
        return finding("HF-PATH", words, "write this address", edits=edits)
    if endpoint.transport == "sse":
        words = f"{why}; it is an SSE server, at {path}{then}"
        return finding("HF-TYPE-SSE", words, "write this type and address", edits=edits)
    words = f"{why}; it is a streamable HTTP server, at {path}{then}"
    return finding("HF-TYPE-HTTP", words, "write this type and address", edits=edits)


def no_endpoint(case: Case, why: str) -> Finding:
    """The finding for an endpoint that answers no_endpoint."""
    paths = dict.fromkeys(urlsplit(endpoint.url).path or "/" for endpoint in _usual_endpoints(case.spec))
    words = f"{why}; no MCP endpoint answers at {', '.join(paths)}"
    text = "look up the path in the server's documentation and write it into `url`; this command shows the answer"
    return finding("HF-PATH", words, text, shell("curl", "-i", case.target))


def _usual_endpoints(spec: ServerSpec) -> Iterator[Endpoint]:
    """The same path with the other transport or slash, then the usual paths, the most likely first."""
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
            yield Endpoint(url=parts._replace(path=there).geturl(), transport=cast("Transport", transport))


def _asks_for_credentials(seen: Probe) -> bool:
    return isinstance(seen.evidence, HttpStatus) and seen.evidence.status == 401
