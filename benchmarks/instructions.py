"""How many instructions a call takes, in one process and with workers (PERF-8).

``python -m benchmarks.instructions`` runs ``holdfast serve`` under valgrind's callgrind. CPU time depends on what else
the cores do, and on what they share: two busy cores do less than twice the work of one. Instructions depend less on it.
If a worker needs as many for a call as one process does, a difference in CPU time is the machine's.

Callgrind counts what the program runs, not what the system does for it. It makes a program some 30 times slower, so
that work which is done once a second counts 30 times as much beside the calls. So the same time without a call is
measured too, and left out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.calls import Load, Subject, generator
from benchmarks.processes import Tree, hub, upstream

__all__ = ["counted", "main", "total"]

WORKERS = 2
ROUNDS, REQUESTS, CALLERS = 3, 480, 16
SETTLE_SECONDS = 20.0
"""A worker finds the others, and has told them what it knows, within this time after its start under valgrind."""
CONTROL_SECONDS = 120.0
_TOTAL = re.compile(r"^(?:summary|totals):\s*(\d+)", re.MULTILINE)


def total(dump: str) -> int:
    """The instructions in one dump of callgrind."""
    found = _TOTAL.findall(dump)
    return int(found[-1]) if found else 0


def counted(load: Load, *, workers: int = 1) -> int:
    """Instructions for each call of this load, with the same load for each of so many workers."""
    options = ("--workers", str(workers)) if workers > 1 else ()
    with upstream("--eras", "both") as (_, (port,)), tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = {"up": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}
        # Each dump of a process gets a number after this name.
        under = ["valgrind", "--tool=callgrind", "--trace-children=yes", "--instr-atstart=no",
                 f"--callgrind-out-file={folder}/%p"]  # fmt: skip
        pid, base = stack.enter_context(hub(servers, *options, under=under))
        time.sleep(SETTLE_SECONDS)
        subject = Subject("Holdfast", f"{base}/mcp", pid, "up__echo")
        callers = [stack.enter_context(generator(subject, load)) for _ in range(workers)]
        threads = stack.enter_context(ThreadPoolExecutor(workers))
        list(threads.map(lambda one: one.run(), callers))
        with _counting(pid) as pids:
            began = time.monotonic()
            for _ in range(ROUNDS):
                list(threads.map(lambda one: one.run(), callers))
            took = time.monotonic() - began
            _control(pids, "--dump")
            time.sleep(took)
            _control(pids, "--dump")
        with_calls, without = (
            sum(total(file.read_text()) for pid in pids for file in Path(folder).glob(f"{pid}.{number}*"))
            for number in (1, 2)
        )
    return (with_calls - without) // (ROUNDS * load.requests * workers)


@contextmanager
def _counting(pid: int) -> Iterator[list[int]]:
    """Count from here on, in all processes of a hub."""
    pids = [one for one in Tree(pid).pids() if b"--tool=callgrind" in Path(f"/proc/{one}/cmdline").read_bytes()]
    _control(pids, "--instr=on")
    yield pids


def _control(pids: Sequence[int], what: str) -> None:
    for pid in pids:
        subprocess.run(["callgrind_control", what, str(pid)], check=True, capture_output=True, timeout=CONTROL_SECONDS)


def main() -> None:
    """Count, and print a table."""
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed: it is a package of Debian, and of Homebrew")
    print(f"| instructions for each call | one process | {WORKERS} workers | ratio |\n|---|---|---|---|")
    for era in ("legacy", "modern"):
        load = Load(callers=CALLERS, requests=REQUESTS, era=era)
        one, several = counted(load), counted(load, workers=WORKERS)
        print(
            f"| {era}, {CALLERS} callers for each process | {one:,} | {several:,} | {several / one:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
