"""``${…}`` is resolved everywhere, everything missing is reported, and what came in is a secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from holdfast.config.expand import Expansion, names_of_editors

ENVIRON = {"KEY": "s3cr3t", "HOST": "example.com", "EMPTY": "", "HOME": "/home/me", "REF": "${KEY}"}


def resolve(value: object, *, folder: Path | None = None) -> tuple[object, Expansion]:
    found = Expansion(("a",), environ=ENVIRON, known=names_of_editors(folder, ENVIRON))
    return found.expand(value), found


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${KEY}", "s3cr3t"),
        ("${env:KEY}", "s3cr3t"),
        ("Bearer ${KEY}!", "Bearer s3cr3t!"),
        ("${KEY}${HOST}", "s3cr3texample.com"),
        ("${NONE:-fallback}", "fallback"),
        ("${env:NONE:-fallback}", "fallback"),
        ("${NONE:-}", ""),
        ("${EMPTY:-fallback}", "fallback"),
        ("${EMPTY}", ""),
        ("${KEY:-fallback}", "s3cr3t"),
        ("$${KEY}", "${KEY}"),
        ("$$${KEY}", "$${KEY}"),
        ("${REF}", "${KEY}"),
        ("$KEY and $ and {KEY}", "$KEY and $ and {KEY}"),
        ("${userHome}${/}x", "/home/me/x"),
    ],
)
def test_a_text_is_expanded(text: str, result: str) -> None:
    value, found = resolve(text)
    assert value == result
    assert not found.problems


def test_the_workspace_folder_is_the_projects() -> None:
    value, found = resolve("${workspaceFolder}:${workspaceFolderBasename}", folder=Path("/p/here"))
    assert value == "/p/here:here"
    assert not found.secrets


def test_every_missing_variable_is_reported_with_its_path() -> None:
    value = {"x": ["${ONE}", "${TWO} ${THREE}"], "y": {"z": "${env:FOUR}"}, "ok": "${KEY}"}
    _, found = resolve(value)
    assert [(problem.keys, problem.variable) for problem in found.problems] == [
        (("a", "x", 0), "ONE"),
        (("a", "x", 1), "TWO"),
        (("a", "x", 1), "THREE"),
        (("a", "y", "z"), "FOUR"),
    ]
    assert "export ONE=" in found.problems[0].hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("${input:token}", "`${input:…}`", "${env:NAME}"),
        ("${command:pick}", "`${command:…}`", "${env:NAME}"),
        ("${KEY", "not closed", "$${"),
        ("${}", "without a valid variable name", "${NAME}"),
        ("${a b}", "without a valid variable name", "${NAME}"),
        ("${1X}", "without a valid variable name", "${NAME}"),
    ],
)
def test_what_cannot_be_resolved_says_what_to_write(text: str, message: str, hint: str) -> None:
    _, found = resolve(text)
    assert message in found.problems[0].message
    assert hint in found.problems[0].hint


@pytest.mark.requirement("MSG-6")
def test_what_the_environment_brought_in_is_a_secret_and_a_default_is_not() -> None:
    _, found = resolve(["x${KEY}", "${NONE:-written}", "${HOME}", "${EMPTY}"])
    assert found.secrets == {"s3cr3t"}


def test_the_variables_behind_a_value_are_known_from_above_too() -> None:
    _, found = resolve({"args": ["${KEY}", "x", "${HOST}${KEY}"], "cwd": "${HOME}"})
    assert found.sources(("a", "args")) == ("KEY", "HOST")
    assert found.sources(("a", "args", 1)) == ()
    assert found.sources(("a", "cwd")) == ("HOME",)


@given(st.text("${}:-$abc/ ", max_size=30))
def test_no_text_raises_and_what_is_not_resolved_stays_as_written(text: str) -> None:
    value, found = resolve(text)
    assert isinstance(value, str)
    if "${" not in text:
        assert value == text
        assert not found.problems
