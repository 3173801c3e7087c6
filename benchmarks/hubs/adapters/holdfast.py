"""Holdfast itself, of this checkout, with its shipped settings: over HTTP behind, and over stdio behind."""

from __future__ import annotations

import sys
from typing import Any, ClassVar, Literal

from benchmarks.hubs.adapter import Adapter, Launch, Setup, config_file
from benchmarks.processes import ROOT

__all__ = ["Holdfast", "HoldfastStdio"]


class Holdfast(Adapter):
    """``holdfast serve`` with an mcp.json."""

    name = "Holdfast"
    version = "this tree"
    kind = "hub"
    documentation = ("https://github.com/holdfast-mcp/holdfast/blob/main/docs/tutorial.md",)
    behind: ClassVar[Literal["http", "stdio"]] = "http"

    def install(self) -> None:
        """It is installed where the benchmark runs."""

    def launch(self, setup: Setup) -> Launch:
        """The config has the servers alone."""
        file = config_file(
            setup, "mcp.json", {"mcpServers": {name: self._server(setup, name) for name in setup.servers}}
        )
        options = ["serve", "--config", file, "--port", str(setup.port)]
        return Launch([sys.executable, "-m", "holdfast", *options], {"PYTHONPATH": str(ROOT / "src")}, "/healthz")

    def _server(self, setup: Setup, name: str) -> dict[str, Any]:
        server = setup.servers[name]
        if self.behind == "stdio":
            command, *arguments = server.command
            return {"command": command, "args": arguments}
        headers = {} if server.token is None else {"headers": {"Authorization": f"Bearer {server.token}"}}
        return {"type": "http", "url": server.url, **headers}

    def tool(self, setup: Setup, server: str, tool: str) -> str:
        """Server and tool with two underscores between them."""
        del setup
        return f"{server}__{tool}"


class HoldfastStdio(Holdfast):
    """The same with servers that are its children."""

    name = "Holdfast (stdio)"
    behind = "stdio"
