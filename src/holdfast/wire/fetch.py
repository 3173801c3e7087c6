"""One HTTP exchange with a peer that is no MCP server: bounded in time and size, credentials for its origin alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio
import httpx2

from holdfast.config.spec import HeaderSource, Limits, ServerSpec
from holdfast.core.evidence import TimedOut
from holdfast.core.redact import Redactor
from holdfast.errors import ServerFailure
from holdfast.wire.http_client import HttpPeer, read_bounded

__all__ = ["Answer", "ask", "fetch"]

LARGEST = 16 << 20
LARGEST_ANSWER = 1 << 20


@dataclass(frozen=True)
class Answer:
    """What came back; an error status is an answer too."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


async def fetch(
    url: str,
    *,
    headers: HeaderSource | None = None,
    allow_plain_http: bool = False,
    within: float = 10.0,
    largest: int = LARGEST,
) -> bytes:
    """The body of a GET; ``ServerFailure`` with its evidence if there is none, or an error status."""
    spec = ServerSpec(
        id="document", transport="http", url=url, headers=headers or {}, allow_plain_http=allow_plain_http
    )
    doing = "the document"
    with anyio.move_on_after(within):
        peer = HttpPeer(spec, Limits(message_bytes=largest), Redactor())
        try:
            async with peer.request("GET", httpx2.URL(url), headers={}, doing=doing) as response:
                if response.is_success:
                    return await read_bounded(response, peer.limits)
                raise ServerFailure((await peer.refusal(response))[0])
        finally:
            with anyio.CancelScope(shield=True):
                await peer.aclose()
    raise ServerFailure(TimedOut(doing=doing, after=within))


async def ask(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
    doing: str,
    within: float = 10.0,
    on_sending: Callable[[], None] | None = None,
) -> Answer:
    """One request and its answer, an error status too; ``ServerFailure`` if there is none."""
    with anyio.move_on_after(within):
        peer = HttpPeer(
            ServerSpec(id="authorization", transport="http", url=url), Limits(message_bytes=LARGEST_ANSWER), Redactor()
        )
        try:
            async with peer.request(
                method, peer.url, headers=headers or {}, content=content, doing=doing, on_sending=on_sending
            ) as response:
                return Answer(response.status_code, response.headers, await read_bounded(response, peer.limits))
        finally:
            with anyio.CancelScope(shield=True):
                await peer.aclose()
    raise ServerFailure(TimedOut(doing=doing, after=within))
