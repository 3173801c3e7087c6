"""What a request says beside MCP to a hub or a server, and what an answer of a hub is for this hub alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.config import ServerSpec
from holdfast.core import MOST_HUBS, ToldByHub
from holdfast.errors import ServerFailure
from holdfast.wire.raw_json import RawObject
from holdfast.wire.request_form import (
    FAILURE_BYTES,
    FAILURE_KEY,
    LONGEST_PRINCIPAL,
    CallerIdentity,
    HubPeer,
    principal_in,
    via_in,
)
from tests.wire.test_session import OneClient

pytestmark = pytest.mark.requirement("FLEET-6")

HUB = HubPeer(proven=True, own_id="us")
STRANGER = HubPeer(proven=False, own_id="us")


class Client(OneClient):
    """A caller with a name that came through some hubs."""

    def __init__(self, *via: str, principal: str = "", key: str | None = None) -> None:
        super().__init__({})
        self.via, self.principal, self.client_key = via, principal, key  # type: ignore[assignment]


def result(mark: Any, text: object = "It is down.", **more: Any) -> RawObject:
    content = [{"type": "text", "text": text}]
    return RawObject.of({"content": content, "_meta": {FAILURE_KEY: mark}, **more})


def told(hub: HubPeer, mark: Any, **more: Any) -> ToldByHub | None:
    return hub.failure_in(result(mark, **more))


def test_a_request_names_the_hubs_it_passed_and_ends_where_it_would_begin_again() -> None:
    assert HUB.headers(None) == {"holdfast-via": "us"}
    assert HUB.headers(Client("a", "b")) == {"holdfast-via": "a,b,us"}
    assert via_in({"holdfast-via": "a, b,,us"}) == ("a", "b", "us")
    assert via_in({}) == ()
    HUB.headers(Client(*map(str, range(MOST_HUBS - 1))))
    for via in (("us",), map(str, range(MOST_HUBS))):
        with pytest.raises(ServerFailure, match="not sent on"):
            HUB.headers(Client(*via))


@pytest.mark.requirement("HUB-18")
def test_only_a_proven_hub_learns_that_the_client_speaks_the_legacy_era() -> None:
    client = Client()
    client.era = "legacy"
    assert HUB.headers(client) == {"holdfast-via": "us", "holdfast-era": "legacy"}
    assert STRANGER.headers(client) == {"holdfast-via": "us"}


def test_only_a_proven_hub_learns_the_principal() -> None:
    ada = Client(principal="ada ü", key="k")
    assert HUB.headers(ada) == {
        "holdfast-via": "us", "holdfast-client": "k", "holdfast-principal": '"ada \\u00fc"'
    }  # fmt: skip
    assert STRANGER.headers(ada) == {"holdfast-via": "us", "holdfast-client": "k"}
    assert HUB.about(None, "") == {}


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ('"ada \\u00fc"', "ada ü"),
        ("ada", ""),
        ("1", ""),
        ("", ""),
        (json.dumps("x" * (LONGEST_PRINCIPAL - 2)), "x" * (LONGEST_PRINCIPAL - 2)),
        (json.dumps("x" * (LONGEST_PRINCIPAL - 1)), ""),
    ],
)
def test_a_principal_is_read_as_it_was_written_or_not_at_all(said: str, name: str) -> None:
    assert principal_in({"holdfast-principal": said}) == name


@pytest.mark.requirement("SEC-20")
def test_a_server_is_told_of_callers_what_its_definition_says_and_nothing_without_a_caller() -> None:
    def of(identity: Any) -> CallerIdentity | None:
        spec = ServerSpec(id="a", transport="http", url="https://me:pw@x.example:8/mcp?key=1", identity=identity)
        return CallerIdentity.of(spec, "{}@{}".format)

    plain, signed = of("header"), of("signed")
    assert of("none") is None
    assert plain is not None
    assert signed is not None
    assert plain.headers(Client(principal="ada ü%")) == {"holdfast-user": "ada%20%C3%BC%25"}
    assert signed.headers(Client(principal="ada")) == {"holdfast-identity": "ada@https://x.example:8/mcp"}
    for nobody in (None, Client()):
        assert plain.headers(nobody) == signed.headers(nobody) == {}


@pytest.mark.requirement("BRK-3")
def test_a_failure_that_a_hub_tells_is_evidence_with_all_that_it_says() -> None:
    mark = {"class": "denied", "error": "ServerDenied", "state": "denied", "reason": "no", "hint": "ask", "retryIn": 4}
    assert told(HUB, mark) == ToldByHub(
        status="denied",
        reason="no",
        hint="ask",
        words="It is down.",
        refused="ServerDenied",
        state="denied",
        retry_in=4.0,
        sent=False,
    )
    assert HUB.failure_of({FAILURE_KEY: mark}, "It is down.") == told(HUB, mark)
    assert told(HUB, {}) == ToldByHub(status="transient", reason="", words="It is down.", sent=True)
    assert told(HUB, {"sent": False}) == ToldByHub(status="transient", reason="", words="It is down.", sent=False)
    cut = told(HUB, {"error": "ConnectionClosed", "sent": True})
    assert cut is not None
    assert (cut.closed, cut.sent) == (True, True)


def test_a_result_of_a_server_tells_no_failure_of_a_hub() -> None:
    odds: tuple[Any, ...] = (None, "odd", [], 1)
    for odd in odds:
        assert told(HUB, odd) is None
        assert HUB.failure_of({FAILURE_KEY: odd}, "") is HUB.failure_of(odd, "") is None
    assert HUB.failure_in(RawObject.of({"content": []})) is None
    assert HUB.failure_in(RawObject.of({"_meta": "odd"})) is None
    assert told(HUB, {}, more="x" * FAILURE_BYTES) is None


@pytest.mark.parametrize("odd", [None, 1, True, [], {}, "odd", float("1e999"), 10**400, -1])
def test_what_a_mark_says_in_another_form_is_not_said(odd: Any) -> None:
    mark = dict.fromkeys(("class", "error", "state", "hint", "reason", "retryIn"), odd)
    found = HUB.failure_of({FAILURE_KEY: mark}, "words")
    assert found is not None
    assert (found.status, found.refused, found.state, found.sent) == ("transient", "", "", True)
    assert found.retry_in == (1.0 if odd == 1 and odd is not True else None)
    assert found.reason == found.hint == ("odd" if odd == "odd" else "")


@pytest.mark.requirement("MSG-11")
def test_the_text_of_a_hub_is_one_line_and_that_of_a_stranger_is_quoted() -> None:
    mark = {"reason": "it\n is\u200b down", "hint": "run this"}
    (ours, theirs) = (told(hub, mark, text="words " * 5_000) for hub in (HUB, STRANGER))
    assert ours is not None
    assert theirs is not None
    assert (ours.reason, ours.hint, len(ours.words)) == ("it is down", "run this", 4_000)
    assert theirs.reason.startswith("it says: ")
    assert theirs.hint == ""
    for content in ([], ["odd"], "odd", [{"type": "text"}]):
        found = HUB.failure_in(result({}).changed({"content": json.dumps(content).encode()}))
        assert found is not None
        assert found.words == ""
