"""The rules decide as they are written: against a plain reading of them, and one by one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import given, strategies as st

from holdfast.access import LOCAL, AccessItem, Policy, Principal
from holdfast.access.policy import LONGEST_URI, MOST_SUBJECTS
from holdfast.config import AccessRule, AccessSettings, CallFacts, Condition, InvalidValue, Unjudged
from holdfast.config.conditions import LARGEST_ARGUMENTS
from tests.access.plain_policy import CONDITIONS, Caller, PlainPolicy

NAMES = ("local", "ci", "https://idp#ann", "gateway#bob")
GROUPS = ("sre", "dev")
SCOPES = ("read", "write")
SERVERS = ("jira", "files", "jira-test")
TOOLS = ("get_issue", "get_secret", "delete_issue", "x")
PATTERNS = ("*", "get_*", "*_issue", "get_secret", "[dx]*", "jira*", "files", "j?ra", "file://*")


def some(values: tuple[str, ...], *, least: int = 0) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), max_size=2, min_size=least, unique=True).map(tuple)


@st.composite
def rules(draw: st.DrawFn) -> AccessRule:
    effect: Literal["allow", "deny", "ask"] = draw(st.sampled_from(("allow", "allow", "deny", "ask")))
    when = draw(st.sampled_from(("", "", *CONDITIONS)))
    return AccessRule(
        effect=effect,
        principals=draw(some(NAMES)),
        groups=draw(some(GROUPS)),
        scopes=draw(some(SCOPES)),
        servers=draw(some(PATTERNS)),
        tools=draw(some(PATTERNS)),
        prompts=draw(some(PATTERNS)) if effect != "ask" else (),
        resources=draw(some(PATTERNS)) if effect != "ask" and not when else (),
        when=when,
    )


policies = st.builds(
    AccessSettings,
    rules=st.lists(rules(), max_size=6).map(tuple),
    default=st.sampled_from((None, None, "allow", "deny")),
)
callers = st.builds(
    Caller, name=st.sampled_from(NAMES), groups=some(GROUPS).map(frozenset), scopes=some(SCOPES).map(frozenset)
)
items = st.builds(
    AccessItem,
    kind=st.sampled_from(("tool", "prompt", "resource")),
    server=st.sampled_from(SERVERS),
    name=st.sampled_from((*TOOLS, "file:///etc")),
)
arguments = st.sampled_from(({}, {"n": 1}, {"n": 100}, {"n": "1"}, {"m": 1}))


def principal(caller: Caller) -> Principal:
    return Principal(name=caller.name, groups=caller.groups, scopes=caller.scopes)


@pytest.mark.requirement("SEC-14")
@given(policies, st.lists(st.tuples(callers, items, arguments), min_size=1, max_size=12))
def test_a_policy_decides_as_its_rules_read(
    settings: AccessSettings, requests: list[tuple[Caller, AccessItem, Mapping[str, Any]]]
) -> None:
    """One policy for all requests: what it keeps of one principal must not decide for another."""
    policy, plain = Policy(settings), PlainPolicy(settings)
    for caller, item, given_ in requests:
        decided = policy.decide(principal(caller), item, json.dumps(given_).encode())
        assert decided.effect == plain.effect(caller, *item, given_), (settings, caller, item)
        assert policy.may_list(principal(caller), item) == plain.lists(caller, *item)
        if decided.effect != "deny":
            assert policy.may_list(principal(caller), item), "what may be called is listed"
        if policy.may_list(principal(caller), item):
            assert policy.grants(principal(caller)).may_see_server(item.server), "the server of a listed item is there"
        if policy.is_open:
            assert decided.effect == "allow"


def policy(*given_rules: AccessRule, **more: Any) -> Policy:
    return Policy(AccessSettings(rules=given_rules, **more))


TOOL = AccessItem("tool", "jira", "get_issue")
ANN = Principal(name="https://idp#ann", groups=frozenset({"sre"}))


def allow(**more: Any) -> AccessRule:
    return AccessRule(effect="allow", **more)


def deny(**more: Any) -> AccessRule:
    return AccessRule(effect="deny", **more)


def ask(**more: Any) -> AccessRule:
    return AccessRule(effect="ask", **more)


def test_a_decision_names_its_rule() -> None:
    made = policy(allow(groups=("sre",)), deny(tools=("get_secret",)), ask(tools=("delete_*",), approver="operator"))
    assert made.decide(ANN, TOOL).rule == "rules[0]"
    refused = made.decide(ANN, TOOL._replace(name="get_secret"))
    assert (refused.effect, refused.rule) == ("deny", "rules[1]")
    asked = made.decide(ANN, TOOL._replace(name="delete_issue"))
    assert (asked.effect, asked.rule, asked.approver) == ("ask", "rules[2]", "operator")
    other = made.decide(Principal(name="ci"), TOOL)
    assert (other.effect, other.rule, other.reason) == ("deny", "default", "no rule allows it")


def test_ask_alone_grants_nothing() -> None:
    assert policy(ask(), allow(principals=("ci",))).decide(ANN, TOOL).effect == "deny"


def test_a_wide_token_does_not_decide_for_a_narrow_one_of_the_same_principal() -> None:
    made = policy(allow(scopes=("write",)))
    wide, narrow = Principal(name="ci", scopes=frozenset({"write"})), Principal(name="ci")
    assert wide == narrow
    assert made.decide(wide, TOOL).effect == "allow"
    assert made.decide(narrow, TOOL).effect == "deny"
    assert not made.may_list(narrow, TOOL)


def test_local_stays_open_until_a_rule_names_it_and_rules_without_subjects_bind_it() -> None:
    assert policy(allow(principals=("ci",))).decide(LOCAL, TOOL).effect == "allow"
    assert policy(allow(principals=("ci",)), deny(tools=("get_*",))).decide(LOCAL, TOOL).effect == "deny"
    named = policy(allow(principals=("local",), servers=("files",)))
    assert named.decide(LOCAL, TOOL).effect == "deny"
    assert named.decide(LOCAL, TOOL._replace(server="files")).effect == "allow"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"n": 1, "n": 100}',
        b'{"o": {"a": 1, "a": 2}, "n": 1}',
        b'{"n": 1, "N": 100}',
        b'{"n": NaN}',
        b'{"n": 1000000000000000000000000}',
        b'{"n": "\\ud800"}',
        b"[1]",
        b'{"n": ' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"n": 1}\xff',
    ],
    ids=["twice", "twice-inside", "other-case", "nan", "huge", "surrogate", "list", "deep", "no-text"],
)
def test_arguments_that_two_readers_may_read_differently_are_not_judged(raw: bytes) -> None:
    assert policy(allow(when="arguments.n < 10")).decide(ANN, TOOL, raw).effect == "deny"
    assert policy(allow(), deny(when="arguments.n == 7")).decide(ANN, TOOL, raw).effect == "deny"


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize(
    "uri",
    [
        "file:///public/../secret/key",
        "file:///public/%2e%2e/secret/key",
        "file:///public/..%2Fsecret/key",
        "file:///public/.\t./secret/key",
        "file:///public/..\\secret/key",
        "file:///public/.%09./secret/key",
        "file:///public/%252e%252e/secret/key",
        "file:///public/..%252Fsecret/key",
        "file:///public/%2525252e%2525252e/secret/key",
        f"file:///public/{'%' + '25' * 40 + '2e'}./secret/key",
    ],
)
def test_dots_in_a_uri_do_not_lead_out_of_what_is_allowed(uri: str) -> None:
    made = policy(AccessRule(effect="allow", servers=("files",), resources=("file:///public/*",)))
    item = AccessItem("resource", "files", uri)
    assert made.decide(ANN, item).effect == "deny"
    assert not made.may_list(ANN, item)
    for inside in ("file:///public/a", "file:///public/a%20b", "file:///public/b/../a"):
        assert made.decide(ANN, AccessItem("resource", "files", inside)).effect == "allow"


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize(
    "uri",
    [
        "FILE:///secret",
        "file:/secret",
        "file://localhost/secret",
        "file:///public/../secret",
        "file:///%73ecret",
        "file:///%2573ecret",
        "FILE:///%73ecret",
        "file:///secret?x/../../y",
        "file:///public/../secret?x",
        "file:///public/%252e%252e/secret",
        f"file:///{'%' + '25' * 40 + '73'}ecret",
        "file:///sec\tret",
        "file:///secret?",
        "file:///secret#part",
    ],
)
def test_what_is_denied_is_denied_however_its_uri_is_written(uri: str) -> None:
    made = policy(
        AccessRule(effect="allow", servers=("files",)),
        AccessRule(effect="deny", servers=("files",), resources=("file:///secret",)),
    )
    assert made.decide(ANN, AccessItem("resource", "files", uri)).effect == "deny"
    for other in ("file:///secrets", "file:///100%25", "file:///a%2520b"):
        assert made.decide(ANN, AccessItem("resource", "files", other)).effect == "allow"


@pytest.mark.requirement("SEC-7", "SEC-14")
def test_a_uri_that_is_too_long_to_be_read_in_every_way_is_denied_where_some_are() -> None:
    made = policy(
        AccessRule(effect="allow", servers=("files",)),
        AccessRule(effect="deny", servers=("files",), resources=("file:///secret",)),
    )
    start = "file:///"
    longest = AccessItem("resource", "files", start + "a" * (LONGEST_URI - len(start)))
    assert made.decide(ANN, longest).effect == "allow"
    longer = AccessItem("resource", "files", longest.name + "a")
    assert made.decide(ANN, longer).effect == "deny"
    some = policy(AccessRule(effect="allow", servers=("files",), resources=("file:///*",)))
    assert some.decide(ANN, longer).effect == "deny"


@pytest.mark.parametrize("uri", ["docs://public/../secret", "docs:public/../secret", "mem:x", "no uri at all"])
def test_a_rule_for_all_of_a_server_holds_for_every_uri(uri: str) -> None:
    assert policy(allow()).decide(ANN, AccessItem("resource", TOOL.server, uri)).effect == "allow"


def test_large_arguments_are_refused_only_where_a_condition_is_asked() -> None:
    large = json.dumps({"n": 1, "text": "x" * LARGEST_ARGUMENTS}).encode()
    for effect in (allow, deny, ask):
        assert policy(allow(servers=("jira",)), allow()).decide(ANN, TOOL, large).effect == "allow"
        rules_ = (effect(when="arguments.n < 10"), *((allow(),) if effect is not allow else ()))
        assert policy(*rules_).decide(ANN, TOOL, large).effect == "deny"


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize(
    ("when", "given_"),
    [
        ("arguments.l.exists(x, x in arguments.m)", {"l": list(range(7000)), "m": [-1] * 7000}),
        ("arguments.l.exists(x, arguments.s.contains(x))", {"l": ["a" * 31 + "b"] * 900, "s": "a" * 30_000}),
        ("arguments.l.map(x, arguments.l).size() > 1", {"l": list(range(9000))}),
        ("arguments.l.exists(x, x in arguments.m)", {"l": list(range(700)), "m": [1] * 700}),
    ],
)
def test_no_arguments_make_a_condition_slow(when: str, given_: Mapping[str, Any]) -> None:
    """CPU time, and 1,000 rules that all ask: the budget ends the evaluation, and the call is refused."""
    made = policy(*[deny(when=when)] * 1000, allow())
    raw = json.dumps(given_, separators=(",", ":")).encode()
    assert len(raw) <= LARGEST_ARGUMENTS
    before = time.thread_time()
    made.decide(ANN, TOOL, raw)
    assert time.thread_time() - before < 0.05


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arguments.a.exists(x, arguments.b.exists(y, x == y))", "comprehension inside a comprehension"),
        ("arguments.a.all (x, [1].map(y, y + x).size() > 1)", "comprehension inside a comprehension"),
        ("arguments.s.matches(arguments.p)", "without a literal pattern"),
        ('matches(arguments.s, "a")', "without a literal pattern"),
        ("arguments.n <", "no valid CEL"),
        ("principal.name == 'x'", "undeclared reference to 'principal.name'"),
        ("size(arguments)", "must be true or false"),
        ("1 < 'a'", "no matching overload"),
        ("true" + " || true" * 2000, "characters"),
    ],
)
def test_a_condition_without_a_bound_or_a_meaning_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        Condition(text)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("arguments.l.exists(x, x > 1) && arguments.l.all(x, x < 9)", True),
        ("arguments.l.filter(x, x > 1).exists(y, y == 2)", True),
        ('arguments.s == ".exists(" || arguments.l.exists(x, x == 2)', True),
        (r'arguments.s.matches(r"^\w+$") // .exists( in a comment', True),
        ("has(arguments.none)", False),
        ("arguments.flag", True),
    ],
)
def test_a_condition_reads_the_arguments(text: str, holds: bool) -> None:
    assert Condition(text).holds(CallFacts({"l": [1, 2], "s": "word", "flag": True})) is holds


def test_a_condition_of_a_missing_or_other_argument_is_not_judged() -> None:
    for text in ("arguments.none == 1", "arguments.s < 1", "arguments.s", "1 / arguments.zero == 1"):
        with pytest.raises(Unjudged):
            Condition(text).holds(CallFacts({"s": "word", "zero": 0}))


def test_the_version_is_that_of_the_rules() -> None:
    assert policy(allow()).version == policy(allow()).version
    assert len({policy(allow()).version, policy(deny(), default="deny").version, policy().version}) == 3


def test_what_is_kept_of_principals_is_bounded() -> None:
    made = policy(allow(groups=("sre",)))
    for number in range(MOST_SUBJECTS + 10):
        made.decide(Principal(name=f"user-{number}", groups=frozenset({f"g{number}"})), TOOL)
    assert made._subject.cache_info().currsize == MOST_SUBJECTS
    assert repr(made).startswith("<Policy ")


@pytest.mark.requirement("SEC-14")
def test_long_names_of_callers_are_not_kept() -> None:
    """A caller writes the URI of a resource: thousands of long ones would take the memory of the hub."""
    made = policy(allow())
    kept = made._rules._kept_item.cache_info
    for number in range(10):
        uri = f"file:///{number}/{'x' * 100_000}"
        assert made.decide(ANN, AccessItem("resource", TOOL.server, uri)).effect == "allow"
    assert kept().currsize == 0
    made.decide(ANN, TOOL)
    assert kept().currsize == 1


@pytest.mark.requirement("SEC-14")
def test_what_hides_an_item_is_named_and_a_condition_hides_nothing() -> None:
    made = policy(allow(), deny(tools=("get_*",)), deny(tools=("x",), when="arguments.n > 1"))
    grants = made.grants(ANN)
    assert grants.hidden_by(TOOL) == "rules[1]"
    assert grants.hidden_by(AccessItem("tool", "jira", "x")) == "default"


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize(
    ("given_rules", "default", "has_all"),
    [
        ((), "allow", True),
        ((allow(servers=("jira",)),), "deny", True),
        ((allow(servers=("other",)),), "deny", False),
        ((allow(tools=("*",)),), "deny", False),
        ((allow(when="arguments.n > 1"),), "deny", False),
        ((allow(), deny(tools=("x",))), "allow", False),
        ((allow(), AccessRule(effect="ask", tools=("x",))), "allow", False),
        ((allow(), deny(servers=("other",))), "deny", True),
    ],
)
def test_a_server_is_open_as_a_whole_where_nothing_of_it_is_limited(
    given_rules: tuple[AccessRule, ...], default: Any, has_all: bool
) -> None:
    assert policy(*given_rules, default=default).grants(ANN).has_all_of("jira") is has_all


@pytest.mark.requirement("SEC-14", "FLEET-6")
def test_what_another_hub_sends_on_was_judged_there() -> None:
    made = policy(deny())
    assert made.decide(Principal(name=ANN.name, source="hub"), TOOL).effect == "allow"
    assert made.decide(ANN, TOOL).effect == "deny"
    assert made.grants(Principal(name=ANN.name, source="hub")).is_unlimited


def test_rules_that_were_looked_up_beforehand_decide_the_same() -> None:
    made = policy(allow(tools=("get_*",)))
    made.learn(TOOL)
    assert made.decide(ANN, TOOL).effect == "allow"
    assert (made._rules._kept_item.cache_info().hits, made._rules._kept_item.cache_info().misses) == (1, 1)
