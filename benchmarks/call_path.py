"""What it costs to put Holdfast between a client and a server, beside a bare relay (PERF-1, PERF-2).

A Node program calls one tool over and over; the hub, the relay and the server are processes of their own. Each
round measures all of them, one after the other, so that a noisy machine is noisy for all. Ratios come first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Check, Report, Row, median, ratio

ROOT = Path(__file__).parents[1]
ROUNDS = 15
REQUIREMENTS = ("PERF-1", "PERF-2")

DIRECT, RELAY, OURS, ALONE = "direct", "bare relay", "Holdfast, /mcp", "Holdfast, /servers/<id>/mcp"

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Subject:
    """What is measured: where it listens, and the process whose CPU time counts."""

    name: str
    url: str
    pid: int
    tool: str = "echo"


@dataclass(frozen=True)
class Sample:
    """One run of the generator."""

    rate: float
    median: float
    p99: float
    cpu: float
    """Seconds of the subject's CPU per call."""
    bytes: int
    seconds: float


def node() -> str:
    """A Node that runs the generator."""
    own = Path(sys.executable).parent / "node"
    return str(own) if own.exists() else shutil.which("node") or "node"


@contextlib.contextmanager
def started(*command: str, until: str, env: dict[str, str] | None = None) -> Iterator[tuple[int, str]]:
    """A process, and the first line of it that matches."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **(env or {})})
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(until, line):
                yield process.pid, found[1]
                break
        else:
            raise RuntimeError(f"{command} ended")
    finally:
        process.terminate()
        process.wait(30)


def upstream(eras: str = "both", *more: str) -> contextlib.AbstractContextManager[tuple[int, str]]:
    """The fast server: its process and its port."""
    return started(sys.executable, "-m", "benchmarks.upstream", "serve", eras, *more, until=r"^(\d+)$")


def relay(url: str) -> contextlib.AbstractContextManager[tuple[int, str]]:
    """The bare relay: its process and its port."""
    return started(sys.executable, "-m", "benchmarks.upstream", "relay", url, until=r"^(\d+)$")


@contextlib.contextmanager
def hub(servers: dict[str, Any], **settings: Any) -> Iterator[tuple[int, str]]:
    """``holdfast serve``: its process and its base address."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mcp.json"
        file.write_text(json.dumps({"mcpServers": servers, "holdfast": settings}))
        env = {"HOME": folder, "XDG_STATE_HOME": folder}
        command = (sys.executable, "-m", "holdfast", "serve", "--no-watch", "--config", str(file), "--port", "0")
        with started(*command, until=r"MCP endpoint: (http://\S+)/mcp", env=env) as (pid, base):
            _wait_ready(base)
            yield pid, base


