"""The words for people at their bounds: each time, each name and each promise with and without what it depends on."""

from __future__ import annotations

import pytest

from holdfast.core.messages import Failure, counted, for_caller, for_model, for_user, next_try, span

LOST = Failure("git", "transient", "HTTP 503", lost=True, retry_in=2.0, in_hub=True)
DENIED = Failure("crm", "denied", "HTTP 403", in_hub=True)


@pytest.mark.requirement("MSG-8")
def test_a_refusal_is_named_where_it_lasts_a_second_longer_than_the_next_try() -> None:
    words = for_user(LOST)
    assert for_caller(LOST) == words
    assert for_caller(LOST, refused_for=3.0) == words
    assert for_caller(LOST, refused_for=3.1) == f"{words} Calls to it are refused for 3 s."
    unplanned = LOST._replace(retry_in=None)
    assert for_caller(unplanned, refused_for=1.0) == f"{for_user(unplanned)} Calls to it are refused for 1 s."
    refusing = LOST._replace(calls_fail=True)
    assert for_caller(refusing, refused_for=60.0) == for_user(refusing), "it says itself how long"


def test_a_lost_server_without_a_plan_names_no_time() -> None:
    assert for_user(LOST._replace(retry_in=None)) == (
        "MCP server 'git' was lost (HTTP 503) and is being reconnected — it will be retried."
    )
    assert for_user(LOST._replace(retry_in=0.0)).endswith(" Next try now.")


def test_a_server_that_was_never_ready_has_not_been_for_a_while() -> None:
    assert for_user(LOST._replace(spent=True)) == (
        "MCP server 'git' has not been ready for a while (HTTP 503) — it will be retried; next try in 2 s."
    )


def test_calls_that_are_refused_are_tried_from_a_time_on_or_from_now_on() -> None:
    for retry_in in (None, 0.0):
        refusing = LOST._replace(calls_fail=True, retry_in=retry_in)
        assert for_user(refusing).endswith("They are refused for now; the first call from now on tries it.")
        assert for_model([refusing]).endswith("git: HTTP 503 (the first call from now on tries it)")


@pytest.mark.requirement("MSG-3")
@pytest.mark.parametrize(
    ("failure", "user", "model"),
    [
        (
            DENIED._replace(in_hub=False),
            "It is not retried: log in or ask for access to change that.",
            "is not retried",
        ),
        (
            DENIED._replace(call_asks=True),
            "The next call asks it again: log in or ask for access first.",
            "is asked again by the next call",
        ),
        (DENIED, "It is not asked again: log in or ask for access to change that.", "is not asked again"),
        (
            DENIED._replace(retry_in=90.0),
            "It is not asked again for 2 min: log in or ask for access to change that.",
            "is not asked again for 2 min",
        ),
        (
            DENIED._replace(unconfirmed=True),
            "It states no decision, and may be an outage of the authorization check: it is asked again soon.",
            "may be an outage; is asked again soon",
        ),
        (
            DENIED._replace(unconfirmed=True, retry_in=0.0),
            "It states no decision, and may be an outage of the authorization check: it is asked again now.",
            "may be an outage; is asked again now",
        ),
        (
            DENIED._replace(unconfirmed=True, in_hub=False),
            (
                "It states no decision, and may be an outage of the authorization check. It is not retried in this"
                " load: log in or ask for access to change that, or load it again later."
            ),
            "may be an outage; is not retried in this load",
        ),
    ],
)
def test_a_denial_says_when_it_is_asked_again_and_what_changes_it(failure: Failure, user: str, model: str) -> None:
    assert for_user(failure) == f"MCP server 'crm' denied access: HTTP 403. {user}"
    assert for_model([failure]) == (
        f"**MCP servers that denied access (log in or ask for access to change that):** crm: HTTP 403 ({model})"
    )


def test_a_permanent_failure_and_one_that_starts_have_whole_sentences_of_their_own() -> None:
    assert for_user(Failure("git", "permanent", "gone.")) == (
        "MCP server 'git' is unavailable: gone. Tools from this server will not work."
    )
    assert for_user(Failure("git", "transient")) == (
        "MCP server 'git' is starting up and not ready yet — it will be retried."
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "1 s"), (1.6, "2 s"), (61, "1 min"), (172_799, "48 h"), (172_800, "2 days"), (864_000, "10 days")],
)
def test_a_span_changes_its_unit_at_two_of_the_larger_one(seconds: float, words: str) -> None:
    assert span(seconds) == words
    assert next_try(max(seconds, 0.5)) == f"in {words}"


def test_one_is_counted_without_an_s_and_every_other_number_with_it() -> None:
    assert [counted(number, "tool") for number in (0, 1, 2)] == ["0 tools", "1 tool", "2 tools"]
