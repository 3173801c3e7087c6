"""The result of a benchmark: rows with their spread and ratio, and whether each requirement is met.

Only arithmetic and text: nothing is started, and no clock is read.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

__all__ = ["Check", "Report", "Row", "Spread", "as_json", "as_table", "interleaved", "median", "ratio"]

SHORT = 1e-4
"""Shorter times, in seconds, are printed in microseconds."""

RESAMPLES = 2000
COVERED = 0.95

_T = TypeVar("_T")

_HEADINGS = ("", "median", "95 % interval", "ratio", "95 % interval", "CPU", "requests", "")


@dataclass(frozen=True)
class Spread:
    """A median, and the interval that holds it with 95 % confidence."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender. Times are in seconds; ``ratio`` is to the baseline, None for the baseline itself."""

    label: str
    time: Spread
    ratio: Spread | None = None
    cpu: float | None = None
    requests: int | None = None
    note: str = ""
    """A result that is not a time."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One demand, and whether it is met."""

    demand: str
    found: str
    met: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """One benchmark and its result."""

    name: str
    title: str
    requirements: tuple[str, ...]
    rows: tuple[Row, ...]
    checks: tuple[Check, ...]

    @property
    def met(self) -> bool:
        """Whether every demand is met."""
        return all(check.met for check in self.checks)


def interleaved(contenders: Sequence[str], rounds: int) -> Iterator[str]:
    """The order of the runs: each contender once a round, in rotating order, so that a drift affects all alike."""
    for number in range(rounds):
        yield from contenders if number % 2 == 0 else reversed(contenders)


def median(samples: Sequence[float]) -> Spread:
    """The median of the samples."""
    return _spread(statistics.median(samples), [statistics.median(_again(samples, chance)) for chance in _chances()])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """The ratio of the medians. Rounds are sampled in pairs, because both saw the same disturbance."""
    pairs = list(zip(ours, theirs, strict=True))
    return _spread(_ratio(pairs), [_ratio(_again(pairs, chance)) for chance in _chances()])


def as_table(reports: Sequence[Report]) -> str:
    """All reports in one table, and below it each demand with its result."""
    lines = [list(_HEADINGS)]
    for report in reports:
        lines.append([f"{report.title} ({', '.join(report.requirements)})"])
        lines += [_cells(row) for row in report.rows]
    widths = [max(len(line[column]) for line in lines if len(line) > 1) for column in range(len(_HEADINGS))]
    table = [line[0] if len(line) == 1 else _aligned(line, widths) for line in lines]
    verdicts = [f"{'met   ' if c.met else 'MISSED'}  {c.demand}: {c.found}" for r in reports for c in r.checks]
    return "\n".join([*table, "", *verdicts])


def as_json(reports: Sequence[Report]) -> Mapping[str, Any]:
    """The reports as JSON data; times in seconds."""
    return {
        "met": all(report.met for report in reports),
        "benchmarks": [{**asdict(report), "met": report.met} for report in reports],
    }


def _chances() -> Iterator[random.Random]:
    """The same samples in every run, so that two runs differ only by their measurements."""
    return (random.Random(number) for number in range(RESAMPLES))


def _again(samples: Sequence[_T], chance: random.Random) -> list[_T]:
    return chance.choices(samples, k=len(samples))


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(ours for ours, _ in pairs) / statistics.median(theirs for _, theirs in pairs)


def _spread(value: float, resampled: list[float]) -> Spread:
    resampled.sort()
    cut = int(len(resampled) * (1 - COVERED) / 2)
    return Spread(value, resampled[cut], resampled[-1 - cut])


def _cells(row: Row) -> list[str]:
    return [
        f"  {row.label}",
        _ms(row.time.median),
        f"{_ms(row.time.low)} … {_ms(row.time.high)}",
        "1" if row.ratio is None else f"{row.ratio.median:.2f}",
        "" if row.ratio is None else f"{row.ratio.low:.2f} … {row.ratio.high:.2f}",
        "" if row.cpu is None else _ms(row.cpu),
        "" if row.requests is None else str(row.requests),
        row.note,
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds >= SHORT or not seconds else f"{seconds * 1e6:.1f} µs"


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(width) if n == 0 else cell.rjust(width)
        for n, (cell, width) in enumerate(zip(line, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()
