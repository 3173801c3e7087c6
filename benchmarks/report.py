"""The result of a benchmark: rows with their spread and ratio, and whether each requirement is met.

Only arithmetic and text: nothing is started, and no clock is read.
"""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

__all__ = [
    "Check",
    "Plot",
    "Report",
    "Row",
    "Spread",
    "as_json",
    "as_table",
    "at_least",
    "at_most",
    "cells",
    "from_json",
    "headings",
    "interleaved",
    "median",
    "ratio",
]

SHORT = 1e-4
"""Shorter times, in seconds, are printed in microseconds."""

RESAMPLES = 2000
COVERED = 0.95

_T = TypeVar("_T")


@dataclass(frozen=True)
class Spread:
    """A median, and the interval that holds it with 95 % confidence."""

    median: float
    low: float
    high: float

    def scaled(self, by: float) -> Spread:
        """The same in another unit."""
        return Spread(self.median * by, self.low * by, self.high * by)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender. Times are in seconds, memory in bytes; a ratio is to the baseline, which has none itself."""

    label: str
    ratio: Spread | None = None
    cpu_ratio: Spread | None = None
    rate_ratio: Spread | None = None
    time: Spread | None = None
    p99: float | None = None
    rate: float | None = None
    """Calls per second."""
    cpu: float | None = None
    """Seconds of CPU per call."""
    memory: float | None = None
    requests: int | None = None
    note: str = ""
    """A result that is none of these."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One demand, and whether it is met."""

    demand: str
    found: str
    met: bool


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Figures to draw: one bar for each name. A line at ``limit``, if there is one."""

    title: str
    unit: str
    bars: Mapping[str, Spread]
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """One benchmark and its result."""

    name: str
    title: str
    requirements: tuple[str, ...]
    rows: tuple[Row, ...]
    checks: tuple[Check, ...]
    about: str = ""
    """What was measured, for the page."""
    plots: tuple[Plot, ...] = ()
    missing: tuple[str, ...] = ()
    """Contenders that could not be measured, with the reason."""

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
    return _spread(statistics.median(samples), [statistics.median(again) for again in _resampled(samples)])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """The median of the ratios of paired rounds: both sides of a round saw the same disturbance."""
    return median([mine / other for mine, other in zip(ours, theirs, strict=True) if other])


def at_most(demand: str, limit: float, found: Spread, unit: str = "") -> Check:
    """A demand on a median, shown with its interval."""
    return Check(demand=demand, found=_found(found, unit), met=found.median <= limit)


def at_least(demand: str, limit: float, found: Spread, unit: str = "") -> Check:
    """A demand on a median, shown with its interval."""
    return Check(demand=demand, found=_found(found, unit), met=found.median >= limit)


def _found(spread: Spread, unit: str) -> str:
    return f"{spread.median:.2f}{unit} ({spread.low:.2f} to {spread.high:.2f})"


def as_table(reports: Sequence[Report]) -> str:
    """Each report as a table, and below them each demand with its result."""
    parts = [_one_table(report) for report in reports]
    verdicts = [f"{'met   ' if c.met else 'MISSED'}  {c.demand}: {c.found}" for r in reports for c in r.checks]
    return "\n\n".join([*parts, "\n".join(verdicts)])


def _one_table(report: Report) -> str:
    lines = [headings(report), *(cells(report, row) for row in report.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    missing = [f"  not measured: {reason}" for reason in report.missing]
    title = f"{report.title} ({', '.join(report.requirements)})"
    return "\n".join([title, *("  " + _aligned(line, widths) for line in lines), *missing])


def as_json(reports: Sequence[Report]) -> dict[str, Any]:
    """The reports as JSON data; times in seconds, memory in bytes."""
    return {
        "met": all(report.met for report in reports),
        "benchmarks": [{**asdict(report), "met": report.met} for report in reports],
    }


def from_json(data: Mapping[str, Any]) -> Report:
    """One of these benchmarks, read again."""
    return Report(
        name=data["name"],
        title=data["title"],
        requirements=tuple(data["requirements"]),
        rows=tuple(Row(**{key: _value(key, value) for key, value in row.items()}) for row in data["rows"]),
        checks=tuple(Check(**check) for check in data["checks"]),
        about=data["about"],
        plots=tuple(
            Plot(**{**plot, "bars": {name: Spread(**bar) for name, bar in plot["bars"].items()}})
            for plot in data["plots"]
        ),
        missing=tuple(data["missing"]),
    )


def _value(key: str, value: Any) -> Any:
    return Spread(**value) if isinstance(value, dict) and key in _SPREADS else value


_SPREADS = frozenset({"ratio", "cpu_ratio", "rate_ratio", "time"})


def _resampled(samples: Sequence[_T]) -> Iterator[list[_T]]:
    return ([samples[index] for index in drawn] for drawn in _draws(len(samples)))


@functools.cache
def _draws(count: int) -> list[list[int]]:
    """The same draws in every run, so that two runs differ only by their measurements."""
    chance = random.Random(count)
    return [chance.choices(range(count), k=count) for _ in range(RESAMPLES if count > 1 else 1)]


def _spread(value: float, resampled: list[float]) -> Spread:
    resampled.sort()
    cut = int(len(resampled) * (1 - COVERED) / 2)
    return Spread(value, resampled[cut], resampled[-1 - cut])


def headings(report: Report) -> list[str]:
    """The columns for which a row of the report has something to show; ratios come first."""
    return ["", *(heading for heading, show in _COLUMNS if any(show(row) for row in report.rows))]


def cells(report: Report, row: Row) -> list[str]:
    """A row in these columns."""
    used = headings(report)
    return [row.label, *(show(row) for heading, show in _COLUMNS if heading in used)]


def _interval(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.2f} ({spread.low:.2f} … {spread.high:.2f})"


def _interval_ms(spread: Spread | None) -> str:
    return "" if spread is None else f"{_ms(spread.median)} ({_ms(spread.low)} … {_ms(spread.high)})"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if not seconds or seconds >= 0.01:
        return f"{seconds * 1000:,.1f} ms"
    return f"{seconds * 1000:.2f} ms" if seconds >= SHORT else f"{seconds * 1e6:.1f} µs"


def _bytes(size: float | None) -> str:
    if size is None:
        return ""
    return f"{size / 1e6:,.1f} MB" if abs(size) >= 1e5 else f"{size / 1e3:,.1f} KB"


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("CPU, ratio", lambda row: _interval(row.cpu_ratio)),
    ("calls/s, ratio", lambda row: _interval(row.rate_ratio)),
    ("time, ratio", lambda row: _interval(row.ratio)),
    ("median", lambda row: _interval_ms(row.time)),
    ("p99", lambda row: _ms(row.p99)),
    ("calls/s", lambda row: "" if row.rate is None else f"{row.rate:,.0f}"),
    ("CPU", lambda row: "" if row.cpu is None else f"{row.cpu * 1e6:,.0f} µs" if row.cpu < 0.01 else _ms(row.cpu)),
    ("memory", lambda row: _bytes(row.memory)),
    ("requests", lambda row: "" if row.requests is None else f"{row.requests:,}"),
    ("remark", lambda row: row.note),
)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(width) if n == 0 else cell.rjust(width)
        for n, (cell, width) in enumerate(zip(line, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()
