"""Calls of the load generator, and what they cost the program that is measured.

The generator is a Node program of its own (``generator.mjs``). All subjects of a comparison are measured in every
round, one after the other and in turning order, so that a noisy machine is noisy for all of them. CPU time is the
figure that noise moves least.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.processes import ROOT, Tree, node
from benchmarks.report import Row, Spread, interleaved, median, ratio

__all__ = ["Load", "Sample", "Subject", "compare", "per_caller", "row", "sample", "spread_of"]

LEAVE_SECONDS = 30.0


@dataclass(frozen=True)
class Subject:
    """What is measured: where it listens, and the process whose tree's CPU time counts."""

    name: str
    url: str
    pid: int
    tool: str = "echo"
    headers: Mapping[str, str] = field(default_factory=dict)
    wrap: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """The tool's arguments as this gateway wants them."""
    era: str | None = None
    """The only era that it speaks, if there is one."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the generator does: so many calls, or as many as fit into the time."""

    callers: int = 1
    requests: int = 1000
    seconds: float = 10.0
    era: str = "legacy"
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"text": "hello"})
    progress: bool = False
    method: str = "tools/call"


@dataclass(frozen=True)
class Sample:
    """One run of the generator. Times are in seconds."""

    requests: int
    rate: float
    median: float
    p99: float
    cpu: float
    """Of the subject's process tree, per call."""
    memory: int
    """Of the subject's process tree, after the calls."""
    throughput: float
    """Bytes of answers per second."""
    notices: int
    """Progress notices in one answer."""
    generator: float
    """The share of a core that the generator used."""


def sample(subject: Subject, load: Load) -> Sample:
    """One run against one subject."""
    options = {
        "url": subject.url,
        "callers": load.callers,
        "requests": load.requests,
        "seconds": load.seconds,
        "era": subject.era or load.era,
        "method": load.method,
        "tool": subject.tool,
        "arguments": subject.wrap(load.arguments),
        "progress": load.progress,
        "headers": subject.headers,
    }
    command = [node(), str(ROOT / "benchmarks/generator.mjs"), json.dumps(options)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            return _measured(process, subject)
        except BaseException:
            process.kill()
            raise


def _measured(process: subprocess.Popen[str], subject: Subject) -> Sample:
    assert process.stdout is not None
    if process.stdout.readline() != "warm\n":
        raise RuntimeError(f"{subject.name}: {process.communicate()[1][-800:]}")
    tree = Tree(subject.pid)
    pids = tree.pids()
    before = tree.cpu(pids)
    said = _say(process, "go")
    if not said:
        raise RuntimeError(f"{subject.name}: {process.communicate()[1][-800:]}")
    used, memory = tree.cpu(pids) - before, tree.memory()
    process.communicate("leave\n", timeout=LEAVE_SECONDS)
    seen = json.loads(said)
    return Sample(
        requests=seen["requests"],
        rate=seen["rate"],
        median=seen["median"] / 1000,
        p99=seen["p99"] / 1000,
        cpu=used / seen["requests"],
        memory=memory,
        throughput=seen["bytes"] / seen["seconds"],
        notices=seen["notices"],
        generator=seen["cpu"] / seen["seconds"],
    )


def _say(process: subprocess.Popen[str], word: str) -> str:
    """Tell the generator to go on; its next line. It is empty if the generator failed."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return process.stdout.readline()


def compare(
    subjects: Sequence[Subject], load: Load, *, rounds: int, failed: dict[str, str] | None = None
) -> dict[str, list[Sample]]:
    """All subjects in every round; the order turns round. One that fails is left out and named in ``failed``."""
    by_name = {subject.name: subject for subject in subjects}
    seen: dict[str, list[Sample]] = {name: [] for name in by_name}
    for name in interleaved(list(by_name), rounds):
        if failed is not None and name in failed:
            continue
        try:
            seen[name].append(sample(by_name[name], load))
        except RuntimeError as exc:
            if failed is None:
                raise
            failed[name] = f"{exc} ({per_caller(load.callers)})"
    return {name: samples for name, samples in seen.items() if name not in (failed or {})}


def spread_of(samples: Sequence[Sample], key: str) -> Spread:
    """The median of one figure over the rounds."""
    return median([getattr(one, key) for one in samples])


def row(label: str, mine: Sequence[Sample], base: Sequence[Sample] | None = None, note: str = "") -> Row:
    """The medians of the rounds, and the ratios to the baseline of the same rounds."""

    def middle(key: str) -> float:
        return float(statistics.median(getattr(one, key) for one in mine))

    def beside(key: str) -> Spread | None:
        if base is None:
            return None
        return ratio([getattr(one, key) for one in mine], [getattr(one, key) for one in base])

    return Row(
        label=label,
        ratio=beside("median"),
        cpu_ratio=beside("cpu"),
        rate_ratio=beside("rate"),
        time=spread_of(mine, "median"),
        p99=middle("p99"),
        rate=middle("rate"),
        cpu=middle("cpu"),
        memory=middle("memory"),
        note=note,
    )


def per_caller(callers: int) -> str:
    """`1 caller`, `16 callers`."""
    return f"{callers} caller{'s' if callers > 1 else ''}"
