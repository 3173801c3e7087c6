"""One document from an HTTP address: bounded in time and size, its credentials kept to their origin."""

from __future__ import annotations

import anyio
import httpx2

from holdfast.config.spec import HeaderSource, Limits, ServerSpec
from holdfast.core.evidence import TimedOut
from holdfast.core.redact import Redactor
from holdfast.errors import ServerFailure
from holdfast.wire.http_client import HttpPeer, read_bounded

__all__ = ["fetch"]

LARGEST = 16 << 20


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
