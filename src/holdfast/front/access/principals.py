"""Which client sent a request, where the protocol does not say so.

A legacy client is its session, and a client on stdio is the pipe. The modern era has neither: each HTTP request
stands alone. Nothing in such a request tells two clients apart: a token may be shared, a connection pooled or
proxied, and two copies of a program have one name. So a client that wants to be recognised sends a key of its own.
A key is valid only together with the principal that sent it, so no other principal can use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp import MCPError
from mcp_types import INVALID_PARAMS

__all__ = [
    "CLIENT_HEADER",
    "CLIENT_META_KEY",
    "HOW_TO_BE_KNOWN",
    "ClientKey",
    "client_key_in",
]

CLIENT_HEADER = "Holdfast-Client"
_HEADER = CLIENT_HEADER.lower()
CLIENT_META_KEY = "holdfast/client"

HOW_TO_BE_KNOWN = (
    f"A client that sends the header `{CLIENT_HEADER}` with a random value of its own on every request "
    "is recognised and keeps its connection."
)

_KEY = re.compile(r"[A-Za-z0-9._~+/=-]{16,128}")
"""Long enough that two clients do not choose the same key by accident."""


@dataclass(frozen=True)
class ClientKey:
    """A client that sends a key; it owns its connections."""

    principal: str | None
    key: str = field(repr=False)


def client_key_in(
    headers: Mapping[str, str], principal: str | None, meta: Mapping[str, Any] | None = None
) -> ClientKey | None:
    """Return the client key in the headers of a request, or in its ``_meta``; None if it has none."""
    said = (headers.get(_HEADER), (meta or {}).get(CLIENT_META_KEY))
    keys = {str(key) for key in said if key is not None}
    if not keys:
        return None
    key = keys.pop()
    if keys or not _KEY.fullmatch(key):
        raise MCPError(
            INVALID_PARAMS,
            f"`{CLIENT_HEADER}` must be one random text of 16 to 128 letters and digits: the same on every request "
            "of one client, and different for each client",
        )
    return ClientKey(principal, key)
