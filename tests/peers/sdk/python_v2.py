"""A server on the Python SDK 2.x, which speaks both eras.

``python python_v2.py SECONDS_BEFORE_IT_READS`` serves stdio; ``python python_v2.py http`` prints its port and serves
streamable HTTP. Its tool ``ask`` asks its client the old way, on the connection's own back-channel.
"""

import os
import socket
import sys
import time

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("python-v2")


class Answer(BaseModel):
    """What the client is asked for."""

    name: str


@server.tool()
def hello() -> str:
    """Say hello."""
    return "hello"


@server.tool()
def process() -> str:
    """Say which process this is."""
    return str(os.getpid())


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask the client for a name."""
    answer = await ctx.elicit("Who are you?", schema=Answer)
    return f"hello {answer.data.name}" if answer.action == "accept" else answer.action


if sys.argv[1] == "http":
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)  # noqa: T201 - the test reads it
    config = uvicorn.Config(server.streamable_http_app(), log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])
else:
    time.sleep(float(sys.argv[1]))
    server.run("stdio")
