"""LangChain's MCP adapters: tools are loaded once, and each call opens a session of its own."""

import asyncio

from driver import follow, target
from langchain_mcp_adapters.client import MultiServerMCPClient


def connection():
    where = target()
    if "url" in where:
        return {"transport": "streamable_http", "url": where["url"]}
    return {"transport": "stdio", **where}


async def main():
    client = MultiServerMCPClient({"hub": connection()})
    tools = {tool.name: tool for tool in await client.get_tools()}

    async def listed():
        return sorted(tools)

    async def called(name, arguments):
        if name not in tools:
            return f"LangChain offers no tool {name}", True
        # As an agent calls it: the answer is a message, with a status.
        call = {"type": "tool_call", "id": "1", "name": name, "args": arguments}
        message = await tools[name].ainvoke(call)
        text = (
            message.content
            if isinstance(message.content, str)
            else "\n".join(block["text"] for block in message.content if block.get("type") == "text")
        )
        return text, message.status == "error"

    await follow(listed, called)


asyncio.run(main())
