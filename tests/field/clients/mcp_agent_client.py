"""mcp-agent: one session, from its registry of servers."""

import asyncio

from driver import follow, target, texts
from mcp_agent.app import MCPApp
from mcp_agent.config import LoggerSettings, MCPServerSettings, MCPSettings, Settings
from mcp_agent.mcp.gen_client import gen_client


def server():
    where = target()
    if "url" in where:
        return MCPServerSettings(transport="streamable_http", url=where["url"])
    return MCPServerSettings(command=where["command"], args=where["args"], env=where["env"])


async def main():
    settings = Settings(
        execution_engine="asyncio", logger=LoggerSettings(type="none"), mcp=MCPSettings(servers={"hub": server()})
    )
    async with (
        MCPApp(name="field", settings=settings).run() as app,
        gen_client("hub", server_registry=app.context.server_registry) as session,
    ):

        async def listed():
            return [tool.name for tool in (await session.list_tools()).tools]

        async def called(name, arguments):
            result = await session.call_tool(name, arguments)
            return texts(result.content), getattr(result, "is_error", getattr(result, "isError", False))

        await follow(listed, called)


asyncio.run(main())
