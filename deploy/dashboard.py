"""The Grafana dashboard, panel by panel; ``generate.py`` writes it as the JSON that Grafana imports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["dashboard"]

COLUMNS = 24
OF_HUB = 'instance=~"$instance"'
PICKED = f'{OF_HUB}, server=~"$server"'
"""What every panel shows: the hubs and the servers that are chosen above it."""


@dataclass(frozen=True)
class Panel:
    """One of them: its title, what it asks for by legend, and how it is drawn."""

    title: str
    asks: dict[str, str]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    says: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)


def stat(title: str, expression: str, *, bad: bool = False, **more: Any) -> Panel:
    """One number; a bad one is red as soon as it is not zero."""
    steps = [{"color": "green", "value": None}, *([{"color": "red", "value": 1}] if bad else [])]
    defaults = {"thresholds": {"mode": "absolute", "steps": steps}}
    options = {"colorMode": "value", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return Panel(title, {"": expression}, kind="stat", width=4, height=4, defaults=defaults, options=options, **more)


def share(labels: str) -> str:
    """The part of all calls that these labels have."""
    of = f"sum by (server) (rate(holdfast_calls_total{{{PICKED}}}[$__rate_interval]))"
    return f"sum by (server) (rate(holdfast_calls_total{{{PICKED}, {labels}}}[$__rate_interval])) / {of}"


def quantile(part: float, name: str) -> str:
    """By server, what so many calls stay below."""
    rates = f"sum by (server, le) (rate({name}_bucket{{{PICKED}}}[$__rate_interval]))"
    return f"histogram_quantile({part}, {rates})"


def by_server(name: str, *labels: str) -> str:
    """A gauge, by server."""
    return f"sum by (server) ({name}{{{', '.join((PICKED, *labels))}}})"


def rise(name: str, *labels: str) -> str:
    """How much a counter rose, by server."""
    return f"sum by (server) (increase({name}{{{', '.join((PICKED, *labels))}}}[$__rate_interval]))"


OFF = "connected|idle|disabled|disabling"

PANELS = (
    stat("Servers", f'count(holdfast_server_state{{{PICKED}, state="connected"}})'),
    stat("Connected", f'sum(holdfast_server_state{{{PICKED}, state="connected"}})'),
    stat("Unavailable", f'sum(holdfast_server_state{{{PICKED}, state!~"{OFF}"}})', bad=True),
    stat("Breakers open", f"sum(holdfast_breaker_open{{{PICKED}}})", bad=True),
    stat("Changed tools", f"sum(holdfast_tools_pending{{{PICKED}}})", bad=True, says="They wait for an approval."),
    stat("Calls per second", f"sum(rate(holdfast_calls_total{{{PICKED}}}[$__rate_interval]))", unit="reqps"),
    Panel(
        "State of each server",
        {"{{server}}: {{state}}": f"holdfast_server_state{{{PICKED}}} == 1"},
        kind="state-timeline",
        width=24,
        says="A bar for each state that a server was in.",
        options={"showValue": "never", "mergeValues": True},
    ),
    Panel(
        "Calls by outcome",
        {"{{outcome}}": f"sum by (outcome) (rate(holdfast_calls_total{{{PICKED}}}[$__rate_interval]))"},
        unit="reqps",
    ),
    Panel(
        "Calls that failed or had no answer in time",
        {"{{server}}": share('outcome=~"failed|timed_out"')},
        unit="percentunit",
        says="As part of all calls. What a tool itself answers is not counted.",
    ),
    Panel("Calls that were refused", {"{{server}}": share('outcome="refused"')}, unit="percentunit"),
    Panel("Calls that were denied", {"{{server}}": share('outcome="denied"')}, unit="percentunit"),
    Panel(
        "Time of a call, half and 95 in a hundred",
        {
            "{{server}} half": quantile(0.5, "holdfast_call_seconds"),
            "{{server}} 95": quantile(0.95, "holdfast_call_seconds"),
        },
        unit="s",
    ),
    Panel(
        "Wait before a call is sent, 95 in a hundred",
        {"{{server}}": quantile(0.95, "holdfast_call_wait_seconds")},
        unit="s",
        says="For admission, a place, and a connection.",
    ),
    Panel(
        "Calls in flight and waiting",
        {
            "{{server}} in flight": by_server("holdfast_calls_in_flight"),
            "{{server}} waiting": by_server("holdfast_calls_waiting"),
        },
    ),
    Panel(
        "Trips, retries and failed closes",
        {
            "{{server}} trips": rise("holdfast_breaker_trips_total"),
            "{{server}} retries": rise("holdfast_retries_total"),
            "{{server}} closes": rise("holdfast_close_failures_total"),
        },
    ),
    Panel(
        "Reconnects, of all clients and of one client's own",
        {
            "{{server}}": rise("holdfast_transitions_total", 'state="reconnecting"'),
            "{{server}}, one client's": rise("holdfast_client_transitions_total", 'state="reconnecting"'),
        },
    ),
    Panel("Tools listed", {"{{server}}": by_server("holdfast_catalog_tools")}),
    Panel("Connections of one client's own", {"{{server}}": by_server("holdfast_client_connections")}),
    Panel(
        "Configurations, catalogs and lost records",
        {
            "{{result}}": f"sum by (result) (increase(holdfast_config_changes_total{{{OF_HUB}}}[$__rate_interval]))",
            "catalogs": f"sum(changes(holdfast_catalog_version{{{OF_HUB}}}[$__rate_interval]))",
            "lost records": f"sum(increase(holdfast_events_missed_total{{{OF_HUB}}}[$__rate_interval]))",
        },
    ),
    Panel(
        "Processor of the hub",
        {"{{instance}}": f"rate(process_cpu_seconds_total{{{OF_HUB}}}[$__rate_interval])"},
        unit="percentunit",
    ),
    Panel("Memory of the hub", {"{{instance}}": f"process_resident_memory_bytes{{{OF_HUB}}}"}, unit="bytes"),
)


def dashboard() -> dict[str, Any]:
    """What Grafana imports."""
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
    """Side by side, as many as fit in a row."""
    x = y = 0
    for number, panel in enumerate(PANELS, start=1):
        if x + panel.width > COLUMNS:
            x, y = 0, y + PANELS[number - 2].height
        yield _drawn(panel, number, {"x": x, "y": y, "w": panel.width, "h": panel.height})
        x += panel.width


def _drawn(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend or "__auto", "datasource": _SOURCE}
        for index, (legend, expression) in enumerate(panel.asks.items())
    ]
    return {
        "id": number,
        "title": panel.title,
        "description": panel.says,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **panel.defaults}, "overrides": []},
        "options": panel.options,
    }
