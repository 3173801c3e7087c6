"""Metrics for Prometheus: counters from the hub's records, gauges read from its slots at each scrape.

The table is also the source of the reference in the docs. Labels are bounded: a configured server or an
enumeration; never a tool, an address or a caller. The text is written in a worker thread; the global registry of
``prometheus_client`` is not used.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal, TypeAlias, cast, get_args

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
    "LoopLag",
    "Metric",
    "Metrics",
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

    def sample(self) -> tuple[list[tuple[str, float]], float]:
        """Return the cumulative count for each bound, and the sum."""
        names = (*map(str, self._bounds), "+Inf")
        return list(zip(names, map(float, accumulate(self._counts)), strict=True)), self.sum


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


Sample: TypeAlias = tuple[tuple[str, ...], Any]
"""The values of the labels, and the value: a number, a sample of a ``Histogram``, or the ``State`` of a server."""


def metrics_text(samples: Mapping[str, Sequence[Sample]], process: ProcessCollector) -> bytes:
    """Return the whole text: ``samples`` has those of each metric by its name."""
    families = [_family(METRICS[name], values) for name, values in samples.items()]
    return generate_latest(_Families([*families, *process.collect()]))


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


_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


def _family(metric: Metric, samples: Sequence[Sample]) -> Family:
    family: Any = _FAMILIES[metric.kind](metric.name, metric.says, labels=metric.labels)
    for labels, value in samples:
        match value:
            case (buckets, total):
                family.add_metric(labels, buckets, total)
            case State():
                for state in State:
                    family.add_metric((*labels, state.shown), value is state)
            case _:
                family.add_metric(labels, value)
    return cast("Family", family)


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
    def largest(self) -> float | None:
        """The largest delay of the last one or two windows, in seconds; None if there is no measurement yet."""
        return max((lag for _, lag in self._windows), default=None)

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
        self._servers: dict[str, Counts] = defaultdict(Counts)
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
                self._servers[server].own_states[state.shown] += 1
            case AccessRefused(kind=kind):
                self._refused[kind] += 1
            case Missed(count=count):
                self._missed += count
            case ConfigApplied() | ConfigRefused():
                self._configs["applied" if isinstance(record, ConfigApplied) else "refused"] += 1
                self._forget_removed()
            case Transition():
                self._servers[record.server].states[record.new.shown] += 1
            case RetryPlanned():
                self._servers[record.server].retries += 1
            case CloseFailed():
                self._servers[record.server].close_failures += 1
            case BreakerChanged(change=Tripped()):
                self._servers[record.server].trips += 1

    def _count_call(self, ended: CallEnded) -> None:
        counts, outcome = self._servers[ended.server], ended.outcome
        counts.calls[ended.method if ended.method in METHODS else "other", outcome] += 1
        counts.waits.observe(ended.waited)
        if outcome != "refused":
            counts.seconds.observe(ended.seconds)

    def _forget_removed(self) -> None:
        for server in [*self._servers]:
            if server not in self._hub.config.servers:
                del self._servers[server]

    # Gauges.

    def _sample(self) -> dict[str, list[Sample]]:
        """Everything at one moment: what is in it does not change any more."""
        self._forget_removed()
        counted, audit = self._servers.items(), self._audit
        return {
            "holdfast_calls": [((name, *key), n) for name, one in counted for key, n in one.calls.items()],
            "holdfast_call_seconds": [((name,), one.seconds.sample()) for name, one in counted],
            "holdfast_call_wait_seconds": [((name,), one.waits.sample()) for name, one in counted],
            "holdfast_transitions": [((name, to), n) for name, one in counted for to, n in one.states.items()],
            "holdfast_client_transitions": [
                ((name, to), n) for name, one in counted for to, n in one.own_states.items()
            ],
            "holdfast_breaker_trips": [((name,), one.trips) for name, one in counted],
            "holdfast_retries": [((name,), one.retries) for name, one in counted],
            "holdfast_close_failures": [((name,), one.close_failures) for name, one in counted],
            **self._slots(),
            "holdfast_catalog_version": [((), self._hub.registry.catalog.version)],
            "holdfast_config_changes": [((result,), times) for result, times in self._configs.items()],
            "holdfast_access_refused": [((kind,), times) for kind, times in self._refused.items()],
            "holdfast_loop_lag_seconds": [((), self.loop.largest or 0.0)],
            "holdfast_events_missed": [((), self._missed)],
            "holdfast_workers": [((), 1)],
            **self._fleet(),
            "holdfast_audit_records": [((), audit.written if audit is not None else 0)],
            "holdfast_audit_lost": [((), audit.lost if audit is not None else 0)],
            "holdfast_audit_failing": [((), audit is not None and bool(audit.failing))],
            "holdfast_build_info": [((__version__, platform.python_version()), 1)],
        }

    def _slots(self) -> dict[str, list[Sample]]:
        registry = self._hub.registry
        slots = registry.slots.items()
        tools = Counter(entry.server for entry in registry.catalog.tools)
        own: Counter[str] = Counter()
        in_flight = Counter({name: slot.machine.life.calls for name, slot in slots})
        waiting = Counter({name: slot.bulkhead.waiting for name, slot in slots})
        for slot in registry.clients.all():
            own[slot.id] += 1
            in_flight[slot.id] += slot.machine.life.calls
            waiting[slot.id] += slot.bulkhead.waiting
        changed = self._hub.approvals.pins.changed
        return {
            "holdfast_server_state": [((name,), slot.state) for name, slot in slots],
            "holdfast_breaker_open": [
                ((name,), slot.health().breaker is not BreakerState.CLOSED) for name, slot in slots
            ],
            "holdfast_calls_in_flight": [((name,), in_flight[name]) for name, _ in slots],
            "holdfast_calls_waiting": [((name,), waiting[name]) for name, _ in slots],
            "holdfast_client_connections": [((name,), own[name]) for name, _ in slots],
            "holdfast_catalog_tools": [((name,), tools[name]) for name, _ in slots],
            "holdfast_tools_pending": [((name,), len(changed.get(name, ()))) for name, _ in slots],
        }

    def _fleet(self) -> dict[str, list[Sample]]:
        """The fleet as this replica sees it; a hub alone is a fleet of one."""
        fleet = self._replicas
        failed, exchanges = (fleet.failures, fleet.exchanges) if fleet is not None else (0, 0)
        probes = Counter(fleet.evidence.probers.values()) if fleet is not None else {}
        return {
            "holdfast_fleet_replicas": [((), len(fleet.presence.replicas) if fleet is not None else 1)],
            "holdfast_fleet_shared": [((), fleet is None or fleet.state.is_shared)],
            "holdfast_fleet_exchanges": [(("ok",), exchanges - failed), (("failed",), failed)],
            "holdfast_fleet_refused": [((), getattr(fleet.store, "refused", 0) if fleet is not None else 0)],
            "holdfast_fleet_probes": [((name,), number) for name, number in probes.items()],
            "holdfast_fleet_not_shared": [((), len(fleet.decisions.not_shared) if fleet is not None else 0)],
            "holdfast_fleet_clock_ahead_seconds": [
                ((), fleet.state.clock.agreed.ahead.get(fleet.replica, 0.0) if fleet is not None else 0.0)
            ],
            "holdfast_fleet_configs": [((), (len(fleet.configs.groups) or 1) if fleet is not None else 1)],
            "holdfast_fleet_events_lost": [
                ((), fleet.events.dropped if fleet is not None and fleet.events is not None else 0)
            ],
        }


_NOT_FOR_YOU: Final = "a valid bearer token is required; under access rules, one of a principal with the role `read`\n"


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
            return PlainTextResponse(_NOT_FOR_YOU, status_code=401, headers=challenge)
        text = await metrics.text()
        if group is not None and not is_from_worker(request.scope):
            headers = {"authorization": authorization} if authorization else None
            told = await group.ask_others("GET", "/metrics", headers)
            texts = {worker.number: text for worker, text in told.items()}
            if group.is_member or not texts:
                texts[group.own.number] = text
            text = await anyio.to_thread.run_sync(labelled, texts)
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    return Route("/metrics", show, methods=["GET"])
