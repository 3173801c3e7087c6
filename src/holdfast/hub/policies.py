"""Turns settings into the policies of the machine."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from holdfast.config.spec import BadServer, ServerSpec, Settings
from holdfast.core.breaker import BreakerPolicy
from holdfast.core.lifecycle.policy import LifecyclePolicy

__all__ = ["breaker_policy", "lifecycle_policy", "watch_address"]


def breaker_policy(settings: Settings) -> BreakerPolicy:
    """The policy of a server's breaker."""
    written = settings.breaker
    return BreakerPolicy(
        threshold=written.threshold,
        window=written.window,
        cooldown=written.cooldown,
        growth=written.growth,
        max_cooldown=written.max_cooldown,
    )


def lifecycle_policy(server: ServerSpec | BadServer, settings: Settings) -> LifecyclePolicy:
    """The policy of a server's lifecycle."""
    written = settings.reconnect
    return LifecyclePolicy(
        failures=written.failures,
        backoff=written.backoff,
        standing=written.standing,
        self_probe=written.self_probe,
        parked=settings.breaker.cooldown,
        refresh=settings.refresh,
        lazy=isinstance(server, ServerSpec) and server.lazy,
        idle_after=settings.idle,
        watchable=watch_address(server) is not None,
    )


def watch_address(server: ServerSpec | BadServer) -> tuple[str, int] | None:
    """The address for a bare TCP connect; None behind a proxy, and for a child process."""
    if not isinstance(server, ServerSpec) or server.transport == "stdio":
        return None
    url = urlsplit(server.url)
    try:
        port = url.port or {"http": 80, "https": 443}[url.scheme]
    except (KeyError, ValueError):
        return None
    if url.hostname is None or (url.scheme in getproxies() and not proxy_bypass(url.hostname)):
        return None
    return url.hostname, port
