"""The hub in numbers, for Prometheus: counted from its records, and read from its slots when somebody asks.

A sink of the journal like any other. What it counts of a server goes with the server.
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

from holdfast.admin.metric_text import Counts, Seen, Shot, text_of
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
"""The methods that are told apart; a client may ask for anything, and all else is ``other``."""

ReadBy = Callable[[str], Awaitable[bool]]
"""Whether whoever shows this bearer token may read the metrics."""


class Metrics:
    """Counts from now on. Make it before the hub is entered, lest the first records be missed."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._servers: dict[str, Counts] = {}
        self._configs: Counter[str] = Counter(applied=0, refused=0)
        self._missed = 0
        self._process = ProcessCollector(registry=None)
        hub.listen(self._take)

    async def text(self) -> bytes:
        """All of it, as it is now: taken in one short step, and written beside the calls rather than between them."""
        return await anyio.to_thread.run_sync(text_of, self._shot(), self._process)

    # What is counted.

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

    # What is seen.

    def _shot(self) -> Shot:
        self._forget_removed()
        return Shot(
            counted={name: counts.copy() for name, counts in self._servers.items()},
            seen=self._seen(),
            configs=dict(self._configs),
            missed=self._missed,
            catalog_version=self._hub.catalog.version,
        )

    def _seen(self) -> dict[str, Seen]:
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
            name: Seen(
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
    """``/metrics``, for everybody who can reach it or for those alone whose bearer token ``read_by`` knows."""

    async def show(request: Request) -> Response:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if read_by is not None and not (kind.lower() == "bearer" and await read_by(token.strip())):
            challenge = {"www-authenticate": "Bearer"}
            return PlainTextResponse("a valid bearer token is needed\n", status_code=401, headers=challenge)
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
