"""What a person is told of a server: true in every state, the same on the page and in the terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as some

from holdfast.core.breaker import BreakerState
from holdfast.core.classify import classify_evidence
from holdfast.core.evidence import Evidence, HttpStatus, Login, LoginState, ProcessExit
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from holdfast.core.remedies import Facts, remedy_of, text_for


def health(state: State, **more: Any) -> Health:
    base: dict[str, Any] = {
        "server": "x",
        "state": state,
        "reason": "",
        "generation": None,
        "failures": 0,
        "attempts": 0,
        "breaker": BreakerState.CLOSED,
        "retry_in": None,
    }
    return Health(**{**base, **more})


@pytest.mark.requirement("HUB-5")
def test_a_server_that_is_up_needs_no_action() -> None:
    assert text_for(health(State.CONNECTED), Facts(tools=3)) == ("Connected; 3 tools.", "", "")
    assert text_for(health(State.CONNECTED), Facts(tools=1)).summary == "Connected; 1 tool."


@pytest.mark.requirement("HUB-5")
def test_held_tools_ask_for_an_approval() -> None:
    words = text_for(health(State.CONNECTED), Facts(tools=3, held=2))
    assert words.summary == "Connected; 3 tools; 2 changes since first seen are held."
    # A prompt or the instructions may be held too: the text does not call them tools.
    one = text_for(health(State.CONNECTED), Facts(tools=0, held=1))
    assert one.summary == "Connected; 0 tools; 1 change since first seen is held."
    assert words.command == "holdfast approve x"


@pytest.mark.requirement("HUB-5", "MSG-1", "MSG-5")
def test_a_retried_server_needs_no_action_and_offers_a_reconnect() -> None:
    coming = health(State.RECONNECTING, reason="it is not ready", attempts=2, retry_in=3.6)
    words = text_for(coming, Facts(attempts_allowed=5))
    assert words.summary == (
        "MCP server 'x' is starting up and not ready yet — it will be retried."
        " The last attempt: it is not ready. Attempt 2 of 5."
    )
    assert (words.action, words.command) == ("To try it now, reconnect it.", "holdfast reconnect x")


@pytest.mark.requirement("HUB-5", "MSG-5", "LOAD-13")
def test_a_server_that_is_tried_now_is_not_told_to_be_tried_now() -> None:
    starting = health(State.CONNECTING, reason='starting for 8 s; stderr: "fetching"', retry_in=0.0)
    words = text_for(starting, Facts(attempts_allowed=5))
    assert words.summary.endswith('So far: starting for 8 s; stderr: "fetching".')
    assert (words.action, words.command) == (
        "It is being tried now; its log shows how far it is.",
        "holdfast logs x",
    )


@pytest.mark.requirement("HUB-5", "MSG-8")
def test_a_lost_server_is_not_starting_up() -> None:
    lost = health(State.RECONNECTING, reason="its process exited with code 3", attempts=1, retry_in=3.6, lost=True)
    assert text_for(lost, Facts(attempts_allowed=5)).summary == (
        "MCP server 'x' was lost (its process exited with code 3) and is being reconnected — it will be retried."
        " Attempt 1 of 5."
    )


@pytest.mark.requirement("HUB-5", "MSG-9")
def test_a_server_parked_on_transient_evidence_has_transient_words_and_a_reconnect() -> None:
    parked = health(State.PERMANENTLY_FAILED, reason="HTTP 503", evidence="transient", attempts=5, retry_in=12.0)
    assert (parked.status, parked.shown_state) == ("transient", "parked")
    words = text_for(parked, Facts(attempts_allowed=5, hint="no hint"))
    assert words.summary == "MCP server 'x' has not been ready for a while (HTTP 503) — it will be retried."
    assert words.command == "holdfast reconnect x"


@pytest.mark.requirement("HUB-5", "MSG-3")
def test_a_denial_says_when_it_is_asked_again() -> None:
    now = datetime(2026, 7, 28, 12, 0, tzinfo=UTC)
    unconfirmed = health(State.DENIED, reason="HTTP 403", retry_in=8.0, unconfirmed=True)
    words = text_for(unconfirmed, Facts(), now=now)
    assert "may be an outage of the authorization check: it is asked again soon." in words.summary
    assert words.command == "holdfast reconnect x"
    decided = health(State.DENIED, reason="HTTP 403", retry_in=300.0)
    assert "is not asked again before 12:05:00" in text_for(decided, Facts(), now=now).summary


@pytest.mark.requirement("HUB-5", "MSG-3")
def test_a_login_is_offered_only_where_it_helps() -> None:
    denied = health(State.DENIED, reason="its credentials were rejected (HTTP 401)")
    assert text_for(denied, Facts(login="holdfast login x --scope s")).command == "holdfast login x --scope s"
    asked = remedy_of(HttpStatus(status=401, login=Login(state=LoginState.NONE, command="holdfast login x")))
    offered = text_for(denied, Facts(login=asked.login, hint=asked.hint))
    assert offered.action.startswith("Log in; the hub then reconnects it. If it takes a key and no login, add it to")
    words = text_for(denied, Facts(hint="replace the credentials in its `headers`"))
    assert words.command == ""
    assert words.action == "Replace the credentials in its `headers`."
    assert "starting up" not in words.summary


@pytest.mark.requirement("HUB-5", "MSG-2", "MSG-9")
def test_a_failure_comes_with_its_cure_and_a_closer_look() -> None:
    """The permanent sentence stands alone: when the hub looks again is ``retry_in``, which views show in its place."""
    failed = health(
        State.PERMANENTLY_FAILED, reason="the command `y` was not found", retry_in=250.0, evidence="permanent"
    )
    words = text_for(failed, Facts(hint="install it"))
    assert words.summary == (
        "MCP server 'x' is unavailable: the command `y` was not found. Tools from this server will not work."
    )
    assert (words.action, words.command) == ("Install it.", "holdfast doctor x")


@pytest.mark.requirement("HUB-5", "BRK-5")
def test_an_open_breaker_says_that_calls_are_refused() -> None:
    shut = health(State.CONNECTED, breaker=BreakerState.OPEN, breaker_retry_in=41.7)
    assert "refused for now" in text_for(shut, Facts()).summary
    coming = health(State.RECONNECTING, breaker=BreakerState.OPEN, breaker_retry_in=9.0)
    assert "Calls to it are refused for now." in text_for(coming, Facts()).summary
    trying = health(State.CONNECTED, breaker=BreakerState.HALF_OPEN)
    assert "refused except one test call" in text_for(trying, Facts()).summary


@pytest.mark.requirement("HUB-5")
@pytest.mark.parametrize("state", State)
def test_words_do_not_age_while_time_runs(state: State) -> None:
    now = health(state, attempts=1, retry_in=8.0, breaker=BreakerState.OPEN, breaker_retry_in=9.0)
    later = health(state, attempts=1, retry_in=3.0, breaker=BreakerState.OPEN, breaker_retry_in=4.0)
    assert text_for(now, Facts(attempts_allowed=5)) == text_for(later, Facts(attempts_allowed=5))


@pytest.mark.requirement("HUB-5")
def test_a_command_can_be_pasted_for_any_server_name() -> None:
    words = text_for(health(State.DISABLED, server="two words; rm -rf /"), Facts())
    assert words.command == "holdfast enable 'two words; rm -rf /'"


@pytest.mark.requirement("MSG-2", "MSG-1", "MSG-4", "MSG-9")
@given(
    state=some.sampled_from(State),
    breaker=some.sampled_from(BreakerState),
    evidence=some.sampled_from(["transient", "permanent", "denied"]),
    lost=some.booleans(),
    retry_in=some.none() | some.floats(0, 1e6),
    attempts=some.integers(0, 9),
    facts=some.builds(
        Facts,
        tools=some.integers(0, 9),
        held=some.integers(0, 9),
        hint=some.sampled_from(["", "do this", "Ünd"]),
        login=some.sampled_from(["", "holdfast login x"]),
    ),
)
def test_every_state_has_words_that_are_true_of_it(
    state: State, breaker: BreakerState, facts: Facts, retry_in: float | None, **more: Any
) -> None:
    one = health(state, breaker=breaker, retry_in=retry_in, breaker_retry_in=retry_in, **more)
    words = text_for(one, facts)
    assert words == text_for(one, facts)
    assert words.summary.endswith(".")
    trying = state not in (State.CONNECTED, State.PERMANENTLY_FAILED)
    starting = one.status == "transient" and trying and not one.lost
    assert ("starting up" in words.summary) == starting
    assert ("will not work" in words.summary) == (one.status == "permanent")
    assert words.summary.endswith("will not work.") == (one.status == "permanent")
    assert not words.command or words.command.startswith("holdfast ")
    if one.status == "transient":
        assert words.command == "holdfast reconnect x"


@pytest.mark.requirement("HUB-5")
def test_the_login_that_is_offered_is_the_one_that_the_reason_names() -> None:
    login = Login(state=LoginState.NONE, command="holdfast login x")
    bearer = {"www-authenticate": 'Bearer resource_metadata="https://x.example/m"'}
    scope = {"www-authenticate": 'Bearer error="insufficient_scope", scope="read write"'}
    seen = [
        HttpStatus(status=401, headers=bearer, login=login),
        HttpStatus(status=401, login=login),
        HttpStatus(status=403, headers=scope, login=login),
        HttpStatus(status=401, credentials_sent=True, login=login),
        HttpStatus(status=401, credentials_sent=True),
        HttpStatus(status=403, login=login),
    ]
    commands = [remedy_of(one).login for one in seen]
    assert commands == ["holdfast login x"] * 2 + ["holdfast login x --scope 'read write'", "", "", ""]
    for one, command in zip(seen, commands, strict=True):
        assert (f"run `{command}`" in classify_evidence(one).reason) == bool(command)


@pytest.mark.requirement("HUB-5")
def test_a_scope_is_asked_for_only_where_a_login_can_ask_for_it() -> None:
    wanted = {"www-authenticate": 'Bearer error="insufficient_scope", scope="read write"'}
    other = {"www-authenticate": 'Bearer error="invalid_token", scope="read write"'}
    login = Login(state=LoginState.GOOD, command="holdfast login x")
    seen: list[tuple[Evidence | None, tuple[str, ...]]] = [
        (HttpStatus(status=403, headers=wanted, login=login), ("read", "write")),
        (HttpStatus(status=403, headers=wanted), ()),
        (HttpStatus(status=401, headers=other, login=login), ()),
        (HttpStatus(status=403, login=login), ()),
        (ProcessExit(code=1), ()),
        (None, ()),
    ]
    assert [remedy_of(one).scope for one, _ in seen] == [scope for _, scope in seen]
