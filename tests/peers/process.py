"""Foreign servers as child processes: started with a log, waited for under a deadline, ended for sure."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio

from tests.harness.waiting import until
from tests.peers.leaks import RUN_MARK

__all__ = ["ForeignProcess", "foreign_process"]

# A cold start on a loaded machine; a warm one takes a fraction of a second.
_STARTING = 30.0
_ENDING = 5.0


class ForeignProcess:
    """A running child and the log of what it printed."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.pid = process.pid
        self.log = log
        self._process = process

    async def appears(self, path: Path, *, containing: str = "") -> str:
        """Wait until a file holds a text that the process has to write there; return all of it."""
        with anyio.move_on_after(_STARTING):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_at_its_end, tasks.cancel_scope)
                await until(lambda: containing in _text(path) and _text(path), beside=path.parent, within=2 * _STARTING)
                tasks.cancel_scope.cancel()
        if (text := _text(path)) and containing in text:
            return text
        raise AssertionError(f"the process did not come up; it said:\n{_text(self.log)}")

    async def _cancel_at_its_end(self, waiting: anyio.CancelScope) -> None:
        await self._process.wait()
        waiting.cancel()

    async def ended(self) -> int:
        """Wait until it is over; gives its exit code."""
        return await self._process.wait()


@asynccontextmanager
async def foreign_process(
    command: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[ForeignProcess]:
    """Run a command in a process group of its own, until the end of the block."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"PATH": os.environ.get("PATH", ""), "HOLDFAST_TEST_RUN": RUN_MARK, **(env or {})},
            start_new_session=True,
        )
    try:
        yield ForeignProcess(process, log)
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with anyio.move_on_after(_ENDING):
            await process.wait()
            return
