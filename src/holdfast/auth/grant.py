"""The result of a login: a grant of one authorization server, for one resource, to one client.

Plain, frozen data. No ``repr`` shows a token or a client's secret. An entry is a grant in the store's file, with or
without its secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = [
    "Grant",
    "GrantKey",
    "OAuthClient",
    "Source",
    "key_of",
    "read_entry",
    "secrets_of",
    "with_secrets",
    "write_entry",
]

Source: TypeAlias = Literal["keyring", "file"]
"""Where a grant's secrets are kept."""


class GrantKey(NamedTuple):
    """Identifies a grant: a token of one issuer is never sent to another, nor to another resource."""

    issuer: str
    resource: str


@dataclass(frozen=True, kw_only=True)
class OAuthClient:
    """Holdfast's client registration at an authorization server."""

    id: str
    secret: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    """Its private key, as PEM or as a JWK."""
    method: str = "none"
    """How it authenticates at the token endpoint: one of ``METHODS`` in ``client_authentication``."""
    reads_plain: bool = False
    """Whether the server reads the id and the secret in HTTP Basic as they are, without decoding them."""
    audience: str = ""
    """Whom a signed assertion is for: the issuer, or the token endpoint where the server demands that."""
    algorithm: str = ""
    """How an assertion is signed."""
    origin: Literal["configured", "document", "registered"] = "registered"
    redirect_uri: str = ""
    """Its registered redirect URI."""
    scope: str | None = None
    """The scope that it was registered for; empty for a registration that names none, None where that is not known.
    Some servers grant it no other."""
    expires_at: float | None = None
    """When its registration ends, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """One login, as of its latest renewal."""

    issuer: str
    resource: str
    servers: tuple[str, ...]
    """The server addresses of this login: its token is sent to these and to no other."""
    client: OAuthClient
    token_endpoint: str
    revocation_endpoint: str = ""
    indicator: str | None = None
    """The ``resource`` that its requests name: None for its resource, empty for none."""
    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    scope: str = ""
    expires_at: float | None = None
    """When the access token ends, in seconds since 1970; None where the authorization server did not say."""
    login: str
    """Identifies the login; a renewal keeps it."""
    refused: str = ""
    """Why the authorization server no longer renews it; empty while it does."""
    source: Source = "file"

    @property
    def key(self) -> GrantKey:
        """Its key in the store."""
        return GrantKey(self.issuer, self.resource)

    @property
    def named_resource(self) -> str:
        """The ``resource`` parameter of a renewal; empty for none."""
        return self.resource if self.indicator is None else self.indicator

    @property
    def refreshable(self) -> bool:
        """Whether a renewal can succeed."""
        return bool(self.refresh_token) and not self.refused

    def expired(self, now: float) -> bool:
        """Whether the access token has expired by this machine's clock."""
        return self.expires_at is not None and now >= self.expires_at


SECRETS = ("access_token", "refresh_token")


def key_of(entry: Mapping[str, Any]) -> GrantKey:
    """The key of an entry; raises for an entry that is no grant."""
    return read_entry(entry).key


def read_entry(entry: Mapping[str, Any]) -> Grant:
    """The grant; its tokens are empty where the keyring has them."""
    client = OAuthClient(**entry["client"])
    return Grant(**{"access_token": "", **entry, "servers": tuple(entry["servers"]), "client": client})


def write_entry(grant: Grant) -> dict[str, Any]:
    """All of a grant, or all but its secrets where the keyring has those."""
    entry = asdict(grant)
    if grant.source == "keyring":
        for name in SECRETS:
            del entry[name]
        entry["client"]["secret"] = entry["client"]["key"] = None
    return entry


def secrets_of(grant: Grant) -> dict[str, str]:
    """The secrets of a grant, for the keyring."""
    pairs = {name: getattr(grant, name) for name in SECRETS}
    pairs |= {"client_secret": grant.client.secret, "client_key": grant.client.key}
    return {name: value for name, value in pairs.items() if value}


def with_secrets(grant: Grant, secrets: Mapping[str, str]) -> Grant:
    """A grant with its secrets put back."""
    return replace(
        grant,
        access_token=secrets.get("access_token", ""),
        refresh_token=secrets.get("refresh_token"),
        client=replace(grant.client, secret=secrets.get("client_secret"), key=secrets.get("client_key")),
    )
