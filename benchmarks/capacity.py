"""How much a hub holds: idle servers, open sessions, and a thousand servers at the start (PERF-4, PERF-8).

Memory is that of the hub's process tree, above the same hub with one server and no session.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from benchmarks.clients import LegacyClient, open_sessions
from benchmarks.growth import NO_QUOTA
from benchmarks.processes import Tree, hub, upstream, wait_until
from benchmarks.report import Check, Report, Row, Spread, at_most, median

__all__ = [
    "IDLE_QUICK",
    "REQUIREMENTS",
    "SESSIONS_QUICK",
    "START_QUICK",
    "measure_idle",
    "measure_sessions",
    "measure_start",
]

REQUIREMENTS = ("PERF-8",)

IDLE_SERVERS = 500
IDLE_SHARE = 0.02
IDLE_BYTES = 500_000
WINDOW = 60.0
"""Seconds of idleness: the interval at which each server's tools are listed again, so that each is listed once."""
IDLE_ROUNDS = 5
"""One window says little: what else the machine does in it moves the share by a fifth."""

SESSIONS = 5_000
SESSION_BYTES = 20_000
START_SERVERS = 1_000
START_SECONDS = 20.0

IDLE_QUICK: dict[str, Any] = {"rounds": 1, "servers": 3, "seconds": 0.1, "settle": 0.0}
SESSIONS_QUICK: dict[str, Any] = {"rounds": 1, "sessions": 3}
START_QUICK: dict[str, Any] = {"rounds": 1, "servers": 3}


def measure_idle(
    *, rounds: int = IDLE_ROUNDS, servers: int = IDLE_SERVERS, seconds: float = WINDOW, settle: float = 5.0
) -> Report:
    """A hub with many idle servers."""
    with ExitStack() as stack:
        _, ports = stack.enter_context(upstream("--eras", "legacy", "--ports", str(servers)))
        small, _ = stack.enter_context(hub(_definitions(ports[:1])))
        pid, base = stack.enter_context(hub(_definitions(ports)))
        connected = _connected(base)
        time.sleep(settle)
        trees = (Tree(small), Tree(pid))
        shares = [_shares(trees, seconds) for _ in range(rounds)]
        memory = trees[1].memory() - trees[0].memory()
    each = memory / max(1, servers - 1)
    alone, share = (median([pair[place] for pair in shares]).scaled(100) for place in (0, 1))
    return Report(
        name="idle_servers",
        title=f"{servers} idle HTTP servers, {rounds} windows of {seconds:g} s",
        requirements=("PERF-4",),
        about=(
            "All servers are connected and idle. The window is as long as the refresh interval, so each "
            "server's tools are listed at least once in it. CPU is the share of one core: the median of the windows, "
            "with its interval."
        ),
        rows=(
            Row(label="1 server", note=f"{_percent(alone)} of a core"),
            Row(label=f"{servers} servers", memory=each, note=f"{_percent(share)} of a core; memory is of each server"),
        ),
        checks=(
            Check(demand="all servers are connected", found=f"{connected} of {servers}", met=connected == servers),
            at_most(f"PERF-4 at most {IDLE_SHARE:.0%} of a core", IDLE_SHARE * 100, share, " %"),
            Check(
                demand=f"PERF-4 under {IDLE_BYTES / 1e6:g} MB for each server",
                found=f"{each / 1e3:,.0f} KB",
                met=each < IDLE_BYTES,
            ),
        ),
    )


def _percent(share: Spread) -> str:
    return f"{share.median:.2f} % ({share.low:.2f} to {share.high:.2f})"


def _shares(trees: Sequence[Tree], seconds: float) -> tuple[float, float]:
    before, began = [tree.cpu() for tree in trees], time.monotonic()
    time.sleep(seconds)
    lasted = time.monotonic() - began
    one, two = (tree.cpu_since(used) / lasted for tree, used in zip(trees, before, strict=True))
    return one, two


def measure_sessions(*, rounds: int = 1, sessions: int = SESSIONS) -> Report:
    """Open sessions of the legacy era, without and with a stream each. Every round has a new hub."""
    found: dict[bool, list[float]] = {False: [], True: []}
    with upstream("--eras", "legacy") as (_, ports):
        for _ in range(rounds):
            for streams, each in found.items():
                with hub(_definitions(ports), settings=NO_QUOTA) as (pid, base):
                    tree = Tree(pid)
                    with open_sessions(f"{base}/mcp", 1, streams=streams):
                        before = tree.memory()
                        with open_sessions(f"{base}/mcp", sessions, streams=streams):
                            each.append((tree.memory() - before) / sessions)
    named = {False: "a session", True: "a session with an open stream"}
    return Report(
        name="sessions",
        title=f"Memory of {sessions:,} open sessions",
        requirements=REQUIREMENTS,
        about="Each session is opened by a client of the legacy era. Memory is the growth of the hub for each of them.",
        rows=tuple(Row(label=named[streams], memory=median(each).median) for streams, each in found.items()),
        checks=tuple(
            Check(
                demand=f"PERF-8 {named[streams]} takes under {SESSION_BYTES / 1000:g} KB",
                found=f"{median(each).median / 1000:.1f} KB",
                met=median(each).median < SESSION_BYTES,
            )
            for streams, each in found.items()
        ),
    )


def measure_start(*, rounds: int = 1, servers: int = START_SERVERS) -> Report:
    """From the start of the command until every server is connected."""
    times: list[float] = []
    connected, cpu = 0, 0.0
    with upstream("--eras", "legacy", "--ports", str(servers)) as (_, ports):
        for _ in range(rounds):
            began = time.monotonic()
            with hub(_definitions(ports), ready=False) as (pid, base):
                wait_until(f"{base}/readyz", seconds=300)
                times.append(time.monotonic() - began)
                connected, cpu = _connected(base), Tree(pid).cpu_since({})
    found = median(times)
    return Report(
        name="start",
        title=f"{servers:,} HTTP servers, from the command to ready",
        requirements=REQUIREMENTS,
        about="`holdfast serve` with an empty state folder, until `/readyz` answers 200.",
        rows=(Row(label=f"{servers:,} servers", time=found, note=f"{cpu:.1f} s of CPU"),),
        checks=(
            at_most(f"PERF-8 {servers:,} servers are ready within {START_SECONDS:g} s", START_SECONDS, found, " s"),
            Check(demand="all servers are connected", found=f"{connected} of {servers}", met=connected == servers),
        ),
    )


def _definitions(ports: Sequence[int]) -> dict[str, Any]:
    return {f"s{n}": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"} for n, port in enumerate(ports)}


def _connected(base: str) -> int:
    """How many servers are in the catalog: each has one tool."""
    with closing(LegacyClient(f"{base}/mcp")) as client:
        client.open()
        return sum(name.endswith("__echo") for name in client.tools())
