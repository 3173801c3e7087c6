"""Who may call the hub, as the command line says it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Callers", "Jwt"]


@dataclass(frozen=True, kw_only=True)
class Jwt:
    """Whose signed tokens are believed."""

    issuer: str
    audience: str
    keys: str
    """The address of a JWKS, or the path of a public key."""


@dataclass(frozen=True, kw_only=True)
class Callers:
    """Everybody on this machine, unless something here tells callers apart."""

    token: str | None = field(default=None, repr=False)
    jwt: Jwt | None = None
    hosts: tuple[str, ...] = ()
    """Names under which they may ask, beside the usual ones."""
