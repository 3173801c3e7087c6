"""The panels of the Grafana dashboard. ``generate.py`` writes them as the JSON that Grafana imports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["dashboard"]

COLUMNS = 24
OF_HUB = 'instance=~"$instance"'
PICKED = f'{OF_HUB}, server=~"$server"'
"""The selection of every panel: the hubs and servers that are chosen at the top of the page."""


@dataclass(frozen=True)
class Panel:
    """One panel: its title, its queries by legend, and how it is drawn."""

    title: str
    queries: dict[str, str]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    description: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)


def stat(title: str, expression: str, *, bad: bool = False, **more: Any) -> Panel:
    """One number; with ``bad``, it is red above zero."""
    steps = [{"color": "green", "value": None}, *([{"color": "red", "value": 1}] if bad else [])]
    defaults = {"thresholds": {"mode": "absolute", "steps": steps}}
    options = {"colorMode": "value", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return Panel(title, {"": expression}, kind="stat", width=4, height=4, defaults=defaults, options=options, **more)


def share(labels: str) -> str:
    """The share of calls with these labels."""
    of = f"sum by (server) (rate(holdfast_calls_total{{{PICKED}}}[$__rate_interval]))"
    return f"sum by (server) (rate(holdfast_calls_total{{{PICKED}, {labels}}}[$__rate_interval])) / {of}"


def quantile(part: float, name: str) -> str:
    """A quantile by server."""
    rates = f"sum by (server, le) (rate({name}_bucket{{{PICKED}}}[$__rate_interval]))"
    return f"histogram_quantile({part}, {rates})"


def by_server(name: str, *labels: str) -> str:
    """A gauge, by server."""
    return f"sum by (server) ({name}{{{', '.join((PICKED, *labels))}}})"


def rise(name: str, *labels: str) -> str:
    """The increase of a counter by server."""
    return f"sum by (server) (increase({name}{{{', '.join((PICKED, *labels))}}}[$__rate_interval]))"


OFF = "connected|idle|disabled|disabling"

PANELS = (
    stat("Servers", f'count(holdfast_server_state{{{PICKED}, state="connected"}})'),
    stat("Connected", f'sum(holdfast_server_state{{{PICKED}, state="connected"}})'),
    stat("Unavailable", f'sum(holdfast_server_state{{{PICKED}, state!~"{OFF}"}})', bad=True),
    stat("Breakers open", f"sum(holdfast_breaker_open{{{PICKED}}})", bad=True),
    stat(
        "Changed tools",
        f"sum(holdfast_tools_pending{{{PICKED}}})",
        bad=True,
        description="Tools that wait for approval.",
    ),
    stat("Calls per second", f"sum(rate(holdfast_calls_total{{{PICKED}}}[$__rate_interval]))", unit="reqps"),
    Panel(
        "State of each server",
        {"{{server}}: {{state}}": f"holdfast_server_state{{{PICKED}}} == 1"},
        kind="state-timeline",
        width=24,
        description="One bar for each state of a server.",
        options={"showValue": "never", "mergeValues": True},
    ),
    Panel(
        "Calls by outcome",
        {"{{outcome}}": f"sum by (outcome) (rate(holdfast_calls_total{{{PICKED}}}[$__rate_interval]))"},
        unit="reqps",
    ),
    Panel(
        "Calls that failed or timed out",
        {"{{server}}": share('outcome=~"failed|timed_out"')},
        unit="percentunit",
        description="Share of all calls. Errors that a tool itself reports are not counted.",
    ),
    Panel("Refused calls", {"{{server}}": share('outcome="refused"')}, unit="percentunit"),
    Panel("Denied calls", {"{{server}}": share('outcome="denied"')}, unit="percentunit"),
    Panel(
        "Call duration, p50 and p95",
        {
            "{{server}} p50": quantile(0.5, "holdfast_call_seconds"),
            "{{server}} p95": quantile(0.95, "holdfast_call_seconds"),
        },
        unit="s",
    ),
    Panel(
        "Loop lag",
        {"{{instance}}": f"max by (instance) (holdfast_loop_lag_seconds{{{OF_HUB}}})"},
        unit="s",
        description="Largest delay of the event loop in the last minute.",
    ),
    Panel(
        "Wait before a call is sent, p95",
        {"{{server}}": quantile(0.95, "holdfast_call_wait_seconds")},
        unit="s",
        description="The wait for admission, for the concurrency limit and for a connection.",
    ),
    Panel(
        "Calls in flight and waiting",
        {
            "{{server}} in flight": by_server("holdfast_calls_in_flight"),
            "{{server}} waiting": by_server("holdfast_calls_waiting"),
        },
    ),
    Panel(
        "Breaker trips, retries and failed closes",
        {
            "{{server}} trips": rise("holdfast_breaker_trips_total"),
            "{{server}} retries": rise("holdfast_retries_total"),
            "{{server}} closes": rise("holdfast_close_failures_total"),
        },
    ),
    Panel(
        "Reconnects, of shared and of per-client connections",
        {
            "{{server}}": rise("holdfast_transitions_total", 'state="reconnecting"'),
            "{{server}}, per client": rise("holdfast_client_transitions_total", 'state="reconnecting"'),
        },
    ),
    Panel("Listed tools", {"{{server}}": by_server("holdfast_catalog_tools")}),
    Panel("Per-client connections", {"{{server}}": by_server("holdfast_client_connections")}),
    Panel(
        "Config changes, catalog changes and missed events",
        {
            "{{result}}": f"sum by (result) (increase(holdfast_config_changes_total{{{OF_HUB}}}[$__rate_interval]))",
            "catalog changes": f"sum(changes(holdfast_catalog_version{{{OF_HUB}}}[$__rate_interval]))",
            "missed events": f"sum(increase(holdfast_events_missed_total{{{OF_HUB}}}[$__rate_interval]))",
        },
    ),
    Panel(
        "Refused clients",
        {"{{kind}}": f"sum by (kind) (increase(holdfast_access_refused_total{{{OF_HUB}}}[$__rate_interval]))"},
    ),
    Panel(
        "Audit",
        {
            "records": f"sum(increase(holdfast_audit_records_total{{{OF_HUB}}}[$__rate_interval]))",
            "lost": f"sum(increase(holdfast_audit_lost_total{{{OF_HUB}}}[$__rate_interval]))",
            "hubs that cannot write": f"sum(holdfast_audit_failing{{{OF_HUB}}})",
        },
    ),
    Panel(
        "Fleet: replicas, and whether their store answers",
        {
            "replicas, {{instance}}": f"holdfast_fleet_replicas{{{OF_HUB}}}",
            "workers, {{instance}}": f"holdfast_workers{{{OF_HUB}}}",
            "shared, {{instance}}": f"holdfast_fleet_shared{{{OF_HUB}}}",
            "decisions of this replica only, {{instance}}": f"holdfast_fleet_not_shared{{{OF_HUB}}}",
            "different configurations, {{instance}}": f"holdfast_fleet_configs{{{OF_HUB}}}",
            "servers to try, {{replica}}": f"max by (replica) (holdfast_fleet_probes{{{OF_HUB}}})",
        },
        description="A hub alone is one replica, and shares with nothing else.",
    ),
    Panel(
        "Fleet: clocks",
        {"{{instance}}": f"holdfast_fleet_clock_ahead_seconds{{{OF_HUB}}}"},
        unit="s",
        description="How far the clock of each machine is ahead of the time of the fleet. Beyond 30 s it is reported.",
        defaults={"min": None},  # a clock may be behind
    ),
    Panel(
        "Fleet: exchanges with the store",
        {
            "{{result}}": f"sum by (result) (rate(holdfast_fleet_exchanges_total{{{OF_HUB}}}[$__rate_interval]))",
            "wrong signature": f"sum(rate(holdfast_fleet_refused_total{{{OF_HUB}}}[$__rate_interval]))",
            "events not shared": f"sum(rate(holdfast_fleet_events_lost_total{{{OF_HUB}}}[$__rate_interval]))",
        },
        unit="ops",
    ),
    Panel(
        "CPU of the hub",
        {"{{instance}}": f"rate(process_cpu_seconds_total{{{OF_HUB}}}[$__rate_interval])"},
        unit="percentunit",
    ),
    Panel("Memory of the hub", {"{{instance}}": f"process_resident_memory_bytes{{{OF_HUB}}}"}, unit="bytes"),
    Panel(
        "File descriptors of the hub",
        {"{{instance}}": f"process_open_fds{{{OF_HUB}}} / process_max_fds{{{OF_HUB}}}"},
        unit="percentunit",
        description="Share of the limit that is in use. At 100 % the hub accepts no connection.",
    ),
    Panel(
        "Restarts of the hub",
        {"{{instance}}": f"changes(process_start_time_seconds{{{OF_HUB}}}[$__rate_interval])"},
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": "holdfast",
        "title": "Holdfast",
        "tags": ["mcp", "holdfast"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_placed()),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"}
    yield _choice("instance", "Hub", "label_values(holdfast_build_info, instance)")
    yield _choice("server", "Server", 'label_values(holdfast_server_state{instance=~"$instance"}, server)')


def _choice(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _placed() -> Iterator[dict[str, Any]]:
    """The panels in rows, as many as fit into each."""
    x = y = 0
    for number, panel in enumerate(PANELS, start=1):
        if x + panel.width > COLUMNS:
            x, y = 0, y + PANELS[number - 2].height
        yield _drawn(panel, number, {"x": x, "y": y, "w": panel.width, "h": panel.height})
        x += panel.width


def _drawn(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend or "__auto", "datasource": _SOURCE}
        for index, (legend, expression) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "title": panel.title,
        "description": panel.description,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **panel.defaults}, "overrides": []},
        "options": panel.options,
    }
