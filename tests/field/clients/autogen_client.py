"""AutoGen's workbench: an actor holds one session."""

import asyncio

from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams, StreamableHttpServerParams
from driver import follow, target


def parameters():
    where = target()
    if "url" in where:
        return StreamableHttpServerParams(url=where["url"])
    return StdioServerParams(command=where["command"], args=where["args"], env=where["env"])


async def main():
    async with McpWorkbench(parameters()) as workbench:

        async def listed():
            return [tool["name"] for tool in await workbench.list_tools()]

        async def called(name, arguments):
            result = await workbench.call_tool(name, arguments)
            return "\n".join(part.content for part in result.result), result.is_error

        await follow(listed, called)


asyncio.run(main())
