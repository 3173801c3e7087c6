"""Metrics for Prometheus: counters from the hub's records, gauges read from its slots at each scrape.

The table is also the source of the reference in the docs. Labels are bounded: a configured server or an
enumeration; never a tool, an address or a caller. The text is written in a worker thread; the global registry of
``prometheus_client`` is not used.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, get_args

import anyio
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
from holdfast.access import AuditTrail, RefusalKind
from holdfast.control.server.workers import WorkerGroup, is_from_worker
from holdfast.core import BreakerState, State, Tripped
from holdfast.fleet import Fleet
from holdfast.hub import (
    AccessRefused,
    BreakerChanged,
    CallEnded,
    CloseFailed,
    ConfigApplied,
    ConfigRefused,
    Hub,
    HubRecord,
    Missed,
    OneClientRecord,
    RetryPlanned,
    Transition,
    next_poll,
)

__all__ = [
    "METHODS",
    "METRICS",
    "SECONDS",
    "WAITS",
    "Counts",
    "Histogram",
    "HubSample",
    "LoopLag",
    "Metric",
    "Metrics",
    "ServerSample",
    "labelled",
    "metrics_route",
    "metrics_text",
]


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    """The name without ``_total``, which the samples of a counter end with."""
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    says: str

    @property
    def shown(self) -> str:
        """The name to query; for a histogram add ``_bucket``, ``_sum`` or ``_count``."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("holdfast_calls", "counter", ("server", "method", "outcome"), "Calls by outcome"),
        Metric(
            "holdfast_call_seconds",
            "histogram",
            ("server",),
            "Call duration in seconds as the caller sees it, without refused calls",
        ),
        Metric(
            "holdfast_call_wait_seconds",
            "histogram",
            ("server",),
            "Seconds until a call was sent: admission, concurrency limit and connection",
        ),
        Metric("holdfast_calls_in_flight", "gauge", ("server",), "Calls in flight: admitted and not ended"),
        Metric("holdfast_calls_waiting", "gauge", ("server",), "Calls that wait for the concurrency limit"),
        Metric("holdfast_server_state", "gauge", ("server", "state"), "1 for the current state of the server, else 0"),
        Metric("holdfast_breaker_open", "gauge", ("server",), "1 while the circuit breaker refuses calls, else 0"),
        Metric("holdfast_breaker_trips", "counter", ("server",), "Trips of the circuit breaker"),
        Metric("holdfast_transitions", "counter", ("server", "state"), "Transitions of the server into each state"),
        Metric("holdfast_retries", "counter", ("server",), "Reconnects planned after a failure"),
        Metric("holdfast_close_failures", "counter", ("server",), "Old connections that did not close cleanly"),
        Metric("holdfast_tools_pending", "gauge", ("server",), "Changed tools that are not approved yet"),
        Metric("holdfast_catalog_tools", "gauge", ("server",), "Listed tools of the server"),
        Metric("holdfast_catalog_version", "gauge", (), "Version of the published catalog"),
        Metric("holdfast_client_connections", "gauge", ("server",), "Connections that belong to one client"),
        Metric(
            "holdfast_client_transitions",
            "counter",
            ("server", "state"),
            "Transitions of connections that belong to one client",
        ),
        Metric(
            "holdfast_access_refused", "counter", ("kind",), "Refused clients by kind; `login` is a wrong credential"
        ),
        Metric("holdfast_config_changes", "counter", ("result",), "Configuration changes, applied or refused"),
        Metric(
            "holdfast_loop_lag_seconds",
            "gauge",
            (),
            "Largest delay of the event loop in the last minute: how long a step kept all others waiting",
        ),
        Metric("holdfast_workers", "gauge", (), "Workers that answered this scrape; 1 for a hub alone"),
        Metric("holdfast_fleet_replicas", "gauge", (), "Replicas of the fleet that are present; 1 for a hub alone"),
        Metric(
            "holdfast_fleet_shared", "gauge", (), "1 while the store of the fleet answers, else 0; 1 for a hub alone"
        ),
        Metric("holdfast_fleet_exchanges", "counter", ("result",), "Exchanges with the store of the fleet"),
        Metric("holdfast_fleet_refused", "counter", (), "Messages of the store with a wrong signature"),
        Metric("holdfast_fleet_probes", "gauge", ("replica",), "Servers that a replica has the right to try"),
        Metric("holdfast_fleet_not_shared", "gauge", (), "Servers whose switch or approvals hold on this replica only"),
        Metric("holdfast_fleet_clock_ahead_seconds", "gauge", (), "Seconds that this clock is ahead of the fleet's"),
        Metric("holdfast_fleet_configs", "gauge", (), "Different configurations of replicas, once that stays; else 1"),
        Metric("holdfast_fleet_events_lost", "counter", (), "Events of sessions that other replicas cannot resume"),
        Metric("holdfast_audit_records", "counter", (), "Records of the audit that were written"),
        Metric("holdfast_audit_lost", "counter", (), "Records of the audit that could not be written"),
        Metric("holdfast_audit_failing", "gauge", (), "1 while the audit cannot be written, else 0"),
        Metric("holdfast_events_missed", "counter", (), "Records that a slow listener missed"),
        Metric("holdfast_build_info", "gauge", ("version", "python"), "1, with the running version"),
    )
}


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
class FleetSample:
    """The fleet, as this replica sees it."""

    replicas: int = 1
    shared: bool = True
    exchanges: int = 0
    failures: int = 0
    refused: int = 0
    probes: Mapping[str, int] = field(default_factory=dict)
    not_shared: int = 0
    configs: int = 1
    ahead: float = 0.0
    events_lost: int = 0


