"""Haystack: a toolset holds one session, on a thread of its own."""

import asyncio
import json

from driver import follow, target
from haystack_integrations.tools.mcp import MCPToolset, StdioServerInfo, StreamableHttpServerInfo


def server():
    where = target()
    if "url" in where:
        return StreamableHttpServerInfo(url=where["url"])
    return StdioServerInfo(command=where["command"], args=where["args"], env=where["env"])


async def main():
    toolset = MCPToolset(server(), eager_connect=True)
    tools = {tool.name: tool for tool in toolset}

    async def listed():
        return sorted(tools)

    async def called(name, arguments):
        if name not in tools:
            return f"Haystack offers no tool {name}", True
        result = await asyncio.to_thread(tools[name].invoke, **arguments)
        result = json.loads(result) if isinstance(result, str) else result
        return "\n".join(part["text"] for part in result["content"]), result.get("isError", False)

    await follow(listed, called)
    toolset.close()


asyncio.run(main())
