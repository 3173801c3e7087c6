"""Who may call the hub, by the options of ``serve``."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["AcceptedJwt", "CallerAuth"]


@dataclass(frozen=True, kw_only=True)
class AcceptedJwt:
    """The JWTs that the hub accepts."""

    issuer: str
    audience: str
    keys: str
    """The URL of a JWKS, or the path of a public key."""


@dataclass(frozen=True, kw_only=True)
class CallerAuth:
    """How callers identify themselves. Without a token or a JWT, every local program may call."""

    token: str | None = field(default=None, repr=False)
    jwt: AcceptedJwt | None = None
    hosts: tuple[str, ...] = ()
    """Host names that requests may use, besides the usual ones."""
