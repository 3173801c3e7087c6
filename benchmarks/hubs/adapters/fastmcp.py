"""FastMCP's proxy: ``fastmcp run mcp.json`` mounts every server of a standard configuration file."""

from __future__ import annotations

from typing import Any

from benchmarks.hubs.adapter import Launch, PypiAdapter, Setting, Setup, config_file

__all__ = ["FastMcp"]


class FastMcp(PypiAdapter):
    """One process, a proxy for each server."""

    name = "FastMCP"
    version = "4.1.2"
    kind = "hub"
    packages = ("fastmcp==4.1.2",)
    documentation = (
        "https://gofastmcp.com/patterns/cli",
        "https://gofastmcp.com/integrations/mcp-json-configuration",
        "https://gofastmcp.com/servers/providers/proxy",
    )
    settings = (
        Setting("--transport http", "the other transport is stdio", "https://gofastmcp.com/patterns/cli"),
        Setting("--log-level ERROR, --no-banner", "logs are off for all", "https://gofastmcp.com/patterns/cli"),
    )

    def launch(self, setup: Setup) -> Launch:
        """A standard configuration file."""
        servers: dict[str, Any] = {}
        for name, server in setup.servers.items():
            headers = {} if server.token is None else {"headers": {"Authorization": f"Bearer {server.token}"}}
            servers[name] = {"transport": "http", "url": server.url, **headers}
        file = config_file(setup, "mcp.json", {"mcpServers": servers})
        options = ["--transport", "http", "--port", str(setup.port), "--no-banner", "--log-level", "ERROR"]
        return Launch([self.program("fastmcp"), "run", file, *options])

    def tool(self, setup: Setup, server: str, tool: str) -> str:
        """Server and tool with an underscore between them; a server that is alone keeps its names."""
        return tool if len(setup.servers) == 1 else f"{server}_{tool}"
