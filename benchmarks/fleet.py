"""What ``--fleet`` costs a call: nothing waits for the store, so the CPU time of a call must not grow (FLEET-3).

A hub alone and a replica of a fleet on Redis serve the same server, measured in turn in every round. Another replica is
present. A second hub alone shows how much two equal programs differ. The exchanges with the store run beside the calls.
Their CPU time is measured alone, and the limit is for what a call takes without it: at few calls a second it would be
most of the difference.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.calls import Load, Subject, compare, per_caller, row
from benchmarks.processes import Tree, hub, redis, upstream
from benchmarks.report import Report, Row, at_most, ratio

__all__ = ["QUICK", "REQUIREMENTS", "measure"]

REQUIREMENTS = ("FLEET-3",)
ALONE, SAME, REPLICA = "Holdfast alone", "the same, a second time", "Holdfast, a replica of a fleet on Redis"
MOST = 1.03
"""Smaller differences are below what the same program shows from one run to the next."""

QUICK: dict[str, Any] = {"rounds": 1, "requests": 32, "callers": (1,), "idle": 0.5}


def measure(*, rounds: int = 40, requests: int = 640, callers: Sequence[int] = (1, 16), idle: float = 10.0) -> Report:
    """One caller and 16, of the legacy era; and the two hubs without a call."""
    key = {"HOLDFAST_SESSION_KEY": "the-session-key-of-this-benchmark-only"}
    with upstream("--eras", "legacy") as (_, (port,)), redis() as store:
        servers = {"up": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}
        shared = {**key, "HOLDFAST_FLEET": store}
        with (
            hub(servers, environ=key) as (alone, alone_url),
            hub(servers, environ=key) as (same, same_url),
            hub(servers, environ=shared) as (replica, replica_url),
            hub(servers, environ=shared),
        ):
            subjects = [
                Subject(ALONE, f"{alone_url}/mcp", alone, "up__echo"),
                Subject(SAME, f"{same_url}/mcp", same, "up__echo"),
                Subject(REPLICA, f"{replica_url}/mcp", replica, "up__echo"),
            ]
            seen = {
                count: compare(
                    subjects,
                    Load(callers=count, requests=requests if count > 1 else max(1, requests // 3)),
                    rounds=rounds,
                )
                for count in callers
            }
            resting = {one.name: _idle(one.pid, idle) for one in subjects}
    rows = [
        row(f"{name}, {per_caller(count)}", found[name], found[ALONE] if name != ALONE else None)
        for count, found in seen.items()
        for name in found
    ]
    rows += [
        Row(label=f"{name}, no call", note=f"{used * 1000:.1f} ms of CPU a second") for name, used in resting.items()
    ]
    checks = tuple(
        at_most(
            f"FLEET-3 {per_caller(count)}: at most {MOST} times the CPU time of a call without a fleet, idle aside",
            MOST,
            ratio(*([one.cpu - resting[name] / one.rate for one in found[name]] for name in (REPLICA, ALONE))),
            " times",
        )
        for count, found in seen.items()
    )
    return Report(
        name="fleet",
        title=f"A call to a replica of a fleet, {rounds} rounds of {requests:,} calls",
        requirements=REQUIREMENTS,
        about=(
            "The same call to a hub alone and to a replica of a fleet of two on a local Redis. A replica exchanges "
            "with Redis four times a second, beside the calls; no call waits for it. Ratios are to the hub alone."
        ),
        rows=tuple(rows),
        checks=checks,
    )


def _idle(pid: int, seconds: float) -> float:
    """Seconds of CPU a second of a hub that is not used."""
    tree = Tree(pid)
    before, begun = tree.cpu(), time.monotonic()
    time.sleep(seconds)
    return tree.cpu_since(before) / (time.monotonic() - begun)
