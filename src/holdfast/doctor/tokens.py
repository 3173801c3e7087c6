"""What a bearer token says of itself, where it is one that can be read. Nothing is verified, nothing is shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from holdfast.auth.claims import audience_of, unverified_claims
from holdfast.config.spec import ServerSpec

__all__ = ["TokenClaims", "claims_of", "configured_token", "is_for"]


@dataclass(frozen=True, kw_only=True)
class TokenClaims:
    """What a JSON web token says of itself."""

    expires: datetime | None = None
    audience: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


def configured_token(spec: ServerSpec) -> str:
    """The bearer token among the configured headers; empty where there is none."""
    headers = spec.headers if isinstance(spec.headers, Mapping) else {}
    value = next((value for name, value in headers.items() if name.lower() == "authorization"), "")
    kind, _, token = value.strip().partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def claims_of(token: str) -> TokenClaims | None:
    """What a token says of itself; None for one that says nothing to us."""
    claims = unverified_claims(token)
    if claims is None:
        return None
    expires = claims.get("exp")
    try:
        return TokenClaims(
            expires=datetime.fromtimestamp(float(expires), UTC) if isinstance(expires, int | float) else None,
            audience=audience_of(claims),
            scopes=tuple(str(claims.get("scope") or " ".join(_texts(claims.get("scp")))).split()),
        )
    except (ValueError, OverflowError, OSError):
        return None


def is_for(claims: TokenClaims, url: str) -> bool:
    """Whether a token's audience can be the server at ``url``; one that is no address may be anybody's name."""
    if not claims.audience:
        return True
    here = urlsplit(url)
    return any(not _is_address(audience) or urlsplit(audience).netloc == here.netloc for audience in claims.audience)


def _is_address(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
