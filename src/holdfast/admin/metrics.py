"""The hub in numbers, for Prometheus: counted from its records, and read from its slots when somebody asks.

A sink of the journal like any other. What it counts of a server goes with the server. The text is written by
``prometheus_client``, from families that are made for each scrape: its global registry is not used.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import accumulate

import anyio.to_thread
from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from holdfast._version import __version__
from holdfast.admin.metric_table import METRICS
from holdfast.core.breaker import BreakerState, Tripped
from holdfast.core.lifecycle.table import State
from holdfast.hub.hub import Hub
from holdfast.hub.records import (
    BreakerChanged,
    CallEnded,
    CloseFailed,
    ConfigApplied,
    ConfigRefused,
    HubRecord,
    Missed,
    OfOneClient,
    RetryPlanned,
    Transition,
)

__all__ = ["METHODS", "Metrics", "metrics_route"]

METHODS = frozenset(
    {
        "tools/call",
        "prompts/get",
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "completion/complete",
        "logging/setLevel",
    }
)
"""The methods that are told apart; a client may ask for anything, and all else is ``other``."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
WAITS = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0)

ReadBy = Callable[[str], Awaitable[bool]]
"""Whether whoever shows this bearer token may read the metrics."""


class Metrics:
    """Counts from now on. Make it before the hub is entered, lest the first records be missed."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._servers: dict[str, _Counts] = {}
        self._configs: Counter[str] = Counter()
        self._missed = 0
        self._process = ProcessCollector(registry=None)
        hub.listen(self._take)

    async def text(self) -> bytes:
        """All of it, as it is now; taken in one step and written beside the calls, not between them."""
        taken = _Taken([*self._families(), *self._process.collect()])
        return await anyio.to_thread.run_sync(generate_latest, taken)

    def _take(self, record: HubRecord) -> None:
        match record:
            case CallEnded():
                self._of(record.server).call(record)
            case OfOneClient():
                self._of_one_client(record)
            case Missed(count=count):
                self._missed += count
            case ConfigApplied() | ConfigRefused():
                self._configs["applied" if isinstance(record, ConfigApplied) else "refused"] += 1
                self._forget_removed()
            case Transition() | RetryPlanned() | CloseFailed() | BreakerChanged():
                self._of(record.server).change(record)

    def _of_one_client(self, record: OfOneClient) -> None:
        if isinstance(record.record, Transition):
            self._of(record.server).own_states[record.record.new.value] += 1

    def _of(self, server: str) -> _Counts:
        counts = self._servers.get(server)
        if counts is None:
            counts = self._servers[server] = _Counts()
        return counts

    def _forget_removed(self) -> None:
        for server in [*self._servers]:
            if server not in self._hub.config.servers:
                del self._servers[server]

    # What is shown.

    def _families(self) -> Iterator[Family]:
        self._forget_removed()
        yield from _counted(self._servers)
        yield from self._seen()
        yield _counter("holdfast_config_changes", (((kind,), self._configs[kind]) for kind in ("applied", "refused")))
        yield _counter("holdfast_events_missed", [((), self._missed)])
        yield _gauge("holdfast_build_info", [((__version__, platform.python_version()), 1)])

    def _seen(self) -> Iterator[Family]:
        """What the hub is like at this moment."""
        hub = self._hub
        servers = hub.servers
        states = (((name, state.value), health.state is state) for name, health in servers.items() for state in State)
        yield _gauge("holdfast_server_state", states)
        opened = (((name,), health.breaker is not BreakerState.CLOSED) for name, health in servers.items())
        yield _gauge("holdfast_breaker_open", opened)
        own = Counter(slot.id for slot in hub.private.all())
        in_flight = Counter({name: hub.slot(name).machine.life.calls for name in servers})
        waiting = Counter({name: hub.slot(name).bulkhead.waiting for name in servers})
        for slot in hub.private.all():
            in_flight[slot.id] += slot.machine.life.calls
            waiting[slot.id] += slot.bulkhead.waiting
        yield _gauge("holdfast_calls_in_flight", (((name,), in_flight[name]) for name in servers))
        yield _gauge("holdfast_calls_waiting", (((name,), waiting[name]) for name in servers))
        yield _gauge("holdfast_client_connections", (((name,), own[name]) for name in servers))
        yield from self._listed(servers)

    def _listed(self, servers: Iterable[str]) -> Iterator[Family]:
        catalog = self._hub.catalog
        tools = Counter(entry.server for entry in catalog.tools)
        pending = Counter(change.server for change in self._hub.approvals.pending())
        yield _gauge("holdfast_catalog_tools", (((name,), tools[name]) for name in servers))
        yield _gauge("holdfast_tools_pending", (((name,), pending[name]) for name in servers))
        yield _gauge("holdfast_catalog_version", [((), catalog.version)])


def metrics_route(metrics: Metrics, *, read_by: ReadBy | None = None) -> Route:
    """``/metrics``, for everybody who can reach it or for those alone whose bearer token ``read_by`` knows."""

    async def show(request: Request) -> Response:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if read_by is not None and not (kind.lower() == "bearer" and await read_by(token.strip())):
            challenge = {"www-authenticate": "Bearer"}
            return PlainTextResponse("a valid bearer token is needed\n", status_code=401, headers=challenge)
        return Response(await metrics.text(), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    return Route("/metrics", show, methods=["GET"])


class _Counts:
    """What was counted of one server."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.seconds = _Histogram(SECONDS)
        self.waits = _Histogram(WAITS)
        self.states: Counter[str] = Counter()
        self.own_states: Counter[str] = Counter()
        self.trips = self.retries = self.close_failures = 0

    def call(self, ended: CallEnded) -> None:
        method = ended.method if ended.method in METHODS else "other"
        self.calls[method, ended.outcome] += 1
        self.waits.observe(ended.waited)
        if ended.outcome != "refused":
            self.seconds.observe(ended.seconds)

    def change(self, record: Transition | RetryPlanned | CloseFailed | BreakerChanged) -> None:
        match record:
            case Transition():
                self.states[record.new.value] += 1
            case RetryPlanned():
                self.retries += 1
            case CloseFailed():
                self.close_failures += 1
            case BreakerChanged():
                self.trips += isinstance(record.change, Tripped)


class _Histogram:
    """How often a number was at most so large, and all of them added up."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        names = (*map(str, self._bounds), "+Inf")
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))


class _Taken(Collector):
    """Families that were made already, as what writes them wants them."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families


def _counted(servers: dict[str, _Counts]) -> Iterator[Family]:
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


def _histogram(name: str, samples: Iterable[tuple[str, _Histogram]]) -> Family:
    family = HistogramMetricFamily(name, METRICS[name].says, labels=METRICS[name].labels)
    for server, histogram in samples:
        family.add_metric((server,), histogram.buckets(), histogram.sum)
    return family
