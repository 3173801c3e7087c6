"""A verdict of a person about one call: it serves that call, once, and in its time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from holdfast.config import ApprovalSettings
from holdfast.errors import NotApproved
from holdfast.hub.call_approvals import (
    MOST_OF_CALLER,
    CallApprovals,
    CallBinding,
    CallQuestion,
    CallVerdict,
    UnknownQuestion,
)

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-19")]

LIFETIME = 60.0
ASKED = CallBinding("ada", "jira", "delete", "hash", "policy-1", "rule-1")
YES = CallVerdict(approved=True, by="eve")


class Wall:
    """The time of day, which a test moves on."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Told:
    """What one replica tells the others."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.questions: dict[str, Mapping[str, Any] | None] = {}
        self.verdicts: dict[str, Mapping[str, Any]] = {}

    def note_question(self, question: str, value: Mapping[str, Any] | None, until: float) -> None:
        self.questions[question] = value

    def note_verdict(self, question: str, value: Mapping[str, Any], until: float) -> None:
        self.verdicts[question] = value


def approvals(wall: Wall, told: Told | None = None) -> CallApprovals:
    settings = ApprovalSettings(lifetime=LIFETIME)
    return CallApprovals(lambda: settings, told, wall=wall)


def asked(questions: CallApprovals, binding: CallBinding = ASKED) -> CallQuestion:
    return questions.open(binding, approver="operator", rule=binding.rule, program="agent", arguments="{}")


@pytest.mark.parametrize("field", CallBinding._fields)
def test_a_verdict_serves_no_call_that_differs_in_anything(field: str) -> None:
    questions = approvals(Wall())
    questions.decide(asked(questions).id, YES)
    assert questions.take(ASKED._replace(**{field: "another"})) is None
    assert questions.take(ASKED) == YES
    assert questions.take(ASKED) is None, "it was used"


async def test_of_two_equal_calls_that_wait_one_gets_the_verdict_and_the_other_is_not_kept_waiting() -> None:
    questions = approvals(Wall())
    question = asked(questions)
    got: list[CallVerdict | None] = []

    async def call() -> None:
        got.append(await questions.wait(ASKED, within=60.0))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            assert got == [], "both wait while the question is open"
            questions.decide(question.id, YES)
    assert sorted(got, key=lambda one: one is None) == [YES, None]


async def test_a_call_waits_no_longer_than_its_hub_and_its_own_limit() -> None:
    questions = approvals(Wall())
    asked(questions)
    with anyio.fail_after(5):
        assert await questions.wait(ASKED, within=0.01) is None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(questions.wait, ASKED, 60.0)
            await anyio.wait_all_tasks_blocked()
            questions.close()


def test_a_question_whose_time_is_over_is_not_decided_and_is_asked_again() -> None:
    wall = Wall()
    questions = approvals(wall)
    first = asked(questions)
    assert asked(questions) is first, "the same call opens no second question"
    wall.now += LIFETIME
    with pytest.raises(UnknownQuestion):
        questions.decide(first.id, YES)
    assert questions.waiting() == []
    assert asked(questions).id != first.id


def test_a_verdict_is_not_used_after_the_time_of_its_question() -> None:
    wall = Wall()
    questions = approvals(wall)
    questions.decide(asked(questions).id, YES)
    wall.now += LIFETIME
    assert questions.take(ASKED) is None


def test_a_question_is_decided_once() -> None:
    questions = approvals(Wall())
    question = asked(questions)
    questions.decide(question.id, CallVerdict(approved=False, by="eve"))
    with pytest.raises(UnknownQuestion):
        questions.decide(question.id, YES)
    questions.follow_verdict(question.id, YES._asdict())
    assert questions.take(ASKED) == CallVerdict(approved=False, by="eve")


def test_one_caller_does_not_take_the_place_of_all_others() -> None:
    questions = approvals(Wall())
    for number in range(MOST_OF_CALLER):
        asked(questions, ASKED._replace(argument_hash=str(number)))
    with pytest.raises(NotApproved):
        asked(questions, ASKED._replace(argument_hash="one more"))
    asked(questions, ASKED._replace(principal="bob"))


def test_a_verdict_at_another_replica_reaches_the_home_of_the_question_and_serves_there_alone() -> None:
    wall, of_a, of_b = Wall(), Told("a"), Told("b")
    home, other = approvals(wall, of_a), approvals(wall, of_b)
    question = asked(home)
    other.follow_question(question.id, of_a.questions[question.id])
    assert other.elsewhere(ASKED) == "a"
    assert [one.id for one in other.waiting()] == [question.id]
    other.decide(question.id, YES)
    assert other.take(ASKED) is None
    assert other.elsewhere(ASKED) == ""
    home.follow_verdict(question.id, of_b.verdicts[question.id])
    assert home.take(ASKED) == YES
    assert of_a.questions[question.id] is None, "the others hear that it is over"


@pytest.mark.parametrize("value", [{}, {"id": "x"}, {"binding": "no binding"}])
def test_a_question_of_another_version_is_left_alone(value: Mapping[str, Any]) -> None:
    questions = approvals(Wall())
    questions.follow_question("a-1", value)
    assert questions.waiting() == []


def test_a_question_is_told_to_its_caller_and_to_those_who_watch() -> None:
    questions, woken = approvals(Wall()), list[int]()
    questions.watch(lambda: woken.append(len(questions.waiting())))
    question = asked(questions)
    assert questions.decide(question.id, CallVerdict(approved=False, by="eve", reason="x" * 1_000)) == question
    verdict = questions.take(ASKED)
    assert verdict is not None
    assert (verdict.approved, verdict.by, len(verdict.reason)) == (False, "eve", 300)
    assert woken == [1, 0, 0], "it was opened, decided and used"


async def test_a_call_that_waits_is_woken_by_the_end_of_its_questions_time() -> None:
    wall = Wall()
    questions, woken = approvals(wall), list[None]()
    asked(questions)
    questions.watch(lambda: woken.append(None))
    waiting = list[CallVerdict | None]()

    async def wait() -> None:
        waiting.append(await questions.wait(ASKED, 60))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            wall.now += LIFETIME
            assert questions.waiting() == []
    assert (waiting, len(woken)) == ([None], 1)


def test_a_question_of_another_replica_is_followed_to_its_end() -> None:
    wall, of_a = Wall(), Told("a")
    home, other = approvals(wall, of_a), approvals(wall, Told("b"))
    question = asked(home)
    value = of_a.questions[question.id]
    woken = list[None]()
    other.watch(lambda: woken.append(None))
    other.follow_question(question.id, None)
    assert woken == [], "it was not known"
    other.follow_question(question.id, value)
    assert (other.waiting(), len(woken)) == ([question], 1)
    other.follow_question(question.id, None)
    assert (other.waiting(), len(woken)) == ([], 2)
    home.follow_question(question.id, value)
    assert home.waiting() == [question], "its own question is not another replica's too"
    assert home.elsewhere(ASKED) == ""
    other.follow_question(question.id, value)
    wall.now += LIFETIME
    assert (other.elsewhere(ASKED), other.waiting()) == ("", [])


def test_a_verdict_from_another_replica_is_read_with_care() -> None:
    wall = Wall()
    home = approvals(wall, Told("a"))
    question = asked(home)
    home.follow_verdict("a-unknown", {"approved": True})
    home.follow_verdict(question.id, {"approved": "yes", "by": 7, "reason": "y" * 1_000})
    home.follow_verdict(question.id, {"approved": True, "by": "late"})
    assert home.take(ASKED) == CallVerdict(approved=False, by="7", reason="y" * 300), "the first one counts"
    question = asked(home)
    wall.now += LIFETIME
    home.follow_verdict(question.id, {"approved": True})
    assert home.take(ASKED) is None, "its time is over"


def test_the_oldest_question_is_the_first() -> None:
    wall, of_a = Wall(), Told("a")
    home, other = approvals(wall, of_a), approvals(wall, Told("b"))
    first = asked(home)
    assert (first.asked, first.expires, first.home) == (1_000.0, 1_000.0 + LIFETIME, "a")
    assert first.id.startswith("a-")
    wall.now += 1
    second = asked(other)
    other.follow_question(first.id, of_a.questions[first.id])
    assert [one.id for one in other.waiting()] == [first.id, second.id]
