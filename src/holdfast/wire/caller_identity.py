"""Tells a server who calls, with each request: its name in a header, or an assertion that the hub signs (SEC-20).

A connection is shared by principals, so nothing of it says who calls: the header is made for each request, from the
caller of that request alone. A request that the hub makes by itself, such as a list, has none. The caller's own token
is never sent, and no header of a client is passed on, so a client cannot write these headers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import quote, urlsplit

from holdfast.config import IDENTITY_HEADERS, ServerSpec
from holdfast.wire.in_flight import Caller

__all__ = ["CallerIdentity", "SignAssertion"]

SignAssertion: TypeAlias = Callable[[str, str], str]
"""A signed assertion about a principal, by its name, for an audience."""

_PLAIN: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
"""What stands in a header as it is: other characters are coded as in an address."""


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """What one server is told about callers. ``sign`` of None writes the name as it is."""

    audience: str
    sign: SignAssertion | None

    @classmethod
    def of(cls, spec: ServerSpec, sign: SignAssertion | None) -> CallerIdentity | None:
        """What a server with this definition is told; None for nothing."""
        if spec.identity == "none":
            return None
        return cls(_audience(spec.url), sign if spec.identity == "signed" else None)

    def headers(self, caller: Caller | None) -> dict[str, str]:
        """The headers of a request for a caller."""
        if caller is None or not caller.principal:
            return {}
        if self.sign is None:
            return {IDENTITY_HEADERS["header"].lower(): quote(caller.principal, safe=_PLAIN)}
        return {IDENTITY_HEADERS["signed"].lower(): self.sign(caller.principal, self.audience)}


def _audience(url: str) -> str:
    """The address of a server without what may be secret in it: user info and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
