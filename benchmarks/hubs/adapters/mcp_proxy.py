"""mcp-proxy: a bridge from stdio to HTTP, with a path for each named server."""

from __future__ import annotations

from benchmarks.hubs.adapter import Launch, PypiAdapter, Setting, Setup, config_file

__all__ = ["McpProxy"]

README = "https://github.com/sparfenyuk/mcp-proxy/blob/main/README.md"


class McpProxy(PypiAdapter):
    """Each named server is a child, started with the bridge."""

    name = "mcp-proxy"
    version = "0.13.0"
    kind = "bridge"
    packages = ("mcp-proxy==0.13.0", "mcp<2")
    documentation = (README, "https://pypi.org/project/mcp-proxy/0.13.0/")
    behind = "stdio"
    settings = (
        Setting("--named-server-config", "its way to have more than one server", README),
        Setting("--pass-environment", "servers get the environment, as with the other hubs", README),
        Setting("--log-level WARNING", "logs are off for all", README),
        Setting("mcp<2 in its environment", "it was written for the first SDK", README),
    )

    def launch(self, setup: Setup) -> Launch:
        """Named servers from a file."""
        servers = {
            name: {"command": server.command[0], "args": list(server.command[1:]), "enabled": True}
            for name, server in setup.servers.items()
        }
        file = config_file(setup, "servers.json", {"mcpServers": servers})
        options = ["--log-level", "WARNING", "--pass-environment", "--named-server-config", file]
        return Launch([self.program("mcp-proxy"), *options, "--port", str(setup.port)], ready="/status")

    def url(self, setup: Setup, server: str) -> str:
        """Each server has its path."""
        return f"{setup.base}/servers/{server}/mcp"
