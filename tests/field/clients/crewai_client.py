"""CrewAI: a thread of its own holds one session; a failed call is an answer like any other."""

import asyncio
import os

from crewai_tools import MCPServerAdapter
from driver import follow, target
from mcp import StdioServerParameters


def parameters():
    where = target()
    if "url" in where:
        return {"url": where["url"], "transport": "streamable-http"}
    return StdioServerParameters(command=where["command"], args=where["args"], env={**os.environ, **where["env"]})


async def main():
    with MCPServerAdapter(parameters()) as found:
        # It makes `one_echo` of `one__echo`, and calls the tool by its own name.
        tools = {tool.name.replace("one_", "one__"): tool for tool in found}

        async def listed():
            return sorted(tools)

        async def called(name, arguments):
            if name not in tools:
                return f"CrewAI offers no tool {name}", True
            text = str(await asyncio.to_thread(lambda: tools[name].run(**arguments)))
            # It drops `isError`: the model reads the text.
            return text, "MCP server '" in text

        await follow(listed, called)


asyncio.run(main())
