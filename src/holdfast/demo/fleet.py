"""Starts the demo's HTTP servers and writes the fleet's ``mcp.json``; the hub starts the other servers."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc

from holdfast.demo.control import DemoControl
from holdfast.errors import HoldfastError

__all__ = ["demo_fleet"]

START_SECONDS = 20.0
"""A server of the demo starts in a tenth of a second; a machine under load may take longer."""

END_SECONDS = 3.0
"""A server ends when its stdin ends. A stopped process (Ctrl-Z) does not, and is killed after this time."""


@asynccontextmanager
async def demo_fleet(*, pace: float = 1.0) -> AsyncIterator[DemoControl]:
    """The fleet, during the block; ``control.config_file`` is its configuration."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-"))
        control = DemoControl(Path(folder))
        control.create(pace=pace)
        ports = {name: await stack.enter_async_context(_web(control, name)) for name in ("weather", "vault")}
        control.put_on_ports(ports)
        yield control


@asynccontextmanager
async def _web(control: DemoControl, name: str) -> AsyncIterator[int]:
    """One HTTP server in a process of its own; gives its port."""
    async with await _start(control.command("http", name)) as process:
        try:
            yield await _port(name, process)
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)


async def _start(command: list[str]) -> anyio.abc.Process:
    # A process group of its own: Ctrl-C in the terminal goes to the hub, which ends its servers in order. They need no
    # secret, and every program of this user can read their variables.
    environment = {name: value for name, value in os.environ.items() if name.startswith(_NEEDED)}
    return await anyio.open_process(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        start_new_session=True,
        env=environment,
    )


_NEEDED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_",
    "TMPDIR",
    "PYTHON",
    "LD_",
    "DYLD_",
    "COVERAGE_",
    "COV_CORE_",
    "HOLDFAST_TEST_",
)
"""How the names of the variables begin that a server of the demo gets."""


async def _port(name: str, process: anyio.abc.Process) -> int:
    assert process.stdout is not None  # noqa: S101 - it was requested
    with anyio.move_on_after(START_SECONDS):
        said = b""
        async for part in process.stdout:
            said += part
            if said.endswith(b"\n"):
                return int(said)
    raise HoldfastError(f"the demo's server `{name}` did not start", hint="is 127.0.0.1 usable on this machine?")


async def _end(process: anyio.abc.Process) -> None:
    assert process.stdin is not None  # noqa: S101 - it was requested
    await process.stdin.aclose()
    with anyio.move_on_after(END_SECONDS):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
