"""Whom an access token is meant for, as far as the token itself says so."""

from __future__ import annotations

import base64
import binascii

from holdfast.auth.addresses import covers
from holdfast.auth.tokens import document
from holdfast.core.redact import plain
from holdfast.errors import LoginFailed

__all__ = ["meant_for"]


def meant_for(token: str, resource: str) -> None:
    """Raise ``LoginFailed`` if a token says that it is for another server.

    Most tokens say nothing, or name their audience by a word that only their issuer understands: then it is
    for the server to judge. One that names addresses, and none that covers the server, is somebody else's.
    """
    addresses = [name for name in _audience(token) if name.lower().startswith(("http:", "https:"))]
    if addresses and not any(covers(name, resource) or covers(resource, name) for name in addresses):
        raise LoginFailed(
            f"the authorization server gave a token for another server: {plain(', '.join(addresses))[:200]}",
            hint=f"it was asked for one for {resource}: whoever runs it must let it honour the `resource` parameter",
        )


def _audience(token: str) -> list[str]:
    """The ``aud`` of a JWT. The token is not verified: it is the server that must."""
    parts = token.split(".")
    if len(parts) != 3:
        return []
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
    except (ValueError, binascii.Error):
        return []
    named = (document(payload) or {}).get("aud")
    if isinstance(named, str):
        return [named]
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
