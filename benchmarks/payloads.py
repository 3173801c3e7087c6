"""What passes through: large results, and a stream of progress notices, beside a bare relay (PERF-6)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.call_path import DIRECT, OURS, RELAY
from benchmarks.calls import Load, Sample, Subject, compare, row, spread_of
from benchmarks.processes import Tree, hub, relay, upstream
from benchmarks.report import Check, Plot, Report, Row, at_least, at_most, ratio

__all__ = ["NOTICES", "PROGRESS_QUICK", "QUICK", "REQUIREMENTS", "SIZES", "measure", "measure_progress"]

REQUIREMENTS = ("PERF-6",)
ROUNDS = 30

SIZES: Mapping[str, tuple[int, int]] = {"1 KB": (1_000, 200), "1 MB": (1_000_000, 20), "10 MB": (10_000_000, 10)}
"""The size of a result, and how many calls a round has."""

LEAST_THROUGHPUT = 0.8
NOTICES = 100
MOST_PROGRESS = 2.0
CALLERS = 4
MOST_COPIES = 6.0
"""How many times its size a result in flight may take at the peak: bytes read, bytes to write, and a margin."""

QUICK: dict[str, Any] = {"rounds": 1, "sizes": {"1 KB": (1_000, 4), "1 MB": (1_000_000, 2)}}
PROGRESS_QUICK: dict[str, Any] = {"rounds": 1, "requests": 3}


@contextmanager
def _subjects() -> Iterator[list[Subject]]:
    with upstream("--eras", "legacy") as (server, (port,)):
        direct = f"http://127.0.0.1:{port}/mcp"
        # The bound on notifications protects from a server that floods; here the flood is what is measured.
        settings = {"limits": {"notificationsPerSecond": 1_000_000}}
        with (
            relay(direct) as (relaying, relay_url),
            hub({"up": {"type": "http", "url": direct}}, settings=settings) as (pid, base),
        ):
            yield [
                Subject(DIRECT, direct, server),
                Subject(RELAY, relay_url, relaying),
                Subject(OURS, f"{base}/mcp", pid, "up__echo"),
            ]


def measure(*, rounds: int = ROUNDS, sizes: Mapping[str, tuple[int, int]] = SIZES) -> Report:
    """One caller asks for results of each size."""
    with _subjects() as subjects:
        seen = {
            label: compare(
                subjects, Load(requests=requests, seconds=30, warm=2, arguments={"size": size}), rounds=rounds
            )
            for label, (size, requests) in sizes.items()
        }
        largest, (size, _) = list(sizes.items())[-1]
        tree = Tree(subjects[-1].pid)
        before = tree.memory()
        tree.forget_peak()
        compare(
            subjects[-1:],
            Load(callers=CALLERS, requests=2 * CALLERS, seconds=30, warm=2, arguments={"size": size}),
            rounds=1,
        )
        copies = max(0, tree.peak() - before) / size / CALLERS
    through = {
        label: {name: [one.throughput for one in found] for name, found in seen[label].items()} for label in seen
    }
    ratios = {label: ratio(found[OURS], found[RELAY]) for label, found in through.items()}
    return Report(
        name="payloads",
        title=f"Large results, {rounds} rounds",
        requirements=REQUIREMENTS,
        about=(
            "One caller asks for a text of 1 KB, 1 MB and 10 MB. Ratios are to the bare relay. At the end, four "
            "callers ask for the largest result at once, and the peak of the hub's memory is read."
        ),
        rows=tuple(_row(label, name, seen[label]) for label in seen for name in seen[label]),
        checks=(
            *(
                at_least(f"PERF-6 {label}: at least {LEAST_THROUGHPUT} of the relay's bytes per second",
                         LEAST_THROUGHPUT, spread, " times")
                for label, spread in ratios.items() if label != "1 KB"
            ),
            Check(
                demand=f"PERF-6 bounded memory: {largest} in flight take at most {MOST_COPIES:g} times their size",
                found=f"{copies:.1f} times",
                met=copies <= MOST_COPIES,
            ),
        ),
        plots=(
            Plot(
                title="Bytes per second, as a share of the bare relay",
                unit="times",
                bars=ratios,
                limit=LEAST_THROUGHPUT,
            ),
        ),
    )  # fmt: skip


def _row(label: str, name: str, seen: Mapping[str, list[Sample]]) -> Row:
    mine = seen[name]
    rate = statistics.median(one.throughput for one in mine)
    note = f"{rate / 1e6:,.1f} MB/s"
    return row(f"{name}, {label}", mine, None if name == RELAY else seen[RELAY], note)


def measure_progress(*, rounds: int = ROUNDS, requests: int = 25) -> Report:
    """One caller calls a tool that reports its progress a hundred times."""
    with _subjects() as subjects:
        load = Load(
            requests=requests, seconds=30, warm=5, progress=True, arguments={"text": "done", "progress": NOTICES}
        )
        seen = compare(subjects, load, rounds=rounds)
    times = ratio([one.median for one in seen[OURS]], [one.median for one in seen[RELAY]])
    fewest = min(one.notices for found in seen.values() for one in found)
    return Report(
        name="progress",
        title=f"A call with {NOTICES} progress notices, {rounds} rounds of {requests} calls",
        requirements=REQUIREMENTS,
        about=(
            f"The server sends {NOTICES} progress notices, each in a write of its own, and then the result. The relay "
            "passes the bytes on. The hub reads each notice, gives it the caller's token and an event id, and keeps it "
            "for a client that resumes its stream. The bound on notifications per second is raised for this run."
        ),
        rows=tuple(
            row(name, found, None if name == RELAY else seen[RELAY], f"{found[0].notices} notices in an answer")
            for name, found in seen.items()
        ),
        checks=(
            at_most(f"PERF-6 takes at most {MOST_PROGRESS:g} times as long as the bare relay", MOST_PROGRESS, times,
                    " times"),
            Check(demand="PERF-6 no notice is lost", found=f"{fewest} of {NOTICES}", met=fewest == NOTICES),
        ),
        plots=(
            Plot(
                title=f"Time of a call with {NOTICES} notices",
                unit="ms",
                bars={name: spread_of(found, "median").scaled(1000) for name, found in seen.items()},
                limit=MOST_PROGRESS * spread_of(seen[RELAY], "median").median * 1000,
            ),
        ),
    )  # fmt: skip
