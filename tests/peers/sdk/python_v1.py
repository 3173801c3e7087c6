"""A server on the Python SDK 1.x, which knows the legacy era: python python_v1.py SECONDS_BEFORE_IT_READS"""

import sys
import time

from mcp.server.fastmcp import FastMCP  # type: ignore[attr-defined]  # of the SDK 1.x, which this program runs on

server = FastMCP("python-v1")


@server.tool()  # type: ignore[untyped-decorator]  # as above
def hello() -> str:
    """Say hello."""
    return "hello"


time.sleep(float(sys.argv[1]))
server.run("stdio")
