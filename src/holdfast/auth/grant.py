"""What a login brought: a grant of one authorization server, for one resource, to one client.

Plain, frozen data. No ``repr`` shows a token or a client's secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["Client", "Grant", "GrantKey", "Source"]

Source: TypeAlias = Literal["keyring", "file"]
"""Where a grant's secrets are kept."""


class GrantKey(NamedTuple):
    """Tells grants apart: a token of one issuer is never shown to another, nor to another resource."""

    issuer: str
    resource: str


@dataclass(frozen=True, kw_only=True)
class Client:
    """Who Holdfast is to an authorization server."""

    id: str
    secret: str | None = field(default=None, repr=False)
    method: str = "none"
    """How it proves itself at the token endpoint: ``none``, ``client_secret_basic`` or ``client_secret_post``."""
    origin: Literal["configured", "document", "registered"] = "registered"
    redirect_uri: str = ""
    """Where it was registered to be sent back to."""
    expires_at: float | None = None
    """When its registration ends, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """One login, as it stands after its latest renewal."""

    issuer: str
    resource: str
    servers: tuple[str, ...]
    """The addresses that somebody logged in to with it: it is sent to these and to no other."""
    client: Client
    token_endpoint: str
    revocation_endpoint: str = ""
    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    scope: str = ""
    expires_at: float | None = None
    """When the access token ends, in seconds since 1970; None where the authorization server did not say."""
    login: str
    """Tells one login from the next; a renewal keeps it."""
    refused: str = ""
    """Why the authorization server does not renew it any more; empty while it does."""
    source: Source = "file"

    @property
    def key(self) -> GrantKey:
        """What it is kept under."""
        return GrantKey(self.issuer, self.resource)

    @property
    def refreshable(self) -> bool:
        """Whether renewing it is worth a try."""
        return bool(self.refresh_token) and not self.refused

    def expired(self, now: float) -> bool:
        """Whether the access token has ended, as far as this machine's clock tells."""
        return self.expires_at is not None and now >= self.expires_at
