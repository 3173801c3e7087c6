"""LiteLLM: the client of its MCP gateway, with a session for each request."""

import asyncio

from driver import follow, target, texts
from litellm.experimental_mcp_client.client import MCPClient
from mcp.types import CallToolRequestParams


def connected():
    where = target()
    if "url" in where:
        return MCPClient(server_url=where["url"], transport_type="http")
    return MCPClient(transport_type="stdio", stdio_config=where)


async def main():
    client = connected()

    async def listed():
        return [tool.name for tool in await client.list_tools(raise_on_error=True)]

    async def called(name, arguments):
        result = await client.call_tool(CallToolRequestParams(name=name, arguments=arguments))
        return texts(result.content), getattr(result, "is_error", getattr(result, "isError", False))

    await follow(listed, called)


asyncio.run(main())
