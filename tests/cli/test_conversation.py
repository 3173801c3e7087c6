"""What a client's process keeps of the conversation with a hub, so that the next hub can go on: within bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.front import Lines
from holdfast.serve import joiner
from holdfast.serve.joiner import Conversation

pytestmark = pytest.mark.requirement("DX-8", "LIFE-16")


def _line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def _sent(talk: Conversation, **message: Any) -> bytes:
    """A request of the client that a hub got."""
    line = _line(**message)
    for key in talk.from_client(line):
        talk.unanswered[key].sent = True
    return line


def test_the_next_hub_gets_each_request_that_was_sent_and_has_no_answer() -> None:
    talk = Conversation()
    _sent(talk, id=1, method="tools/call", params={"name": "done"})
    waits = _sent(talk, id=2, method="tools/call", params={"name": "waits"})
    talk.from_client(_line(id=3, method="tools/call", params={"name": "not sent"}))
    talk.from_hub(_line(id=1, result={}))
    told, again = talk.resumed()
    assert again == [waits]
    assert told["sent"] == 1


def test_a_cancelled_request_is_not_sent_again() -> None:
    talk = Conversation()
    _sent(talk, id="a", method="tools/call")
    talk.from_client(_line(method="notifications/cancelled", params={"requestId": "a"}))
    assert talk.resumed()[1] == []


def test_the_next_hub_learns_the_level_and_the_subscriptions_that_were_accepted() -> None:
    talk = Conversation()
    handshake = _sent(talk, id=0, method="initialize")
    _sent(talk, id=1, method="logging/setLevel", params={"level": "debug"})
    _sent(talk, id=2, method="resources/subscribe", params={"uri": "file:///kept"})
    _sent(talk, id=3, method="resources/subscribe", params={"uri": "file:///refused"})
    for key in (0, 1, 2):
        talk.from_hub(_line(id=key, result={}))
    talk.from_hub(_line(id=3, error={"code": -1, "message": "no"}))
    told, _ = talk.resumed()
    assert told["handshake"] == handshake.decode()
    assert (told["level"], told["subscribed"]) == ("debug", ["file:///kept"])


def test_the_client_need_not_answer_the_questions_of_a_hub_that_is_gone() -> None:
    talk = Conversation()
    talk.from_hub(_line(id=7, method="sampling/createMessage"))
    talk.from_hub(_line(id=8, method="elicitation/create"))
    talk.from_client(_line(id=7, result={}))
    (cancelled,) = map(json.loads, talk.lost())
    assert (cancelled["method"], cancelled["params"]["requestId"]) == ("notifications/cancelled", 8)
    assert talk.resumed()[0]["question"] == 8, "the next hub counts on: an old answer must not meet a new question"


@pytest.mark.parametrize("bound", ["MOST_KEPT", "KEPT_BYTES"])
def test_a_request_that_there_is_no_room_for_is_told_as_lost_and_never_sent_again(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _line(id=1, method="tools/call")
    monkeypatch.setattr(joiner, bound, 1 if bound == "MOST_KEPT" else len(first))
    talk = Conversation()
    _sent(talk, id=1, method="tools/call")
    _sent(talk, id=2, method="tools/call")
    (refused,) = map(json.loads, talk.lost())
    assert refused["id"] == 2
    assert "its outcome is not known" in refused["error"]["message"]
    assert talk.resumed()[1] == [first]


def test_an_answered_request_makes_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    line = _line(id=1, method="tools/call")
    monkeypatch.setattr(joiner, "KEPT_BYTES", len(line))
    talk = Conversation()
    for _ in range(3):
        _sent(talk, id=1, method="tools/call")
        assert talk.resumed()[1] == [line]
        talk.from_hub(_line(id=1, result={}))
    assert not talk.unanswered


def test_without_a_hub_each_request_is_answered_once_with_the_reason() -> None:
    talk = Conversation()
    _sent(talk, id=1, method="tools/call")
    talk.from_client(_line(id="b", method="tools/list"))
    assert [json.loads(line)["id"] for line in talk.refused("no hub")] == [1, "b"]
    assert [*talk.refused("no hub")] == []


def test_a_line_over_the_bound_is_not_held_and_its_id_is_known() -> None:
    lines = Lines(1_000)
    long = _line(id=5, method="tools/call", params={"text": "x" * 5_000})
    after = _line(id=6, method="ping")
    got = [line for at in range(0, len(long), 100) for line in lines.add(long[at : at + 100])]
    assert (got, lines.refused) == ([], [5])
    assert [*lines.add(after)] == [after], "the next line is read as if nothing had been"
