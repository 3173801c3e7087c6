"""Access rules in the file: what they mean, and errors that name their place."""

from __future__ import annotations

import sys

import pytest

from holdfast.config import AccessRule, AccessSettings
from holdfast.config.conditions import _environment
from tests.config.helpers import read, top_problems


def test_rules_are_read() -> None:
    config = read(
        """{"holdfast": {"access": {"rules": [
          {"effect": "allow", "groups": ["sre"], "servers": ["*"]},
          {"effect": "allow", "principals": ["bob"], "servers": ["jira"], "tools": ["get_*"],
           "when": "arguments.n < 100"},
          {"effect": "deny", "servers": ["jira"], "tools": ["get_secret"]},
          {"effect": "ask", "tools": ["delete_*"], "approver": "caller"}
        ], "default": "deny"}}}"""
    )
    assert config.settings.access == AccessSettings(
        rules=(
            AccessRule(effect="allow", groups=("sre",), servers=("*",)),
            AccessRule(
                effect="allow", principals=("bob",), servers=("jira",), tools=("get_*",), when="arguments.n < 100"
            ),
            AccessRule(effect="deny", servers=("jira",), tools=("get_secret",)),
            AccessRule(effect="ask", tools=("delete_*",)),
        ),
        default="deny",
    )


@pytest.mark.parametrize(
    ("rule", "column", "words", "hint"),
    [
        ('{"effect": "permit"}', 12, "must be `allow`, `deny` or `ask`", '"allow"'),
        ('{"tools": ["a"]}', 1, "`access.rules[0]` has no `effect`", "`effect`"),
        ('{"effect": "allow", "tool": ["a"]}', 21, "unknown key `tool`", "`tools`"),
        ('{"effect": "allow", "tools": "a"}', 30, "must be a list of texts", '["first"'),
        ('{"effect": "allow", "groups": []}', 31, "is empty", "match nothing"),
        ('{"effect": "allow", "principals": ["*"]}', 35, "has the pattern `*`", "full names"),
        ('{"effect": "allow", "when": "arguments.n <"}', 29, "is no valid CEL", "`arguments`"),
        ('{"effect": "allow", "when": "args.n < 1"}', 29, "undeclared reference to 'args.n'", "`arguments`"),
        ('{"effect": "allow", "approver": "operator"}', 33, "has no meaning for `allow`", '"ask"'),
        ('{"effect": "ask", "prompts": ["a"]}', 30, "has no meaning for `ask`", "`tools`"),
        ('{"effect": "deny", "resources": ["a"], "when": "true"}', 33, "cannot have a condition", "no arguments"),
    ],
)
def test_a_wrong_rule_is_an_error_with_its_place(rule: str, column: int, words: str, hint: str) -> None:
    problems = top_problems('{"holdfast": {"access": {"default": "deny", "rules": [\n' + rule + "\n]}}}")
    assert [(problem.line, problem.column) for problem in problems] == [(2, column)]
    assert words in problems[0].message
    assert hint in problems[0].hint


def test_rules_that_allow_nothing_need_a_default() -> None:
    (problem,) = top_problems('{"holdfast": {"access": {"rules": [{"effect": "deny", "tools": ["x"]}]}}}')
    assert "none of the rules allows anything" in problem.message
    assert '"default": "allow"' in problem.hint
    read('{"holdfast": {"access": {"rules": [{"effect": "deny", "tools": ["x"]}], "default": "allow"}}}')


def test_a_condition_without_its_extra_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.config.conditions._environment", _environment.__wrapped__)
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    read('{"holdfast": {"access": {"rules": [{"effect": "allow"}]}}}')
    (problem,) = top_problems('{"holdfast": {"access": {"rules": [{"effect": "allow", "when": "true"}]}}}')
    assert "needs the extra `cel`" in problem.message
    assert problem.hint == "run: pip install 'holdfast-mcp[cel]'"
