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

from holdfast._exports import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast._version import __version__ as __version__
    from holdfast.config import Config as Config, load_config as load_config
    from holdfast.core import classify_load_error as classify_load_error
    from holdfast.errors import (
        BreakerOpen as BreakerOpen,
        CallDenied as CallDenied,
        CallFailed as CallFailed,
        ConfigError as ConfigError,
        ConfigNotFound as ConfigNotFound,
        ConnectionClosed as ConnectionClosed,
        HoldfastError as HoldfastError,
        HubClosed as HubClosed,
        HubNotOpen as HubNotOpen,
        LoadFailed as LoadFailed,
        NotAnswered as NotAnswered,
        ServerBusy as ServerBusy,
        ServerDenied as ServerDenied,
        ServerDisabled as ServerDisabled,
        ServerFailure as ServerFailure,
        ServerNotReady as ServerNotReady,
        ServerPermanentlyFailed as ServerPermanentlyFailed,
        ServerUnavailable as ServerUnavailable,
        ToolHeld as ToolHeld,
        UnknownServer as UnknownServer,
        UnknownTool as UnknownTool,
        UntrustedConfig as UntrustedConfig,
    )
    from holdfast.hub import (
        Hub as Hub,
        call_tool as call_tool,
        get_tools_with_resilience as get_tools_with_resilience,
        load as load,
    )
    from holdfast.types import (
        CallResult as CallResult,
        FoundTool as FoundTool,
        LoadResult as LoadResult,
        MCPServerLoadOutcome as MCPServerLoadOutcome,
        Tool as Tool,
    )

__getattr__, __dir__ = lazy_exports(__name__)
