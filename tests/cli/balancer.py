"""A real HAProxy before several hubs: round robin, a new connection for each request, no retries."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from tests.waiting import asked

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")

_CONFIG = """
global
    stats socket {control} mode 600 level admin
defaults
    mode http
    retries 0
    option httpclose
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
    http-reuse never
{servers}
"""


class Balancer:
    """A HAProxy that runs."""

    def __init__(self, url: str, control: Path) -> None:
        self.url = url
        self._control = control

    async def states(self) -> dict[str, str]:
        """The state of each hub as HAProxy sees it: ``UP``, ``DOWN`` … None before HAProxy listens on its socket.

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
        rows = [line.split(",") for line in text.decode().splitlines() if line.startswith("hubs,h")]
        return {row[1]: row[17].split()[0] for row in rows}

    async def until(self, name: str, state: str) -> None:
        """Wait until a hub is seen in a state."""

        async def seen() -> bool:
            return (await self.states()).get(name) == state

        await asked(seen)


@asynccontextmanager
async def balancer(folder: Path, port: str, hubs: Sequence[str]) -> AsyncIterator[Balancer]:
    """Balance between the hubs at these URLs, named h0, h1 …, until the body ends."""
    assert HAPROXY is not None
    addresses = [match.group(1) for hub in hubs if (match := re.match(r"http://([^/]+)/", hub))]
    lines = [f"    server h{n} {address} check inter 100ms fall 1 rise 1" for n, address in enumerate(addresses)]
    file, control = folder / "haproxy.cfg", folder / "haproxy.sock"
    file.write_text(_CONFIG.format(control=control, port=port, servers="\n".join(lines)))
    command = [HAPROXY, "-db", "-f", str(file)]
    async with await anyio.open_process(command, stdin=subprocess.DEVNULL, stdout=None, stderr=None) as process:
        try:
            found = Balancer(f"http://127.0.0.1:{port}/mcp", control)
            for number in range(len(hubs)):
                await found.until(f"h{number}", "UP")
            yield found
        finally:
            with anyio.CancelScope(shield=True):
                process.kill()
                await process.wait()