def _wait_ready(base: str) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError):
            if urllib.request.urlopen(f"{base}/readyz", timeout=5).status == 200:
                return
        time.sleep(0.05)
    raise RuntimeError("the hub is not ready")


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def sample(subject: Subject, *, callers: int, requests: int, era: str, arguments: dict[str, Any]) -> Sample:
    """One run against one subject."""
    process = subprocess.Popen(
        [node(), str(ROOT / "benchmarks/generator.mjs"), subject.url, str(callers), str(requests), era, subject.tool,
         json.dumps(arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    if process.stdout.readline() != "warm\n":
        raise RuntimeError(f"{subject.name}: {process.communicate()[1][-800:]}")
    before = cpu_of(subject.pid)
    said, errors = process.communicate("go\n", timeout=120)
    if process.returncode:
        raise RuntimeError(f"{subject.name}: {errors[-800:]}")
    seen = json.loads(said)
    used = (cpu_of(subject.pid) - before) / seen["requests"]
    return Sample(seen["rate"], seen["median"], seen["p99"], used, seen["bytes"], seen["seconds"])


def compare(
    subjects: list[Subject], *, rounds: int, callers: int, requests: int, era: str, arguments: dict[str, Any]
) -> dict[str, list[Sample]]:
    """All subjects in turn, round by round; the order turns round too."""
    seen: dict[str, list[Sample]] = {subject.name: [] for subject in subjects}
    for turn in range(rounds):
        for subject in subjects if turn % 2 == 0 else subjects[::-1]:
            seen[subject.name].append(sample(subject, callers=callers, requests=requests, era=era, arguments=arguments))
    return seen


def table(seen: dict[str, list[Sample]]) -> str:
    """What was seen, medians of the rounds."""
    lines = ["| | median | p99 | calls/s | CPU per call |", "|---|---|---|---|---|"]
    for name, samples in seen.items():
        of = {key: statistics.median(getattr(one, key) for one in samples) for key in ("median", "p99", "rate", "cpu")}
        lines.append(
            f"| {name} | {of['median']:.2f} ms | {of['p99']:.2f} ms | {of['rate']:,.0f} | {of['cpu'] * 1e6:.0f} µs |"
        )
    return "\n".join(lines)


def measure(*, rounds: int = ROUNDS, requests: int = 1000) -> Report:
    """One caller and sixteen, HTTP in and out, beside the bare relay; all in turns."""
    with upstream("legacy") as (server, port):
        direct = f"http://127.0.0.1:{port}/mcp"
        with relay(direct) as (relaying, relay_port), hub({"up": {"type": "http", "url": direct}}) as (pid, base):
            subjects = [
                Subject(DIRECT, direct, server),
                Subject(RELAY, f"http://127.0.0.1:{relay_port}/mcp", relaying),
                Subject(OURS, f"{base}/mcp", pid, "up__echo"),
                Subject(ALONE, f"{base}/servers/up/mcp", pid),
            ]
            seen = {
                callers: compare(
                    subjects,
                    rounds=rounds,
                    callers=callers,
                    requests=requests,
                    era="legacy",
                    arguments={"text": "hello"},
                )
                for callers in (1, 16)
            }
    return Report(
        name="call_path",
        title=f"One call through, HTTP in and out, {rounds} rounds of {requests} calls",
        requirements=REQUIREMENTS,
        rows=tuple(_row(name, callers, seen[callers]) for callers in seen for name in seen[callers]),
        checks=_checks(seen),
    )


def _row(name: str, callers: int, seen: dict[str, list[Sample]]) -> Row:
    mine, base = seen[name], seen[RELAY]
    rate, slow = (statistics.median(getattr(one, key) for one in mine) for key in ("rate", "p99"))
    return Row(
        label=f"{name}, {callers} caller{'s' if callers > 1 else ''}",
        time=median([one.median / 1000 for one in mine]),
        ratio=None if name == RELAY else ratio([one.median for one in mine], [one.median for one in base]),
        cpu=statistics.median(one.cpu for one in mine),
        note=f"{rate:,.0f} calls/s, 99 % within {slow:.1f} ms",
    )


def _checks(seen: dict[int, dict[str, list[Sample]]]) -> tuple[Check, ...]:
    one, many = seen[1], seen[16]
    cpu = ratio([sample.cpu for sample in one[OURS]], [sample.cpu for sample in one[RELAY]])
    added = ratio(
        [ours.median - base.median for ours, base in zip(one[OURS], one[DIRECT], strict=True)],
        [theirs.median - base.median for theirs, base in zip(one[RELAY], one[DIRECT], strict=True)],
    )
    rate = ratio([sample.rate for sample in many[OURS]], [sample.rate for sample in many[RELAY]])
    return (
        Check(
            demand="PERF-1 takes at most the relay's CPU time per call",
            found=f"{cpu.median:.2f} ({cpu.low:.2f} to {cpu.high:.2f})",
            met=cpu.median <= 1.0,
        ),
        Check(
            demand="PERF-1 adds at most the latency that the relay adds",
            found=f"{added.median:.2f} ({added.low:.2f} to {added.high:.2f})",
            met=added.median <= 1.0,
        ),
        Check(
            demand="PERF-2 sixteen callers: at least the relay's calls per second",
            found=f"{rate.median:.2f} ({rate.low:.2f} to {rate.high:.2f})",
            met=rate.median >= 1.0,
        ),
    )


def main() -> None:
    """A short comparison: direct, relay, hub."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--callers", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--era", default="legacy")
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--servers", type=int, default=1)
    options = parser.parse_args()
    arguments = {"size": options.size} if options.size else {"text": "hello"}
    with upstream(options.era) as (server, port):
        direct = f"http://127.0.0.1:{port}/mcp"
        more = {f"s{n}": {"type": "http", "url": direct} for n in range(1, options.servers)}
        with (
            relay(direct) as (relaying, relay_port),
            hub({"up": {"type": "http", "url": direct}, **more}) as (pid, base),
        ):
            subjects = [
                Subject("direct", direct, server),
                Subject("bare relay", f"http://127.0.0.1:{relay_port}/mcp", relaying),
                Subject("holdfast /mcp", f"{base}/mcp", pid, "up__echo"),
                Subject("holdfast /servers/up/mcp", f"{base}/servers/up/mcp", pid),
            ]
            for callers in options.callers:
                seen = compare(
                    subjects, rounds=options.rounds, callers=callers, requests=options.requests, era=options.era,
                    arguments=arguments,
                )  # fmt: skip
                print(f"\n{callers} callers, {options.era}, {arguments}\n{table(seen)}")


if __name__ == "__main__":
    main()
