"""Every metric of the hub: name, kind, labels and help text. The reference in the docs is generated from it.

Labels are bounded: a configured server or an enumeration; never a tool, an address or a caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "Metric"]


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
        Metric("holdfast_config_changes", "counter", ("result",), "Configuration changes, applied or refused"),
        Metric("holdfast_events_missed", "counter", (), "Records that a slow listener missed"),
        Metric("holdfast_build_info", "gauge", ("version", "python"), "1, with the running version"),
    )
}
