"""LiteLLM's proxy as an MCP gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.hubs.adapter import Launch, PypiAdapter, Setting, Setup, config_file

__all__ = ["LiteLlm"]

REFERENCE = "https://docs.litellm.ai/docs/mcp_config_reference"
KEY = "sk-benchmark-of-hubs-5c1f0e9a7b"


class LiteLlm(PypiAdapter):
    """Servers from its config file, no database."""

    name = "LiteLLM"
    version = "1.106.2"
    kind = "hub"
    packages = ("litellm[proxy]==1.106.2",)
    python = ("3.12", "3.13")
    documentation = (REFERENCE, "https://docs.litellm.ai/docs/mcp", "https://docs.litellm.ai/docs/mcp_deployment")
    settings = (
        Setting("LITELLM_LOCAL_MODEL_COST_MAP=True", "no look at the network while it starts", REFERENCE),
        Setting("LITELLM_LOG=ERROR", "logs are off for all", REFERENCE),
        Setting("general_settings.master_key", "it wants a key", REFERENCE),
    )

    def launch(self, setup: Setup) -> Launch:
        """A config with servers and a key."""
        servers: dict[str, Any] = {}
        for name, server in setup.servers.items():
            auth = {} if server.token is None else {"auth_type": "bearer_token", "auth_value": server.token}
            servers[name] = {"url": server.url, "transport": "http", **auth}
        config = {"mcp_servers": servers, "general_settings": {"master_key": KEY}, "model_list": []}
        options = ["--config", config_file(setup, "config.yaml", config), "--port", str(setup.port)]
        env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "NO_DOCS": "True"}
        return Launch([self.program("litellm"), *options, "--host", "127.0.0.1"], env, "/health/liveliness")

    def url(self, setup: Setup, server: str) -> str:
        """All servers are behind one address."""
        del server
        return f"{setup.base}/mcp/"

    def headers(self, setup: Setup) -> Mapping[str, str]:
        """The key."""
        del setup
        return {"x-litellm-api-key": f"Bearer {KEY}"}

    def tool(self, setup: Setup, server: str, tool: str) -> str:
        """Server and tool with a hyphen between them."""
        del setup
        return f"{server}-{tool}"
