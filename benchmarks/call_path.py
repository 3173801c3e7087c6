"""What it costs to put Holdfast between a client and a server, beside a bare relay (PERF-1, PERF-2).

Each round measures the server itself, the relay, and the hub at both of its endpoints. The relay forwards bytes and
does nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.calls import Load, Sample, Subject, compare, per_caller, row, spread_of
from benchmarks.processes import hub, relay, stdio_server, upstream
from benchmarks.report import Check, Plot, Report, Row, Spread, at_least, at_most, ratio

__all__ = [
    "ALONE",
    "DIRECT",
    "OURS",
    "QUICK",
    "RELAY",
    "REQUIREMENTS",
    "STDIO",
    "STDIO_ALONE",
    "VARIANTS_QUICK",
    "measure",
    "measure_variants",
]

REQUIREMENTS = ("PERF-1", "PERF-2")
ROUNDS = 40
"""PERF-1 asks for 15 at least. Many short rounds give narrow intervals on a noisy machine."""

QUICK: dict[str, Any] = {"rounds": 1, "requests": 32, "callers": (1, 16)}
VARIANTS_QUICK: dict[str, Any] = {"rounds": 1, "requests": 32, "eras": ("modern",), "callers": (16,)}

DIRECT, RELAY = "direct", "bare relay"
OURS, ALONE = "Holdfast, /mcp", "Holdfast, /servers/<id>/mcp"
STDIO, STDIO_ALONE = "Holdfast, /mcp, stdio behind", "Holdfast, /servers/<id>/mcp, stdio behind"

BUSY = 0.9
"""From this share of a core on, the generator would be what is measured."""

Seen = dict[int, dict[str, list[Sample]]]


@contextmanager
def _subjects(era: str, *options: str) -> Iterator[list[Subject]]:
    """One server over HTTP and the same over stdio, and all that stands before them."""
    command, *arguments = stdio_server("--eras", era)
    with upstream("--eras", era, *options) as (server, (port,)):
        direct = f"http://127.0.0.1:{port}/mcp"
        servers = {"up": {"type": "http", "url": direct}, "child": {"command": command, "args": arguments}}
        with relay(direct) as (relaying, relay_url), hub(servers) as (pid, base):
            yield [
                Subject(DIRECT, direct, server),
                Subject(RELAY, relay_url, relaying),
                Subject(OURS, f"{base}/mcp", pid, "up__echo"),
                Subject(ALONE, f"{base}/servers/up/mcp", pid),
                Subject(STDIO, f"{base}/mcp", pid, "child__echo"),
                Subject(STDIO_ALONE, f"{base}/servers/child/mcp", pid),
            ]


def measure(*, rounds: int = ROUNDS, requests: int = 640, callers: Sequence[int] = (1, 16, 64)) -> Report:
    """One caller, 16 and 64, of the legacy era, with plain answers."""
    with _subjects("legacy") as subjects:
        seen = {
            count: compare(
                subjects,
                Load(callers=count, requests=requests if count > 1 else max(1, requests // 3)),
                rounds=rounds if count <= 16 else max(1, rounds // 4),
            )
            for count in callers
        }
    return Report(
        name="call_path",
        title=f"One call through, {rounds} rounds of {requests:,} calls",
        requirements=REQUIREMENTS,
        about=(
            "An echo tool is called over HTTP, in the legacy era, with plain answers. Each caller has a connection and "
            "a session of its own. Ratios are to the bare relay: it runs on uvicorn, uvloop, httptools and aiohttp, "
            "forwards bytes and does nothing else. With stdio behind, the hub writes to a child process instead."
        ),
        rows=tuple(_row(name, count, seen[count]) for count in seen for name in seen[count]),
        checks=_checks(seen),
        plots=_plots(seen),
    )


def measure_variants(
    *,
    rounds: int = 15,
    requests: int = 480,
    eras: Sequence[str] = ("legacy", "modern"),
    callers: Sequence[int] = (1, 16, 64),
) -> Report:
    """Both eras, answers as an event stream, and a server over stdio, which has one form of answers."""
    rows: list[Row] = []
    for era in eras:
        for answers, options in (("plain", ()), ("event stream", ("--sse",))):
            through = (OURS, ALONE) if options else (OURS, ALONE, STDIO, STDIO_ALONE)
            with _subjects(era, *options) as subjects:
                for count in callers:
                    load = Load(callers=count, requests=requests if count > 1 else requests // 3, era=era)
                    seen = compare([one for one in subjects if one.name in (RELAY, *through)], load, rounds=rounds)
                    rows += [
                        row(f"{name}, {era}, {answers}, {per_caller(count)}", found, _base(name, seen))
                        for name, found in seen.items()
                    ]
    return Report(
        name="call_variants",
        title=f"Both eras, plain and streamed answers, {rounds} rounds",
        requirements=REQUIREMENTS,
        about=(
            "The same call in both eras of the protocol. The server behind answers with plain JSON or with an event "
            "stream. The relay passes the stream on; the hub answers with plain JSON unless something precedes the "
            "result. A server over stdio is compared with the relay before the server over HTTP."
        ),
        rows=tuple(rows),
        checks=(),
    )


def _base(name: str, seen: dict[str, list[Sample]]) -> list[Sample] | None:
    return None if name == RELAY else seen[RELAY]


def _row(name: str, callers: int, seen: dict[str, list[Sample]]) -> Row:
    return row(f"{name}, {per_caller(callers)}", seen[name], _base(name, seen))


def _checks(seen: Seen) -> tuple[Check, ...]:
    one, many = seen[1], seen[16]
    cpu = ratio([sample.cpu for sample in one[OURS]], [sample.cpu for sample in one[RELAY]])
    many_cpu = ratio([sample.cpu for sample in many[OURS]], [sample.cpu for sample in many[RELAY]])
    rate = ratio([sample.rate for sample in many[OURS]], [sample.rate for sample in many[RELAY]])
    busiest = max(sample.generator for found in seen.values() for name in (RELAY, OURS) for sample in found[name])
    return (
        at_most("PERF-1 one caller: at most 1.15 times the relay's CPU time per call", 1.15, cpu, " times"),
        at_most("PERF-1 one caller: at most 1.15 times the latency that the relay adds", 1.15, _added(one), " times"),
        at_most("PERF-1 16 callers: at most 1.25 times the relay's CPU time per call", 1.25, many_cpu, " times"),
        at_least("PERF-2 16 callers: at least 0.8 of the relay's calls per second", 0.8, rate, " times"),
        Check(
            demand="the load generator is not what limits the relay or the hub",
            found=f"it used at most {busiest:.0%} of a core",
            met=busiest < BUSY,
        ),
    )


def _added(seen: dict[str, list[Sample]]) -> Spread:
    """(hub - direct) / (relay - direct), round by round."""
    return ratio(
        [ours.median - base.median for ours, base in zip(seen[OURS], seen[DIRECT], strict=True)],
        [theirs.median - base.median for theirs, base in zip(seen[RELAY], seen[DIRECT], strict=True)],
    )


def _plots(seen: Seen) -> tuple[Plot, ...]:
    one, many = seen[1], seen[16]
    return (
        Plot(
            title="CPU time per call, one caller",
            unit="µs",
            bars={name: spread_of(one[name], "cpu").scaled(1e6) for name in one},
            limit=spread_of(one[RELAY], "cpu").median * 1e6,
        ),
        Plot(
            title="Calls per second, 16 callers",
            unit="/s",
            bars={name: spread_of(many[name], "rate") for name in many if name != DIRECT},
            limit=spread_of(many[RELAY], "rate").median,
        ),
    )
