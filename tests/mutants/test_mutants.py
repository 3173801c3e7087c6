"""The mutation run finds slips, tries each one with the tests that execute it, and tells what survived."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, drawn, report
from tests.mutants.change import changed, sites_of
from tests.mutants.run import Group, Runner, groups_in

SOURCE = '''"""Says whether a number is large."""


def is_large(number: int) -> bool:
    if number > 10:
        return True
    return number == 7


def unseen(number: int) -> int:
    return number + 1
'''

TEST = """
from sized import is_large

def test_eleven_is_large_and_ten_is_not():
    assert is_large(11)
    assert not is_large(10)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {"src/sized.py": SOURCE, "tests/test_sized.py": TEST, "pytest.ini": "[pytest]\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_slip_changes_its_own_line_alone() -> None:
    sites = sites_of(SOURCE)
    assert {site.line for site in sites} == {5, 6, 7, 11}
    assert "number > 10 -> (number >= 10)" in {site.what for site in sites}
    for site in sites:
        before, after = SOURCE.splitlines(), changed(SOURCE, site).splitlines()
        assert [n for n, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]] == [site.line]


def test_killed_surviving_and_unexecuted_mutants_are_told_apart(project: Path) -> None:
    group = Group("sized", ("src/sized.py",), ("tests/test_sized.py",))
    every = drawn([group], 1_000, 7, project)
    wanted = {"number > 10 -> (number >= 10)", "7 -> (8)", "number + 1 -> (number - 1)"}
    with Runner(project) as runner:
        outcomes = list(runner.run([mutant for mutant in every if mutant.site.what in wanted]))
    assert {one.mutant.site.what: one.result for one in outcomes} == {
        "number > 10 -> (number >= 10)": "killed",
        "7 -> (8)": "survived",
        "number + 1 -> (number - 1)": "not executed",
    }
    assert (project / "src/sized.py").read_text() == SOURCE, "the sources themselves are never changed"
    told = "\n".join(report(outcomes))
    assert "1 of 3 killed (33 %)" in told
    assert "sized.py:7: 7 -> (8) (1 tests)" in told


def test_the_same_seed_draws_the_same_mutants_of_packages_that_exist() -> None:
    groups = groups_in(ROOT / "tests/mutants/packages.toml")
    for group in groups:
        assert group.files(ROOT), f"{group.name} has no sources"
        assert group.nearest(ROOT)
    few = [Group("quotas", ("src/holdfast/access/quotas.py",), ("tests/access",))]
    assert drawn(few, 5, 7, ROOT) == drawn(few, 5, 7, ROOT) != drawn(few, 5, 8, ROOT)
