"""``holdfast access``: which rule decides, tests of the rules, and recorded calls under other rules."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.access.audit_writer import AuditFiles, AuditRecord
from tests.access.test_audit import KEY
from tests.cli.in_process import Inside

pytestmark = pytest.mark.requirement("SEC-14")

RULES: list[dict[str, Any]] = [
    {"effect": "allow", "groups": ["sre"]},
    {"effect": "allow", "principals": ["bob"], "servers": ["jira"], "tools": ["get_*"], "when": "arguments.n < 100"},
    {"effect": "deny", "servers": ["jira"], "tools": ["get_secret"]},
    {"effect": "ask", "tools": ["delete_*"], "approver": "operator"},
]


@pytest.fixture
def config(tmp_path: Path) -> str:
    return _written(tmp_path / "rules.json", RULES)


def _written(file: Path, rules: list[dict[str, Any]], **more: Any) -> str:
    content = {"mcpServers": {}, "holdfast": {"access": {"rules": rules, **more}, "audit": {"path": "audit"}}}
    file.write_text(json.dumps(content))
    return str(file)


@pytest.mark.parametrize(
    ("asked", "effect", "rule", "listed", "possible"),
    [
        (["bob", "jira/get_issue", "--arguments", '{"n": 5}'], "allow", "rules[1]", True, ["allow"]),
        (["bob", "jira/get_issue", "--arguments", '{"n": 500}'], "deny", "default", True, ["deny"]),
        (["bob", "jira/get_issue"], "deny", "default", True, ["allow", "deny"]),
        (["bob", "jira/get_secret"], "deny", "rules[2]", False, ["deny"]),
        (["ann", "jira/get_issue"], "deny", "default", False, ["deny"]),
        (["ann", "jira/get_issue", "--groups", "dev,sre"], "allow", "rules[0]", True, ["allow"]),
        (["ann", "jira/delete_issue", "--groups", "sre"], "ask", "rules[3]", True, ["ask"]),
        (["ann", "jira/page", "--groups", "sre", "--kind", "prompt"], "allow", "rules[0]", True, ["allow"]),
        (["local", "jira/get_issue"], "allow", "default", True, ["allow"]),
    ],
)
def test_the_rule_that_decides_is_told(
    inside: Inside, config: str, asked: list[str], effect: str, rule: str, listed: bool, possible: list[str]
) -> None:
    ran = inside("access", "explain", *asked, "--json", "--config", config)
    told = json.loads(ran.out)
    assert (told["effect"], told["rule"], told["listed"], told["possible"]) == (effect, rule, listed, possible)
    assert ran.code == 0
    words = inside("access", "explain", *asked, "--config", config).out
    assert words.startswith(f"{effect}  {asked[0]}  {asked[1]}\n")
    assert f"decided by {rule}" in words


def test_an_explanation_shows_the_rule_and_who_is_asked(inside: Inside, config: str) -> None:
    words = inside("access", "explain", "ann", "jira/delete_it", "--groups", "sre", "--config", config).out
    assert 'the rule is {"effect": "ask", "tools": ["delete_*"], "approver": "operator"}' in words
    assert "an operator is asked" in words
    assert "it is listed" in words
    words = inside("access", "explain", "bob", "jira/get_issue", "--config", config).out
    assert "it depends on the arguments: allow or deny; give them with --arguments" in words


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["bob", "get_issue"], "`get_issue` names no server"),
        (["bob", "jira/get_issue", "--arguments", "[1]"], "--arguments is JSON, but not an object"),
        (["bob", "jira/get_issue", "--arguments", "{"], "--arguments is not JSON"),
        (["bob", "jira/get_issue", "--arguments", "[" * 100_000], "--arguments is not JSON"),
    ],
)
def test_a_wrong_question_says_what_is_wrong(inside: Inside, config: str, asked: list[str], words: str) -> None:
    ran = inside("access", "explain", *asked, "--config", config)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_a_table_of_expectations_passes_or_names_what_does_not(inside: Inside, config: str, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    good = [
        {"user": "bob", "tool": "jira/get_issue", "arguments": {"n": 5}, "expect": "allow", "rule": "rules[1]"},
        {"user": "bob", "tool": "jira/get_secret", "expect": "deny", "listed": False},
        {"user": "ann", "groups": ["sre"], "resource": "wiki/wiki://page", "expect": "allow"},
    ]
    table.write_text(json.dumps({"tests": good}))
    ran = inside("access", "test", str(table), "--config", config)
    assert ran.code == 0
    assert "3 tests, 0 failed" in ran.err
    wrong = {"user": "bob", "tool": "jira/delete_issue", "expect": "allow"}
    table.write_text(json.dumps({"tests": [*good, wrong]}))
    ran = inside("access", "test", str(table), "--config", config)
    assert ran.code == 1
    expected = 'failed  tests[3]  bob  jira/delete_issue: deny by default, not listed; expected effect "allow"'
    assert expected in ran.out
    told = json.loads(inside("access", "test", str(table), "--json", "--config", config).out)
    assert (told["passed"], told["failed"]) == (3, 1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is no table of tests: "),
        ("[" * 100_000, "is no table of tests: "),
        ("{}", "missing required field `tests`"),
        ('{"tests": []}', "`$.tests`"),
        ('{"tests": [{"user": "b", "tool": "a/b", "groups": "dev", "expect": "deny"}]}', "`$.tests[0].groups`"),
        ('{"tests": [{"user": "b", "expect": "allow"}]}', "needs one of `tool`, `prompt` and `resource`"),
        ('{"tests": [{"user": "b", "tool": "a/b", "expect": "yes"}]}', "`$.tests[0].expect`"),
        (
            '{"tests": [{"user": "b", "tool": "a/b", "expect": "deny", "rulle": 1}]}',
            "unknown field `rulle` - at `$.tests[0]`",
        ),
    ],
)
def test_a_wrong_table_says_what_is_wrong(
    inside: Inside, config: str, tmp_path: Path, content: str, words: str
) -> None:
    table = tmp_path / "table.json"
    table.write_text(content)
    ran = inside("access", "test", str(table), "--config", config)
    assert ran.code == 2
    assert words in ran.err


def test_recorded_calls_are_judged_by_new_rules(inside: Inside, config: str, tmp_path: Path) -> None:
    def call(tool: str, *, principal: str = "bob", **more: Any) -> AuditRecord:
        fixed = {"time": datetime.now(UTC), "event": "call", "method": "tools/call", "server": "jira"}
        return AuditRecord(**{**fixed, "principal": principal, "tool": tool, "outcome": "completed", **more})

    files = AuditFiles(tmp_path / "audit", KEY)
    files.write(
        [
            *[call("get_issue", argument_bytes=8, argument_hash="ab") for _ in range(3)],
            call("get_secret"),
            call("get_secret"),
            call("delete_issue", principal="ann", groups=("sre",)),
            call("get_issue", principal="local"),
            call("get_page", principal="eve", outcome="denied", rule="rules[9]"),
        ]
    )
    files.close()
    new = _written(tmp_path / "new.json", [*RULES, {"effect": "allow", "principals": ["eve"]}])
    ran = inside("access", "replay", "--policy", new, "--since", "1d", "--config", config)
    assert ran.code == 1
    assert "2 calls would be refused" in ran.out
    assert "2  bob  jira/get_secret  deny by rules[2]: a rule denies it" in ran.out
    assert "1 call would wait for a person" in ran.out
    assert "1 call denied then would be allowed" in ran.out
    assert "3  bob  jira/get_issue  allow or deny: a condition needs arguments that were hashed" in ran.out
    assert "8 calls judged, 1 as before" in ran.err
    told = json.loads(inside("access", "replay", "--policy", new, "--json", "--config", config).out)
    assert told["counts"] == {"unknown": 3, "refused": 2, "asks": 1, "same": 1, "allowed": 1}
    open_to_all = _written(tmp_path / "open.json", [], default="allow")
    assert inside("access", "replay", "--policy", open_to_all, "--config", config).code == 0
