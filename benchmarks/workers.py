"""What ``serve --workers`` costs: calls per CPU-second with one process and with several (PERF-8).

Each process has the same number of callers, from a generator of their own: a process that answers many at a time needs
less for each of them. CPU time is that of all processes, the supervisor included. Wall time says little here: the
generators, the server behind and the workers share the cores of one machine.

Two hubs that know nothing of each other, with the callers in turns, show what the machine alone costs: busy cores share
caches and memory, so a call takes more CPU time than on a machine that is half idle. The workers are compared with one
process, as the demand has it, and with these hubs: that is what the workers themselves cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import fmean
from time import sleep
from typing import Any

from benchmarks.calls import Load, Sample, Subject, generator, per_caller, row
from benchmarks.processes import Tree, hub, upstream
from benchmarks.report import Check, Report, Row, at_least, interleaved, ratio

__all__ = ["APART", "ONE", "QUICK", "REQUIREMENTS", "SEVERAL", "measure"]

REQUIREMENTS = ("PERF-8",)
WORKERS = 2
SHARE = 0.9
ROUNDS = 30
STARTS = 3
"""How often all processes are started: each has its own layout of memory, which makes it a little faster or slower."""
SETTLE_SECONDS = 5.0
"""A worker finds the others, and has told them what it knows, within this time after its start."""
QUICK: dict[str, Any] = {"rounds": 1, "requests": 32, "callers": (16,), "starts": 1, "settle": 0.0}

ONE, SEVERAL, APART = "one process", f"{WORKERS} workers", f"{WORKERS} hubs that share nothing"


def measure(
    *,
    rounds: int = ROUNDS,
    requests: int = 960,
    callers: Sequence[int] = (16, 64),
    starts: int = STARTS,
    settle: float = SETTLE_SECONDS,
) -> Report:
    """16 and 64 callers for each process, of both eras, with a server over HTTP behind."""
    loads = {
        f"{era}, {per_caller(count)} for each process": Load(callers=count, requests=requests, era=era)
        for era in ("legacy", "modern")
        for count in callers
    }
    found: dict[str, dict[str, list[Sample]]] = {where: defaultdict(list) for where in loads}
    for _ in range(starts):
        with _subjects(settle) as sides:
            for where, load in loads.items():
                for name, samples in _in_turns(sides, load, rounds // starts).items():
                    found[where][name] += samples
    rows: list[Row] = []
    checks: list[Check] = []
    for where, seen in found.items():
        rows.append(row(f"{ONE}, {where}", seen[ONE]))
        rows += [row(f"{name}, {where}", seen[name], seen[ONE]) for name in (APART, SEVERAL)]
        rows.append(row(f"{SEVERAL} beside {APART}, {where}", seen[SEVERAL], seen[APART]))
        share = ratio([sample.cpu for sample in seen[ONE]], [sample.cpu for sample in seen[SEVERAL]])
        checks.append(at_least(f"PERF-8 {where}: calls per CPU-second, to one process", SHARE, share, " times"))
        alike = ratio([sample.cpu for sample in seen[APART]], [sample.cpu for sample in seen[SEVERAL]])
        checks.append(at_least(f"PERF-8 {where}: the same, to {APART}", SHARE, alike, " times"))
    return Report(
        name="workers",
        title=f"{WORKERS} workers beside one process, {rounds} rounds of {requests:,} calls for each process",
        requirements=REQUIREMENTS,
        about=(
            "An echo tool is called over HTTP through `holdfast serve` and through `holdfast serve --workers "
            f"{WORKERS}`, in turns, with a generator and the same number of callers for each process. CPU time is that "
            "of the supervisor and all workers. Hubs that share nothing, with the callers in turns, show what two busy "
            "cores cost alone; beside them the workers show what workers cost. The calls per second are no measure of "
            "capacity: the load generator, the server behind and the workers share the cores of one machine."
        ),
        rows=tuple(rows),
        checks=tuple(checks),
    )


@contextmanager
def _subjects(settle: float) -> Iterator[dict[str, list[Subject]]]:
    """The sides, each with a subject for each of its processes, started and at rest."""
    with upstream("--eras", "both") as (_, (port,)), ExitStack() as stack:
        servers = {"up": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}
        alone = [stack.enter_context(hub(servers)) for _ in range(WORKERS)]
        together, together_url = stack.enter_context(hub(servers, "--workers", str(WORKERS)))
        both = ",".join(f"{url}/mcp" for _, url in alone)
        sleep(settle)
        yield {
            ONE: [Subject(ONE, f"{alone[0][1]}/mcp", alone[0][0], "up__echo")],
            APART: [Subject(APART, both, process, "up__echo") for process, _ in alone],
            SEVERAL: [Subject(SEVERAL, f"{together_url}/mcp", together, "up__echo")] * WORKERS,
        }


def _in_turns(sides: Mapping[str, Sequence[Subject]], load: Load, rounds: int) -> dict[str, list[Sample]]:
    """All sides in every round. Each process has a generator of its own, so that none has to wait for its callers."""
    seen: dict[str, list[Sample]] = {name: [] for name in sides}
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(WORKERS))
        running = {name: [stack.enter_context(generator(one, load)) for one in side] for name, side in sides.items()}
        for name in interleaved(list(running), rounds):
            trees = [Tree(pid) for pid in dict.fromkeys(one.pid for one in sides[name])]
            before = [tree.cpu() for tree in trees]
            samples = list(threads.map(lambda one: one.run(), running[name]))
            used = sum(tree.cpu_since(then) for tree, then in zip(trees, before, strict=True))
            seen[name].append(_together(samples, used, sum(tree.memory() for tree in trees)))
    return seen


def _together(samples: Sequence[Sample], used: float, memory: int) -> Sample:
    """Samples of the same number of calls at the same time, as one; ``used`` is the CPU time of all processes."""
    times = [time for sample in samples for time in sample.times]
    return replace(
        samples[0],
        times=times,
        rate=sum(sample.rate for sample in samples),
        median=fmean(sample.median for sample in samples),
        cpu=used / len(times),
        memory=memory,
        throughput=sum(sample.throughput for sample in samples),
        generator=max(sample.generator for sample in samples),
    )
