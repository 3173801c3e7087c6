"""Settings, as people write them, become the policies that the machine goes by."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from holdfast.config.spec import BadServer, ServerSpec, Settings
from holdfast.core.breaker import BreakerPolicy
from holdfast.core.lifecycle.policy import LifecyclePolicy

__all__ = ["breaker_policy", "lifecycle_policy", "watch_address"]


def breaker_policy(settings: Settings) -> BreakerPolicy:
    """When a breaker trips, and for how long."""
    written = settings.breaker
    return BreakerPolicy(
        threshold=written.threshold,
        window=written.window,
        cooldown=written.cooldown,
        growth=written.growth,
        max_cooldown=written.max_cooldown,
    )


def lifecycle_policy(server: ServerSpec | BadServer, settings: Settings) -> LifecyclePolicy:
    """How a server is kept."""
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
    """Where a bare TCP connect shows whether the server listens; None behind a proxy, and for a child."""
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
