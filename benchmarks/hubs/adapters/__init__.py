"""One file for each hub."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.hubs.adapter import Adapter
from benchmarks.hubs.adapters.contextforge import ContextForge
from benchmarks.hubs.adapters.envoy import Envoy
from benchmarks.hubs.adapters.fastmcp import FastMcp
from benchmarks.hubs.adapters.haproxy import HaProxy
from benchmarks.hubs.adapters.holdfast import Holdfast, HoldfastStdio
from benchmarks.hubs.adapters.litellm import LiteLlm
from benchmarks.hubs.adapters.mcp_hangar import McpHangar
from benchmarks.hubs.adapters.mcp_hub import McpHub
from benchmarks.hubs.adapters.mcp_proxy import McpProxy
from benchmarks.hubs.adapters.nginx import Nginx
from benchmarks.hubs.adapters.supergateway import Supergateway

__all__ = ["ADAPTERS", "NOT_HERE"]

ADAPTERS: Mapping[str, Adapter] = {
    "holdfast": Holdfast(),
    "holdfast-stdio": HoldfastStdio(),
    "fastmcp": FastMcp(),
    "contextforge": ContextForge(),
    "litellm": LiteLlm(),
    "mcp-hangar": McpHangar(),
    "mcp-hub": McpHub(),
    "mcp-proxy": McpProxy(),
    "supergateway": Supergateway(),
    "nginx": Nginx(),
    "haproxy": HaProxy(),
    "envoy": Envoy(),
}
"""By the name that `--hub` takes, in the order of the tables."""

NOT_HERE: Mapping[str, str] = {
    "agentgateway": "its binaries are on GitHub's release page and in a container registry, which could not be reached",
    "ToolHive": "it needs a container runtime, and its binary is on GitHub's release page",
    "mcpproxy-go": "its binaries are on GitHub's release page, which could not be reached",
    "Docker MCP Gateway": "it needs Docker Desktop or a container runtime",
}
"""Hubs that could not be had, and why. They are not judged."""
