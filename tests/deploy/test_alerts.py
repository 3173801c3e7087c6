"""The alerts fire for what hurts, and for nothing else: promtool runs the unit tests beside the rules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"

HURTS = {
    "HoldfastServerFlapping",
    "HoldfastServerParked",
    "HoldfastServerDenied",
    "HoldfastBreakerOpen",
    "HoldfastNoServerAvailable",
    "HoldfastLoopLag",
}


@pytest.mark.requirement("DX-7")
def test_every_alert_for_what_hurts_has_a_unit_test() -> None:
    tests = yaml.safe_load((RULES / "alerts_test.yaml").read_text())["tests"]
    firing = {rule["alertname"] for test in tests for rule in test["alert_rule_test"] if rule["exp_alerts"]}
    assert firing >= HURTS


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
