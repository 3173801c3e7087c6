"""A server on the Python SDK 1.x, which knows the legacy era: python python_v1.py SECONDS_BEFORE_IT_READS"""

import sys
import time

from mcp.server.fastmcp import FastMCP

server = FastMCP("python-v1")


@server.tool()
def hello() -> str:
    """Say hello."""
    return "hello"


time.sleep(float(sys.argv[1]))
server.run("stdio")
