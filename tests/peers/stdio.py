"""The test's side of the stdio peer: how to start it, and what it says that it saw."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.harness.waiting import until
from tests.peers.leaks import RUN_MARK, alive

__all__ = ["StdioPeer"]

_PAUSE = 0.01
_SCRIPT = Path(__file__).with_name("stdio_server.py")


class StdioPeer:
    """A command line for ``stdio_server.py`` and the log that every process of it writes to.

    Nothing runs until someone starts ``command`` with ``args``. ``folder`` is where the log lies.
    """

    command = sys.executable

    def __init__(self, *flags: str, folder: Path) -> None:
        descriptor, path = tempfile.mkstemp(prefix="stdio-", suffix=".log", dir=folder)
        os.close(descriptor)
        self.log = Path(path)
        # Isolated and without site: nothing of the test run's environment slows or changes the child.
        self.args = ("-I", "-S", str(_SCRIPT), "--mark", RUN_MARK, "--log", path, *flags)

    @property
    def pids(self) -> list[int]:
        """The process ids of every start, in order."""
        return [int(rest) for rest in self._lines("start")]

    @property
    def starts(self) -> int:
        """How often the command was started."""
        return len(self.pids)

    @property
    def grandchildren(self) -> list[int]:
        """The process ids that the starts left behind."""
        return [int(rest) for rest in self._lines("grandchild")]

    @property
    def methods(self) -> list[str]:
        """The JSON-RPC methods that arrived, over all starts, in order."""
        return self._lines("message")

    @property
    def living(self) -> list[int]:
        """Those of all its processes that still live."""
        return [pid for pid in (*self.pids, *self.grandchildren) if alive(pid)]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is true that comes true with a line of the log."""
        await until(condition, beside=self.log.parent, within=60)

    def kill(self) -> None:
        """Kill every process of it that still lives, for tests of processes that escape on purpose."""
        for pid in self.living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _lines(self, kind: str) -> list[str]:
        lines = (line.partition(" ") for line in self.log.read_text().splitlines())
        return [rest for word, _, rest in lines if word == kind]
