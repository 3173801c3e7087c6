"""mcp-hangar: servers are called through its own tool ``hangar_call``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from benchmarks.hubs.adapter import Launch, PypiAdapter, Setting, Setup, config_file

__all__ = ["McpHangar"]

CONFIGURATION = "https://mcp-hangar.io/docs/reference/configuration"


class McpHangar(PypiAdapter):
    """Its list has its own tools; those of a server are asked for with ``hangar_tools``."""

    name = "mcp-hangar"
    version = "2.34.4"
    kind = "hub"
    packages = ("mcp-hangar==2.34.4",)
    documentation = ("https://pypi.org/project/mcp-hangar/2.34.4/", CONFIGURATION)
    settings = (
        Setting(
            "rate_limit 1,000,000 a second", "by default it answers 10 calls a second and refuses others", CONFIGURATION
        ),
        Setting("--log-level ERROR", "logs are off for all", CONFIGURATION),
    )

    def launch(self, setup: Setup) -> Launch:
        """Remote servers, and no limit on the rate."""
        servers: dict[str, Any] = {}
        for name, server in setup.servers.items():
            auth = {} if server.token is None else {"auth": {"type": "bearer", "bearer_token": server.token}}
            servers[name] = {"mode": "remote", "endpoint": server.url, **auth}
        limit = {"rps": 1_000_000, "burst": 1_000_000}
        file = config_file(setup, "config.yaml", {"mcp_servers": servers, "rate_limit": limit})
        options = ["--config", file, "serve", "--http", "--port", str(setup.port), "--log-level", "ERROR"]
        return Launch([self.program("mcp-hangar"), *options])

    def tool(self, setup: Setup, server: str, tool: str) -> str:
        """One tool for all."""
        del setup, server, tool
        return "hangar_call"

    def wrap(self, server: str, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """A batch of one call."""
        return {"calls": [{"mcp_server": server, "tool": tool, "arguments": dict(arguments)}]}

    def failed(self, text: str) -> str | None:
        """A batch says for itself whether it succeeded, and each call of it why not."""
        with suppress(ValueError, AttributeError, LookupError, TypeError):
            batch = json.loads(text)
            if batch["success"] is False:
                return "; ".join(str(one.get("error")) for one in batch["results"]) or text
        return None

    def listing(self, server: str) -> tuple[str, Mapping[str, Any]]:
        """Its tool for that."""
        return "hangar_tools", {"mcp_server": server}
