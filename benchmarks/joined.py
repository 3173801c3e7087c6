"""What a further client costs a machine: clients that join one hub, beside clients that have a hub each (PERF-10)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.processes import SERVER, Tree
from benchmarks.report import Check, Report, Row, median, ratio

__all__ = ["QUICK", "REQUIREMENTS", "measure"]

REQUIREMENTS = ("PERF-10",)
QUICK: Mapping[str, Any] = {"clients": 1, "rounds": 2}

CLIENTS, ROUNDS = 10, 20
MOST_BYTES = 15_000_000
AT_MOST = 5

HOLDFAST = str(Path(sysconfig.get_path("scripts")) / "holdfast")


def measure(*, clients: int = CLIENTS, rounds: int = ROUNDS) -> Report:
    """Start the clients of each kind, one after the other, and look at what runs then."""
    _, own_times, own_memory, own_processes = _cost(clients, 0, "--own")
    empty, times, memory, processes = _cost(clients, rounds)
    of_client, slower = memory / clients, ratio(times[-rounds:], empty)
    return Report(
        name="joined",
        title=f"{clients} clients over stdio",
        requirements=REQUIREMENTS,
        rows=(
            Row(label="python -c pass", time=median(empty)),
            Row(
                label=f"{clients} clients with a hub each",
                time=median(own_times),
                memory=own_memory,
                note=f"{own_processes} processes",
            ),
            Row(
                label=f"{clients} clients that joined, without their hub",
                time=median(times),
                ratio=slower,
                memory=memory,
                note=f"{processes} processes",
            ),
        ),
        checks=(
            Check(
                demand=f"PERF-10 a client that joined takes at most {MOST_BYTES // 1_000_000} MB (Pss)",
                found=f"{of_client / 1e6:.1f} MB",
                met=of_client <= MOST_BYTES,
            ),
            Check(
                demand=f"PERF-10 its `initialize` is answered within {AT_MOST} times an empty program",
                found=f"{slower.median:.2f} times",
                met=slower.median <= AT_MOST,
            ),
        ),
        about="The time is from the start of the process to the answer to `initialize`, where the hub runs already.",
    )


def _cost(clients: int, rounds: int, *options: str) -> tuple[list[float], list[float], int, int]:
    """The times of an empty program and to the first answer, the memory and the number of processes of all clients."""
    with _home() as environ, ExitStack() as stack:
        if rounds:
            stack.enter_context(_client(environ, *options))  # it starts the hub
        began = [stack.enter_context(_client(environ, *options)) for _ in range(clients)]
        times = [seconds for _, seconds in began]
        empty: list[float] = []
        for _ in range(rounds):  # in turns: a busy machine slows both
            empty.append(_seconds_of_python())
            with _client(environ, *options) as (_, seconds):
                times.append(seconds)
        trees = [Tree(process.pid) for process, _ in began]
        return empty, times, sum(tree.memory() for tree in trees), sum(len(tree.pids()) for tree in trees)


@contextmanager
def _home() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="hf-") as home:
        file = Path(home) / ".config" / "holdfast" / "mcp.json"
        file.parent.mkdir(parents=True)
        server = {"command": sys.executable, "args": [str(SERVER), "stdio"]}
        file.write_text(json.dumps({"mcpServers": {"one": server}}))
        environ = {**os.environ, "HOME": home, "XDG_STATE_HOME": f"{home}/state", "XDG_RUNTIME_DIR": home}
        environ.pop("XDG_CONFIG_HOME", None)
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode
        try:
            yield environ
        finally:
            subprocess.run([HOLDFAST, "stop"], env=environ, check=False, capture_output=True, timeout=60)


@contextmanager
def _client(environ: Mapping[str, str], *options: str) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """A client whose handshake is done, and how long that took."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [HOLDFAST, "serve", "--stdio", *options],
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        info = {"name": "benchmark", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        if b'"result"' not in process.stdout.readline():
            raise RuntimeError("the hub did not answer")
        yield process, time.perf_counter() - began
    finally:
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        process.kill()
        process.wait()


def _seconds_of_python() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began
