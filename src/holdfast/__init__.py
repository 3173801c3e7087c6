"""Holdfast keeps a fleet of MCP servers available to agents, and tells the truth about those that are not.

    from holdfast import Hub

    async with Hub.from_config("mcp.json") as hub:
        await hub.ready(timeout=10)
        print(hub.catalog.tools, hub.warnings().for_model)
        await hub.call_tool("files__read_file", {"path": "README.md"})

``load`` is for one look at everything, without keeping connections.

Names are imported when they are first used: ``import holdfast`` itself costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast._version import __version__
    from holdfast.config import Config, load_config
    from holdfast.core import classify_load_error
    from holdfast.errors import (
        BreakerOpen,
        CallDenied,
        CallFailed,
        ConfigError,
        ConfigNotFound,
        ConnectionClosed,
        HoldfastError,
        HubClosed,
        HubNotOpen,
        LoadFailed,
        ServerBusy,
        ServerDenied,
        ServerDisabled,
        ServerFailure,
        ServerNotReady,
        ServerPermanentlyFailed,
        ServerUnavailable,
        ToolHeld,
        UnknownServer,
        UnknownTool,
        UntrustedConfig,
    )
    from holdfast.hub import Hub, call_tool, get_tools_with_resilience, load
    from holdfast.types import CallResult, FoundTool, LoadResult, MCPServerLoadOutcome, Tool

__all__ = [
    "BreakerOpen",
    "CallDenied",
    "CallFailed",
    "CallResult",
    "Config",
    "ConfigError",
    "ConfigNotFound",
    "ConnectionClosed",
    "FoundTool",
    "HoldfastError",
    "Hub",
    "HubClosed",
    "HubNotOpen",
    "LoadFailed",
    "LoadResult",
    "MCPServerLoadOutcome",
    "ServerBusy",
    "ServerDenied",
    "ServerDisabled",
    "ServerFailure",
    "ServerNotReady",
    "ServerPermanentlyFailed",
    "ServerUnavailable",
    "Tool",
    "ToolHeld",
    "UnknownServer",
    "UnknownTool",
    "UntrustedConfig",
    "__version__",
    "call_tool",
    "classify_load_error",
    "get_tools_with_resilience",
    "load",
    "load_config",
]

_HOMES = {
    "BreakerOpen": "holdfast.errors",
    "CallDenied": "holdfast.errors",
    "CallFailed": "holdfast.errors",
    "CallResult": "holdfast.types",
    "Config": "holdfast.config.spec",
    "ConfigError": "holdfast.errors",
    "ConfigNotFound": "holdfast.errors",
    "ConnectionClosed": "holdfast.errors",
    "FoundTool": "holdfast.types",
    "HoldfastError": "holdfast.errors",
    "Hub": "holdfast.hub.hub",
    "HubClosed": "holdfast.errors",
    "HubNotOpen": "holdfast.errors",
    "LoadFailed": "holdfast.errors",
    "LoadResult": "holdfast.types",
    "MCPServerLoadOutcome": "holdfast.types",
    "ServerBusy": "holdfast.errors",
    "ServerDenied": "holdfast.errors",
    "ServerDisabled": "holdfast.errors",
    "ServerFailure": "holdfast.errors",
    "ServerNotReady": "holdfast.errors",
    "ServerPermanentlyFailed": "holdfast.errors",
    "ServerUnavailable": "holdfast.errors",
    "Tool": "holdfast.types",
    "ToolHeld": "holdfast.errors",
    "UnknownServer": "holdfast.errors",
    "UnknownTool": "holdfast.errors",
    "UntrustedConfig": "holdfast.errors",
    "call_tool": "holdfast.hub.loader",
    "classify_load_error": "holdfast.core.classify",
    "get_tools_with_resilience": "holdfast.hub.loader",
    "load": "holdfast.hub.loader",
    "load_config": "holdfast.config.read",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home, once."""
    if name == "__version__":
        value: Any = importlib.import_module("holdfast._version").__version__
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
