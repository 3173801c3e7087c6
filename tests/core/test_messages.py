"""The words: exact, sorted, each class with its own, and nothing but the classification behind them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from holdfast.core.messages import Failure, FailureStatus, for_model, for_user

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
    assert "will not be retried" in user
    assert "not retried" in model
    for words in (user, model):
        assert "log in" in words
        assert "ask for access" in words
        assert "crm" in words
    assert model.endswith("crm: it asks for credentials and none are configured (HTTP 401)")


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
    assert told[2].endswith(":** d: no")


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
