"""A real HAProxy before several hubs: round robin, a new connection for each request, no retries."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from tests.harness.waiting import asked

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")

_CONFIG = """
defaults
    mode http
    retries 0
    option httpclose
    option http-no-delay
    timeout connect 5s
    timeout check 10s
    timeout client 60s
    timeout server 60s
frontend hubs
    bind 127.0.0.1:{port}
    default_backend hubs
backend hubs
    balance roundrobin
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host localhost
    http-check expect status 200 error-status L7OKC
    http-reuse never
{servers}
"""


class Balancer:
    """A HAProxy that runs."""

    def __init__(self, url: str, control: Path) -> None:
        self.url = url
        self._control = control

    async def states(self) -> dict[str, str]:
        """The state of each hub as HAProxy sees it: ``UP``, ``DOWN``, ``NOLB`` while it leaves …

        None before HAProxy listens on its socket.
        HAProxy binds the socket, gives it its name, and listens on it a moment later.
        """
        try:
            connected = await anyio.connect_unix(self._control)
        except (FileNotFoundError, ConnectionRefusedError):
            return {}
        async with connected as stream:
            await stream.send(b"show stat\n")
            text = b""
            try:
                while True:
                    text += await stream.receive()
            except anyio.EndOfStream:
                pass
        rows = [line.split(",") for line in text.decode().splitlines() if line.startswith("hubs,")]
        return {row[1]: row[17].split()[0] for row in rows if row[1] not in ("FRONTEND", "BACKEND")}

    async def until(self, name: str, state: str) -> None:
        """Wait until a hub is seen in a state."""

        async def seen() -> bool:
            return (await self.states()).get(name) == state

        await asked(seen)


@asynccontextmanager
async def balancer(folder: Path, port: str, hubs: Sequence[str]) -> AsyncIterator[Balancer]:
    """Balance between the hubs at these URLs, named h0, h1 …, until the body ends."""
    addresses = [match.group(1) for hub in hubs if (match := re.match(r"http://([^/]+)/", hub))]
    lines = [
        f"    server h{n} {address} check inter 100ms fall 1 rise 1 on-marked-down shutdown-sessions"
        for n, address in enumerate(addresses)
    ]
    text = _CONFIG.format(port=port, servers="\n".join(lines))
    async with haproxy(folder, text, f"http://127.0.0.1:{port}/mcp", [f"h{n}" for n in range(len(hubs))]) as front:
        yield front


@asynccontextmanager
async def haproxy(folder: Path, config: str, url: str, servers: Sequence[str]) -> AsyncIterator[Balancer]:
    """Run HAProxy with a configuration that listens at ``url``; these servers are up when the body begins."""
    assert HAPROXY is not None
    file, control = folder / "haproxy.cfg", folder / "haproxy.sock"
    file.write_text(f"global\n    stats socket {control} mode 600 level admin\n{config}")
    command = [HAPROXY, "-db", "-f", str(file)]
    async with await anyio.open_process(command, stdin=subprocess.DEVNULL, stdout=None, stderr=None) as process:
        try:
            found = Balancer(url, control)
            for name in servers:
                await found.until(name, "UP")
            yield found
        finally:
            with anyio.CancelScope(shield=True):
                process.kill()
                await process.wait()
