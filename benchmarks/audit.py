"""What the audit adds to a call: CPU time of a hub with an audit and of one without, in turns (SEC-15).

``python -m benchmarks.audit`` prints a table. Both hubs run at the same time and are called in turns, so that what else
the machine does is the same for both. The system counts the time of each thread, so that of the thread that writes is
shown by itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.calls import Load, Subject, generator
from benchmarks.processes import Tree, hub, upstream

__all__ = ["main"]

ROUNDS, REQUESTS, CALLERS = 15, 960, 16
SETTLE_SECONDS = 0.3
"""Until the last records of a round are written."""


def main() -> None:
    """Measure, and print a table."""
    load = Load(callers=CALLERS, requests=REQUESTS)
    with upstream("--eras", "both") as (_, (port,)), ExitStack() as stack:
        servers = {"up": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}
        pids, generators = [], []
        for on in (False, True):
            pid, base = stack.enter_context(hub(servers, settings={"audit": {"enabled": on}}))
            pids.append(pid)
            generators.append(stack.enter_context(generator(Subject("Holdfast", f"{base}/mcp", pid, "up__echo"), load)))
        loops: tuple[list[float], list[float]] = ([], [])
        threads: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for which, one in enumerate(generators):
                loop, others = _measured(pids[which], one.run)
                loops[which].append(loop)
                threads[which].append(others)
    print("| CPU time of a call, µs | event loop | other threads | both |\n|---|---|---|---|")
    for which, name in enumerate(("without an audit", "with one")):
        loop, others = statistics.median(loops[which]), statistics.median(threads[which])
        print(f"| {name}, {CALLERS} callers | {loop:.1f} | {others:.1f} | {loop + others:.1f} |")


def _measured(pid: int, run: Callable[[], object]) -> tuple[float, float]:
    """Microseconds of CPU for each call of a round: of the event loop, and of the other threads."""
    before = Tree(pid).cpu()
    run()
    time.sleep(SETTLE_SECONDS)
    used = {thread: now - before.get(thread, 0) for thread, now in Tree(pid).cpu().items()}
    loop = used.pop((pid, pid), 0)
    return loop / REQUESTS / 1e3, sum(used.values()) / REQUESTS / 1e3


if __name__ == "__main__":
    main()
