"""``holdfast serve`` as a process of its own, for tests: started, listened to, signalled."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

import holdfast
from holdfast.config.read import config_from_mapping
from holdfast.hub.lease import ServerCache
from holdfast.hub.loader import Loader
from holdfast.types import CallResult, LoadResult
from tests.harness.waiting import PATIENCE

PACKAGE = str(Path(holdfast.__file__).parents[1])
COMMAND = (sys.executable, "-c", "from holdfast.cli.entry import main; main()")


def environment(home: Path) -> dict[str, str]:
    """One that has nothing of the user's."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": PACKAGE,
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "TERM": "dumb",
        "NO_COLOR": "1",
    }


def run(*arguments: str, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours to its end."""
    home.mkdir(exist_ok=True)
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=home,
        env={**environment(home), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


class Served:
    """A hub that runs."""

    def __init__(self, process: anyio.abc.Process, home: Path) -> None:
        self.process = process
        self.home = home
        self.out = ""
        self.err = ""
        self._news = anyio.Event()

    @property
    def url(self) -> str:
        found = re.search(r"MCP endpoint: (\S+)", self.out)
        assert found, self.err
        return found.group(1)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def tell(self, method: str, **params: object) -> None:
        """Ask it something over its stdin."""
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
        await self.process.stdin.send(json.dumps(message).encode() + b"\n")

    async def said(self, text: str, *, times: int = 1) -> None:
        """Wait until it has said this so many times, on either stream."""
        with anyio.fail_after(PATIENCE):
            while (self.out + self.err).count(text) < times:
                await self._news.wait()

    async def ended(self) -> int:
        with anyio.fail_after(PATIENCE):
            return await self.process.wait()

    def loader(self, path: str = "/mcp", **headers: str) -> Loader:
        """A client of it."""
        server = {"type": "http", "url": self.url.removesuffix("/mcp") + path, "headers": headers}
        return Loader(config_from_mapping({"mcpServers": {"hub": server}}), memory=ServerCache())

    async def tools(self, **headers: str) -> LoadResult:
        with anyio.fail_after(PATIENCE):
            return await self.loader(**headers).load()

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> CallResult:
        with anyio.fail_after(PATIENCE):
            return await self.loader().call("hub", tool, arguments or {})

    async def follow(self, stream: anyio.abc.ByteReceiveStream | None, name: str) -> None:
        assert stream is not None
        async for part in stream:
            setattr(self, name, getattr(self, name) + part.decode())
            self._news.set()
            self._news = anyio.Event()


@asynccontextmanager
async def served(home: Path, *arguments: str, port: str = "0", **environ: Any) -> AsyncIterator[Served]:
    """Run ``holdfast serve`` until the body ends; it listens when the body begins."""
    home.mkdir(exist_ok=True)  # noqa: ASYNC240 - nothing else waits for the loop yet
    command = [*COMMAND, "serve", "--port", port, *arguments]
    async with spawned(command, home, home, stdin=subprocess.DEVNULL, **environ) as hub:
        await hub.said("ready when:")
        yield hub


@asynccontextmanager
async def spawned(
    command: list[str],
    cwd: Path,
    home: Path,
    *,
    stdin: int = subprocess.PIPE,
    inherit: int | None = None,
    **environ: Any,
) -> AsyncIterator[Served]:
    """Run a hub until the body ends, with its output followed; it may inherit a descriptor."""
    env = {**environment(home), **environ}
    inherited = () if inherit is None else (inherit,)
    async with await anyio.open_process(command, cwd=cwd, env=env, stdin=stdin, pass_fds=inherited) as process:
        hub = Served(process, home)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hub.follow, process.stdout, "out")
            tasks.start_soon(hub.follow, process.stderr, "err")
            try:
                yield hub
            finally:
                with anyio.CancelScope(shield=True):
                    if process.returncode is None:
                        process.kill()
                    await process.wait()


def config(file: Path, **servers: object) -> Path:
    """Write a configuration; in one step, as an editor does."""
    fresh = file.with_suffix(".fresh")
    fresh.write_text(json.dumps({"mcpServers": servers}))
    fresh.replace(file)
    return file
