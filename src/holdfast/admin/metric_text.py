"""What was counted and seen of a hub at one moment, as the text that Prometheus reads. For a worker thread.

Written by ``prometheus_client``, from families that are made each time: its global registry is not used.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from holdfast._version import __version__
from holdfast.admin.metric_table import METRICS
from holdfast.core.lifecycle.table import State

__all__ = ["SECONDS", "WAITS", "Counts", "Histogram", "Seen", "Shot", "text_of"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
WAITS = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0)


class Histogram:
    """How often a number was at most so large, and all of them added up."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a number."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """By each bound, how many were at most as large."""
        names = (*map(str, self._bounds), "+Inf")
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))

    def copy(self) -> Histogram:
        """As it is now."""
        same = Histogram(self._bounds)
        same._counts, same.sum = [*self._counts], self.sum
        return same


class Counts:
    """What was counted of one server."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        """By method and outcome."""
        self.seconds = Histogram(SECONDS)
        self.waits = Histogram(WAITS)
        self.states: Counter[str] = Counter()
        self.own_states: Counter[str] = Counter()
        """The same of connections that one client has for itself."""
        self.trips = self.retries = self.close_failures = 0

    def copy(self) -> Counts:
        """As it is now."""
        same = Counts()
        same.calls, same.states, same.own_states = self.calls.copy(), self.states.copy(), self.own_states.copy()
        same.seconds, same.waits = self.seconds.copy(), self.waits.copy()
        same.trips, same.retries, same.close_failures = self.trips, self.retries, self.close_failures
        return same


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one server is like."""

    state: State
    refuses: bool
    in_flight: int
    waiting: int
    own: int
    tools: int
    pending: int


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A whole hub at one moment; nothing in it changes any more."""

    counted: Mapping[str, Counts]
    seen: Mapping[str, Seen]
    configs: Mapping[str, int]
    missed: int
    catalog_version: int


def text_of(shot: Shot, process: ProcessCollector) -> bytes:
    """All of it."""
    return generate_latest(_Taken([*_counted(shot.counted), *_seen(shot), *process.collect()]))


class _Taken(Collector):
    """Families that were made already, as what writes them wants them."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families


def _counted(servers: Mapping[str, Counts]) -> Iterator[Family]:
    calls = (((name, *key), n) for name, counts in servers.items() for key, n in counts.calls.items())
    yield _counter("holdfast_calls", calls)
    yield _histogram("holdfast_call_seconds", ((name, counts.seconds) for name, counts in servers.items()))
    yield _histogram("holdfast_call_wait_seconds", ((name, counts.waits) for name, counts in servers.items()))
    states = (((name, state), n) for name, counts in servers.items() for state, n in counts.states.items())
    yield _counter("holdfast_transitions", states)
    own = (((name, state), n) for name, counts in servers.items() for state, n in counts.own_states.items())
    yield _counter("holdfast_client_transitions", own)
    yield _counter("holdfast_breaker_trips", (((name,), counts.trips) for name, counts in servers.items()))
    yield _counter("holdfast_retries", (((name,), counts.retries) for name, counts in servers.items()))
    yield _counter("holdfast_close_failures", (((name,), counts.close_failures) for name, counts in servers.items()))


def _seen(shot: Shot) -> Iterator[Family]:
    seen = shot.seen
    states = (((name, state.value), one.state is state) for name, one in seen.items() for state in State)
    yield _gauge("holdfast_server_state", states)
    yield _gauge("holdfast_breaker_open", (((name,), one.refuses) for name, one in seen.items()))
    yield _gauge("holdfast_calls_in_flight", (((name,), one.in_flight) for name, one in seen.items()))
    yield _gauge("holdfast_calls_waiting", (((name,), one.waiting) for name, one in seen.items()))
    yield _gauge("holdfast_client_connections", (((name,), one.own) for name, one in seen.items()))
    yield _gauge("holdfast_catalog_tools", (((name,), one.tools) for name, one in seen.items()))
    yield _gauge("holdfast_tools_pending", (((name,), one.pending) for name, one in seen.items()))
    yield _gauge("holdfast_catalog_version", [((), shot.catalog_version)])
    yield _counter("holdfast_config_changes", (((result,), times) for result, times in shot.configs.items()))
    yield _counter("holdfast_events_missed", [((), shot.missed)])
    yield _gauge("holdfast_build_info", [((__version__, platform.python_version()), 1)])


def _counter(name: str, samples: Iterable[tuple[tuple[str, ...], float]]) -> Family:
    family = CounterMetricFamily(name, METRICS[name].says, labels=METRICS[name].labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _gauge(name: str, samples: Iterable[tuple[tuple[str, ...], float]]) -> Family:
    family = GaugeMetricFamily(name, METRICS[name].says, labels=METRICS[name].labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _histogram(name: str, samples: Iterable[tuple[str, Histogram]]) -> Family:
    family = HistogramMetricFamily(name, METRICS[name].says, labels=METRICS[name].labels)
    for server, histogram in samples:
        family.add_metric((server,), histogram.buckets(), histogram.sum)
    return family
