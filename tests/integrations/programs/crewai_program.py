"""crewai's MCP adapter (mcp 1.x) on a running hub: by its address, or as a child over stdio."""

from __future__ import annotations

import json
import os
import sys

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"

from crewai_tools import MCPServerAdapter
from mcp import StdioServerParameters

way = sys.argv[1:]
if way[0].startswith("http"):
    parameters: object = {"url": way[0], "transport": "streamable-http"}
else:
    parameters = StdioServerParameters(command=way[0], args=way[1:], env=dict(os.environ))
with MCPServerAdapter(parameters) as tools:
    read = next(tool for tool in tools if "forecast" in tool.name).run()
    sys.stdout.write(json.dumps({"tools": sorted(tool.name for tool in tools), "read": str(read)}) + "\n")
