"""URLs of servers: their canonical form, which of them a token covers, and which are safe for credentials."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from holdfast.config import ServerSpec
from holdfast.core import is_loopback

__all__ = ["canonical", "covers", "is_safe", "may_lead_to", "origin"]

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
