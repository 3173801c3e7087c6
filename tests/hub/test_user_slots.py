"""Users with slots of their own: who has one, where it runs, and what one user's slot tells the others (SEC-13)."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.access import LOCAL
from holdfast.core import State, events as on
from holdfast.errors import ServerBusy
from holdfast.hub import OneClientRecord, Published, Slot
from holdfast.hub.hub import Hub
from holdfast.hub.owned_slots import UserPlaces, user_owners
from holdfast.testing import HttpServer
from holdfast.wire import PRINCIPAL_HEADER
from tests.harness.open_hubs import config, records
from tests.harness.waiting import came_true

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-13")]


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with HttpServer({"hello": "hi"}) as server:
        servers = {"mail": {**server.definition, "sharing": "per-user"}, "plain": server.definition}
        async with Hub(config(servers, perUser={"connections": 2, "processes": 1}), has_local=False) as hub:
            assert await hub.ready(60)
            yield hub


def start(hub: Hub, principal: str) -> Slot:
    return hub.registry.users.of(principal, hub.config.servers["mail"], lambda: None)


def names(hub: Hub, principal: str) -> list[str]:
    return sorted(entry.name for entry in hub.registry.users.catalogs.of(principal).tools)


async def test_a_user_has_a_slot_and_a_catalog_of_her_own_once_it_was_started(hub: Hub) -> None:
    users = hub.registry.users
    assert [users.has_own(*pair) for pair in (("ann", "mail"), ("ann", "plain"), (LOCAL.name, "mail"))] == [
        True,
        False,
        False,
    ]
    assert users.slot("ann", "mail") is hub.registry.slot("mail")
    told = records(hub)
    ann = start(hub, "ann")
    assert start(hub, "ann") is ann is users.slot("ann", "mail")
    assert users.slot("ann", "plain") is hub.registry.slot("plain")
    with anyio.fail_after(30):
        await came_true(lambda: ann.state is State.CONNECTED and "mail__hello" in names(hub, "ann"))
    assert names(hub, "bob") == ["plain__hello"]
    of_ann = [one.record for one in told if isinstance(one, OneClientRecord) and one.principal == "ann"]
    assert [one.kinds for one in of_ann if isinstance(one, Published)] == [("tools",)]
    assert users.of_server("mail") == [("ann", ann)]
    assert users.lacking_login("ann") == users.lacking_login(LOCAL.name) == ()
    users.withdrawn("mail")
    assert users.of_server("mail") == []
    assert names(hub, "ann") == ["plain__hello"]


async def test_over_the_limit_the_next_user_is_refused_with_the_setting_to_raise(hub: Hub) -> None:
    start(hub, "ann")
    start(hub, "bob")
    with pytest.raises(ServerBusy, match=r"limit of 2 users .* `holdfast\.perUser\.connections`"):
        start(hub, "eve")
    owners = user_owners(SimpleNamespace(), SimpleNamespace(), others=lambda _: [])  # type: ignore[arg-type]
    process = replace(hub.config.servers["mail"], transport="stdio", command="x")
    owners.check(process, [], "ann", hub.config.settings)
    with pytest.raises(ServerBusy, match=r"limit of 1 users .* `holdfast\.perUser\.processes`"):
        owners.check(process, ["ann"], "bob", hub.config.settings)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State.DENIED, on.LoginSucceeded()),
        (State.PERMANENTLY_FAILED, on.LoginSucceeded()),
        (State.CONNECTED, on.ReconnectRequested()),
    ],
)
async def test_a_login_begins_the_slot_of_its_user_again(hub: Hub, state: State, expected: on.Event) -> None:
    slot = Noted(state)
    hub.registry.users.slots.find = lambda owner, server: slot if owner == "ann" else None  # type: ignore[method-assign,assignment,return-value]
    hub.registry.users.use_login("ann", "mail")
    hub.registry.users.use_login("bob", "mail")
    assert slot.events == [expected]


class Noted:
    """A slot that notes what it is told."""

    def __init__(self, state: State = State.CONNECTED) -> None:
        self.state = state
        self.events: list[on.Event] = []

    def handle(self, event: on.Event) -> None:
        self.events.append(event)


async def test_what_a_user_sees_of_a_server_is_news_for_the_others(hub: Hub) -> None:
    ann, bob, denied = Noted(), Noted(), Noted(State.DENIED)
    slots: Any = [("ann", ann), ("bob", bob), ("denied", denied)]
    ladders: Any = SimpleNamespace(authorize=print)
    catalogs: Any = SimpleNamespace(of=print, publish=print)
    owners = user_owners(ladders, catalogs, others=lambda _: slots)
    assert hub.registry.context is not None
    async with anyio.create_task_group() as tasks:
        peer = owners.context(replace(hub.registry.context, tasks=tasks), "ann").fleet
        assert peer is not None
        tripped = on.PeerTripped(status="transient", reason="down")
        peer.share("mail", tripped)
    assert (ann.events, bob.events, denied.events) == ([], [tripped], [tripped])
    async with anyio.create_task_group() as tasks:
        peer = owners.context(replace(hub.registry.context, tasks=tasks), "ann").fleet
        assert peer is not None
        peer.share("mail", on.PeerTripped(status="denied"))
        peer.release("mail", 1.0)
        peer.claim("mail", None, 1)
    recovered = on.PeerRecovered()
    assert (ann.events, bob.events[1:], denied.events[1:]) == ([], [recovered], []), "a denial says that it answers"
    async with anyio.create_task_group() as tasks:
        peer = owners.context(replace(hub.registry.context, tasks=tasks), "ann").fleet
        assert peer is not None
        peer.claim("mail", 1.0, 1)
    assert (ann.events, len(bob.events)) == ([on.ClaimGranted(until=math.inf)], 2)


async def test_the_process_of_a_user_runs_on_her_replica(hub: Hub) -> None:
    remote, process = hub.config.servers["mail"], replace(hub.config.servers["mail"], transport="stdio", command="x")
    alone, fleet = UserPlaces(None), UserPlaces(SimpleNamespace(user_home={"ann": "host:1", "bob": None}.get))
    assert alone.of("ann", process) is process
    assert fleet.of("ann", remote) is remote, "a server over HTTP is reached from every replica"
    assert fleet.of("bob", process) is process, "hers is this replica"
    there = fleet.of("ann", process)
    assert (there.hub, there.headers) == ("host:1", {PRINCIPAL_HEADER: json.dumps("ann")})
    fleet.moved.add(("ann", "mail"))
    assert [fleet.take_moved(who, "mail") for who in ("bob", "ann", "ann")] == [False, True, False]


async def test_a_slot_ends_when_the_processes_of_its_user_moved(hub: Hub) -> None:
    users = hub.registry.users
    start(hub, "ann")
    users.review_homes()
    assert len(users.of_server("mail")) == 1
    moved: set[tuple[str, str]] = set()
    users.places = SimpleNamespace(  # type: ignore[assignment]
        of=lambda principal, spec: replace(spec, hub="host:1"), moved=moved
    )
    users.review_homes()
    assert (users.of_server("mail"), moved) == ([], {("ann", "mail")})
