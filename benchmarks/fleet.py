"""What ``--fleet`` costs a call: nothing waits for the store, so the CPU time of a call must not grow (FLEET-3).

A hub alone and a replica of a fleet on Redis serve the same server, measured in turn in every round. Another replica is
present. A second hub alone shows how much two equal programs differ. The exchanges with the store run beside the calls.
Their CPU time is measured alone, and the limit is for what a call takes without it: at few calls a second it would be
most of the difference.

A stdio server with ``placement: one`` is called at the replica that runs it and at the other one, which forwards each
call over the link that workers of one machine use too. CPU time is that of both replicas.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.calls import Load, Sample, Subject, compare, per_caller, row
from benchmarks.processes import Tree, hub, redis, stdio_server, upstream
from benchmarks.report import Report, Row, at_most, ratio

__all__ = ["QUICK", "REQUIREMENTS", "measure"]

REQUIREMENTS = ("FLEET-3",)
ALONE, SAME, REPLICA = "Holdfast alone", "the same, a second time", "Holdfast, a replica of a fleet on Redis"
HERE, ELSEWHERE = "stdio server on this worker", "stdio server on another worker"
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
        forwarded = _forwarded(shared, rounds=rounds, requests=requests, callers=callers)
    rows = [
        row(f"{name}, {per_caller(count)}", found[name], found[ALONE] if name != ALONE else None)
        for count, found in seen.items()
        for name in found
    ]
    rows += [
        Row(label=f"{name}, no call", note=f"{used * 1000:.1f} ms of CPU a second") for name, used in resting.items()
    ]
    rows += [
        row(f"{name}, {per_caller(count)}", found[name], found[HERE] if name != HERE else None)
        for count, found in forwarded.items()
        for name in found
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
            "with Redis four times a second, beside the calls; no call waits for it. Ratios are to the hub alone. A "
            "stdio server is called at the replica that runs it and at another one, which forwards each call; the CPU "
            "time is that of both, and the ratio is to the first. Workers of one machine use the same link."
        ),
        rows=tuple(rows),
        checks=checks,
    )


def _forwarded(
    environ: Mapping[str, str], *, rounds: int, requests: int, callers: Sequence[int]
) -> dict[int, dict[str, list[Sample]]]:
    """Calls of one stdio server at the replica that runs it, and at the other one."""
    command, *args = stdio_server("--eras", "legacy")
    servers = {"up": {"command": command, "args": args, "placement": "one"}}
    with tempfile.TemporaryDirectory() as folder:
        first, second = (hub(servers, "--advertise", f"unix:{folder}/{name}", environ=environ) for name in "ab")
        with first as one, second as two:
            (here, here_url), (there, there_url) = (one, two) if Tree(one[0]).servers() else (two, one)
            subjects = [
                Subject(HERE, f"{here_url}/mcp", here, "up__echo", helper=there),
                Subject(ELSEWHERE, f"{there_url}/mcp", there, "up__echo", helper=here),
            ]
            return {
                count: compare(
                    subjects,
                    Load(callers=count, requests=requests if count > 1 else max(1, requests // 3)),
                    rounds=rounds,
                )
                for count in callers
            }


def _idle(pid: int, seconds: float) -> float:
    """Seconds of CPU a second of a hub that is not used."""
    tree = Tree(pid)
    before, begun = tree.cpu(), time.monotonic()
    time.sleep(seconds)
    return tree.cpu_since(before) / (time.monotonic() - begun)
