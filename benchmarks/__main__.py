"""``python -m benchmarks [NAME…] [--rounds N] [--quick] [--json] [--docs]``: measure, and print the tables.

``python -m benchmarks hubs`` is a program of its own: hubs under faults.

Exit code 1: a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from benchmarks import (
    abandoned,
    call_path,
    capacity,
    dead_server,
    doctor,
    drill,
    find,
    fleet,
    gateway,
    growth,
    hub_calls,
    joined,
    load,
    other_gateways,
    page,
    payloads,
    serve_load,
    startup,
    status_page,
    workers,
)
from benchmarks.hubs import command as hubs
from benchmarks.report import Report, as_json, as_table

__all__ = ["BENCHMARKS", "GROUPS", "Benchmark", "main"]


class Benchmark(NamedTuple):
    """What measures, and how it runs where only a check of itself is wanted."""

    measure: Callable[..., Report]
    quick: Mapping[str, Any]


BENCHMARKS: dict[str, Benchmark] = {
    "call_path": Benchmark(call_path.measure, call_path.QUICK),
    "call_variants": Benchmark(call_path.measure_variants, call_path.VARIANTS_QUICK),
    "other_gateways": Benchmark(other_gateways.measure, other_gateways.QUICK),
    "payloads": Benchmark(payloads.measure, payloads.QUICK),
    "progress": Benchmark(payloads.measure_progress, payloads.PROGRESS_QUICK),
    "growth": Benchmark(growth.measure, growth.QUICK),
    "idle_servers": Benchmark(capacity.measure_idle, capacity.IDLE_QUICK),
    "sessions": Benchmark(capacity.measure_sessions, capacity.SESSIONS_QUICK),
    "abandoned": Benchmark(abandoned.measure, abandoned.QUICK),
    "start": Benchmark(capacity.measure_start, capacity.START_QUICK),
    "fleet": Benchmark(fleet.measure, fleet.QUICK),
    "workers": Benchmark(workers.measure, workers.QUICK),
    "hub_calls": Benchmark(hub_calls.measure, {"rounds": 2, "calls": 3}),
    "load": Benchmark(load.measure, {"rounds": 1, "servers": 4}),
    "joined": Benchmark(joined.measure, joined.QUICK),
    "startup": Benchmark(startup.measure, {"rounds": 1}),
    "status_page": Benchmark(status_page.measure, {"rounds": 1, "servers": 2, "seconds": 0.1}),
    "serve_load": Benchmark(serve_load.measure, {"clients": 4, "servers": 2, "seconds": 0.5, "warm_up": 0.2}),
    "dead_server": Benchmark(dead_server.measure, {}),
    "drill": Benchmark(drill.measure, {"rounds": 1}),
    "doctor": Benchmark(doctor.measure, {"rounds": 1}),
    "gateway": Benchmark(gateway.measure, {"rounds": 1, "routes": 3}),
    "find": Benchmark(find.measure, find.QUICK),
}


_CALLS = ("call_path", "call_variants", "payloads", "progress", "growth", "hub_calls", "other_gateways")

GROUPS: dict[str, tuple[str, ...]] = {
    "calls": _CALLS,
    "page": (*_CALLS, "idle_servers", "sessions", "start", "load", "startup", "find"),
}
"""Names for several of them: all that a call through the hub costs, and all that docs/benchmarks shows.

On a machine that does nothing else, ``calls`` takes some nine minutes and ``page`` some fifteen."""


def main(argv: Sequence[str]) -> int:
    """Run the named benchmarks, or all. Returns the exit code."""
    if argv[:1] == ["hubs"]:
        return hubs.main(argv[1:])
    options = _options(argv)
    settings = {} if options.rounds is None else {"rounds": options.rounds}
    reports = []
    names = options.names or (["page"] if options.docs else BENCHMARKS)
    wanted = [one for name in names for one in GROUPS.get(name, (name,))]
    for name in wanted:
        where = page.surroundings() if options.docs else {}
        if not options.json:
            print(f"{name} …", file=sys.stderr, flush=True)
        measure, quick = BENCHMARKS[name]
        reports.append(measure(**{**(quick if options.quick else {}), **settings}))
        if options.docs:  # after each one, so that a run that is ended keeps what it has measured
            page.record(reports[-1:], where, order=list(BENCHMARKS))
            page.write()
    print(json.dumps(as_json(reports), indent=2) if options.json else as_table(reports))
    return 0 if all(report.met for report in reports) else 1


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure Holdfast and its baselines. `python -m benchmarks hubs --help` is for hubs under faults.",
    )
    which = f"which ones: {', '.join(BENCHMARKS)}, or a group: {', '.join(GROUPS)}; default: all, with --docs: page"
    parser.add_argument("names", nargs="*", metavar="NAME", help=which)
    parser.add_argument("--rounds", type=_rounds, help="how many rounds; default: the number of each benchmark")
    parser.add_argument("--quick", action="store_true", help="on a tiny scale: a check that each benchmark works")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--docs", action="store_true", help="also write the results to docs/benchmarks")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in BENCHMARKS and name not in GROUPS]:
        parser.error(f"there is no benchmark `{unknown[0]}`; known: {', '.join(BENCHMARKS)}")
    if options.quick and options.docs:
        parser.error("--quick measures nothing that belongs into the documentation: leave out --docs")
    return options


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < 1:
        raise argparse.ArgumentTypeError("at least one round")
    return rounds


def _end(number: int, _: FrameType | None) -> None:
    """End as after an exception, so that every process that was started is ended too."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main(sys.argv[1:]))
