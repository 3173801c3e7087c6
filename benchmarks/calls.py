"""Calls of the load generator, and what they cost the program that is measured.

The generator is a Node program of its own (``generator.mjs``). All subjects of a comparison are measured in every
round, one after the other and in turning order. Rounds are short and many: what disturbs the machine then disturbs both
sides of a pair. CPU time is the figure that noise moves least.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.processes import ROOT, Tree, node
from benchmarks.report import Row, Spread, interleaved, median, ratio

__all__ = ["Generator", "Load", "Sample", "Subject", "compare", "generator", "per_caller", "row", "spread_of"]

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
    helper: int | None = None
    """Another process that works for the same calls, and whose CPU time counts too."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the generator does in a round: so many calls, or as many as fit into the time."""

    callers: int = 1
    requests: int = 200
    seconds: float = 10.0
    warm: int = 20
    """How many calls of each caller do not count."""
    era: str = "legacy"
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"text": "hello"})
    progress: bool = False
    method: str = "tools/call"


@dataclass(frozen=True)
class Sample:
    """One batch of calls. Times are in seconds."""

    times: Sequence[float]
    rate: float
    median: float
    cpu: float
    """Of the subject's process tree, per call."""
    memory: int
    """Of the subject's process tree, after the calls."""
    throughput: float
    """Bytes of answers per second."""
    bytes: float
    """Of one answer."""
    notices: int
    """Progress notices in one answer."""
    generator: float
    """The share of a core that the generator used."""


class Generator:
    """A generator that is connected to one subject, and calls on demand."""

    def __init__(self, process: subprocess.Popen[str], subject: Subject) -> None:
        self._process = process
        self._subject = subject
        self._tree = Tree(subject.pid, *([] if subject.helper is None else [subject.helper]))
        self._expect("warm")

    def run(self) -> Sample:
        """One batch of calls."""
        before = self._tree.cpu()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None
        seen = json.loads(self._expect("{"))
        used, times = self._tree.cpu_since(before), [time / 1000 for time in seen["times"]]
        return Sample(
            times=times,
            rate=len(times) / seen["seconds"],
            median=statistics.median(times),
            cpu=used / len(times),
            memory=self._tree.memory(),
            throughput=seen["bytes"] / seen["seconds"],
            bytes=seen["bytes"] / len(times),
            notices=seen["notices"],
            generator=seen["cpu"] / seen["seconds"],
        )

    def _expect(self, start: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(start):
            raise self._failed()
        return line

    def _failed(self) -> RuntimeError:
        said = [line for line in self._process.communicate()[1].splitlines() if "Error" in line]
        return RuntimeError(f"{self._subject.name}: {' '.join(said)[:400] or 'the generator ended'}")


@contextmanager
def generator(subject: Subject, load: Load) -> Iterator[Generator]:
    """Connect to a subject, open the sessions, and make the calls that do not count."""
    options = {
        "url": subject.url,
        "callers": load.callers,
        "requests": load.requests,
        "seconds": load.seconds,
        "warm": load.warm,
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
            yield Generator(process, subject)
            process.communicate(timeout=LEAVE_SECONDS)
        except BaseException:
            process.kill()
            raise


def compare(
    subjects: Sequence[Subject], load: Load, *, rounds: int, failed: dict[str, str] | None = None
) -> dict[str, list[Sample]]:
    """All subjects in every round; the order turns round. One that fails is left out and named in ``failed``."""
    seen: dict[str, list[Sample]] = {subject.name: [] for subject in subjects}
    with ExitStack() as stack:
        generators: dict[str, Generator] = {}
        for subject in subjects:
            with _named(subject.name, load, failed):
                generators[subject.name] = stack.enter_context(generator(subject, load))
        for name in interleaved(list(generators), rounds):
            if name not in (failed or {}):
                with _named(name, load, failed):
                    seen[name].append(generators[name].run())
    return {name: samples for name, samples in seen.items() if name not in (failed or {})}


@contextmanager
def _named(name: str, load: Load, failed: dict[str, str] | None) -> Iterator[None]:
    """Take down a failure, where failures are collected."""
    try:
        yield
    except RuntimeError as exc:
        if failed is None:
            raise
        failed[name] = f"{exc} ({per_caller(load.callers)})"


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
        p99=_percentile([time for one in mine for time in one.times], 0.99),
        rate=middle("rate"),
        cpu=middle("cpu"),
        memory=middle("memory"),
        note=note,
    )


def _percentile(times: Sequence[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def per_caller(callers: int) -> str:
    """`1 caller`, `16 callers`."""
    return f"{callers} caller{'s' if callers > 1 else ''}"
