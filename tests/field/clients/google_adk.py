"""Google ADK's MCP toolset, with the timeouts that it has by default."""

import asyncio
import warnings
from unittest import mock

warnings.filterwarnings("ignore")  # its own experimental features announce themselves

from driver import follow, target  # noqa: E402
from google.adk.tools.mcp_tool import McpToolset  # noqa: E402
from google.adk.tools.mcp_tool.mcp_session_manager import (  # noqa: E402
    StdioConnectionParams,
    StreamableHTTPConnectionParams,
)
from mcp import StdioServerParameters  # noqa: E402


def connection():
    where = target()
    if "url" in where:
        return StreamableHTTPConnectionParams(url=where["url"])
    return StdioConnectionParams(server_params=StdioServerParameters(**where))


async def main():
    toolset = McpToolset(connection_params=connection())

    async def listed():
        return [tool.name for tool in await toolset.get_tools()]

    async def called(name, arguments):
        tools = {tool.name: tool for tool in await toolset.get_tools()}
        if name not in tools:
            return f"ADK offers no tool {name}", True
        context = mock.MagicMock()
        context.state = {}
        result = await tools[name]._run_async_impl(args=arguments, tool_context=context, credential=None)
        if "error" in result and "content" not in result:
            return str(result["error"]), True
        text = "\n".join(block["text"] for block in result.get("content", []) if "text" in block)
        return text, bool(result.get("isError") or result.get("is_error"))

    try:
        await follow(listed, called)
    finally:
        await toolset.close()


asyncio.run(main())
