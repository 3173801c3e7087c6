"""Programs that a benchmark starts, and the CPU time and memory of one with all its descendants.

Linux only: it reads ``/proc``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "ROOT",
    "Tree",
    "free_port",
    "hub",
    "node",
    "redis",
    "relay",
    "started",
    "stdio_server",
    "upstream",
    "wait_until",
]

ROOT = Path(__file__).parents[1]
SERVER = ROOT / "benchmarks" / "upstream.py"
READY_SECONDS = 120.0
END_SECONDS = 15.0


class Tree:
    """Processes and their descendants, without the MCP server behind them: that one is not what is measured."""

    def __init__(self, pid: int, *others: int) -> None:
        self.pid = pid
        self._roots = (pid, *others)

    def pids(self) -> list[int]:
        """The processes of the tree that are alive."""
        return [pid for pid in self._all() if pid in self._roots or not _is_server(pid)]

    def _all(self) -> list[int]:
        children: defaultdict[int, list[int]] = defaultdict(list)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    children[int(_stat(entry)[1])].append(int(entry.name))
        found, todo = [], [*self._roots]
        while todo:
            found.append(pid := todo.pop())
            todo += children[pid]
        return found

    def servers(self) -> list[int]:
        """The MCP servers that run as its children, or as theirs."""
        return [pid for pid in self._all() if pid not in self._roots and _is_server(pid)]

    def cpu(self) -> Mapping[tuple[int, int], int]:
        """Nanoseconds of CPU of each thread so far. The process's own account has ticks of 10 ms."""
        used = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    with contextlib.suppress(OSError):
                        used[pid, int(task.name)] = int((task / "schedstat").read_text().split()[0])
        return used

    def cpu_since(self, before: Mapping[tuple[int, int], int]) -> float:
        """Seconds of CPU since then. A thread that has ended meanwhile is left out, with what it had used before."""
        return sum(used - before.get(thread, 0) for thread, used in self.cpu().items()) / 1e9

    def memory(self) -> int:
        """Bytes in memory; what processes share counts once."""
        return sum(self.memory_of(pid) for pid in self.pids())

    @staticmethod
    def memory_of(pid: int) -> int:
        """Bytes of one process, with its part of what it shares."""
        return _field(pid, "smaps_rollup", "Pss:")

    def peak(self) -> int:
        """The most memory of the root process since the last `forget_peak`."""
        return _field(self.pid, "status", "VmHWM:")

    def forget_peak(self) -> None:
        """Count the peak from now on."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")


def _stat(process: Path) -> list[str]:
    return (process / "stat").read_text().rpartition(")")[2].split()


def _is_server(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return str(SERVER).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _field(pid: int, file: str, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def node() -> str:
    """A Node that runs the generator."""
    own = Path(sys.executable).parent / "node"
    return str(own) if own.exists() else shutil.which("node") or "node"


def free_port() -> int:
    """A port for a program that cannot choose one itself and say which."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(url: str, process: subprocess.Popen[Any] | None = None, *, seconds: float = READY_SECONDS) -> None:
    """Wait until an address answers, with any status below 500."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"it ended with code {process.returncode}")
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError as exc:
            exc.close()
            if exc.code < 500:
                return
        except OSError:
            pass
        else:
            return
        time.sleep(0.02)
    raise RuntimeError(f"no answer within {seconds:.0f} s")


@contextlib.contextmanager
def started(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT, pipe: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A program in a process group of its own, until the end of the block. Its errors go into its `log` attribute.

    All programs stay in the session of the benchmark. Linux gives each session the same share of a core (autogroup):
    two workers in one session would have half the share of two hubs in two sessions, and be interrupted more often.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if pipe else log, stderr=log, text=True, cwd=cwd,
            env={**os.environ, **(env or {})}, process_group=0,
        )  # fmt: skip
        try:
            yield process
        except Exception as exc:
            log.seek(0)
            exc.add_note(f"{' '.join(command)[:200]} said: …{log.read()[-1500:]}")
            raise
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End the group. A program that does not end by itself is killed: what it leaves behind is not our subject."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(END_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


def stdio_server(*options: str) -> list[str]:
    """The command of the fast server over stdio. `-S`, since it needs nothing installed and starts sooner."""
    return [sys.executable, "-S", str(SERVER), "stdio", *options]


@contextlib.contextmanager
def upstream(*options: str) -> Iterator[tuple[int, list[int]]]:
    """The fast server over HTTP: its process and its ports."""
    with started([sys.executable, str(SERVER), "serve", *options], pipe=True) as process:
        yield process.pid, json.loads(_line(process, r"(\[.*\])"))


@contextlib.contextmanager
def relay(url: str) -> Iterator[tuple[int, str]]:
    """The bare relay: its process and its endpoint."""
    with started([sys.executable, str(SERVER), "relay", url], pipe=True) as process:
        (port,) = json.loads(_line(process, r"(\[.*\])"))
        yield process.pid, f"http://127.0.0.1:{port}/mcp"


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """A Redis that keeps nothing on disk: its address."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no"]
        with started(["redis-server", *options]):
            yield f"redis://127.0.0.1:{port}"


@contextlib.contextmanager
def hub(
    servers: Mapping[str, Any],
    *options: str,
    settings: Mapping[str, Any] | None = None,
    ready: bool = True,
    source: Path = ROOT,
    environ: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
) -> Iterator[tuple[int, str]]:
    """``holdfast serve``, of this checkout or another, ``under`` a profiler: its process and its base address."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mcp.json"
        file.write_text(json.dumps({"mcpServers": servers, "holdfast": settings or {}}))
        env = {"HOME": folder, "XDG_STATE_HOME": folder, "PYTHONPATH": str(source / "src"), **(environ or {})}
        command = [
            *under,
            sys.executable,
            "-m",
            "holdfast",
            "serve",
            "--no-watch",
            "--config",
            str(file),
            "--port",
            "0",
            *options,
        ]
        with started(command, env=env, cwd=source, pipe=True) as process:
            base = _line(process, r"MCP endpoint: (http://\S+)/mcp")
            if ready:
                wait_until(f"{base}/readyz", process)
            yield process.pid, base


def _line(process: subprocess.Popen[str], pattern: str) -> str:
    """What a program says about itself on its stdout."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found[1]
    raise RuntimeError("it ended before it said where it listens")
