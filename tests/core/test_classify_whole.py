"""Whole verdicts: the reason, the hint, the wait and the flags that each part of the evidence gives."""

from __future__ import annotations

import pytest

from holdfast.core.classify import SHOWN, Verdict, classify_evidence, classify_load_error
from holdfast.core.evidence import (
    Evidence,
    HttpStatus,
    Login,
    LoginState,
    NetworkFailure,
    NetworkFault,
    ProcessExit,
    RpcError,
    TimedOut,
    TlsFailure,
    TlsFault,
    TokenNotRenewed,
    ToldByHub,
)

BEARER = {"www-authenticate": 'Bearer resource_metadata="https://h.example/m"'}
RENEWED = "the login is still valid: the token is renewed as soon as the authorization server answers"


@pytest.mark.requirement("LOAD-2")
@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (
            TimedOut(doing="`initialize`", after=2.5, stderr="still here", sent=True),
            Verdict(
                status="transient",
                reason='no answer within 2.5 s (waiting for `initialize`); stderr: "still here"',
                hint="if it is always this slow, raise `holdfast.load.attemptTimeout`",
            ),
        ),
        (
            TimedOut(doing="a connection", after=3.0, sent=False),
            Verdict(
                status="transient",
                reason="no answer within 3 s (waiting for a connection)",
                hint="check that its host is up, and that no firewall drops the packets",
                unreachable=True,
            ),
        ),
        (
            TokenNotRenewed(reason="HTTP 503", retry_after=7.0),
            Verdict(
                status="transient",
                reason="its access token has expired and could not be renewed just now (HTTP 503)",
                hint=RENEWED,
                retry_after=7.0,
            ),
        ),
        (
            TokenNotRenewed(reason="HTTP 503", retry_after=7.0, exchanged=True),
            Verdict(
                status="transient",
                reason="the hub could not get this user's token for it just now (HTTP 503)",
                hint="nothing is to be done: the hub asks again as soon as the authorization server answers",
                retry_after=7.0,
            ),
        ),
        (
            ToldByHub(status="transient", reason="it exited", hint="start it", retry_in=4.0),
            Verdict(status="transient", reason="it exited", hint="start it", retry_after=4.0),
        ),
        (
            ToldByHub(status="permanent", reason="it exited"),
            Verdict(status="permanent", reason="it exited", hint="look at it where the hub runs that has it"),
        ),
        (
            NetworkFailure(fault=NetworkFault.RESET, sent=False),
            Verdict(status="transient", reason="the request was not sent: the connection is gone"),
        ),
        (
            NetworkFailure(fault=NetworkFault.RESET, sent=False, detail="it went"),
            Verdict(status="transient", reason="the request was not sent: it went"),
        ),
        (
            RpcError(method="initialize", code=-32603),
            Verdict(status="transient", reason="it answered initialize with an error (-32603)"),
        ),
        (
            HttpStatus(status=429, body="slow down", retry_after=9.0),
            Verdict(status="transient", reason="it is limiting requests (HTTP 429)", retry_after=9.0, answers=True),
        ),
        (
            HttpStatus(status=503, body="<html>", retry_after=9.0),
            Verdict(status="transient", reason="it answered HTTP 503", retry_after=9.0, answers=True),
        ),
    ],
)
def test_a_verdict_has_each_part_that_its_evidence_gives(evidence: Evidence, verdict: Verdict) -> None:
    assert classify_evidence(evidence) == verdict


def login(state: LoginState, note: str = "") -> Login:
    return Login(state=state, command="holdfast login s", note=note)


@pytest.mark.requirement("AUTH-1")
def test_a_note_about_the_login_replaces_its_hint_and_a_challenge_decides_what_is_asked_for() -> None:
    expired = classify_evidence(HttpStatus(status=401, login=login(LoginState.EXPIRED, note="read this")))
    assert expired == Verdict(
        status="denied",
        reason="the login has expired and cannot be renewed (HTTP 401): run `holdfast login s`",
        hint="read this",
        login="holdfast login s",
    )
    asked = classify_evidence(HttpStatus(status=401, headers=BEARER, login=login(LoginState.NONE)))
    assert asked.reason == "it asks for a login (HTTP 401): run `holdfast login s`"
    silent = classify_evidence(HttpStatus(status=401, login=login(LoginState.NONE)))
    assert silent.reason == "it asks for credentials and none are configured (HTTP 401): run `holdfast login s`"
    sent = HttpStatus(status=401, headers=BEARER, login=login(LoginState.GOOD), credentials_sent=True)
    assert classify_evidence(sent).reason == "it rejected the login (HTTP 401): run `holdfast login s`"


