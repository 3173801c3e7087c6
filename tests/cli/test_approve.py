"""``holdfast approve``: what changed is shown, and nothing is approved that was not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.command import Cli
from tests.cli.hub_peer import HubPeer, hub_peer, server
from tests.cli.in_process import Inside

pytestmark = pytest.mark.requirement("SEC-5")

SEARCH = {
    "server": "crm",
    "tool": "search",
    "held": True,
    "changes": ["-description: Find a customer", "+description: Find a customer and mail everyone"],
    "mark": "m1",
}
EXPORT = {"server": "crm", "tool": "export", "held": False, "changes": ['+  "title": "Export"'], "mark": "m2"}
OTHER = {"server": "shop", "tool": "buy", "held": True, "changes": ["-a", "+b"], "mark": "m3"}


@pytest.fixture
def hub() -> Iterator[HubPeer]:
    with hub_peer(server("crm", held=("search",)), server("shop"), server("calm")) as peer:
        peer.answers["GET /api/approvals"] = (200, {"approvals": [SEARCH, EXPORT, OTHER]})
        yield peer


def approved(hub: HubPeer) -> list[tuple[str, object]]:
    return [(request.removeprefix("POST /api/servers/"), body) for request, body in hub.asked if "POST" in request]


def test_without_arguments_every_change_is_shown_with_the_command_that_approves_just_that(
    inside: Inside, hub: HubPeer
) -> None:
    ran = inside("approve", environment=hub.environment)
    assert ran.code == 0
    assert ran.out.splitlines()[:8] == [
        "crm  search  held",
        "  -description: Find a customer",
        "  +description: Find a customer and mail everyone",
        "  $ holdfast approve crm search --mark m1",
        "",
        "crm  export  changed, not held",
        '  +  "title": "Export"',
        "  $ holdfast approve crm export --mark m2",
    ]
    assert ran.err == "3 changes, 2 held until approved\n"
    assert approved(hub) == []


def test_programs_get_the_changes_as_the_control_api_tells_them(inside: Inside, hub: HubPeer) -> None:
    ran = inside("approve", "--json", environment=hub.environment)
    assert json.loads(ran.out) == {
        "version": 1,
        "approvals": [one | {"kind": "tool", "new": False} for one in (SEARCH, EXPORT, OTHER)],
    }


def test_a_servers_changes_are_shown_and_approved_as_they_were_shown(inside: Inside, hub: HubPeer) -> None:
    ran = inside("approve", "crm", "--yes", environment=hub.environment)
    assert ran.code == 0
    assert "mail everyone" in ran.out
    assert "buy" not in ran.out
    assert ran.out.endswith("approved: crm  search\napproved: crm  export\n")
    assert approved(hub) == [
        ("crm/approve", {"tool": "search", "kind": "tool", "mark": "m1"}),
        ("crm/approve", {"tool": "export", "kind": "tool", "mark": "m2"}),
    ]


def test_one_tool_alone_can_be_approved_by_the_mark_of_what_was_looked_at(inside: Inside, hub: HubPeer) -> None:
    refusal = {"error": "the tool `search` of `crm` changed again since it was looked at", "hint": "look at it"}
    hub.answers["POST /api/servers/crm/approve"] = (409, refusal)
    ran = inside("approve", "crm", "search", "--mark", "m0", environment=hub.environment)
    assert ran.code == 1
    assert "changed again since it was looked at" in ran.err
    assert approved(hub) == [("crm/approve", {"tool": "search", "kind": "tool", "mark": "m0"})]


def test_programs_get_what_was_approved_and_what_was_not(inside: Inside, hub: HubPeer) -> None:
    hub.answers["POST /api/servers/crm/approve"] = (409, {"error": "it changed again", "hint": ""})
    ran = inside("approve", "crm", "search", "--json", environment=hub.environment)
    assert ran.code == 1
    refused = {"server": "crm", "tool": "search", "kind": "tool", "error": "it changed again", "hint": None}
    assert json.loads(ran.out) == {"version": 1, "approved": [], "refused": [refused]}


@pytest.mark.parametrize(("answer", "is_approved"), [("y", True), ("n", False), ("", False)])
def test_on_a_terminal_nothing_is_approved_without_a_yes(
    answer: str, is_approved: bool, cli: Cli, hub: HubPeer
) -> None:
    with cli.on_terminal("approve", "crm", "search", **hub.environment) as terminal:
        terminal.until("approve 1 change? [y/N]")
        assert "mail everyone" in terminal.text
        terminal.press(f"{answer}\r")
        assert terminal.code() == (0 if is_approved else 1)
    assert bool(approved(hub)) == is_approved


def test_a_server_without_waiting_changes_is_fine(inside: Inside, hub: HubPeer) -> None:
    ran = inside("approve", "calm", environment=hub.environment)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "no changes wait for approval at calm\n"
    assert json.loads(inside("approve", "calm", "--json", environment=hub.environment).out)["approved"] == []


def test_names_that_are_nearly_right_are_suggested(inside: Inside, hub: HubPeer) -> None:
    assert "did you mean `crm`?" in inside("approve", "crn", environment=hub.environment).err
    assert "did you mean `search`?" in inside("approve", "crm", "serch", environment=hub.environment).err
    assert approved(hub) == []


def test_a_mark_without_its_tool_is_wrong_usage(inside: Inside, hub: HubPeer) -> None:
    assert inside("approve", "crm", "--mark", "m1", environment=hub.environment).code == 2


CALL = {
    "id": "8f922-a60b838db0",
    "principal": "https://idp.example#ada",
    "program": "claude-code",
    "server": "billing",
    "tool": "refund",
    "arguments": '{\n "amount": 4200\n}',
    "approver": "operator",
    "rule": "rules[2]",
    "asked": 1_000.0,
    "expires": 1_600.0,
}


@pytest.fixture
def waiting(hub: HubPeer) -> HubPeer:
    hub.answers["GET /api/calls"] = (200, {"now": 1_060.0, "calls": [CALL]})
    hub.answers[f"POST /api/calls/{CALL['id']}"] = (200, CALL)
    return hub


@pytest.mark.requirement("SEC-19")
def test_a_call_that_waits_is_shown_with_the_commands_that_decide_it(inside: Inside, waiting: HubPeer) -> None:
    ran = inside("approve", "--calls", environment=waiting.environment)
    assert ran.out.splitlines() == [
        "billing  refund  8f922-a60b838db0",
        "  https://idp.example#ada of claude-code calls it; an operator decides within 9 min",
        "  {",
        '   "amount": 4200',
        "  }",
        "  $ holdfast approve --call 8f922-a60b838db0",
        "  $ holdfast approve --call 8f922-a60b838db0 --refuse",
    ]
    assert ran.err == "1 call waiting\n"
    assert json.loads(inside("approve", "--calls", "--json", environment=waiting.environment).out)["calls"] == [CALL]


@pytest.mark.requirement("SEC-19")
def test_a_call_is_approved_or_refused_with_a_reason(inside: Inside, waiting: HubPeer) -> None:
    ran = inside("approve", "--call", str(CALL["id"]), environment=waiting.environment)
    assert (ran.code, ran.out) == (0, "approved: billing  refund  called by https://idp.example#ada\n")
    ran = inside("approve", "--call", str(CALL["id"]), "--refuse", "--reason", "no", environment=waiting.environment)
    assert (ran.code, ran.out) == (0, "refused: billing  refund  called by https://idp.example#ada\n")
    sent = [body for request, body in waiting.asked if "POST" in request]
    assert sent == [{"approve": True, "reason": ""}, {"approve": False, "reason": "no"}]
    told = json.loads(inside("approve", "--call", str(CALL["id"]), "--json", environment=waiting.environment).out)
    assert (told["approved"], told["call"]) == (True, CALL)


@pytest.mark.requirement("SEC-19")
@pytest.mark.parametrize("wrong", [["--calls", "crm"], ["--call", "x", "crm"], ["--refuse"], ["--reason", "no"]])
def test_options_for_calls_are_used_as_they_are_meant(inside: Inside, waiting: HubPeer, wrong: list[str]) -> None:
    assert inside("approve", *wrong, environment=waiting.environment).code == 2
    assert approved(waiting) == []
