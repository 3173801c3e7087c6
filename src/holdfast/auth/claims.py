"""What an access token says of itself, where it is a JWT. Nothing is verified here: only its server can do that."""

from __future__ import annotations

from typing import Any

import jwt

from holdfast.auth.addresses import covers
from holdfast.core import quoted_name
from holdfast.errors import LoginFailed

__all__ = ["audience_of", "check_audience", "unverified_claims"]


def unverified_claims(token: str) -> dict[str, Any] | None:
    """The claims of a JWT as it states them; None for a token that is no JWT.

    Use them to explain a refusal to a person, never to decide who the caller is.
    """
    try:
        return jwt.decode(token, options={"verify_signature": False})
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        return None


def audience_of(claims: dict[str, Any]) -> tuple[str, ...]:
    """The names in ``aud``, which is one text or a list."""
    named = claims.get("aud")
    if isinstance(named, str):
        return (named,)
    return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()


def check_audience(token: str, resource: str) -> None:
    """Raise ``LoginFailed`` if a token says that it is for another server.

    Most tokens say nothing, or name their audience by a word that only their issuer understands; then the server
    decides. A token that names addresses, none of them the server's, is for another server.
    """
    named = audience_of(unverified_claims(token) or {})
    addresses = [name for name in named if name.lower().startswith(("http:", "https:"))]
    if addresses and not any(covers(name, resource) or covers(resource, name) for name in addresses):
        raise LoginFailed(
            f"the authorization server gave a token for another server: {quoted_name(', '.join(addresses), 200)}",
            hint=f"Holdfast asked for a token for {resource}: the authorization server must support the `resource`"
            " parameter",
        )
