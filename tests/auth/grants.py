"""Grants, where only their keeping matters. Quick to import: other processes do."""

from __future__ import annotations

from typing import Any

from holdfast.auth.token_endpoint import OAuthClient
from holdfast.auth.token_store import Grant

__all__ = ["grant"]


def grant(number: int = 1, **fields: Any) -> Grant:
    """Some grant."""
    whole: dict[str, Any] = {
        "issuer": f"https://auth{number}.example",
        "resource": f"https://files{number}.example/mcp",
        "servers": (f"https://files{number}.example/mcp",),
        "client": OAuthClient(id="holdfast", secret=f"planted-secret-{number}", method="client_secret_basic"),
        "token_endpoint": f"https://auth{number}.example/token",
        "access_token": f"planted-access-{number}",
        "refresh_token": f"planted-refresh-{number}",
        "login": "one",
    }
    return Grant(**{**whole, **fields})
