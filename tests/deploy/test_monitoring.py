"""The dashboard and the alerts: every expression can be read, and every metric in them is one that the program has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import promql_parser
import pytest
import yaml

from holdfast.access.guard import RefusalKind
from holdfast.control.server.metrics import METHODS, METRICS
from holdfast.core.lifecycle.table import State
from holdfast.gateway.bridge import BridgeHealth
from holdfast.hub.journal import CallOutcome
from tests.deploy.chart import ROOT, by_kind, manifests

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "holdfast.json").read_text())
HUB = ("hub.enabled=true", "hub.tokenSecret=hub", "prometheus.rules=true", "prometheus.podMonitor=true")


def _own_metrics() -> dict[str, set[str] | None]:
    """The names that can be asked for, with their labels; those of others' are not ours to know."""
    names: dict[str, set[str] | None] = {}
    for metric in METRICS.values():
        endings = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {f"{metric.shown}{ending}": {*metric.labels, "le"} for ending in endings}
    bridge = re.findall(r"^(holdfast_\w+) ", BridgeHealth().as_metrics(), flags=re.MULTILINE)
    parts = ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "max_fds", "start_time_seconds")
    return names | dict.fromkeys((*bridge, *(f"process_{part}" for part in parts), "up"))


KNOWN = _own_metrics()
AROUND = {"instance", "job", "namespace", "pod"}
"""The labels that Prometheus gives by itself."""
VALUES = {
    "state": {state.shown for state in State},
    "outcome": set(CallOutcome.__args__),  # type: ignore[attr-defined]  # of a Literal
    "method": {*METHODS, "other"},
    "result": {"applied", "refused"},
    "kind": set(get_args(RefusalKind)),
}


def _selectors(node: Any) -> Iterator[Any]:
    """Every selector in an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        child = getattr(node, name, None)
        if child is not None and not isinstance(child, str | float):
            yield from _selectors(child)
    for child in getattr(node, "args", None) or ():
        yield from _selectors(child)


def _checked(expression: str) -> set[str]:
    """The metrics of an expression that can be read; each must be one of ours, with labels that it has."""
    plain = expression.replace("$__rate_interval", "5m").replace("$instance", ".*").replace("$server", ".*")
    found = list(_selectors(promql_parser.parse(plain)))
    assert found
    for selector in found:
        assert selector.name in KNOWN, expression
        for matcher in selector.matchers.matchers:
            labels = KNOWN[selector.name] or set()
            assert matcher.name in labels | AROUND, expression
            if matcher.name in VALUES:
                assert set(matcher.value.split("|")) <= VALUES[matcher.name], expression
    return {selector.name for selector in found}


def _alerts(group: dict[str, Any]) -> dict[str, str]:
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


@pytest.mark.requirement("HUB-5")
def test_every_alert_can_be_read_and_watches_what_there_is() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    for group in groups:
        for rule in group["rules"]:
            assert _checked(rule["expr"])
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()
    assert len({name for group in groups for name in _alerts(group)}) == sum(len(group["rules"]) for group in groups)


@pytest.mark.requirement("HUB-5")
def test_every_panel_can_be_read_and_every_metric_of_the_hub_is_on_one() -> None:
    shown: set[str] = set()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            shown |= _checked(target["expr"])
    on_none = {name for name, metric in METRICS.items() if not any(one.startswith(metric.name) for one in shown)}
    assert on_none == {"holdfast_build_info"}  # by it, the hubs are chosen
    assert "holdfast_build_info" in json.dumps(DASHBOARD["templating"])


@pytest.mark.requirement("HUB-5")
def test_no_two_panels_lie_on_each_other_and_all_ask_the_source_that_is_chosen() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.requirement("HUB-5")
def test_the_charts_rules_are_the_same_in_its_own_namespace_and_as_patient_as_it_is_told() -> None:
    by_name = {group["name"]: _alerts(group) for group in yaml.safe_load(ALERTS.read_text())["groups"]}
    found = manifests(*HUB, "prometheus.for=7m", "prometheus.runbooks=https://docs.example.com/")
    for name, resource in (("holdfast-hub", "-hub"), ("holdfast-gateway-bridge", "gateway")):
        (group,) = by_kind(found, "PrometheusRule", resource)["spec"]["groups"]
        rendered = _alerts(group)
        assert group["name"] == name
        assert rendered.keys() == by_name[name].keys()
        for alert, expression in rendered.items():
            assert _checked(expression)
            assert expression.count('namespace="agents",') == by_name[name][alert].count("{")
            assert expression.replace('namespace="agents",', "") == by_name[name][alert]
        assert {rule["for"] for rule in group["rules"] if "for" in rule} == {"7m"}
        for rule in group["rules"]:
            page = f"production/runbook.html#{rule['alert'].lower()}"
            assert rule["annotations"]["runbook_url"] == f"https://docs.example.com/{page}"


@pytest.mark.requirement("HUB-5", "SEC-2")
def test_the_charts_scrape_shows_the_callers_token_and_asks_where_the_metrics_are() -> None:
    found = manifests(*HUB)
    monitor = by_kind(found, "PodMonitor", "-hub")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint == {
        "port": "http",
        "path": "/metrics",
        "authorization": {"credentials": {"name": "hub", "key": "token"}},
    }
    pod = by_kind(found, "Deployment", "-hub")["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}


def test_what_is_no_metric_of_ours_or_no_expression_is_found_out() -> None:
    for wrong in (
        "rate(holdfast_nothing_total[5m])",
        'holdfast_breaker_open{tool="x"}',
        'holdfast_server_state{state="up"}',
    ):
        with pytest.raises(AssertionError):
            _checked(wrong)
    with pytest.raises(ValueError):  # noqa: PT011 - its words are the parser's own
        _checked("sum by (server (holdfast_breaker_open)")
