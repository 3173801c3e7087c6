"""mcp-hub (npm): a coordinator with one endpoint, which speaks the older HTTP+SSE alone."""

from __future__ import annotations

from typing import Any

from benchmarks.hubs.adapter import Launch, NpmAdapter, Setup, config_file
from benchmarks.processes import node

__all__ = ["McpHub"]


class McpHub(NpmAdapter):
    """Its own defaults: nothing is set."""

    name = "mcp-hub"
    version = "4.2.1"
    kind = "hub"
    package = "mcp-hub"
    documentation = (
        "https://www.npmjs.com/package/mcp-hub",
        "https://github.com/ravitemer/mcp-hub/blob/main/README.md",
    )
    transport = "sse"

    def launch(self, setup: Setup) -> Launch:
        """A standard configuration file."""
        servers: dict[str, Any] = {}
        for name, server in setup.servers.items():
            headers = {} if server.token is None else {"headers": {"Authorization": f"Bearer {server.token}"}}
            servers[name] = {"url": server.url, **headers}
        file = config_file(setup, "mcp.json", {"mcpServers": servers})
        options = ["--port", str(setup.port), "--config", file]
        return Launch([node(), f"{self.script()}/dist/cli.js", *options], ready="/api/health")

    def tool(self, setup: Setup, server: str, tool: str) -> str:
        """Server and tool with two underscores between them."""
        del setup
        return f"{server}__{tool}"
