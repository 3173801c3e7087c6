"""A scripted server as a real child process; its tools and its faults can be changed while it runs."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.testing import script as program
from holdfast.testing.script import Fault

if TYPE_CHECKING:
    from holdfast.testing.script import Era

__all__ = ["StdioServer"]

CLEANUPS = 20
"""How often the folder is emptied at most: each time it can meet one more process that starts."""


class StdioServer:
    """``with StdioServer({"forecast": "sunny"}) as server``: each tool returns its text.

    Nothing runs until a client starts the command in ``definition``. The server logs what it receives.
    """

    def __init__(self, tools: Mapping[str, str], *, era: Era = "legacy") -> None:
        self._tools = dict(tools)
        self._era = era
        self._fault: Fault | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-testing-")
        self._script = Path(self._folder.name) / "script.json"
        self._log = Path(self._folder.name) / "log"
        self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A process that a client started a moment ago may write its log while the folder is emptied: begin again then.
        for left in reversed(range(CLEANUPS)):
            self.kill()
            try:
                self._folder.cleanup()
            except OSError:
                if not left:
                    raise
            else:
                return

    @property
    def definition(self) -> dict[str, object]:
        """The server as an entry of ``mcpServers``."""
        arguments = ["-I", "-S", program.__file__, str(self._script), str(self._log)]
        return {"command": sys.executable, "args": arguments}

    @property
    def pids(self) -> list[int]:
        """The process id of each start, in order; older processes have ended."""
        return [int(rest) for rest in self._noted("start")]

    @property
    def asked(self) -> list[str]:
        """The methods of all received messages, in order, over all starts."""
        return self._noted("asked")

    def fail(self, fault: Fault) -> None:
        """Fail in this way from now on."""
        if fault is Fault.DENY:
            raise ValueError("a process cannot deny a request: use HttpServer")
        self._fault = fault
        self._write()
        if fault is Fault.REFUSE:
            self.kill()

    def heal(self) -> None:
        """End the fault; requests from before stay unanswered."""
        self._fault = None
        self._write()

    def set_tools(self, tools: Mapping[str, str]) -> None:
        """Replace the tools, and send ``list_changed`` to the connected client."""
        self._tools = dict(tools)
        self._write()
        self._signal(signal.SIGUSR1)

    def kill(self) -> None:
        """Kill the process at once, as ``kill -9`` does."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the live processes of this server; a process id that the system reused is skipped."""
        for pid in self.pids:
            if self._is_ours(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _is_ours(self, pid: int) -> bool:
        command = Path("/proc") / str(pid) / "cmdline"
        try:
            return not command.parent.parent.exists() or str(self._script).encode() in command.read_bytes()
        except OSError:
            return False

    def _write(self) -> None:
        """Write the script in one step: the child never reads half of it."""
        fresh = self._script.with_suffix(".new")
        fault = self._fault.value if self._fault is not None else None
        fresh.write_text(json.dumps({"tools": self._tools, "era": self._era, "fault": fault}))
        fresh.replace(self._script)

    def _noted(self, kind: str) -> list[str]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == kind]
