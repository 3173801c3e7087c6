"""The result of a login: a grant of one authorization server, for one resource, to one client.

Plain, frozen data. No ``repr`` shows a token or a client's secret. An entry is a grant in the store's file, with or
without its secrets.

URLs of servers come first: their canonical form, which of them a token covers, and which are safe for credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from holdfast.config import ServerSpec
from holdfast.core import is_loopback

__all__ = [
    "Grant",
    "GrantKey",
    "OAuthClient",
    "Source",
    "canonical",
    "covers",
    "is_safe",
    "may_lead_to",
    "origin",
    "put_among",
    "read_entry",
    "secrets_of",
    "with_secrets",
    "write_entry",
]

_DEFAULT_PORTS = {"http": 80, "https": 443}


def canonical(url: str) -> str:
    """A server's address as a resource identifier: no user info, no fragment, host in lower case, no default port."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme.lower(), _netloc(url), parts.path, parts.query, ""))


def origin(url: str) -> str:
    """The scheme, host and port of an address."""
    return f"{urlsplit(url).scheme.lower()}://{_netloc(url)}"


def covers(resource: str, server: str) -> bool:
    """Whether a resource is the server or a parent of it: the same origin, and a prefix of its path."""
    try:
        if origin(resource) != origin(server):
            return False
    except ValueError:  # the server's metadata contains no valid address
        return False
    parent, child = (f"{urlsplit(url).path.rstrip('/')}/" for url in (resource, server))
    return child.startswith(parent)


def is_safe(url: str, *, allow_plain_http: bool = False) -> bool:
    """Whether credentials may be sent there: over TLS, or within this machine."""
    if "\\" in url:
        return False  # a browser takes it for a slash, and so another host than this program
    try:
        parts, _ = urlsplit(url), origin(url)
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(parts.hostname)
    return parts.scheme == "http" and bool(parts.hostname) and (allow_plain_http or is_loopback(parts.hostname or ""))


def may_lead_to(url: str, spec: ServerSpec) -> bool:
    """Whether a login to a server may use an address that the server or its metadata names.

    A remote server may not point it at a service of this machine over plain http. Only a server on this machine may,
    or the definition, by the same address or by ``allowPlainHttp``.
    """
    if not is_safe(url, allow_plain_http=spec.allow_plain_http):
        return False
    if urlsplit(url).scheme == "https" or spec.allow_plain_http or is_loopback(urlsplit(spec.url).hostname or ""):
        return True
    oauth = spec.oauth
    named = (oauth.issuer, oauth.authorization_url, oauth.token_url, oauth.device_authorization_url)
    return origin(url) in [origin(one) for one in named if one]


def _netloc(url: str) -> str:
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    return host if port in (None, _DEFAULT_PORTS.get(parts.scheme.lower())) else f"{host}:{port}"


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
    """How it authenticates at the token endpoint: one of ``METHODS`` in ``token_endpoint``."""
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
    ends_at: float | None = None
    """When the hub itself ends it, in seconds since 1970; None for a login that ends by a logout alone."""
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


def put_among(grants: dict[GrantKey, Grant], grant: Grant) -> Grant:
    """Keep a grant in place of the one with its key; returns it with its addresses, those of the one before among them.

    An address belongs to one grant: a new login at another issuer takes it from the old one. A renewal of the old login
    may be under way then. What it brings takes no address back.
    """
    before = grants.pop(grant.key, None)
    known = {*before.servers} if before is not None else set[str]()
    is_renewal = before is not None and before.login == grant.login
    servers = known if is_renewal else {*grant.servers} | known
    for key, other in grants.items():
        grants[key] = replace(other, servers=tuple(one for one in other.servers if one not in servers))
    kept = grants[grant.key] = replace(grant, servers=tuple(sorted(servers)))
    return kept


SECRETS = ("access_token", "refresh_token")


def read_entry(entry: Mapping[str, Any]) -> Grant:
    """The grant; its tokens are empty where the keyring has them. Raises for an entry that is no grant."""
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
