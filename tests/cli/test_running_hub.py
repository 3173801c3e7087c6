"""``holdfast reconnect``, ``enable`` and ``disable``: what is asked of the hub, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.fleets import fleet
from tests.cli.hub_peer import HubPeer, hub_peer
from tests.cli.in_process import Inside

pytestmark = pytest.mark.requirement("HUB-5")


@pytest.fixture
def hub() -> Iterator[HubPeer]:
    with hub_peer(*fleet()) as peer:
        yield peer


def posted(hub: HubPeer) -> list[str]:
    return sorted(request for request, _ in hub.asked if request.startswith("POST"))


@pytest.mark.parametrize("command", ["reconnect", "enable", "disable"])
def test_the_hub_is_asked_for_each_server_once_and_how_it_is_then_is_shown(
    command: str, inside: Inside, hub: HubPeer
) -> None:
    ran = inside(command, "notes", "archive", "notes", environment=hub.environment)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "notes  ✓ connected  It is available.\narchive  · idle  It is idle.\n"
    assert posted(hub) == [f"POST /api/servers/archive/{command}", f"POST /api/servers/notes/{command}"]


def test_what_the_hub_refuses_is_told_with_its_reason_and_its_neighbours_are_done(inside: Inside, hub: HubPeer) -> None:
    refusal = {"error": "`scratch` is switched off", "hint": "run `holdfast enable scratch`"}
    hub.answers["POST /api/servers/scratch/reconnect"] = (409, refusal)
    ran = inside("reconnect", "scratch", "notes", environment=hub.environment)
    assert ran.code == 1
    assert ran.out.startswith("notes  ✓ connected")
    assert ran.err == "error: scratch: `scratch` is switched off\n\nhint: run `holdfast enable scratch`\n"


def test_programs_get_what_came_of_each(inside: Inside, hub: HubPeer) -> None:
    hub.answers["POST /api/servers/vault/reconnect"] = (502, {"error": "it answered 401", "hint": ""})
    ran = inside("reconnect", "vault", "notes", "--json", environment=hub.environment)
    assert (ran.code, ran.err) == (1, "")
    assert json.loads(ran.out) == {
        "version": 1,
        "servers": [
            {"id": "vault", "ok": False, "error": "it answered 401", "hint": None},
            {"id": "notes", "ok": True, "server": hub.servers["notes"].model_dump(mode="json")},
        ],
    }


def test_nothing_is_done_if_any_name_is_wrong(inside: Inside, hub: HubPeer) -> None:
    ran = inside("disable", "notes", "tickr", environment=hub.environment)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "error: no server named `tickr` is configured\n\nhint: did you mean `ticker`?\n"
    assert posted(hub) == []


def test_a_name_that_is_like_none_is_told_with_those_that_are_there(inside: Inside, hub: HubPeer) -> None:
    ran = inside("enable", "qqq", environment=hub.environment)
    assert "hint: known: archive, calendar, notes, scratch, ticker, vault\n" in ran.err


def test_a_server_must_be_named(inside: Inside) -> None:
    assert inside("disable").code == 2


def test_a_wrong_token_is_told_and_not_shown(inside: Inside, hub: HubPeer) -> None:
    environment = {**hub.environment, "HOLDFAST_CONTROL_TOKEN": "not-the-token-at-all"}
    ran = inside("enable", "notes", environment=environment)
    assert ran.code == 1
    assert ran.err.startswith("error: the control token is wrong\n")
    assert "not-the-token-at-all" not in ran.err
