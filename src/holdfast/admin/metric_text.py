"""A sample of the hub as Prometheus text; it is made in a worker thread.

``prometheus_client`` writes it from families that are built each time; its global registry is not used.
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

__all__ = ["SECONDS", "WAITS", "Counts", "Histogram", "HubSample", "ServerSample", "metrics_text"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
WAITS = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0)


class Histogram:
    """Counts values by upper bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative count for each bound."""
        names = (*map(str, self._bounds), "+Inf")
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))

    def copy(self) -> Histogram:
        """Return a copy of the current values."""
        same = Histogram(self._bounds)
        same._counts, same.sum = [*self._counts], self.sum
        return same


class Counts:
    """The counters of one server."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        """By method and outcome."""
        self.seconds = Histogram(SECONDS)
        self.waits = Histogram(WAITS)
        self.states: Counter[str] = Counter()
        self.own_states: Counter[str] = Counter()
        """The same for connections that belong to one client."""
        self.trips = self.retries = self.close_failures = 0

    def copy(self) -> Counts:
        """Return a copy of the current values."""
        same = Counts()
        same.calls, same.states, same.own_states = self.calls.copy(), self.states.copy(), self.own_states.copy()
        same.seconds, same.waits = self.seconds.copy(), self.waits.copy()
        same.trips, same.retries, same.close_failures = self.trips, self.retries, self.close_failures
        return same


@dataclass(frozen=True, kw_only=True)
class ServerSample:
    """The gauges of one server."""

    state: State
    refuses: bool
    in_flight: int
    waiting: int
    own: int
    tools: int
    pending: int


@dataclass(frozen=True, kw_only=True)
class HubSample:
    """A whole hub at one moment, immutable."""

    counted: Mapping[str, Counts]
    seen: Mapping[str, ServerSample]
    configs: Mapping[str, int]
    missed: int
    catalog_version: int


def metrics_text(sample: HubSample, process: ProcessCollector) -> bytes:
    """Return the whole text."""
    return generate_latest(_Families([*_counted(sample.counted), *_seen(sample), *process.collect()]))


class _Families(Collector):
    """Ready families in the form that ``generate_latest`` takes."""

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


def _seen(sample: HubSample) -> Iterator[Family]:
    seen = sample.seen
    states = (((name, state.value), one.state is state) for name, one in seen.items() for state in State)
    yield _gauge("holdfast_server_state", states)
    yield _gauge("holdfast_breaker_open", (((name,), one.refuses) for name, one in seen.items()))
    yield _gauge("holdfast_calls_in_flight", (((name,), one.in_flight) for name, one in seen.items()))
    yield _gauge("holdfast_calls_waiting", (((name,), one.waiting) for name, one in seen.items()))
    yield _gauge("holdfast_client_connections", (((name,), one.own) for name, one in seen.items()))
    yield _gauge("holdfast_catalog_tools", (((name,), one.tools) for name, one in seen.items()))
    yield _gauge("holdfast_tools_pending", (((name,), one.pending) for name, one in seen.items()))
    yield _gauge("holdfast_catalog_version", [((), sample.catalog_version)])
    yield _counter("holdfast_config_changes", (((result,), times) for result, times in sample.configs.items()))
    yield _counter("holdfast_events_missed", [((), sample.missed)])
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
