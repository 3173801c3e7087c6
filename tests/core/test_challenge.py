from __future__ import annotations

import pytest

from holdfast.core.classify import classify_evidence
from holdfast.core.evidence import MOST_SCOPES, Challenge, HttpStatus, Login, LoginState, read_challenge, scopes_in
from holdfast.core.remedies import remedy_of

LOGIN = Login(state=LoginState.GOOD, command="holdfast login crm")


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        ("", Challenge()),
        ("Basic realm=x", Challenge()),
        ("Bearer", Challenge(made=True)),
        ('bearer scope="a b"', Challenge(made=True, scope=("a", "b"))),
        ("Bearer error=insufficient_scope, scope=a", Challenge(made=True, error="insufficient_scope", scope=("a",))),
        ('Basic realm="Bearer scope=no", Bearer scope="yes"', Challenge(made=True, scope=("yes",))),
        ('Bearer scope="yes", Basic realm="x", scope="no"', Challenge(made=True, scope=("yes",))),
        ('Bearer scope="yes", Negotiate', Challenge(made=True, scope=("yes",))),
        ('Bearer realm="a, Basic x=y", scope="yes"', Challenge(made=True, scope=("yes",))),
        ('Bearer resource_metadata="https://h/x?a=b"', Challenge(made=True, resource_metadata="https://h/x?a=b")),
        (
            'Bearer error="insufficient_scope", error_description="Required scope: a:b", resource_metadata="https://h/x"',
            Challenge(made=True, error="insufficient_scope", scope=("a:b",), resource_metadata="https://h/x"),
        ),
        (
            'Bearer error="insufficient_scope", error_description="Required scopes: a, b"',
            Challenge(made=True, error="insufficient_scope", scope=("a", "b")),
        ),
        (
            'Bearer error="invalid_token", error_description="Required scope: a"',
            Challenge(made=True, error="invalid_token"),
        ),
        ('Bearer scope="a\x1b[31m \u202eb c"', Challenge(made=True, scope=("c",))),
    ],
)
def test_a_challenge_is_read_among_others(header: str, challenge: Challenge) -> None:
    assert read_challenge(header) == challenge


def test_scopes_are_named_once_and_not_without_end() -> None:
    assert scopes_in("a b a") == ("a", "b")
    assert len(scopes_in(" ".join(map(str, range(1000))))) == 50
    assert scopes_in("x" * 1000) == ()


@pytest.mark.requirement("MSG-3", "AUTH-4")
@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_scope_is_named_with_the_command_that_asks_for_it(status: int) -> None:
    headers = {"www-authenticate": 'Bearer error="insufficient_scope", scope="a:read b:write"'}
    verdict = classify_evidence(HttpStatus(status=status, headers=headers, login=LOGIN))
    assert verdict.status == "denied"
    assert verdict.reason == (
        f'it asks for the scope "a:read b:write", which the login does not have (HTTP {status}): '
        "run `holdfast login crm --scope 'a:read b:write'`"
    )


@pytest.mark.requirement("MSG-3", "AUTH-3")
@pytest.mark.parametrize(
    ("state", "words"),
    [
        (LoginState.NONE, "it asks for a login"),
        (LoginState.EXPIRED, "the login has expired and cannot be renewed"),
        (LoginState.REFUSED, "the login was revoked, or has ended"),
        (LoginState.GOOD, "it rejected the login"),
    ],
)
def test_a_denial_says_how_the_login_is_and_what_to_run(state: LoginState, words: str) -> None:
    login = Login(state=state, command="holdfast login crm")
    verdict = classify_evidence(HttpStatus(status=401, headers={"www-authenticate": "Bearer"}, login=login))
    assert (verdict.status, verdict.reason) == ("denied", f"{words} (HTTP 401): run `holdfast login crm`")


def test_a_403_that_is_no_matter_of_scope_is_a_policy_as_ever() -> None:
    seen = HttpStatus(status=403, headers={"www-authenticate": 'Bearer error="invalid_token"'}, login=LOGIN)
    assert "not allowed to use it" in classify_evidence(seen).reason


@pytest.mark.requirement("MSG-3", "DOC-9")
@pytest.mark.parametrize(
    ("status", "challenge", "sent", "command"),
    [
        (401, "Bearer", True, "holdfast login crm"),
        (401, "", False, "holdfast login crm"),
        (401, "", True, ""),  # it got a credential and asks for no other: a login would not help
        (401, 'Basic realm="x"', False, ""),  # it wants a password
        (403, "", False, ""),
        (403, 'Bearer error="insufficient_scope", scope="a b"', False, "holdfast login crm --scope 'a b'"),
        (403, 'Bearer error="insufficient_scope", scope="$(id)"', False, "holdfast login crm"),
    ],
)
def test_a_login_is_offered_where_it_can_help(status: int, challenge: str, sent: bool, command: str) -> None:
    headers = {"www-authenticate": challenge} if challenge else {}
    seen = HttpStatus(status=status, headers=headers, login=LOGIN, credentials_sent=sent)
    assert remedy_of(seen).login == command
    assert not command or f"run `{command}`" in classify_evidence(seen).reason


def test_a_server_cannot_ask_for_more_scopes_than_a_person_reads() -> None:
    asked = read_challenge(f'Bearer scope="{" ".join(f"s{number}" for number in range(1_000))}"')
    assert asked.scope == tuple(f"s{number}" for number in range(MOST_SCOPES))


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize("piece", ["_", "a-", '\\"', "a=", 'a="', ", a "])
@pytest.mark.timeout(20)
def test_a_hostile_challenge_is_read_in_time_that_grows_with_its_length_alone(piece: str) -> None:
    # Where a pattern tries again from each place, this takes minutes.
    hostile = (piece * 200_000)[:200_000]
    assert isinstance(read_challenge(f"Bearer {hostile}"), Challenge)
    assert isinstance(read_challenge(hostile), Challenge)
