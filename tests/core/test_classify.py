"""The judgement of evidence: every row of the table, and nothing but typed fields behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import assume, given, strategies as st

from holdfast.core import classify as room
from holdfast.core.classify import classify_evidence, classify_load_error, statement_of, status_class
from holdfast.core.evidence import (
    BadConfig,
    CommandFault,
    CommandUnusable,
    CredentialRefused,
    CredentialsUnavailable,
    Evidence,
    HttpStatus,
    Login,
    LoginState,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    OutOfDescriptors,
    OverBound,
    PlainHttpRefused,
    ProcessExit,
    Redirected,
    RpcError,
    TimedOut,
    TlsFailure,
    TlsFault,
    TokenNotRenewed,
    ToldByHub,
    Unexpected,
)
from holdfast.core.forbidden import LONGEST_BODY, Statement, stated_in
from holdfast.core.messages import FailureStatus

FAULTS_ONCE_IT_STOOD = [NetworkFault.RESET, NetworkFault.CLOSED, NetworkFault.OTHER, NetworkFault.UNREACHABLE]

TABLE: dict[str, tuple[str, list[Evidence]]] = {
    "HTTP 401": (
        "denied",
        [
            HttpStatus(status=401),
            HttpStatus(status=401, credentials_sent=True),
            *(HttpStatus(status=401, login=Login(state=state, command="login")) for state in LoginState),
        ],
    ),
    "HTTP 403 whose body is an authorization outage": (
        "transient",
        [
            HttpStatus(status=403, body="Authorization service unavailable\n"),
            HttpStatus(status=403, body='{"message": "upstream call timeout"}'),
            HttpStatus(status=403, body='{"error": {"code": 1, "message": "ext_authz error", "x": "no"}, "x": "no"}'),
            HttpStatus(status=403, body='{"details": {"any": ["ext_authz error", {"x": "request timeout"}]}}'),
            HttpStatus(status=403, body="masked, and cut…", stated=Statement.OUTAGE),
        ],
    ),
    "HTTP 403 that states no decision (unconfirmed)": (
        "denied",
        [
            HttpStatus(status=403),
            HttpStatus(status=403, body="external authorization failed\n"),
            HttpStatus(status=403, body="authorization failed"),
        ],
    ),
    "HTTP 403 otherwise": (
        "denied",
        [
            HttpStatus(status=403, body="no"),
            HttpStatus(status=403, body="<html>"),
            HttpStatus(status=403, body='["ext_authz error"]'),
            HttpStatus(status=403, body='{"message": 1}'),
            HttpStatus(status=403, body='{"details": {"any": ["ext_authz error", {"x": "no"}]}}'),
            HttpStatus(status=403, body="upstream call timeout", stated=Statement.DECISION),
        ],
    ),
    "HTTP 408, 429, 5xx": ("transient", [HttpStatus(status=status) for status in (408, 429, 500, 502, 503, 504, 599)]),
    "HTTP 404, any other error status": (
        "permanent",
        [HttpStatus(status=status) for status in (400, 402, 404, 405, 406, 407, 409, 410, 422, 451, 600)],
    ),
    "redirect that is not followed": ("permanent", [Redirected(status=307, location="https://elsewhere.example/")]),
    "name does not resolve, of one that never connected": (
        "permanent",
        [NetworkFailure(fault=NetworkFault.NAME_RESOLUTION)],
    ),
    "name does not resolve, of one that did": ("transient", [NetworkFailure(fault=NetworkFault.NAME_RESOLUTION)]),
    "refused, on a server that never connected in this run": (
        "permanent",
        [NetworkFailure(fault=NetworkFault.REFUSED)],
    ),
    "refused, on one that did": ("transient", [NetworkFailure(fault=NetworkFault.REFUSED)]),
    "host or network unreachable": ("transient", [NetworkFailure(fault=NetworkFault.UNREACHABLE)]),
    "reset, closed, any fault after the connection stood": (
        "transient",
        [
            NetworkFailure(fault=NetworkFault.RESET),
            NetworkFailure(fault=NetworkFault.CLOSED),
            *(NetworkFailure(fault=fault, stood=True) for fault in FAULTS_ONCE_IT_STOOD),
        ],
    ),
    "deadline passed": ("transient", [TimedOut(doing="an answer", after=1.0)]),
    "TLS does not verify, or is not TLS": ("permanent", [TlsFailure(fault=fault) for fault in TlsFault]),
    "not MCP, wrong version, endless pages, over a bound": (
        "permanent",
        [
            *(NotMcp(fault=fault) for fault in NotMcpFault),
            *(OverBound(bound="pages", limit=1, setting=key) for key in ("pages", "")),
        ],
    ),
    "JSON-RPC internal error (-32603) on the load": ("transient", [RpcError(method="initialize", code=-32603)]),
    "any other JSON-RPC error on the load": (
        "permanent",
        [RpcError(method="tools/list", code=code) for code in (-32601, -32602, -32700, -32000, 0)],
    ),
    "command cannot be started": ("permanent", [CommandUnusable(command="x", fault=fault) for fault in CommandFault]),
    "process ended after the handshake": ("transient", [ProcessExit(code=code, stood=True) for code in (0, 1, -11)]),
    "process ended before: killed from outside, or exit 75": (
        "transient",
        [ProcessExit(code=code) for code in (75, -1, -2, -9, -15)],
    ),
    "process ended before: any other exit code": ("permanent", [ProcessExit(code=code) for code in (0, 1, 127, -11)]),
    "bad definition; credentials over plain http": ("permanent", [BadConfig(problems=("no url",)), PlainHttpRefused()]),
    **{
        f"the hub that has the server calls it {status}": (status, [ToldByHub(status=status, reason="it is away")])
        for status in get_args(FailureStatus)
    },
    "the headers callable failed on the network": ("transient", [CredentialsUnavailable(type="E", network=True)]),
    "the headers callable failed otherwise": ("permanent", [CredentialsUnavailable(type="KeyError")]),
    "the login could not be renewed just now": ("transient", [TokenNotRenewed(reason="it is away")]),
    "the user's token could not be exchanged just now": (
        "transient",
        [TokenNotRenewed(reason="it is away", exchanged=True)],
    ),
    "the authorization server gives the user no token": (
        "denied",
        [CredentialRefused(reason="it said no", hint="ask its operator")],
    ),
    "the hub has no free file descriptors": ("transient", [OutOfDescriptors(limit=64)]),
    "anything unforeseen": ("permanent", [Unexpected(type="KeyError")]),
}

EVERY_EVIDENCE = [seen for _, evidence in TABLE.values() for seen in evidence]

HOSTILE = ["timeout", "503", "connection refused", "HTTP 403 Forbidden", "Authorization service unavailable", "401"]

# No judgement may rest on these; the body of a 403 is the one text that is evidence, and then only as a whole. What a
# hub says of its server is the name of a class, and no text.
JUDGED_TEXT = {(HttpStatus, "body"), (ToldByHub, "status")}


def documented() -> Iterator[tuple[str, str]]:
    for line in (room.__doc__ or "").splitlines():
        row = re.fullmatch(r"(\S.*?) {2,}(transient|permanent|denied)", line)
        if row:
            yield row[1], row[2]


def test_the_table_in_the_docstring_is_the_one_that_is_proved_here() -> None:
    assert dict(documented()) == {row: verdict for row, (verdict, _) in TABLE.items()}


def test_every_kind_of_evidence_stands_in_the_table() -> None:
    assert {type(seen) for seen in EVERY_EVIDENCE} == set(get_args(Evidence))


@pytest.mark.requirement("LOAD-2", "LOAD-3", "LOAD-4", "LOAD-5")
@pytest.mark.parametrize(
    ("row", "seen"), [pytest.param(row, seen, id=f"{row}: {seen}") for row, (_, all_) in TABLE.items() for seen in all_]
)
def test_each_row_of_the_table_is_judged_as_it_says(row: str, seen: Evidence) -> None:
    verdict = classify_evidence(seen, connected_before=row.endswith("one that did"))
    assert verdict.status == TABLE[row][0]
    assert verdict.reason


@pytest.mark.parametrize("seen", [s for s in EVERY_EVIDENCE if classify_evidence(s).status != "transient"], ids=str)
def test_what_will_not_be_tried_again_comes_with_a_hint(seen: Evidence) -> None:
    if not isinstance(seen, BadConfig):
        assert classify_evidence(seen).hint
    assert "``" not in classify_evidence(seen).hint  # a setting without a name


def test_having_connected_before_matters_for_unreachable_servers_alone() -> None:
    changed = [
        seen
        for seen in EVERY_EVIDENCE
        if classify_evidence(seen).status != classify_evidence(seen, connected_before=True).status
    ]
    assert {seen.fault for seen in changed if isinstance(seen, NetworkFailure)} == {
        NetworkFault.REFUSED,
        NetworkFault.NAME_RESOLUTION,
    }
    assert all(isinstance(seen, NetworkFailure) for seen in changed)


@pytest.mark.requirement("LIFE-22", "LIFE-25")
@pytest.mark.parametrize("before", [True, False], ids=["connected before", "never connected"])
def test_an_address_is_watched_where_nothing_answers_and_a_server_that_answers_is_asked_again(before: bool) -> None:
    verdicts = [(seen, classify_evidence(seen, connected_before=before)) for seen in EVERY_EVIDENCE]
    assert {seen.fault for seen, verdict in verdicts if verdict.unreachable and isinstance(seen, NetworkFailure)} == {
        NetworkFault.REFUSED,
        NetworkFault.NAME_RESOLUTION,
        NetworkFault.UNREACHABLE,
    }
    for seen, verdict in verdicts:
        assert verdict.answers == (isinstance(seen, HttpStatus) and verdict.status == "transient"), seen
        silent = isinstance(seen, TimedOut) and not seen.sent
        assert verdict.unreachable is silent or isinstance(seen, NetworkFailure), seen
    assert classify_evidence(TimedOut(doing="a connection", after=1.0, sent=False)).unreachable
    lost = NetworkFailure(fault=NetworkFault.UNREACHABLE, stood=True)
    assert not classify_evidence(lost, connected_before=before).unreachable, "the connection that stood is the evidence"


def texts_of(seen: Evidence) -> list[str]:
    return [
        field.name
        for field in fields(seen)
        if isinstance(getattr(seen, field.name), str) and (type(seen), field.name) not in JUDGED_TEXT
    ]


@pytest.mark.requirement("LOAD-5")
@given(st.sampled_from(EVERY_EVIDENCE), st.sampled_from(HOSTILE), st.text(max_size=20))
def test_no_word_in_any_text_of_the_evidence_changes_the_status(seen: Evidence, word: str, around: str) -> None:
    poisoned: dict[str, Any] = dict.fromkeys(texts_of(seen), f"{around}{word}{around}")
    assert classify_evidence(replace(seen, **poisoned)).status == classify_evidence(seen).status


@pytest.mark.requirement("LOAD-2", "LOAD-5")
@given(
    st.text(max_size=60)
    | st.builds(
        "{}{}{}".format,
        st.sampled_from(["", " ", "no ", '{"error": "', '{"reason": "denied", "message": "']),
        st.sampled_from(["upstream call timeout", "ext_authz error", "openfga check error: x", "request timeout"]),
        st.sampled_from(["", ".", " \n", "!", '"}', '", "detail": "denied"}']),
    )
)
def test_the_body_of_a_403_has_one_verdict_as_evidence_and_as_text(body: str) -> None:
    status = classify_evidence(HttpStatus(status=403, body=body)).status
    assert classify_load_error(body, 403) == status
    assert classify_load_error(f"HTTP 403: {body}") == status
    assert classify_load_error(f"HTTP 403 from https://timeout.example/mcp: {body}") == status


@pytest.mark.requirement("LOAD-4", "LOAD-5")
@given(st.sampled_from(["upstream call timeout", "ext_authz timeout"]), st.text(min_size=1, max_size=5), st.booleans())
def test_a_word_more_than_an_outage_is_a_decision(outage: str, more: str, before: bool) -> None:
    assume(more.strip().strip("."))
    body = f"{more} {outage}" if before else f"{outage} {more}"
    verdict = classify_evidence(HttpStatus(status=403, body=body))
    assert (verdict.status, verdict.unconfirmed) == ("denied", False)


@pytest.mark.requirement("LOAD-4")
@pytest.mark.parametrize("body", ["", " \n", "external authorization failed", "Authorization failed."])
def test_a_403_that_states_no_decision_is_unconfirmed(body: str) -> None:
    assert classify_evidence(HttpStatus(status=403, body=body)).unconfirmed
    assert not classify_evidence(HttpStatus(status=401, body=body)).unconfirmed
    challenged = {"www-authenticate": 'Bearer error="insufficient_scope"'}
    assert not classify_evidence(HttpStatus(status=403, body=body, headers=challenged)).unconfirmed


@pytest.mark.requirement("LOAD-5")
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_time_that_something_took_is_no_evidence(seconds: float) -> None:
    assert classify_evidence(TimedOut(doing="an answer", after=seconds)).status == "transient"
    assert classify_evidence(HttpStatus(status=403, retry_after=seconds)).status == "denied"
    assert not any(
        "elapsed" in field.name or "took" in field.name for kind in get_args(Evidence) for field in fields(kind)
    )


@pytest.mark.requirement("LOAD-4")
@given(st.sampled_from(EVERY_EVIDENCE), st.booleans())
def test_a_denial_is_never_said_to_be_starting_up(seen: Evidence, connected: bool) -> None:
    verdict = classify_evidence(seen, connected_before=connected)
    assert "starting up" not in verdict.reason + verdict.hint


@given(st.integers(min_value=400, max_value=999), st.text(max_size=50))
def test_an_http_status_is_judged_by_the_one_function_that_knows_them(status: int, body: str) -> None:
    seen = HttpStatus(status=status, body=body)
    assert classify_evidence(seen).status == status_class(status, statement_of(seen))


@pytest.mark.requirement("LOAD-9")
def test_a_server_that_limits_requests_is_said_to_do_so_and_no_other() -> None:
    reasons = {status: classify_evidence(HttpStatus(status=status)).reason for status in (429, 430, 503)}
    assert reasons[429] == "it is limiting requests (HTTP 429)"
    assert not any("limiting" in reasons[status] for status in (430, 503))


@pytest.mark.parametrize("status", [403, 408, 429, 503])
def test_a_transient_refusal_hands_on_how_long_the_server_asked_us_to_wait(status: int) -> None:
    body = "upstream call timeout" if status == 403 else ""
    assert classify_evidence(HttpStatus(status=status, body=body, retry_after=2.5)).retry_after == 2.5


@pytest.mark.parametrize("status", [413, 431])
def test_a_request_that_is_too_large_is_called_that(status: int) -> None:
    verdict = classify_evidence(HttpStatus(status=status))
    assert (verdict.status, "too large" in verdict.reason, "`url`" in verdict.hint) == ("permanent", True, False)


def test_an_empty_403_names_the_setting_that_would_tell_an_outage_from_a_denial() -> None:
    assert "status_on_error" in classify_evidence(HttpStatus(status=403)).hint
    assert "denyWithStatus" in classify_evidence(HttpStatus(status=403, body="external authorization failed")).hint
    assert "status_on_error" not in classify_evidence(HttpStatus(status=403, body="not in the group")).hint


def test_a_401_tells_a_missing_credential_from_a_rejected_one() -> None:
    assert "none are configured" in classify_evidence(HttpStatus(status=401)).reason
    assert "were rejected" in classify_evidence(HttpStatus(status=401, credentials_sent=True)).reason


def test_the_last_line_of_stderr_is_the_reason_of_an_exit_and_else_the_noise() -> None:
    words = "Traceback…\nKeyError: 'API_KEY'\n\n"
    assert classify_evidence(ProcessExit(code=1, stderr=words, noise="hi")).reason.endswith(
        "before it was ready; stderr: \"KeyError: 'API_KEY'\""
    )
    assert (
        classify_evidence(ProcessExit(code=-15, stood=True, noise="bye\n")).reason
        == 'its process was killed by signal 15; stdout: "bye"'
    )


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (ProcessExit(code=-9, stood=True, stderr="Server running on stdio", recent="Server running on stdio"), ""),
        (ProcessExit(code=-9, stderr="Server running on stdio", noise="hello"), ""),
        (ProcessExit(code=-11, stood=True, stderr="Server running on stdio\nfree(): invalid", recent="free(): invalid"),
         '; stderr: "free(): invalid"'),
        (ProcessExit(code=-15, stood=True, stderr="Server running on stdio", recent="", noise="hello"), ""),
        (ProcessExit(code=3, stood=True, stderr="Error: no cache\nbye", recent="bye"), '; stderr: "bye"'),
        (ProcessExit(code=3, stood=True, stderr="Server running on stdio", recent=""), ""),
        (ProcessExit(code=3, stderr="Error: no key", recent=""), ' before it was ready; stderr: "Error: no key"'),
    ],
)  # fmt: skip
def test_a_line_from_long_before_its_end_is_not_the_reason_of_an_exit(seen: ProcessExit, said: str) -> None:
    how = (
        f"its process was killed by signal {-seen.code}"
        if seen.code < 0
        else f"its process exited with code {seen.code}"
    )
    ready = "" if seen.stood or said else " before it was ready"
    assert classify_evidence(seen).reason == f"{how}{ready}{said}"


LONG: list[Callable[[str], Evidence]] = [
    lambda text: HttpStatus(status=500, body=text),
    lambda text: RpcError(method="m", code=1, message=text),
    lambda text: NotMcp(fault=NotMcpFault.NOT_JSON, detail=text),
    lambda text: ProcessExit(code=1, stderr=text),
    lambda text: Unexpected(type="E", detail=text),
]


@pytest.mark.parametrize("make", LONG)
def test_a_reason_is_one_line_of_bounded_length_for_any_text_of_a_server(make: Callable[[str], Evidence]) -> None:
    reason = classify_evidence(make("line one\r\n" + "word " * 100_000 + "\n end")).reason
    assert len(reason) < 400
    assert len(reason.splitlines()) == 1


def test_a_timeout_before_anything_was_sent_asks_for_a_look_at_the_network_and_not_for_more_time() -> None:
    hint = classify_evidence(TimedOut(doing="a connection", after=1, sent=False)).hint
    assert "its host is up" in hint
    assert "raise" not in hint


def test_a_timeout_names_the_setting_that_gives_more_time() -> None:
    assert "holdfast.load.attemptTimeout" in classify_evidence(TimedOut(doing="x", after=1)).hint
    assert (
        "holdfast.call.timeout" in classify_evidence(TimedOut(doing="x", after=1, setting="holdfast.call.timeout")).hint
    )


@pytest.mark.requirement("LOAD-4", "MSG-3")
def test_a_server_that_wants_a_password_does_not_send_people_to_a_login() -> None:
    login = Login(state=LoginState.NONE, command="holdfast login a")
    wanted = {"www-authenticate": 'Basic realm="x"'}
    verdict = classify_evidence(HttpStatus(status=401, headers=wanted, login=login))
    assert verdict.status == "denied"
    assert "a user name and a password" in verdict.reason
    assert "holdfast login" not in verdict.reason
    both = {"www-authenticate": 'Basic realm="x", Bearer'}
    assert "holdfast login a" in classify_evidence(HttpStatus(status=401, headers=both, login=login)).reason


def test_a_process_that_ended_well_too_early_was_not_killed() -> None:
    assert classify_evidence(ProcessExit(code=0)).reason.startswith(
        "its process exited with code 0 before it was ready"
    )
    assert classify_evidence(ProcessExit(code=-9)).reason.startswith("its process was killed by signal 9")


@pytest.mark.requirement("LOAD-2")
def test_a_403_with_a_long_body_states_a_decision() -> None:
    outage = "ext_authz error"
    assert stated_in(outage.ljust(LONGEST_BODY)) is Statement.OUTAGE
    assert stated_in(outage.ljust(LONGEST_BODY + 1)) is Statement.DECISION


def test_a_definition_that_cannot_be_used_says_each_problem() -> None:
    assert classify_evidence(BadConfig(problems=("no url", "no such key"))).reason == "no url; no such key"
    assert classify_evidence(BadConfig(problems=())).reason == "its definition cannot be used"


@pytest.mark.requirement("LOAD-4")
def test_a_page_for_a_browser_is_quoted_in_no_reason_and_a_line_of_text_is() -> None:
    page = classify_evidence(HttpStatus(status=500, body="<h1>Internal Error</h1>"))
    assert "Internal" not in page.reason
    assert "HTTP 500" in page.reason
    assert '"the disk is full"' in classify_evidence(HttpStatus(status=500, body="the disk is full")).reason


@pytest.mark.requirement("LOAD-2")
def test_a_proxy_that_refuses_is_a_matter_of_the_environment_and_is_not_tried_again() -> None:
    refused = NetworkFailure(fault=NetworkFault.PROXY_REFUSED, detail="it answered HTTP 403")
    verdict = classify_evidence(refused)
    assert (verdict.status, verdict.reason) == (
        "permanent",
        "the proxy on the way does not connect to it: it answered HTTP 403",
    )
    assert "NO_PROXY" in verdict.hint
