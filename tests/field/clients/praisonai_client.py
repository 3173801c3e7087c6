"""PraisonAI: a thread of its own holds one session; a failed call is an answer like any other."""

import asyncio

from driver import follow, target
from praisonaiagents import MCP


def connected():
    where = target()
    if "url" in where:
        return MCP(where["url"])
    return MCP(where["command"], args=where["args"], env=where["env"])


async def main():
    hub = await asyncio.to_thread(connected)
    tools = {tool.__name__: tool for tool in hub}

    async def listed():
        return sorted(tools)

    async def called(name, arguments):
        if name not in tools:
            return f"PraisonAI offers no tool {name}", True
        seen = await asyncio.to_thread(lambda: tools[name](**arguments))
        # Over stdio it drops `isError`: the model reads the text. Over HTTP it makes an object of an error.
        text = str(seen["error"]) if isinstance(seen, dict) and "error" in seen else str(seen)
        return text, "MCP server '" in text

    await follow(listed, called)


asyncio.run(main())
