"""Which client a request is of, where the protocol does not say so.

A legacy client is its session, and a client on a pipe is the pipe. The modern era has neither: each of its HTTP
requests stands alone. Nothing that such a request carries by itself tells two clients apart: a token may be
shared, a connection pooled or proxied, and the name of a program is every copy's. So a client that wants to be
known from one request to the next says so itself, by a key of its own. A key counts together with whoever showed
the token, so that nobody can take another's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp_types import INVALID_PARAMS
from starlette.datastructures import Headers

__all__ = ["CLIENT_HEADER", "CLIENT_META_KEY", "HOW_TO_BE_KNOWN", "Named", "named_by", "named_client", "principal_of"]

CLIENT_HEADER = "Holdfast-Client"
CLIENT_META_KEY = "holdfast/client"

HOW_TO_BE_KNOWN = (
    f"A client that sends the header `{CLIENT_HEADER}`, with a random value of its own, on each of its requests "
    "is known again and keeps its connection."
)

_KEY = re.compile(r"[A-Za-z0-9._~+/=-]{16,128}")
"""Long enough that no two clients choose the same by accident, as they would with names."""


@dataclass(frozen=True)
class Named:
    """A client that says who it is; the owner of its connections."""

    principal: str | None
    key: str = field(repr=False)


def named_client(ctx: ServerRequestContext[Any, Any]) -> Named | None:
    """The client that a request says it is of; None if it does not say."""
    meta = (ctx.params or {}).get("_meta")
    said = meta.get(CLIENT_META_KEY) if isinstance(meta, Mapping) else None
    scope = getattr(ctx.request, "scope", None) or {}
    return named_by(scope, *(() if said is None else (said,)))


def named_by(scope: Mapping[str, Any], *said: object) -> Named | None:
    """The same by the headers of an HTTP request, and by what it says elsewhere."""
    keys = {*(Headers(raw=scope["headers"]).getlist(CLIENT_HEADER) if "headers" in scope else ()), *map(str, said)}
    if not keys:
        return None
    key = keys.pop()
    if keys or not _KEY.fullmatch(key):
        raise MCPError(
            INVALID_PARAMS,
            f"`{CLIENT_HEADER}` must be one random text of 16 to 128 letters and digits, the same on each request "
            "of a client and no other client's",
        )
    return Named(_principal(scope), key)


def principal_of(ctx: ServerRequestContext[Any, Any]) -> str | None:
    """Whose token the request showed; None where none is asked for."""
    return _principal(getattr(ctx.request, "scope", None) or {})


def _principal(scope: Mapping[str, Any]) -> str | None:
    principal = scope.get("holdfast.principal")
    return principal if isinstance(principal, str) else None
