"""The same call through other gateways, in the same rounds as Holdfast (PERF-2)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.call_path import BUSY
from benchmarks.calls import Load, Sample, Subject, compare, per_caller, row, spread_of
from benchmarks.hubs.adapter import Adapter, Behind, HubFailed, Setup
from benchmarks.hubs.adapters import ADAPTERS
from benchmarks.processes import free_port, hub, stdio_server, upstream
from benchmarks.report import Check, Plot, Report, at_least, ratio

__all__ = ["HTTP", "QUICK", "REQUIREMENTS", "STDIO", "measure"]

REQUIREMENTS = ("PERF-2",)
ROUNDS = 15
QUICK: dict[str, Any] = {"rounds": 1, "requests": 32, "peers": ()}

HTTP, STDIO = "Holdfast", "Holdfast, stdio behind"
TIMES, TIMES_STDIO = 3.0, 2.0
FEWER: Mapping[str, float] = {"supergateway": 2.5}
"""Where less is asked: a bridge in Node, with a child for each session."""

PEERS = tuple(
    ADAPTERS[name] for name in ("mcp-proxy", "supergateway", "fastmcp", "mcp-hangar", "contextforge", "litellm")
)


def measure(
    *, rounds: int = ROUNDS, requests: int = 640, seconds: float = 1.0, peers: Sequence[Adapter] = PEERS
) -> Report:
    """One caller and sixteen through each gateway. A slow one is measured for some seconds."""
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        subjects, names = _start(stack, peers, missing)
        seen = {
            callers: compare(
                subjects,
                Load(callers=callers, requests=requests if callers > 1 else requests // 4, seconds=seconds, warm=3),
                rounds=rounds if callers > 1 else max(1, rounds // 2),
                failed=missing,
            )
            for callers in (16, 1)
        }
    measured = [peer for peer in peers if peer.name in seen[16] and peer.name in seen[1]]
    return Report(
        name="other_gateways",
        title=f"One call through other gateways, {rounds} rounds",
        requirements=REQUIREMENTS,
        about=(
            "Each gateway runs in an environment of its own with its default settings, apart from logs, which are "
            "off, and what the remarks say. mcp-proxy and supergateway take servers over stdio only; the same server "
            "runs as their child. The CPU time of that server is counted for none of them. Ratios are to Holdfast with "
            "the HTTP server behind: a CPU ratio of 5 means five times the CPU of Holdfast."
        ),
        rows=tuple(
            row(
                f"{name}, {per_caller(callers)}",
                found,
                None if name == HTTP else seen[callers][HTTP],
                note=names.get(name, ""),
            )
            for callers in (1, 16)
            for name, found in seen[callers].items()
        ),
        checks=_checks(seen[16], peers, missing),
        plots=(
            Plot(
                title="Calls per second, 16 callers",
                unit="/s",
                bars={name: spread_of(found, "rate") for name, found in seen[16].items()},
            ),
            Plot(
                title="CPU time per call, 16 callers",
                unit="ms",
                bars={
                    name: spread_of(found, "cpu").scaled(1000)
                    for name, found in seen[16].items()
                    if name in {HTTP, STDIO, *(peer.name for peer in measured)}
                },
            ),
        ),
        missing=tuple(missing.values()),
    )


def _start(stack: ExitStack, peers: Sequence[Adapter], missing: dict[str, str]) -> tuple[list[Subject], dict[str, str]]:
    """Holdfast and all gateways that start, and what to remark about each."""
    _, (port,) = stack.enter_context(upstream("--eras", "both"))
    url = f"http://127.0.0.1:{port}/mcp"
    command, *arguments = stdio_server()
    servers = {"up": {"type": "http", "url": url}, "child": {"command": command, "args": arguments}}
    pid, base = stack.enter_context(hub(servers))
    subjects = [Subject(HTTP, f"{base}/mcp", pid, "up__echo"), Subject(STDIO, f"{base}/mcp", pid, "child__echo")]
    remarks = {}
    for peer in peers:
        try:
            subjects.append(_started(stack, peer, Behind(url, stdio_server())))
        except HubFailed as exc:
            missing[peer.name] = f"{peer.name} {peer.version} did not start: {exc}"
        else:
            settings = "; ".join(one.what for one in peer.settings)
            remarks[peer.name] = f"{peer.version}; {peer.behind} behind; {settings}"
    return subjects, remarks


def _started(stack: ExitStack, peer: Adapter, server: Behind) -> Subject:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
    setup = Setup(folder, free_port(), {"up": server}, uuid4().hex)
    running = stack.enter_context(peer.started(setup))
    return Subject(
        peer.name,
        peer.url(setup, "up"),
        running.pid,
        peer.tool(setup, "up", "echo"),
        headers=peer.headers(setup),
        wrap=lambda arguments: peer.wrap("up", "echo", arguments),
        era="legacy",
    )


def _checks(seen: dict[str, list[Sample]], peers: Sequence[Adapter], missing: dict[str, str]) -> tuple[Check, ...]:
    checks = []
    for peer in peers:
        for ours, times in ((HTTP, FEWER.get(peer.name, TIMES)), (STDIO, TIMES_STDIO)):
            if ours == STDIO and peer.behind != "stdio":
                continue
            behind = ", stdio behind both" if ours == STDIO else ""
            demand = f"PERF-2 16 callers{behind}: at least {times:g} times the calls per second of {peer.name}"
            if peer.name not in seen:
                checks.append(Check(demand=demand, found=f"not measured: {missing[peer.name]}", met=False))
                continue
            rates = ratio([one.rate for one in seen[ours]], [one.rate for one in seen[peer.name]])
            checks.append(at_least(demand, times, rates, " times"))
    busiest = max(one.generator for found in seen.values() for one in found)
    return (
        *checks,
        Check(
            demand="the load generator limits no gateway",
            found=f"it used at most {busiest:.0%} of a core",
            met=busiest < BUSY,
        ),
    )
