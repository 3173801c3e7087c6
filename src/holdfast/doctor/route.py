"""The route to a server: the host and port that the hub connects to, through a proxy or not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from holdfast.core import is_loopback, mask_url

__all__ = ["Route", "route_to"]

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Route:
    """The host and port of the first connection."""

    host: str
    port: int
    tls: bool
    """Whether the server uses TLS."""
    proxy: str = ""
    """The proxy's URL, masked; empty without a proxy."""
    variable: str = ""
    """The environment variable that names it."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def route_to(url: str, environ: Mapping[str, str] | None = None) -> Route | None:
    """The route to the server at ``url``; None if the URL has no host or port."""
    parts = urlsplit(url)
    port = _port(parts)
    if not parts.hostname or port is None:
        return None
    direct = Route(host=parts.hostname, port=port, tls=parts.scheme == "https")
    if is_loopback(parts.hostname) or proxy_bypass(parts.hostname):
        return direct
    return _by_proxy(direct, parts.scheme, os.environ if environ is None else environ) or direct


def _by_proxy(direct: Route, scheme: str, environ: Mapping[str, str]) -> Route | None:
    proxies = getproxies()
    kind = next((kind for kind in (scheme, "all") if proxies.get(kind)), None)
    if kind is None:
        return None
    written = proxies[kind] if "://" in proxies[kind] else f"http://{proxies[kind]}"
    parts = urlsplit(written)
    port = _port(parts)
    if not parts.hostname or port is None:
        return None
    names = (f"{kind}_proxy", f"{kind}_proxy".upper())
    variable = next((name for name in names if environ.get(name)), names[1])
    return Route(host=parts.hostname, port=port, tls=direct.tls, proxy=mask_url(written), variable=variable)


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port or _PORTS.get(parts.scheme, 1080 if parts.scheme.startswith("socks") else None)
    except ValueError:
        return None
