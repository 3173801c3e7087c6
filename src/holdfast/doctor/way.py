"""The way to a server: the host and port that are dialed, by way of a proxy or not, as the runtime would."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from holdfast.core.hosts import is_loopback
from holdfast.core.redact import mask_url

__all__ = ["Way", "way_to"]

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Way:
    """What is connected to first."""

    host: str
    port: int
    tls: bool
    """Whether the server itself is spoken to over TLS."""
    proxy: str = ""
    """The proxy on the way, fit to be shown; empty where there is none."""
    variable: str = ""
    """The environment variable that names it."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def way_to(url: str, environ: Mapping[str, str] | None = None) -> Way | None:
    """How the server at ``url`` is reached from here; None if the address makes no sense."""
    parts = urlsplit(url)
    port = _port(parts)
    if not parts.hostname or port is None:
        return None
    direct = Way(host=parts.hostname, port=port, tls=parts.scheme == "https")
    if is_loopback(parts.hostname) or proxy_bypass(parts.hostname):
        return direct
    return _by_proxy(direct, parts.scheme, os.environ if environ is None else environ) or direct


def _by_proxy(direct: Way, scheme: str, environ: Mapping[str, str]) -> Way | None:
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
    return Way(host=parts.hostname, port=port, tls=direct.tls, proxy=mask_url(written), variable=variable)


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port or _PORTS.get(parts.scheme, 1080 if parts.scheme.startswith("socks") else None)
    except ValueError:
        return None
