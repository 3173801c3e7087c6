"""Metrics for Prometheus: counters from the hub's records, gauges read from its slots at each scrape.

It is a sink of the journal. The counters of a server are dropped when the server is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import anyio.to_thread
from prometheus_client import ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from holdfast.admin.metric_text import Counts, HubSample, ServerSample, metrics_text
from holdfast.core.breaker import BreakerState, Tripped
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
"""The values of the label ``method``; every other method is ``other``, because a client may send any name."""

ReadBy = Callable[[str], Awaitable[bool]]
"""Whether a bearer token gives access to the metrics."""


class Metrics:
    """Counts records. Create it before the hub is entered, so that it misses none."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._servers: dict[str, Counts] = {}
        self._configs: Counter[str] = Counter(applied=0, refused=0)
        self._missed = 0
        self._process = ProcessCollector(registry=None)
        hub.listen(self._take)

    async def text(self) -> bytes:
        """Return the text: the sample is one short step, and the writing runs in a thread."""
        return await anyio.to_thread.run_sync(metrics_text, self._sample(), self._process)

    # Counters.

    def _take(self, record: HubRecord) -> None:
        match record:
            case CallEnded():
                _count_call(self._of(record.server), record)
            case OfOneClient(server=server, record=Transition(new=state)):
                self._of(server).own_states[state.value] += 1
            case Missed(count=count):
                self._missed += count
            case ConfigApplied() | ConfigRefused():
                self._configs["applied" if isinstance(record, ConfigApplied) else "refused"] += 1
                self._forget_removed()
            case Transition() | RetryPlanned() | CloseFailed() | BreakerChanged():
                _count_change(self._of(record.server), record)

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
            missed=self._missed,
            catalog_version=self._hub.catalog.version,
        )

    def _seen(self) -> dict[str, ServerSample]:
        hub = self._hub
        tools = Counter(entry.server for entry in hub.catalog.tools)
        pending = Counter(change.server for change in hub.approvals.pending())
        own: Counter[str] = Counter()
        in_flight: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        for slot in hub.registry.clients.all():
            own[slot.id] += 1
            in_flight[slot.id] += slot.machine.life.calls
            waiting[slot.id] += slot.bulkhead.waiting
        return {
            name: ServerSample(
                state=health.state,
                refuses=health.breaker is not BreakerState.CLOSED,
                in_flight=in_flight[name] + hub.registry.slot(name).machine.life.calls,
                waiting=waiting[name] + hub.registry.slot(name).bulkhead.waiting,
                own=own[name],
                tools=tools[name],
                pending=pending[name],
            )
            for name, health in hub.servers.items()
        }


def metrics_route(metrics: Metrics, *, read_by: ReadBy | None = None) -> Route:
    """Return the route ``/metrics``; with ``read_by`` it needs a bearer token that the function accepts."""

    async def show(request: Request) -> Response:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if read_by is not None and not (kind.lower() == "bearer" and await read_by(token.strip())):
            challenge = {"www-authenticate": "Bearer"}
            return PlainTextResponse("a valid bearer token is required\n", status_code=401, headers=challenge)
        return Response(await metrics.text(), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    return Route("/metrics", show, methods=["GET"])


def _count_call(counts: Counts, ended: CallEnded) -> None:
    method = ended.method if ended.method in METHODS else "other"
    counts.calls[method, ended.outcome] += 1
    counts.waits.observe(ended.waited)
    if ended.outcome != "refused":
        counts.seconds.observe(ended.seconds)


def _count_change(counts: Counts, record: Transition | RetryPlanned | CloseFailed | BreakerChanged) -> None:
    match record:
        case Transition():
            counts.states[record.new.value] += 1
        case RetryPlanned():
            counts.retries += 1
        case CloseFailed():
            counts.close_failures += 1
        case BreakerChanged():
            counts.trips += isinstance(record.change, Tripped)
