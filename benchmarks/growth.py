"""Whether the cost of one call grows with the number of servers, tools or sessions (PERF-4, PERF-6).

One hub for each number, all open at the same time and called in turns. Servers are not listed again meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.calls import Load, Sample, Subject, compare, row, spread_of
from benchmarks.clients import open_sessions
from benchmarks.processes import hub, upstream
from benchmarks.report import Check, Plot, Report, at_most, ratio

__all__ = ["NO_QUOTA", "QUICK", "REQUIREMENTS", "SERVERS", "SESSIONS", "TOOLS", "measure"]

REQUIREMENTS = ("PERF-4", "PERF-6")
ROUNDS = 21
SERVERS = (1, 10, 100, 500)
TOOLS = (10, 100, 1_000, 10_000)
SESSIONS = (0, 100, 5_000)
CALLERS = 16

MOST_GROWTH = 1.1
"""A call may differ by a tenth between the smallest and the largest: two runs of one program differ as much."""

QUICK: dict[str, Any] = {
    "rounds": 1,
    "requests": 16,
    "servers": (2,),
    "tools": (3, 5),
    "sessions": (2,),
    "listings": 2,
}
OFF = {"refresh": "off"}
NO_QUOTA = {"quotas": {"sessions": 100_000, "connections": 100_000}}
"""All sessions here belong to one principal, which may have fewer by default."""

Seen = Mapping[int, list[Sample]]


def measure(
    *,
    rounds: int = ROUNDS,
    requests: int = 480,
    servers: Sequence[int] = SERVERS,
    tools: Sequence[int] = TOOLS,
    sessions: Sequence[int] = SESSIONS,
    listings: int = 5,
) -> Report:
    """The same call at each number."""
    load = Load(callers=CALLERS, requests=requests)
    seen: dict[str, Seen] = {}
    with _with_servers(servers) as started:
        seen["servers"] = _by_number(compare(started, load, rounds=rounds))
    with _with_tools(tools) as started:
        seen["tools"] = _by_number(compare(started, load, rounds=rounds))
        listing = Load(requests=listings, seconds=20, warm=3, method="tools/list")
        listed = _by_number(compare(started, listing, rounds=rounds))
    with _with_sessions(sessions) as started:
        seen["sessions"] = _by_number(compare(started, load, rounds=rounds))
    return Report(
        name="growth",
        title=f"The same call at more servers, tools and sessions, {CALLERS} callers, {rounds} rounds",
        requirements=REQUIREMENTS,
        about=(
            "One hub for each number; ratios are to the smallest number. Sessions are idle ones of other clients. The "
            "last rows are the first page of `tools/list`, asked for by one caller; a page has at most 1,000 tools."
        ),
        rows=(
            *(
                row(_number(number, kind), found, None if number == min(of) else of[min(of)])
                for kind, of in seen.items()
                for number, found in of.items()
            ),
            *(
                row(f"`tools/list`, {number:,} tools", found, note=f"{_size(found):,.0f} KB")
                for number, found in listed.items()
            ),
        ),
        checks=(*(_check(kind, of) for kind, of in seen.items()), _listing_check(listed)),
        plots=tuple(
            Plot(
                title=f"CPU time per call by number of {kind}",
                unit="µs",
                bars={f"{number:,}": spread_of(found, "cpu").scaled(1e6) for number, found in of.items()},
            )
            for kind, of in seen.items()
        ),
    )


def _number(number: int, kind: str) -> str:
    return f"{number:,} {kind.removesuffix('s') if number == 1 else kind}"


def _by_number(seen: Mapping[str, list[Sample]]) -> Seen:
    return {int(name): found for name, found in seen.items()}


def _check(kind: str, seen: Seen) -> Check:
    least, most = min(seen), max(seen)
    grown = ratio([one.cpu for one in seen[most]], [one.cpu for one in seen[least]])
    demand = f"PERF-4 a call at {most:,} {kind} takes at most {MOST_GROWTH} times the CPU of one at {least:,}"
    return at_most(demand, MOST_GROWTH, grown, " times")


def _listing_check(listed: Seen) -> Check:
    """Bytes that are made once are copied. To make them again takes about 5 µs for each tool."""
    least, most = min(listed), max(listed)
    added = spread_of(listed[most], "cpu").median - spread_of(listed[least], "cpu").median
    each = max(0.0, added) / (most - least)
    return Check(
        demand="PERF-6 `tools/list` is served from bytes made once: each more tool adds under 1 µs",
        found=f"{each * 1e6:.2f} µs",
        met=each < 1e-6,
    )


def _size(found: Sequence[Sample]) -> float:
    """Kilobytes of one answer."""
    return found[0].bytes / 1000


@contextmanager
def _with_servers(numbers: Sequence[int]) -> Iterator[list[Subject]]:
    with ExitStack() as stack:
        _, ports = stack.enter_context(upstream("--eras", "legacy", "--ports", str(max(numbers))))
        definitions = {f"s{n}": {"type": "http", "url": f"http://127.0.0.1:{p}/mcp"} for n, p in enumerate(ports)}
        yield [
            _subject(number, *stack.enter_context(hub(dict(list(definitions.items())[:number]), settings=OFF)))
            for number in numbers
        ]


@contextmanager
def _with_tools(numbers: Sequence[int]) -> Iterator[list[Subject]]:
    with ExitStack() as stack:
        started = []
        for number in numbers:
            _, (port,) = stack.enter_context(upstream("--eras", "legacy", "--tools", str(number)))
            servers = {"s0": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}
            started.append(_subject(number, *stack.enter_context(hub(servers, settings=OFF))))
        yield started


@contextmanager
def _with_sessions(numbers: Sequence[int]) -> Iterator[list[Subject]]:
    with ExitStack() as stack:
        _, (port,) = stack.enter_context(upstream("--eras", "legacy"))
        servers = {"s0": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}
        started = [
            _subject(number, *stack.enter_context(hub(servers, settings={**OFF, **NO_QUOTA}))) for number in numbers
        ]
        for subject in started:
            stack.enter_context(open_sessions(subject.url, int(subject.name), streams=False))
        yield started


def _subject(number: int, pid: int, base: str) -> Subject:
    return Subject(str(number), f"{base}/mcp", pid, "s0__echo")
