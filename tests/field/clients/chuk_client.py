"""chuk-mcp: a client of its own, on no SDK."""

import asyncio

from chuk_mcp.protocol.messages import send_initialize, send_tools_call, send_tools_list
from chuk_mcp.transports.http import StreamableHTTPParameters, http_client
from chuk_mcp.transports.stdio import StdioParameters, stdio_client
from driver import follow, target


def transport():
    where = target()
    if "url" in where:
        return http_client(StreamableHTTPParameters(url=where["url"]))
    return stdio_client(StdioParameters(command=where["command"], args=where["args"], env=where["env"]))


async def main():
    async with transport() as (read, write):
        await send_initialize(read, write)

        async def listed():
            return [tool.name for tool in (await send_tools_list(read, write)).tools]

        async def called(name, arguments):
            result = await send_tools_call(read, write, name, arguments)
            return "\n".join(block["text"] for block in result.content), bool(result.isError)

        await follow(listed, called)


asyncio.run(main())
