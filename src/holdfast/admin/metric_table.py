"""Every metric of the hub's: its name, what kind it is, its labels and what it says. The reference is made of this.

Labels are bounded: a server is a configured one, everything else an enumeration. No tool, no address, no caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "Metric"]


@dataclass(frozen=True)
class Metric:
    """One of them."""

    name: str
    """Without the ``_total`` that a counter's samples end with."""
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    says: str

    @property
    def shown(self) -> str:
        """The name to ask for; a histogram's is followed by ``_bucket``, ``_sum`` and ``_count``."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("holdfast_calls", "counter", ("server", "method", "outcome"), "Calls, by what became of them"),
        Metric(
            "holdfast_call_seconds",
            "histogram",
            ("server",),
            "Seconds that calls took in all, as their callers saw it; refused calls are not among them",
        ),
        Metric(
            "holdfast_call_wait_seconds",
            "histogram",
            ("server",),
            "Seconds that calls waited to be sent: for admission, a place, and a connection",
        ),
        Metric("holdfast_calls_in_flight", "gauge", ("server",), "Calls that were admitted and have not ended"),
        Metric("holdfast_calls_waiting", "gauge", ("server",), "Calls that wait for a place among those in flight"),
        Metric("holdfast_server_state", "gauge", ("server", "state"), "1 for the state that the server is in, else 0"),
        Metric("holdfast_breaker_open", "gauge", ("server",), "1 while the circuit breaker refuses calls, else 0"),
        Metric("holdfast_breaker_trips", "counter", ("server",), "How often the circuit breaker opened"),
        Metric("holdfast_transitions", "counter", ("server", "state"), "How often the server came into a state"),
        Metric("holdfast_retries", "counter", ("server",), "Reconnects that were planned after a failure"),
        Metric("holdfast_close_failures", "counter", ("server",), "Old connections that did not close cleanly"),
        Metric(
            "holdfast_tools_pending", "gauge", ("server",), "Tools that changed since they were seen, not yet approved"
        ),
        Metric("holdfast_catalog_tools", "gauge", ("server",), "Tools of the server that are listed now"),
        Metric("holdfast_catalog_version", "gauge", (), "The number of the published catalog"),
        Metric("holdfast_client_connections", "gauge", ("server",), "Connections that one client has for itself"),
        Metric(
            "holdfast_client_transitions",
            "counter",
            ("server", "state"),
            "How often such a connection came into a state",
        ),
        Metric("holdfast_config_changes", "counter", ("result",), "Changes of the configuration, applied or refused"),
        Metric("holdfast_events_missed", "counter", (), "Records that a slow listener was not told"),
        Metric("holdfast_build_info", "gauge", ("version", "python"), "1, with the version that runs"),
    )
}
