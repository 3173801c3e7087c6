"""What other rules would decide, also where arguments are not known."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from holdfast.access.audit_reader import replayed
from holdfast.access.audit_writer import AuditRecord
from holdfast.access.policy import AccessItem, Policy, PossiblePolicy, principal_named
from holdfast.config.settings import AccessRule, AccessSettings

pytestmark = pytest.mark.requirement("SEC-14")

RULES = st.builds(
    AccessRule,
    effect=st.sampled_from(["allow", "deny", "ask"]),
    principals=st.sampled_from([(), ("bob",), ("local",)]),
    groups=st.sampled_from([(), ("sre",)]),
    servers=st.sampled_from([(), ("jira",), ("wiki",)]),
    tools=st.sampled_from([(), ("get_*",), ("delete",)]),
    when=st.sampled_from(["", "arguments.n < 1", "arguments.n < 2", "arguments.n > 5"]),
)
SETTINGS = st.builds(
    AccessSettings,
    rules=st.lists(RULES, max_size=5).map(tuple),
    default=st.sampled_from(["allow", "deny"]),
)
ITEMS = st.sampled_from(
    [
        AccessItem("tool", "jira", "get_issue"),
        AccessItem("tool", "jira", "delete"),
        AccessItem("prompt", "jira", "get_started"),
        AccessItem("resource", "wiki", "wiki://page"),
    ]
)


@given(SETTINGS, ITEMS, st.sampled_from(["bob", "ann", "local"]), st.booleans())
def test_each_effect_of_some_arguments_is_among_the_possible_ones(
    settings: AccessSettings, item: AccessItem, name: str, in_group: bool
) -> None:
    principal = principal_named(name, ["sre"] if in_group else [])
    possible = PossiblePolicy(settings).effects(principal, item)
    policy = Policy(settings)
    assert {policy.decide(principal, item, {"n": n}).effect for n in (0, 1, 3, 9)} <= possible
    if not any(rule.when for rule in settings.rules):
        assert possible == {policy.decide(principal, item).effect}


def _call(**values: Any) -> AuditRecord:
    return AuditRecord(
        **{
            "time": datetime.now(UTC),
            "event": "call",
            "principal": "bob",
            "server": "jira",
            "method": "tools/call",
            "tool": "get_issue",
            "outcome": "completed",
            **values,
        }
    )


CONDITIONAL = AccessSettings(rules=(AccessRule(effect="allow", when="arguments.n < 100"),))
GROUPS = AccessSettings(rules=(AccessRule(effect="allow", groups=("sre",)),))
ASK = AccessSettings(rules=(AccessRule(effect="ask"), AccessRule(effect="allow")))


@pytest.mark.parametrize(
    ("settings", "record", "change"),
    [
        (AccessSettings(), _call(), "same"),
        (CONDITIONAL, _call(argument_bytes=9, argument_hash="ab"), "unknown"),
        (CONDITIONAL, _call(argument_bytes=9, arguments=msgspec.Raw(b'{"n": 5}')), "same"),
        (CONDITIONAL, _call(argument_bytes=9, arguments=msgspec.Raw(b'{"n": 500}')), "refused"),
        (CONDITIONAL, _call(argument_bytes=9, arguments=msgspec.Raw(b'{"n": "***"}')), "unknown"),
        (CONDITIONAL, _call(), "refused"),  # it had no arguments
        (GROUPS, _call(), "refused"),
        (GROUPS, _call(groups=("sre",)), "same"),
        (GROUPS, _call(principal="local"), "same"),
        (GROUPS, _call(outcome="refused"), "same"),  # it was not made either
        (ASK, _call(), "asks"),
        (ASK, _call(approval="approved by olga"), "same"),
        (AccessSettings(), _call(outcome="denied", rule="rules[0]"), "allowed"),
        (GROUPS, _call(outcome="denied", rule="rules[0]"), "same"),
        (AccessSettings(), _call(method="resources/read", tool="wiki://page"), "same"),
    ],
)
def test_a_recorded_call_is_judged_by_other_rules(settings: AccessSettings, record: AuditRecord, change: str) -> None:
    found = replayed(record, Policy(settings), PossiblePolicy(settings))
    assert found is not None
    assert found.change == change


def test_what_is_no_call_is_not_judged() -> None:
    policy, possible = Policy(GROUPS), PossiblePolicy(GROUPS)
    for record in (_call(event="login"), _call(method="tools/list"), _call(server="")):
        assert replayed(record, policy, possible) is None


def test_a_condition_covers_no_resource() -> None:
    denied = replace(CONDITIONAL, rules=(replace(CONDITIONAL.rules[0], effect="deny"),), default="allow")
    principal = principal_named("bob")
    assert PossiblePolicy(denied).effects(principal, AccessItem("resource", "jira", "x")) == {"allow"}
    assert PossiblePolicy(denied).effects(principal, AccessItem("tool", "jira", "x")) == {"allow", "deny"}
