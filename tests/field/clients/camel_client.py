"""CAMEL: a toolkit holds one session."""

import asyncio

from camel.toolkits import MCPToolkit
from driver import follow, target, texts


async def main():
    where = target()
    hub = {"url": where["url"]} if "url" in where else where
    async with MCPToolkit(config_dict={"mcpServers": {"hub": hub}}) as toolkit:

        async def listed():
            return [tool.get_function_name() for tool in toolkit.get_tools()]

        async def called(name, arguments):
            result = await toolkit.call_tool(name, arguments)
            return texts(result.content), getattr(result, "is_error", getattr(result, "isError", False))

        await follow(listed, called)


asyncio.run(main())