@dataclass(frozen=True, kw_only=True)
class AuditSample:
    """The audit of this process."""

    written: int = 0
    lost: int = 0
    failing: bool = False

    @classmethod
    def of(cls, audit: AuditTrail | None) -> AuditSample:
        """That of an audit; without one, nothing is written and nothing lost."""
        if audit is None:
            return cls()
        return cls(written=audit.written, lost=audit.lost, failing=bool(audit.failing))


@dataclass(frozen=True, kw_only=True)
class HubSample:
    """A whole hub at one moment, immutable."""

    counted: Mapping[str, Counts]
    seen: Mapping[str, ServerSample]
    configs: Mapping[str, int]
    refused: Mapping[str, int]
    missed: int
    loop_lag: float
    catalog_version: int
    fleet: FleetSample
    audit: AuditSample


def metrics_text(sample: HubSample, process: ProcessCollector) -> bytes:
    """Return the whole text."""
    return generate_latest(_Families([*_counted(sample.counted), *_seen(sample), *process.collect()]))


def labelled(texts: Mapping[int, bytes]) -> bytes:
    """Return the texts of several workers as one: each sample gets the number of its worker as a label.

    So the counters of a worker that was started again begin again alone, and Prometheus sees that.
    """
    families: dict[str, tuple[list[str], list[str]]] = {}
    for worker, text in sorted(texts.items()):
        family = ""
        for line in text.decode().splitlines():
            if line.startswith("#"):
                family = line.split(" ", 3)[2]
                heads, _ = families.setdefault(family, ([], []))
                if line not in heads:
                    heads.append(line)
            elif family != "holdfast_workers":
                name, brace, rest = line.partition("{")
                if not brace:
                    name, _, rest = line.partition(" ")
                    families[family][1].append(f'{name}{{worker="{worker}"}} {rest}')
                else:
                    families[family][1].append(f'{name}{{worker="{worker}",{rest}')
    families["holdfast_workers"][1].append(f"holdfast_workers {len(texts)}.0")
    return "".join(f"{line}\n" for heads, samples in families.values() for line in (*heads, *samples)).encode()


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
    states = (((name, state.shown), one.state is state) for name, one in seen.items() for state in State)
    yield _gauge("holdfast_server_state", states)
    yield _gauge("holdfast_breaker_open", (((name,), one.refuses) for name, one in seen.items()))
    yield _gauge("holdfast_calls_in_flight", (((name,), one.in_flight) for name, one in seen.items()))
    yield _gauge("holdfast_calls_waiting", (((name,), one.waiting) for name, one in seen.items()))
    yield _gauge("holdfast_client_connections", (((name,), one.own) for name, one in seen.items()))
    yield _gauge("holdfast_catalog_tools", (((name,), one.tools) for name, one in seen.items()))
    yield _gauge("holdfast_tools_pending", (((name,), one.pending) for name, one in seen.items()))
    yield _gauge("holdfast_catalog_version", [((), sample.catalog_version)])
    yield _counter("holdfast_config_changes", (((result,), times) for result, times in sample.configs.items()))
    yield _counter("holdfast_access_refused", (((kind,), times) for kind, times in sample.refused.items()))
    yield _gauge("holdfast_loop_lag_seconds", [((), sample.loop_lag)])
    yield _counter("holdfast_events_missed", [((), sample.missed)])
    yield _gauge("holdfast_workers", [((), 1)])
    fleet = sample.fleet
    yield _gauge("holdfast_fleet_replicas", [((), fleet.replicas)])
    yield _gauge("holdfast_fleet_shared", [((), fleet.shared)])
    results = {"ok": fleet.exchanges - fleet.failures, "failed": fleet.failures}
    yield _counter("holdfast_fleet_exchanges", (((result,), times) for result, times in results.items()))
    yield _counter("holdfast_fleet_refused", [((), fleet.refused)])
    yield _gauge("holdfast_fleet_probes", (((name,), number) for name, number in fleet.probes.items()))
    yield _gauge("holdfast_fleet_not_shared", [((), fleet.not_shared)])
    yield _gauge("holdfast_fleet_clock_ahead_seconds", [((), fleet.ahead)])
    yield _gauge("holdfast_fleet_configs", [((), fleet.configs)])
    yield _counter("holdfast_fleet_events_lost", [((), fleet.events_lost)])
    yield _counter("holdfast_audit_records", [((), sample.audit.written)])
    yield _counter("holdfast_audit_lost", [((), sample.audit.lost)])
    yield _gauge("holdfast_audit_failing", [((), sample.audit.failing)])
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
"""The values of the label ``method``; every other method is ``other``, because a client may send any name."""

