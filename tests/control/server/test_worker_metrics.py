"""The metrics of several workers as one text."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.control.server.metrics import labelled

TEXT = b"""# HELP holdfast_calls_total Calls
# TYPE holdfast_calls_total counter
holdfast_calls_total{server="a{b}",outcome="completed"} %d.0
# HELP holdfast_workers Workers
# TYPE holdfast_workers gauge
holdfast_workers 1.0
# HELP holdfast_loop_lag_seconds Lag
# TYPE holdfast_loop_lag_seconds gauge
holdfast_loop_lag_seconds 0.5
"""


@pytest.mark.requirement("FLEET-8")
def test_each_sample_names_its_worker_and_each_family_stands_once() -> None:
    whole = labelled({2: TEXT % 7, 1: TEXT % 5}).decode()
    families = {family.name: family for family in text_string_to_metric_families(whole)}
    assert whole.count("# TYPE") == whole.count("# HELP") == len(families) == 3
    calls = {one.labels["worker"]: one for one in families["holdfast_calls"].samples}
    assert {number: one.value for number, one in calls.items()} == {"1": 5, "2": 7}
    assert calls["1"].labels["server"] == "a{b}"
    assert [one.labels for one in families["holdfast_loop_lag_seconds"].samples] == [{"worker": "1"}, {"worker": "2"}]
    (workers,) = families["holdfast_workers"].samples
    assert (workers.labels, workers.value) == ({}, 2.0)
