"""A server on the Python SDK 1.x with a tool of each kind: plain, optional task, required task."""

import asyncio
from typing import Any

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

server: Any = Server("python-v1-tasks")
server.experimental.enable_tasks()
SUPPORT = {"plain": "forbidden", "optional": "optional", "required": "required"}


@server.list_tools()  # type: ignore[untyped-decorator]  # of the SDK 1.x, which this program runs on
async def tools() -> list[Any]:
    return [
        types.Tool.model_validate({"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": one}})
        for name, one in SUPPORT.items()
    ]


@server.call_tool()  # type: ignore[untyped-decorator]  # as above
async def call(name: str, arguments: dict[str, Any]) -> Any:
    ctx = server.request_context
    ctx.experimental.validate_task_mode(SUPPORT[name])
    done = types.CallToolResult(content=[types.TextContent(type="text", text=f"{name} did it")])
    if not ctx.experimental.is_task:
        return done

    async def work(_: Any) -> Any:
        return done

    return await ctx.experimental.run_task(work)


async def main() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


asyncio.run(main())