ReadBy = Callable[[str], Awaitable[bool]]
"""Whether a bearer token gives access to the metrics."""


class LoopLag:
    """Measures how late the event loop wakes a task: the time that other steps took."""

    def __init__(self) -> None:
        self._windows: deque[tuple[int, float]] = deque(maxlen=2)

    @property
    def measured(self) -> bool:
        """Whether there is a measurement yet."""
        return bool(self._windows)

    @property
    def largest(self) -> float:
        """The largest delay of the last one or two windows, in seconds."""
        return max((lag for _, lag in self._windows), default=0.0)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = next_poll(anyio.current_time(), LAG_STEP_SECONDS)
            await anyio.sleep(due - anyio.current_time())
            now = anyio.current_time()
            self.add(now, now - due)

    def add(self, now: float, lag: float) -> None:
        """Take one measurement."""
        window = int(now // LAG_WINDOW_SECONDS)
        if not self._windows or self._windows[-1][0] != window:
            self._windows.append((window, max(lag, 0.0)))
        else:
            self._windows[-1] = window, max(self._windows[-1][1], lag)


LAG_STEP_SECONDS = 0.5
"""As often as the files are polled: the hub wakes once for both."""

LAG_WINDOW_SECONDS = 30.0


class Metrics:
    """Counts records. Create it before the hub is entered, so that it misses none."""

    def __init__(self, hub: Hub, fleet: Fleet | None = None, audit: AuditTrail | None = None) -> None:
        self._hub = hub
        self._audit = audit
        self._replicas = fleet
        self._servers: dict[str, Counts] = {}
        self._configs: Counter[str] = Counter(applied=0, refused=0)
        self._refused: Counter[str] = Counter(dict.fromkeys(get_args(RefusalKind), 0))
        self._missed = 0
        self.loop = LoopLag()
        self._process = ProcessCollector(registry=None)
        hub.registry.journal.add_sink(self._take, calls=self._count_call)

    async def text(self) -> bytes:
        """Return the text: the sample is one short step, and the writing runs in a thread."""
        return await anyio.to_thread.run_sync(metrics_text, self._sample(), self._process)

    # Counters.

    def _take(self, record: HubRecord) -> None:
        match record:
            case OneClientRecord(server=server, record=Transition(new=state)):
                self._of(server).own_states[state.shown] += 1
            case AccessRefused(kind=kind):
                self._refused[kind] += 1
            case Missed(count=count):
                self._missed += count
            case ConfigApplied() | ConfigRefused():
                self._configs["applied" if isinstance(record, ConfigApplied) else "refused"] += 1
                self._forget_removed()
            case Transition() | RetryPlanned() | CloseFailed() | BreakerChanged():
                _count_change(self._of(record.server), record)

    def _count_call(self, ended: CallEnded) -> None:
        counts, outcome = self._servers.get(ended.server) or self._of(ended.server), ended.outcome
        counts.calls[ended.method if ended.method in METHODS else "other", outcome] += 1
        counts.waits.observe(ended.waited)
        if outcome != "refused":
            counts.seconds.observe(ended.seconds)

    def _of(self, server: str) -> Counts:
        counts = self._servers.get(server)
        if counts is None:
            counts = self._servers[server] = Counts()
        return counts

    def _forget_removed(self) -> None:
        for server in [*self._servers]:
            if server not in self._hub.config.servers:
                del self._servers[server]

    # Gauges.

    def _sample(self) -> HubSample:
        self._forget_removed()
        return HubSample(
            counted={name: counts.copy() for name, counts in self._servers.items()},
            seen=self._seen(),
            configs=dict(self._configs),
            refused=dict(self._refused),
            missed=self._missed,
            loop_lag=self.loop.largest,
            catalog_version=self._hub.registry.catalog.version,
            fleet=self._fleet(),
            audit=AuditSample.of(self._audit),
        )

    def _fleet(self) -> FleetSample:
        fleet = self._replicas
        if fleet is None:
            return FleetSample()
        return FleetSample(
            replicas=len(fleet.presence.replicas),
            shared=fleet.state.is_shared,
            exchanges=fleet.exchanges,
            failures=fleet.failures,
            refused=getattr(fleet.store, "refused", 0),
            probes=Counter(fleet.evidence.probers.values()),
            not_shared=len(fleet.decisions.not_shared),
            configs=len(fleet.configs.groups) or 1,
            ahead=fleet.state.clock.agreed.ahead.get(fleet.replica, 0.0),
            events_lost=fleet.events.dropped if fleet.events is not None else 0,
        )

    def _seen(self) -> dict[str, ServerSample]:
        hub = self._hub
        tools = Counter(entry.server for entry in hub.registry.catalog.tools)
        own: Counter[str] = Counter()
        in_flight: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        for slot in hub.registry.clients.all():
            own[slot.id] += 1
            in_flight[slot.id] += slot.machine.life.calls
            waiting[slot.id] += slot.bulkhead.waiting
        return {
            name: ServerSample(
                state=slot.state,
                refuses=slot.health().breaker is not BreakerState.CLOSED,
                in_flight=in_flight[name] + slot.machine.life.calls,
                waiting=waiting[name] + slot.bulkhead.waiting,
                own=own[name],
                tools=tools[name],
                pending=len(hub.approvals.pins.changed.get(name, ())),
            )
            for name, slot in hub.registry.slots.items()
        }


def metrics_route(metrics: Metrics, group: WorkerGroup | None, *, read_by: ReadBy | None = None) -> Route:
    """Return the route ``/metrics``; with ``read_by`` it needs a bearer token that the function accepts.

    In a worker the text has the samples of all workers, each with the label ``worker``. Another worker that asks gets
    those of this one alone.
    """

    async def show(request: Request) -> Response:
        authorization = request.headers.get("authorization", "")
        kind, _, token = authorization.partition(" ")
        if read_by is not None and not (kind.lower() == "bearer" and await read_by(token.strip())):
            challenge = {"www-authenticate": "Bearer"}
            return PlainTextResponse("a valid bearer token is required\n", status_code=401, headers=challenge)
        text = await metrics.text()
        if group is not None and not is_from_worker(request.scope):
            headers = [("authorization", authorization)] if authorization else []
            told = await group.ask_others("GET", "/metrics", headers)
            texts = {worker.number: text for worker, text in told.items()}
            if group.is_member or not texts:
                texts[group.own.number] = text
            text = await anyio.to_thread.run_sync(labelled, texts)
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    return Route("/metrics", show, methods=["GET"])


def _count_change(counts: Counts, record: Transition | RetryPlanned | CloseFailed | BreakerChanged) -> None:
    match record:
        case Transition():
            counts.states[record.new.shown] += 1
        case RetryPlanned():
            counts.retries += 1
        case CloseFailed():
            counts.close_failures += 1
        case BreakerChanged():
            counts.trips += isinstance(record.change, Tripped)
