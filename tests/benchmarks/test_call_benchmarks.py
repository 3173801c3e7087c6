"""The benchmarks of calls run on a tiny scale and count what they claim to count. No time is judged."""

from __future__ import annotations

import shutil

import pytest

from benchmarks import abandoned, call_path, capacity, fleet, growth, other_gateways, payloads, workers
from tests.benchmarks.broken_hub import BrokenHub


@pytest.mark.long
def test_the_hub_and_the_bare_relay_answer_the_same_calls_in_turns() -> None:
    report = call_path.measure(**call_path.QUICK)
    names = (call_path.DIRECT, call_path.RELAY, call_path.OURS, call_path.ALONE, call_path.STDIO, call_path.STDIO_ALONE)
    assert [row.label for row in report.rows] == [
        f"{name}, {callers}" for callers in ("1 caller", "16 callers") for name in names
    ]
    assert all(row.rate and row.cpu and row.memory for row in report.rows)
    assert [row.ratio is None for row in report.rows] == [name == call_path.RELAY for name in names] * 2


@pytest.mark.long
def test_a_gateway_that_cannot_be_started_is_named_with_the_reason_and_its_demand_is_missed() -> None:
    report = other_gateways.measure(rounds=1, requests=32, peers=(BrokenHub(),))
    assert [row.label for row in report.rows] == [
        f"{name}, {callers}"
        for callers in ("1 caller", "16 callers")
        for name in (other_gateways.HTTP, other_gateways.STDIO)
    ]
    (reason,) = report.missing
    assert "Broken 0.0.1 did not start" in reason
    assert not report.met
    assert reason in report.checks[0].found


@pytest.mark.long
def test_both_eras_are_measured_with_plain_and_streamed_answers() -> None:
    report = call_path.measure_variants(**call_path.VARIANTS_QUICK)
    assert len(report.rows) == 5 + 3, "the relay, both endpoints, and with plain answers both before a process"
    assert all(row.rate for row in report.rows)


@pytest.mark.long
def test_large_results_and_progress_pass_whole() -> None:
    assert len(payloads.measure(**payloads.QUICK).rows) == 2 * 3
    report = payloads.measure_progress(**payloads.PROGRESS_QUICK)
    assert report.checks[-1].met
    assert {row.note for row in report.rows} == {f"{payloads.NOTICES} notices in an answer"}


@pytest.mark.long
def test_the_same_call_is_measured_at_each_number_of_servers_tools_and_sessions() -> None:
    report = growth.measure(**growth.QUICK)
    labels = [row.label for row in report.rows]
    assert labels == ["2 servers", "3 tools", "5 tools", "2 sessions", "`tools/list`, 3 tools", "`tools/list`, 5 tools"]


@pytest.mark.long
def test_idle_servers_and_open_sessions_are_counted() -> None:
    assert capacity.measure_idle(**capacity.IDLE_QUICK).checks[0].met
    assert len(capacity.measure_sessions(**capacity.SESSIONS_QUICK).rows) == 2
    assert capacity.measure_start(**capacity.START_QUICK).checks[-1].met
    assert abandoned.measure(**abandoned.QUICK).checks[-1].met


@pytest.mark.long
def test_one_process_and_workers_answer_the_same_calls_in_turns() -> None:
    report = workers.measure(**workers.QUICK)
    compared = f"{workers.SEVERAL} beside {workers.APART}"
    named = [workers.ONE, workers.APART, workers.SEVERAL, compared]
    assert [row.label.partition(",")[0] for row in report.rows] == named * 2
    assert all(row.rate and row.cpu for row in report.rows)
    assert len(report.checks) == 2 * 2, "of each era: beside one process, and beside hubs that share nothing"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_a_replica_of_a_fleet_is_measured_beside_hubs_that_are_alone() -> None:
    report = fleet.measure(**fleet.QUICK)
    assert len([row for row in report.rows if row.cpu is not None]) == 3
    assert len([row for row in report.rows if "ms of CPU a second" in row.note]) == 3
