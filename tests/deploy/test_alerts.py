"""The alerts fire for what hurts, and for nothing else: promtool runs the unit tests beside the rules."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"

ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((RULES / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}
TESTS = yaml.safe_load((RULES / "alerts_test.yaml").read_text())["tests"]


@pytest.mark.requirement("DX-7")
def test_every_alert_has_unit_tests_in_which_it_fires_and_in_which_it_does_not() -> None:
    checked = [rule for test in TESTS for rule in test.get("alert_rule_test", ())]
    firing = {rule["alertname"] for rule in checked if rule["exp_alerts"]}
    assert firing == ALERTS.keys()
    # What fires at a time, of all alerts: the others do not.
    whole = [one for test in TESTS for one in test.get("promql_expr_test", ())]
    assert {one["expr"] for one in whole} == {'count by (alertname) (ALERTS{alertstate="firing"})'}
    assert len([one for one in whole if not one["exp_samples"]]) > len(ALERTS) / 2


@pytest.mark.requirement("DX-7")
def test_every_alert_is_about_a_fleet_and_not_about_a_replica() -> None:
    for name, rule in ALERTS.items():
        outer = re.match(r"(?:histogram_quantile\(0\.95, )?(?:max|min|sum|count|group) by \((.*?)\)", rule["expr"])
        assert outer is not None, name
        assert outer[1] in ("namespace, job", "namespace, job, server", "namespace, job, server, le"), name
        assert not re.search(r"\$labels\.(?:instance|pod)", str(rule["annotations"])), name


@pytest.mark.requirement("DX-7")
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: see `make promtool`")
def test_the_alerts_fire_as_their_unit_tests_say() -> None:
    ran = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yaml"],
        cwd=RULES,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
