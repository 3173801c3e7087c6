"""Agno: one session, held by a toolkit."""

import asyncio
import shlex

from agno.tools.mcp import MCPTools
from driver import follow, target


def toolkit():
    where = target()
    if "url" in where:
        return MCPTools(transport="streamable-http", url=where["url"])
    return MCPTools(command=shlex.join([where["command"], *where["args"]]), env=where["env"])


async def main():
    async with toolkit() as tools:

        async def listed():
            return sorted(tools.functions)

        async def called(name, arguments):
            if name not in tools.functions:
                return f"Agno offers no tool {name}", True
            result = await tools.functions[name].entrypoint(**arguments)
            # It drops `isError`: the model reads the text.
            return result.content, result.content.startswith("Error")

        await follow(listed, called)


asyncio.run(main())
