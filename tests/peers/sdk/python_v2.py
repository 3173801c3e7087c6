"""A server on the Python SDK 2.x, which speaks both eras: python python_v2.py SECONDS_BEFORE_IT_READS"""

import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("python-v2")


@server.tool()
def hello() -> str:
    """Say hello."""
    return "hello"


time.sleep(float(sys.argv[1]))
server.run("stdio")
