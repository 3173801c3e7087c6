"""DSPy: the program holds a session of the Python SDK, and DSPy makes tools of it."""

import asyncio

import dspy
from driver import follow, target
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


def transport():
    where = target()
    if "url" in where:
        return streamable_http_client(where["url"])
    return stdio_client(StdioServerParameters(command=where["command"], args=where["args"], env=where["env"]))


async def main():
    async with transport() as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        tools = {tool.name: dspy.Tool.from_mcp_tool(session, tool) for tool in (await session.list_tools()).tools}

        async def listed():
            return [tool.name for tool in (await session.list_tools()).tools]

        async def called(name, arguments):
            if name not in tools:
                return f"DSPy offers no tool {name}", True
            return str(await tools[name].acall(**arguments)), False

        await follow(listed, called)


asyncio.run(main())
