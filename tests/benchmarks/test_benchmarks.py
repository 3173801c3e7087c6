"""The benchmarks run, count what they claim to count, and say so when a requirement is missed. No time is judged."""

from __future__ import annotations

import json

import pytest

from benchmarks import __main__ as command, load, startup
from benchmarks.report import Check, Report, Row, Spread, as_table, interleaved, median, ratio


@pytest.mark.requirement("PERF-3", "LOAD-8")
def test_holdfast_loads_with_fewer_requests_than_the_plain_loop() -> None:
    report = load.measure(rounds=1, servers=4)
    requests = {row.label: row.requests or 0 for row in report.rows}
    # Two modern servers: the probe and two pages each. Two legacy ones: the probe, initialize,
    # initialized, two pages and the end of the session, and no probe once the era is known.
    assert requests[load.OURS] == 2 * 3 + 2 * 6
    assert requests[load.REMEMBERED] == 2 * 3 + 2 * 5
    assert requests[load.OURS] <= requests[load.PLAIN]
    assert report.checks[0].met


def test_the_start_of_the_installed_command_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    code = command.main(["startup", "--rounds", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    (benchmark,) = found["benchmarks"]
    assert [row["label"] for row in benchmark["rows"]] == [startup.EMPTY, startup.HELP]
    assert all(row["time"]["median"] > 0 for row in benchmark["rows"])
    assert code == (0 if found["met"] else 1)


@pytest.mark.parametrize(("met", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_tells_whether_every_requirement_is_met(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], met: bool, code: int
) -> None:
    fine, other = (command.Benchmark(lambda result=result: _report(met=result), {}) for result in (True, met))
    monkeypatch.setattr(command, "BENCHMARKS", {"fine": fine, "other": other})
    assert command.main([]) == code
    assert ("MISSED" in capsys.readouterr().out) is not met


def test_a_group_runs_its_benchmarks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert {one for group in command.GROUPS.values() for one in group} <= command.BENCHMARKS.keys()
    stub = command.Benchmark(lambda: _report(met=True), {})
    monkeypatch.setattr(command, "BENCHMARKS", dict.fromkeys(command.GROUPS["calls"], stub))
    assert command.main(["calls", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["benchmarks"]) == len(command.GROUPS["calls"])


def test_an_unknown_benchmark_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["lode"])
    assert "there is no benchmark `lode`; known: " in capsys.readouterr().err


def test_rounds_are_interleaved_in_turning_order() -> None:
    assert list(interleaved(["a", "b"], 3)) == ["a", "b", "b", "a", "a", "b"]


def test_a_disturbance_that_hits_both_sides_of_a_round_does_not_widen_the_ratio() -> None:
    theirs = [1.0, 5.0, 2.0, 9.0, 1.5]
    spread = ratio([2 * second for second in theirs], theirs)
    assert (spread.low, spread.median, spread.high) == (2.0, 2.0, 2.0)


def test_a_median_lies_within_its_interval_and_that_within_the_samples() -> None:
    spread = median([3.0, 1.0, 2.0, 10.0, 4.0])
    assert 1.0 <= spread.low <= spread.median == 3.0 <= spread.high <= 10.0


def test_a_table_shows_times_ratios_and_requests() -> None:
    lines = as_table([_report(met=True)]).splitlines()
    assert lines[0] == "A title (PERF-0)"
    assert lines[1].split() == ["time,", "ratio", "median", "requests"]
    assert " ".join(lines[2].split()) == "ours 0.50 (0.40 … 0.60) 20.0 ms (10.0 ms … 30.0 ms) 7"
    assert lines[-1] == "met     a demand: a finding"


def _report(*, met: bool) -> Report:
    row = Row(label="ours", time=Spread(0.02, 0.01, 0.03), ratio=Spread(0.5, 0.4, 0.6), requests=7)
    check = Check(demand="a demand", found="a finding", met=met)
    return Report(name="fake", title="A title", requirements=("PERF-0",), rows=(row,), checks=(check,))
