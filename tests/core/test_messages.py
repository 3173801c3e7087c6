"""The words: exact, sorted, each class with its own, and nothing but the classification behind them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from holdfast.core.messages import Failure, FailureStatus, cause_of, for_caller, for_model, for_user, next_try, span

STATUSES: list[FailureStatus] = ["transient", "permanent", "denied"]

ids = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)
failures = st.builds(Failure, ids, st.sampled_from(STATUSES), st.text(max_size=40))
RESERVED = ("Tools from this server will not work", "starting up")


@pytest.mark.requirement("MSG-1")
def test_a_transient_failure_is_told_in_its_fixed_words() -> None:
    failure = Failure("github", "transient", "HTTP 503")
    assert for_user(failure) == "MCP server 'github' is starting up and not ready yet — it will be retried."
    assert for_model([failure]) == "**MCP servers still starting up (will retry; tools may appear shortly):** github"


@pytest.mark.requirement("MSG-2")
def test_a_permanent_failure_is_told_in_its_fixed_words_with_its_reason() -> None:
    failure = Failure("files", "permanent", "the command `npx` was not found")
    assert for_user(failure) == (
        "MCP server 'files' is unavailable: the command `npx` was not found. Tools from this server will not work."
    )
    model = "**MCP servers that failed to load (tools unavailable — needs attention):** files: "
    assert for_model([failure]) == f"{model}the command `npx` was not found"


@pytest.mark.requirement("MSG-3")
def test_a_denial_says_who_was_denied_what_that_it_is_not_retried_and_what_would_change_it() -> None:
    failure = Failure("crm", "denied", "it asks for credentials and none are configured (HTTP 401)")
    user, model = for_user(failure), for_model([failure])
    assert user.startswith(
        "MCP server 'crm' denied access: it asks for credentials and none are configured (HTTP 401). "
    )
    assert "It is not retried" in user
    assert "is not retried" in model
    for words in (user, model):
        assert "log in" in words
        assert "ask for access" in words
        assert "crm" in words
    assert model.endswith("crm: it asks for credentials and none are configured (HTTP 401) (is not retried)")


@pytest.mark.requirement("MSG-2")
def test_the_model_gets_one_line_per_class_with_the_ids_sorted() -> None:
    told = for_model(
        [
            Failure("z", "permanent", "gone"),
            Failure("b", "transient"),
            Failure("a", "permanent", "broken"),
            Failure("d", "denied", "no"),
            Failure("a2", "transient"),
        ]
    ).splitlines()
    assert len(told) == 3
    assert told[0].endswith(":** a2, b")
    assert told[1].endswith(":** a: broken; z: gone")
    assert told[2].endswith(":** d: no (is not retried)")


def test_where_nothing_failed_nothing_is_said() -> None:
    assert for_model([]) == ""


@pytest.mark.requirement("MSG-1", "MSG-2", "MSG-3")
@given(ids, st.sampled_from(STATUSES), st.sampled_from(["", "HTTP 403", "nothing listens there"]))
def test_what_one_class_promises_stands_in_no_message_of_another(name: str, status: FailureStatus, error: str) -> None:
    failure = Failure(name, status, error)
    words = for_user(failure) + for_model([failure])
    assert ("Tools from this server will not work" in words) == (status == "permanent")
    assert ("starting up" in words) == (status == "transient")


@pytest.mark.requirement("MSG-4")
@given(st.lists(failures))
def test_the_same_failures_in_any_order_give_the_same_words(some: list[Failure]) -> None:
    assert for_model(some) == for_model(reversed(some)) == for_model(list(some))
    assert [for_user(failure) for failure in some] == [for_user(Failure(*failure)) for failure in some]


@given(failures)
def test_a_message_is_one_line_with_any_reason(failure: Failure) -> None:
    assert len(for_user(failure).splitlines()) == 1
    assert len(for_model([failure]).splitlines()) == 1


@pytest.mark.parametrize("status", ["permanent", "denied"])
def test_a_failure_without_a_reason_says_so(status: FailureStatus) -> None:
    assert "no reason was given" in for_user(Failure("a", status))
    assert "a: no reason was given" in for_model([Failure("a", status)])


def test_a_reason_that_ends_in_a_full_stop_gets_no_second_one() -> None:
    assert ".." not in for_user(Failure("a", "permanent", "it is gone."))


NOON = datetime(2026, 7, 28, 12, 0, tzinfo=UTC)


@pytest.mark.requirement("MSG-3", "LOAD-4")
def test_a_denial_without_a_decision_says_that_it_may_be_an_outage_and_when_it_is_asked_again() -> None:
    failure = Failure("crm", "denied", "HTTP 403", unconfirmed=True, retry_in=8.0, in_hub=True)
    assert "may be an outage" in for_user(failure)
    assert "is asked again in 8 s" in for_user(failure)
    assert for_model([failure]).endswith("crm: HTTP 403 (may be an outage; is asked again in 8 s)")
    once = failure._replace(in_hub=False, retry_in=None)
    assert "may be an outage" in for_user(once)
    assert "is not retried" in for_user(once)
    assert "is asked again" not in for_user(once) + for_model([once])


@pytest.mark.requirement("MSG-3")
def test_a_decided_denial_in_a_hub_names_the_time_before_which_it_is_not_asked_again() -> None:
    failure = Failure("crm", "denied", "no", retry_in=300.0, in_hub=True)
    for words in (for_user(failure, now=NOON), for_model([failure], now=NOON)):
        assert "is not asked again before 12:05:00" in words
    assert "is not asked again for 5 min" in for_user(failure)
    assert "is not asked again: log in" in for_user(failure._replace(retry_in=None))
    asked = for_user(failure._replace(retry_in=0.0, call_asks=True))
    assert "The next call asks it again: log in or ask for access first." in asked


@pytest.mark.requirement("MSG-8")
def test_a_lost_server_has_words_of_its_own_with_the_reason_and_the_next_try() -> None:
    failure = Failure("git", "transient", "its process exited with code 3", lost=True, retry_in=4.0, in_hub=True)
    assert for_user(failure) == (
        "MCP server 'git' was lost (its process exited with code 3) and is being reconnected — it will be retried."
        " Next try in 4 s."
    )
    assert for_model([failure]) == (
        "**MCP servers lost and being reconnected (will retry):** git: its process exited with code 3"
    )


@pytest.mark.requirement("MSG-9")
@pytest.mark.parametrize("lost", [True, False])
def test_a_spent_budget_ends_starting_up_and_says_how_long_why_and_when_it_is_tried_next(lost: bool) -> None:
    failure = Failure(
        "git", "transient", "it answered HTTP 503", lost=lost, spent=True, down_for=245.0, retry_in=20.0, in_hub=True
    )
    words = "MCP server 'git' has not been ready for 4 min (it answered HTTP 503) — it will be retried"
    assert for_user(failure) == f"{words}; next try in 20 s."
    assert for_caller(failure) == for_user(failure)
    assert for_user(failure._replace(retry_in=0.0)) == f"{words}; next try now."
    assert for_user(failure._replace(retry_in=None)) == f"{words}."
    assert for_model([failure]) == "**MCP servers not ready for a while (will retry):** git: it answered HTTP 503"


@pytest.mark.requirement("MSG-1", "MSG-8", "MSG-9")
@pytest.mark.parametrize("lost", [True, False])
def test_within_its_budget_a_server_keeps_its_words_however_long_it_takes(lost: bool) -> None:
    failure = Failure("git", "transient", "HTTP 503", lost=lost, retry_in=4.0, in_hub=True)
    long = failure._replace(down_for=3600.0)
    assert for_user(long) == for_user(failure)
    assert for_model([long]) == for_model([failure])


@pytest.mark.requirement("MSG-8", "MSG-9", "HUB-4")
def test_a_refused_call_names_the_next_try_of_every_view_and_how_long_calls_are_refused_beyond_it() -> None:
    lost = Failure("git", "transient", "HTTP 503", lost=True, retry_in=2.0, in_hub=True)
    assert for_caller(lost, refused_for=2.0) == for_user(lost)
    assert for_caller(lost, refused_for=41.0) == f"{for_user(lost)} Calls to it are refused for 41 s."
    starting = lost._replace(lost=False)
    assert for_caller(starting, refused_for=41.0) == f"{for_user(starting)} Try again in 41 s."
    for status in ("permanent", "denied"):
        failure = lost._replace(status=status)
        assert for_caller(failure, refused_for=41.0) == for_user(failure)


@pytest.mark.requirement("MSG-2", "MSG-9")
@given(
    st.builds(
        Failure,
        ids,
        st.sampled_from(STATUSES),
        st.sampled_from(["", "gone", "it is gone."]),
        lost=st.booleans(),
        calls_fail=st.booleans(),
        unconfirmed=st.booleans(),
        spent=st.booleans(),
        down_for=st.none() | st.floats(0, 1e6),
        retry_in=st.none() | st.floats(0, 1e4),
        call_asks=st.booleans(),
        in_hub=st.booleans(),
    )
)
def test_no_message_joins_a_permanent_sentence_with_a_time_to_try_again(failure: Failure) -> None:
    for words in (for_user(failure, now=NOON), for_caller(failure, now=NOON)):
        if "will not work" in words:
            assert words.endswith("Tools from this server will not work.")
            assert failure.status == "permanent"
        assert ("starting up" in words) == (
            failure.status == "transient" and not (failure.lost or failure.spent or failure.calls_fail)
        )


@pytest.mark.requirement("BRK-11")
def test_a_server_whose_calls_fail_is_said_to_be_connected_and_to_refuse_them() -> None:
    failure = Failure("git", "transient", "HTTP 500", calls_fail=True, retry_in=41.0, in_hub=True)
    assert for_user(failure) == (
        "MCP server 'git' is connected, but calls to it fail (HTTP 500). They are refused for now;"
        " the first call in 41 s tries it."
    )
    assert for_model([failure]) == (
        "**MCP servers whose calls fail (calls are refused for now):** git: HTTP 500 (the first call in 41 s tries it)"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59.4, "59 s"), (60, "1 min"), (7199, "120 min"), (7200, "2 h"), (200_000, "2 days")],
)
def test_a_time_is_said_in_its_largest_unit(seconds: float, words: str) -> None:
    assert span(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(None, ""), (0.0, "now"), (0.4, "now"), (0.5, "in 1 s"), (1.2, "in 1 s")]
)
def test_the_next_try_is_now_or_in_some_time_or_not_planned(seconds: float | None, words: str) -> None:
    assert next_try(seconds) == words


@pytest.mark.requirement("DX-5")
def test_a_cause_has_no_duration() -> None:
    assert cause_of("not ready for 3 min") == cause_of("not ready for 12 min") == "not ready"
    assert cause_of("no answer within 30 s to `initialize`") == cause_of("no answer within 2.5 s to `initialize`")
    assert cause_of("it answered 503") == "it answered 503"
    assert cause_of("its process exited with code 3") == "its process exited with code 3"
