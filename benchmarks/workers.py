"""What ``serve --workers`` costs: calls per CPU-second with one process and with several (PERF-8).

Each process has the same number of callers: one that answers many at a time needs less for each of them. CPU time is
that of all processes, the supervisor included. Wall time says little here: the generator, the server behind and the
workers share the cores of one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.calls import Load, Sample, Subject, generator, per_caller, row
from benchmarks.processes import hub, upstream
from benchmarks.report import Check, Report, Row, at_least, interleaved, ratio

__all__ = ["ONE", "QUICK", "REQUIREMENTS", "SEVERAL", "measure"]

REQUIREMENTS = ("PERF-8",)
WORKERS = 2
SHARE = 0.9
ROUNDS = 30
QUICK: dict[str, Any] = {"rounds": 1, "requests": 32, "callers": (16,)}

ONE, SEVERAL = "one process", f"{WORKERS} workers"


def measure(*, rounds: int = ROUNDS, requests: int = 960, callers: Sequence[int] = (16, 64)) -> Report:
    """16 and 64 callers for each process, of both eras, with a server over HTTP behind."""
    rows: list[Row] = []
    checks: list[Check] = []
    with upstream("--eras", "both") as (_, (port,)):
        servers = {"up": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}
        with hub(servers) as (alone, alone_url), hub(servers, "--workers", str(WORKERS)) as (together, together_url):
            one = Subject(ONE, f"{alone_url}/mcp", alone, "up__echo")
            several = Subject(SEVERAL, f"{together_url}/mcp", together, "up__echo")
            for era in ("legacy", "modern"):
                for count in callers:
                    load = Load(callers=count, requests=requests, era=era)
                    more = Load(callers=WORKERS * count, requests=WORKERS * requests, era=era)
                    seen = _in_turns([(one, load), (several, more)], rounds)
                    where = f"{era}, {per_caller(count)} for each process"
                    rows += [row(f"{ONE}, {where}", seen[ONE]), row(f"{SEVERAL}, {where}", seen[SEVERAL], seen[ONE])]
                    share = ratio([sample.cpu for sample in seen[ONE]], [sample.cpu for sample in seen[SEVERAL]])
                    demand = f"PERF-8 {where}: calls per CPU-second, to one process"
                    checks.append(at_least(demand, SHARE, share, " times"))
    return Report(
        name="workers",
        title=f"{WORKERS} workers beside one process, {rounds} rounds of {requests:,} calls for each process",
        requirements=REQUIREMENTS,
        about=(
            "An echo tool is called over HTTP through `holdfast serve` and through `holdfast serve --workers "
            f"{WORKERS}`, in turns, with the same number of callers for each process. CPU time is that of the "
            "supervisor and all workers. The calls per second are no measure of capacity: the load generator, the "
            "server behind and the workers share the cores of one machine."
        ),
        rows=tuple(rows),
        checks=tuple(checks),
    )


def _in_turns(loads: Sequence[tuple[Subject, Load]], rounds: int) -> dict[str, list[Sample]]:
    """All subjects in every round, each with its own load."""
    seen: dict[str, list[Sample]] = {subject.name: [] for subject, _ in loads}
    with ExitStack() as stack:
        running = {one.name: stack.enter_context(generator(one, load)) for one, load in loads}
        for name in interleaved(list(running), rounds):
            seen[name].append(running[name].run())
    return seen
