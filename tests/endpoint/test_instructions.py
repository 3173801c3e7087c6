"""What the hub says of itself: notices in results, marks of failures, protocol errors and capabilities (HUB-11)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from holdfast.core import Kind, NetworkFailure, NetworkFault, RpcError, Unknown
from holdfast.endpoint import EndpointAddress, View, initialize, program_in
from holdfast.endpoint.instructions import (
    discover,
    error_result,
    instructions,
    outcome_unknown,
    own_capabilities,
    protocol_error,
    stateless_notice,
    unknown_name,
    with_notice,
)
from holdfast.errors import BreakerOpen, CallFailed, CallForbidden, HoldfastError, NotApproved, NotAuthorized
from holdfast.wire import LOADED_BYTES, TASKS_EXTENSION, RawObject
from tests.endpoint.test_view import opened
from tests.harness.served_hub import front
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-11")]

FAILURE = "holdfast/failure"
NOT_FOUND = RpcError(method="resources/read", code=-32002, message="no such resource", data={"uri": "x"})
CUT = CallFailed(NetworkFailure(fault=NetworkFault.CLOSED, stood=True), "it was cut off", uncertain=True)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"content": []}, {"content": ["NOTICE"], "_meta": {"k": True}}),
        ({"content": [1]}, {"content": [1, "NOTICE"], "_meta": {"k": True}}),
        ({"content": [1], "_meta": {"mine": 1}}, {"content": [1, "NOTICE"], "_meta": {"mine": 1, "k": True}}),
        ({"content": 7}, {"content": 7, "_meta": {"k": True}}),
        ({}, {"_meta": {"k": True}}),
    ],
)
def test_a_notice_stands_in_the_meta_and_after_what_a_model_reads(said: dict[str, Any], shown: dict[str, Any]) -> None:
    block = {"type": "text", "text": "the notice", "annotations": {"audience": ["assistant"]}}
    result = with_notice(RawObject.of(said), "k", "the notice", tool=True)
    told = json.loads(result.written())
    if isinstance(shown.get("content"), list):
        shown = {**shown, "content": [block if one == "NOTICE" else one for one in shown["content"]]}
    assert told == shown
    for_a_program = json.loads(with_notice(RawObject.of(said), "k", "the notice", tool=False).written())
    assert for_a_program.get("content") == said.get("content")


def test_a_large_meta_stays_as_it_is_and_the_model_still_reads_the_notice() -> None:
    meta = {"mine": "x" * LOADED_BYTES}
    told = json.loads(with_notice(RawObject.of({"content": [], "_meta": meta}), "k", "n", tool=True).written())
    assert told["_meta"] == meta
    assert [block["text"] for block in told["content"]] == ["n"]


@pytest.mark.parametrize(
    ("kind", "modern", "code", "words"),
    [
        (Kind.TOOL, True, INVALID_PARAMS, "Unknown tool: x; did you mean a or b?"),
        (Kind.TOOL, False, INVALID_PARAMS, "Unknown tool: x; did you mean a or b?"),
        (Kind.RESOURCE, False, -32002, "Unknown resource: x; did you mean a or b?"),
        (Kind.RESOURCE, True, INVALID_PARAMS, "Unknown resource: x; did you mean a or b?"),
    ],
)
def test_an_unknown_name_has_the_code_of_its_era(kind: Kind, modern: bool, code: int, words: str) -> None:
    error = unknown_name(kind, Unknown("x", ("a", "b")), modern=modern).error
    assert (error.code, error.message) == (code, words)
    assert unknown_name(kind, Unknown("x", ()), modern=modern).error.message == words.partition(";")[0]


def test_an_error_that_the_server_answered_passes_with_the_code_of_its_era() -> None:
    for modern, code in ((True, INVALID_PARAMS), (False, -32002)):
        error = protocol_error(CallFailed(NOT_FOUND, "it failed"), modern=modern).error
        assert (error.code, error.message, error.data) == (code, "no such resource", {"uri": "x"})
    other = CallFailed(RpcError(method="tools/call", code=-32001, message="own"), "it failed")
    assert protocol_error(other, modern=True).error.code == -32001


@pytest.mark.parametrize(
    ("error", "mark"),
    [
        (CUT, {"error": "CallFailed", "class": "transient", "sent": True}),
        (
            BreakerOpen("no", server_id="a", state="reconnecting", reason="it fell", retry_in=2.0),
            {"class": "transient", "server": "a", "reason": "it fell", "retryIn": 2.0, "sent": False},
        ),
        (CallForbidden("no", rule="r", hint="ask"), {"class": "denied", "reason": "no", "hint": "ask", "sent": False}),
        (NotApproved("no", hint="ask"), {"class": "denied", "sent": False}),
        (NotAuthorized("no"), {"class": "transient", "reason": "no", "sent": False}),
    ],
)
def test_an_error_of_the_hub_says_to_a_program_what_it_is(error: HoldfastError, mark: dict[str, Any]) -> None:
    result = error_result(error)
    assert result["isError"] is True
    assert mark.items() <= result["_meta"][FAILURE].items()
    refused = protocol_error(error, modern=True).error
    assert (refused.code, refused.data) == (INTERNAL_ERROR, {FAILURE: result["_meta"][FAILURE]})
    assert refused.message == result["content"][0]["text"]


@pytest.mark.requirement("LIFE-16")
def test_a_call_whose_outcome_is_not_known_may_have_been_sent() -> None:
    assert error_result(outcome_unknown("a"))["_meta"][FAILURE]["sent"] is True


def test_a_client_is_told_of_servers_without_a_memory_only_where_there_are_some() -> None:
    assert stateless_notice([]) == ""
    assert "one connection per client: a, b." in stateless_notice(["a", "b"])


@pytest.mark.parametrize(
    ("info", "program"), [({"name": "x"}, "x"), ({"name": "x" * 101}, "x" * 100), ({"name": 7}, ""), ({}, ""), (7, "")]
)
def test_a_client_is_known_by_the_name_that_it_gives_itself(info: object, program: str) -> None:
    assert program_in(info) == program


# The handshake.

ABOUT = {"name": "c", "version": "1"}
HELLO: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": ABOUT}


async def test_a_handshake_settles_the_version_and_what_the_client_is() -> None:
    async with opened("a") as hub:
        settled = initialize(View(hub), {**HELLO, "capabilities": {"roots": {"listChanged": True}}})
        assert (settled.version, settled.program) == ("2025-06-18", "c")
        assert settled.capabilities == {"roots": {"listChanged": True}}
        assert json.loads(settled.result)["protocolVersion"] == "2025-06-18"
        assert initialize(View(hub), {**HELLO, "protocolVersion": "1999-01-01"}).version == "2025-11-25"


async def test_the_endpoint_of_many_servers_declares_everything_of_its_era() -> None:
    async with opened("a", "b") as hub:
        legacy = json.loads(initialize(View(hub), HELLO).result)["capabilities"]
        modern = discover(View(hub), ["b"]).value()
        assert legacy["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
        assert {"logging", "tools", "prompts", "resources", "completions"} <= legacy.keys()
        assert modern["capabilities"]["extensions"] == {TASKS_EXTENSION: {}}
        assert not {"logging", "tasks"} & modern["capabilities"].keys()
        assert legacy["experimental"] == {"holdfast": {"version": 1}}
        assert "one connection per client: b." in modern["instructions"]
        assert "extensions" not in legacy


async def test_the_endpoint_of_one_server_declares_what_the_server_did_and_the_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened("a", "b") as hub:
        view = View(hub, EndpointAddress("a"))
        declared: dict[str, Any] = {"prompts": {}, "tasks": {"list": {}, "cancel": {}}}
        declared |= {"experimental": {"theirs": {}}, "extensions": {"e": {}}}
        monkeypatch.setattr("holdfast.endpoint.instructions.own_capabilities", lambda _: declared)
        legacy = json.loads(initialize(view, HELLO).result)["capabilities"]
        modern = discover(view, []).value()["capabilities"]
        assert legacy.keys() == {"tools", "prompts", "tasks", "experimental", "extensions"}
        assert legacy["tasks"] == {"cancel": {}}, "a list of tasks would show those of every client"
        assert legacy["experimental"] == {"theirs": {}, "holdfast": {"version": 1, "warns": True}}
        assert modern["extensions"] == {"e": {}}
        assert "tasks" not in modern


async def test_instructions_are_the_words_of_a_server_alone_and_are_quoted_beside_those_of_the_hub() -> None:
    async with running("legacy") as origin, front({"o": {"url": origin.url}}) as served:
        hub, one = served.hub, View(served.hub, EndpointAddress("o"))
        assert "logging" in (own_capabilities(one) or {})
        assert own_capabilities(View(hub)) is None
        assert instructions(one) == "Origin says: be kind."
        assert "warns" not in json.loads(initialize(one, HELLO).result)["capabilities"]["experimental"]["holdfast"]
        quoted = "## o\nThe instructions of this server, in its own words:\n> Origin says: be kind."
        assert instructions(View(hub)).endswith(quoted)
        await hub.toggle("o", False)
        assert own_capabilities(one) is None
        assert instructions(one) == ""


async def test_instructions_name_the_servers_of_an_endpoint_and_what_is_wrong_with_them() -> None:
    async with opened("a", "b") as hub:
        many = instructions(View(hub))
        found = instructions(View(hub, EndpointAddress(tools="find")))
        assert "kept by Holdfast: a, b." in many
        assert "`holdfast_status`" in many
        assert "find_tools" in found
        assert "holdfast_status" not in found
        assert all("still starting up" in words for words in (many, found))
        assert instructions(View(hub, EndpointAddress("a", "find"))) == found.replace(":** a, b", ":** a")
    async with opened("u", sharing="per-user") as hub:
        assert "every user acts as herself, with her own login: u." in instructions(View(hub))
    async with opened() as hub:
        assert "kept by Holdfast: none." in instructions(View(hub))
