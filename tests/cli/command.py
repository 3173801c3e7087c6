"""Run ``holdfast`` as people do: a process of its own, with pipes or on a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pyte
import pytest

import holdfast
from holdfast.config import TrustStore
from tests.cli.json_outputs import check_output
from tests.peers.stdio import StdioPeer

__all__ = ["HOLDFAST", "LONGEST", "Cli", "Terminal", "cli", "stdio"]

HOLDFAST = Path(sys.executable).with_name("holdfast")
PACKAGE = str(Path(holdfast.__file__).parents[1])
"""Where the package under test is: the command must be the same one, wherever it is installed."""

LONGEST = 60

_ON_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, {interrupt})  # a shell has its background jobs, this test run for one, ignore it
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
"""
_OTHER = _ON_TERMINAL.format(interrupt="signal.SIG_DFL") + "os.execv(sys.argv[1], sys.argv[1:])"
_OURS = (
    "from holdfast.cli.entry import main\n"
    + _ON_TERMINAL.format(interrupt="signal.default_int_handler")
    + "sys.argv[:] = sys.argv[1:]\nmain()"
)
"""The command itself, in the process that took the terminal."""


class Cli:
    """The command line in a folder of its own, whose ``mcp.json`` it finds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.size = (200, 50)
        """Columns and lines of the terminals."""
        self.environment = {
            "PATH": f"{HOLDFAST.parent}{os.pathsep}{os.environ['PATH']}",  # as a user has it, who types `holdfast`
            "PYTHONPATH": PACKAGE,
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "COLUMNS": "200",
            "HOLDFAST_TOKEN_STORE": "file",
        }

    def configure(self, servers: Mapping[str, object], **settings: object) -> None:
        (self.folder / "mcp.json").write_text(json.dumps({"mcpServers": servers, "holdfast": settings}))
        self.trust()

    def trust(self) -> None:
        """Trust the folder's ``mcp.json``, as its user does once."""
        file = self.folder / "mcp.json"
        TrustStore(self.environment).trust(file, file.read_bytes())

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            [HOLDFAST, *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        check_output(arguments, ran.stdout)
        return ran

    def on_terminal(self, *arguments: str, **environment: str) -> AbstractContextManager[Terminal]:
        """Run on a terminal of its own, until the end of the block at the latest."""
        return self.in_terminal([str(HOLDFAST), *arguments], environment)

    @contextmanager
    def in_terminal(self, command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
        """The same for any program."""
        columns, lines = self.size
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        mode = termios.tcgetattr(theirs)
        process = subprocess.Popen(
            [sys.executable, "-c", _OURS if command[0] == str(HOLDFAST) else _OTHER, *command],
            cwd=self.folder,
            env={**self.environment, "TERM": "xterm-256color", "COLUMNS": str(columns), **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        try:
            terminal = Terminal(process, ours, columns, lines)
            terminal.mode_before = mode
            yield terminal
        finally:
            process.kill()
            process.wait()
            os.close(ours)


class Terminal:
    """What a person at the terminal sees and can type."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, columns: int, lines: int) -> None:
        self._process = process
        self._master = master
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.seen = ""
        self.mode_before: list[object] = []
        """How the terminal was set before anything ran on it."""

    @property
    def text(self) -> str:
        """What was shown, without the sequences that colour it and move the cursor."""
        return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", self.seen)

    @property
    def screen(self) -> list[str]:
        """What is on the screen now, line by line."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def mode(self) -> list[object]:
        """How the terminal is set: whether it echoes, takes lines or keys, and so on."""
        return termios.tcgetattr(self._master)

    def until(self, wanted: str) -> None:
        """Read until a text is shown; the test's own time limit ends a wait in vain."""
        while wanted not in self.text:
            assert self._read(), f"it ended without showing {wanted!r}:\n{self.text}"

    def until_on_screen(self, wanted: str, *, line: int | None = None) -> None:
        """Read until a text stands on the screen, on any line or on a certain one."""
        while not any(wanted in shown for shown in (self.screen if line is None else [self.screen[line]])):
            assert self._read(), f"it ended without {wanted!r} on the screen:\n" + "\n".join(self.screen)

    def until_after(self, mark: str, wanted: str, *, times: int) -> None:
        """Read until a text is shown after a mark that came so many times, sequences and all."""
        while len(parts := self.seen.split(mark)) <= times or wanted not in parts[-1]:
            assert self._read(), f"it ended without {wanted!r} after {times} of {mark!r}:\n{self.text}"

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def code(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self._process.wait(LONGEST)

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # how Linux says that the other side of a terminal is closed
            return False
        self.seen += data.decode("utf-8", "replace")
        self._stream.feed(data)
        return bool(data)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    folder = tmp_path / "home"
    folder.mkdir()
    return Cli(folder)


def stdio(peer: StdioPeer, **more: object) -> dict[str, object]:
    """A definition of the peer, as an ``mcp.json`` has it."""
    return {"command": peer.command, "args": list(peer.args), **more}