@pytest.mark.requirement("AUTH-1")
def test_a_scope_is_named_if_the_server_names_one() -> None:
    for scope, named, command in (
        (' scope="files:write"', "the scope `files:write`", "holdfast login s --scope files:write"),
        ("", "a scope that it does not name", "holdfast login s"),
    ):
        header = {"www-authenticate": f'Bearer error="insufficient_scope",{scope}'.rstrip(",")}
        for status in (401, 403):
            seen = classify_evidence(HttpStatus(status=status, headers=header, login=login(LoginState.GOOD)))
            assert seen.reason == f"it asks for {named}, which the login does not have (HTTP {status}): run `{command}`"
            assert (seen.login, seen.hint) == (command, "what was granted before is kept")


@pytest.mark.requirement("LOAD-4")
def test_an_empty_403_is_in_doubt_unless_it_asks_for_a_login() -> None:
    assert classify_evidence(HttpStatus(status=403)).unconfirmed
    assert not classify_evidence(HttpStatus(status=403, headers=BEARER)).unconfirmed
    assert not classify_evidence(HttpStatus(status=403, body="no such user")).unconfirmed


def test_what_a_process_said_last_is_that_of_its_end() -> None:
    def reason(**fields: object) -> str:
        return classify_evidence(ProcessExit(**fields)).reason  # type: ignore[arg-type]  # some of its fields

    killed = "its process was killed by signal 15 before it was ready"
    assert reason(code=-15, stderr="of the start") == f'{killed}; stderr: "of the start"'
    assert reason(code=-15, stderr="of the start", recent="of the end") == f'{killed}; stderr: "of the end"'
    assert reason(code=3, stderr="of the start", recent="of the end") == (
        'its process exited with code 3 before it was ready; stderr: "of the start"'
    )
    assert reason(code=0, stood=True, recent="", noise="out") == "its process exited with code 0"
    assert reason(code=0, stood=True, noise="out") == 'its process exited with code 0; stdout: "out"'


def test_a_detail_is_one_line_within_its_bound() -> None:
    def reason(detail: str) -> str:
        whole = classify_evidence(TlsFailure(fault=TlsFault.EXPIRED, detail=detail)).reason
        return whole.removeprefix("its TLS certificate has expired")

    assert reason("") == ""
    assert reason("a\n b") == ": a b"
    assert reason("x" * SHOWN) == f": {'x' * SHOWN}"
    assert reason("x" * (SHOWN + 1)) == f": {'x' * (SHOWN - 1)}…"
    assert reason("\x00" * (8 * SHOWN - 1) + "x") == ": x"
    assert reason("\x00" * (8 * SHOWN) + "x") == ""


@pytest.mark.requirement("LOAD-2")
def test_the_body_of_a_403_is_read_after_its_status_its_address_and_a_colon() -> None:
    outage = "Authorization service unavailable"
    url = "https://h.example/a:b"
    assert classify_load_error(f"HTTP 403 for url: {url}: {outage}") == "transient"
    assert classify_load_error(f"HTTP 403: {outage}") == "transient"
    assert classify_load_error("HTTP 403 " + outage) == "denied", "no colon, and so no body"
    assert classify_load_error(f"HTTP 403: {outage}", 403) == "denied", "without an address the text is the body"
    assert classify_load_error(f"HTTP 403 for url: {url}: {outage}", 403) == "transient"
    assert classify_load_error(outage, 403) == "transient"
    assert classify_load_error("  ") == "transient"
    assert [classify_load_error("x", status) for status in (399, 400, 500, 599, 600)] == [
        "permanent",
        "permanent",
        "transient",
        "transient",
        "permanent",
    ]
