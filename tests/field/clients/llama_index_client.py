"""LlamaIndex: tools are loaded once, and each call opens a session of its own."""

import asyncio

from driver import follow, target, texts
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec


async def main():
    where = target()
    if "url" in where:
        client = BasicMCPClient(where["url"])
    else:
        client = BasicMCPClient(where["command"], args=where["args"], env=where["env"])
    tools = {tool.metadata.name: tool for tool in await McpToolSpec(client).to_tool_list_async()}

    async def listed():
        return [tool.name for tool in (await client.list_tools()).tools]

    async def called(name, arguments):
        if name not in tools:
            return f"LlamaIndex offers no tool {name}", True
        result = (await tools[name].acall(**arguments)).raw_output
        return texts(result.content), getattr(result, "is_error", getattr(result, "isError", False))

    await follow(listed, called)


asyncio.run(main())
