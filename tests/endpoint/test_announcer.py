"""Who is told of what no client asked for: changed lists, updated resources, messages of servers (HUB-2, HUB-10)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from mcp import MCPError

from holdfast.access import LOCAL, Principal
from holdfast.core import AccessChanged, Item, State, Transition
from holdfast.endpoint import Broker, Client, EndpointAddress, Outlet, View
from holdfast.endpoint.view import ALL_SERVERS
from holdfast.hub import ConfigApplied, Hub, Missed, OneClientRecord, Published
from tests.endpoint.test_view import opened, publish

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2", "HUB-10")]

ANN = Principal(name="ann", source="token")
STATUS = "holdfast://status"
CHANGED = {f"{kind}/list_changed" for kind in ("tools", "prompts", "resources")}


class Told:
    """The stream of a legacy client; it keeps what it was told."""

    is_open = True

    def __init__(self, broker: Broker, address: EndpointAddress = ALL_SERVERS, who: Principal = LOCAL) -> None:
        self.came: list[str] = []
        self.params: list[Mapping[str, Any] | None] = []
        self.client = Client(View(broker.hub, address), self, {"roots": {}}, modern=False, owner=self, identity=who)
        broker.attach(self.client)

    def tell(self, method: str, params: Mapping[str, Any] | None, *, everywhere: bool = False) -> None:
        self.came.append(method.removeprefix("notifications/"))
        self.params.append(params)

    async def reach(self, method: str) -> Outlet:
        raise MCPError(-32600, "this client cannot be asked")

    def put_question(self, message: bytes) -> None:
        raise NotImplementedError

    def taken(self) -> set[str]:
        """What it was told since the last time."""
        came = set(self.came)
        self.came.clear()
        return came


def published(hub: Hub, server: str, *kinds: str, own: tuple[str, ...] = (), version: int | None = None) -> Published:
    at = hub.catalog.version if version is None else version
    return Published(server=server, version=at, kinds=kinds, own_kinds=own, at=0)


def denied(server: str) -> Transition:
    return Transition(server=server, old=State.CONNECTED, new=State.DENIED, cause="x", at=0, generation=1)


async def test_a_changed_list_is_told_where_it_looks_different() -> None:
    async with opened("a", "b") as hub:
        broker = Broker(hub)
        everything, one, other = Told(broker), Told(broker, EndpointAddress("a")), Told(broker, EndpointAddress("b"))
        await broker.announcer.handle(published(hub, "a", "tools", "templates", own=("prompts",)))
        assert everything.taken() == {"tools/list_changed", "resources/list_changed"}
        assert one.taken() == {"prompts/list_changed"}, "at its own endpoint a server has its own names"
        assert other.taken() == set()


async def test_in_find_mode_only_a_pinned_tool_changes_the_list() -> None:
    async with opened("a", "b", pin=["a/*"]) as hub:
        broker = Broker(hub)
        finding = Told(broker, EndpointAddress(tools="find"))
        await broker.announcer.handle(published(hub, "b", "tools", "prompts"))
        assert finding.taken() == {"prompts/list_changed"}
        await broker.announcer.handle(published(hub, "a", "tools"))
        assert finding.taken() == {"tools/list_changed"}


async def test_the_shared_listing_of_a_per_user_server_is_news_for_local_alone() -> None:
    async with opened("u", sharing="per-user") as hub:
        broker = Broker(hub)
        local, ann = Told(broker), Told(broker, who=ANN)
        await broker.announcer.handle(published(hub, "u", "tools"))
        assert (local.taken(), ann.taken()) == ({"tools/list_changed"}, set())
        changed = OneClientRecord(server="u", record=published(hub, "u", "tools"), principal="ann")
        await broker.announcer.handle(changed)
        assert (local.taken(), ann.taken()) == (set(), {"tools/list_changed"})
        await broker.announcer.handle(OneClientRecord(server="u", record=denied("u"), principal="ann"))
        assert (local.taken(), ann.taken()) == (set(), {"tools/list_changed"}), "`holdfast_login` comes or goes"
        await broker.announcer.handle(OneClientRecord(server="u", record=published(hub, "u", "tools")))
        assert (local.taken(), ann.taken()) == (set(), set()), "what a client has for itself is no list"


async def test_what_was_missed_is_told_by_the_catalogs_before_and_after() -> None:
    async with opened("a", "b") as hub:
        broker = Broker(hub)
        told = Told(broker)
        broker.announcer.begin()
        publish(hub, "a", [Item("new")])
        await broker.announcer.handle(Missed(count=1))
        assert told.taken() == {"tools/list_changed"}
        await broker.announcer.handle(Missed(count=1))
        assert told.taken() == set(), "it is told once"
        publish(hub, "a", [Item("newer")])
        await broker.announcer.handle(published(hub, "a", "tools"))
        assert told.taken() == {"tools/list_changed"}
        await broker.announcer.handle(Missed(count=1))
        assert told.taken() == set(), "the record before had told all of it"
        publish(hub, "a", [Item("newest")])
        await broker.announcer.handle(published(hub, "a", "tools", version=0))
        told.taken()
        await broker.announcer.handle(Missed(count=1))
        assert told.taken() == {"tools/list_changed"}, "an old record tells nothing of the catalog of now"


@pytest.mark.parametrize(
    ("change", "at_find", "at_profile"),
    [
        ({"changed": ("a",)}, set(), set()),
        ({"settings": ("holdfast.refresh",)}, {"tools/list_changed"}, CHANGED),
        ({"added": ("c",)}, {"tools/list_changed"}, CHANGED),
        ({"removed": ("b",)}, {"tools/list_changed"}, CHANGED),
        ({"settings": ("holdfast.access",)}, CHANGED, CHANGED),
    ],
)
async def test_a_new_configuration_changes_the_lists_that_depend_on_it(
    change: dict[str, Any], at_find: set[str], at_profile: set[str]
) -> None:
    async with opened("a", "b", profiles={"work": ["a/*"]}) as hub:
        broker = Broker(hub)
        finding, profile = Told(broker, EndpointAddress(tools="find")), Told(broker, EndpointAddress(profile="work"))
        plain = Told(broker)
        await broker.announcer.handle(ConfigApplied(at=0, **change))
        assert (finding.taken(), profile.taken()) == (at_find, at_profile)
        assert plain.taken() == (CHANGED if change.get("settings") == ("holdfast.access",) else set())


async def test_large_results_bring_a_tool_to_every_list() -> None:
    async with opened("a") as hub:
        broker = Broker(hub)
        told = Told(broker)
        await broker.announcer.handle(ConfigApplied(settings=("holdfast.large_results",), at=0))
        assert told.taken() == {"tools/list_changed"}


async def test_a_new_status_is_told_to_subscribers_who_see_the_server() -> None:
    async with opened("a", "b") as hub:
        broker = Broker(hub)
        subscribed, elsewhere, silent = Told(broker), Told(broker, EndpointAddress("b")), Told(broker)
        for one in (subscribed, elsewhere):
            one.client.subscribed.add(("", STATUS))
        for record in (denied("a"), AccessChanged(server="a", denied=True, reason="", at=0)):
            await broker.announcer.handle(record)
            assert subscribed.params[-1] == {"uri": STATUS}
            assert (subscribed.taken(), elsewhere.taken(), silent.taken()) == ({"resources/updated"}, set(), set())


async def test_an_updated_resource_is_told_to_its_subscribers() -> None:
    async with opened("a", "b", profiles={"work": ["b/*"]}) as hub:
        broker = Broker(hub)
        both, other, hidden = Told(broker), Told(broker), Told(broker, EndpointAddress(profile="work"))
        for one in (both, hidden):
            one.client.subscribed.add(("a", "mem://a"))
        broker.attribution.told("a", "notifications/resources/updated", {"uri": "mem://a"})
        assert (both.taken(), other.taken(), hidden.taken()) == ({"resources/updated"}, set(), set())
        broker.announcer.updated("a", "mem://a", principal="ann")
        assert both.taken() == set(), "it is another user's"
        broker.attribution.told("a", "notifications/resources/updated", {"uri": 7})
        broker.attribution.told("a", "notifications/resources/updated", None)
        assert both.taken() == set()


async def test_a_client_that_leaves_while_it_subscribes_ends_no_subscription_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened("a") as hub:
        broker, asked = Broker(hub), asyncio.Event()
        leaving, staying = Told(broker), Told(broker)

        async def silent(*_: Any, **__: Any) -> None:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(hub.registry, "request", silent)
        subscribing = asyncio.create_task(broker.servers.subscribe(leaving.client, "a", "mem://a"))
        await asked.wait()
        await broker.servers.subscribe(staying.client, "a", "mem://a")
        broker.detach(leaving.client)
        subscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await subscribing
        assert hub.registry.slot("a").desired_state.uris == {"mem://a"}


async def test_a_session_that_comes_back_is_told_of_what_it_can_still_see() -> None:
    async with opened("a", "b", profiles={"work": ["a/*"]}) as hub:
        broker = Broker(hub)
        told = Told(broker, EndpointAddress(profile="work"))
        told.client.subscribed |= {("a", "mem://a"), ("b", "mem://b")}
        broker.announcer.missed(told.client, ["resources", "templates"])
        assert told.came == ["resources/list_changed", "resources/updated"]
        assert told.params[-1] == {"uri": "mem://a"}


async def test_a_message_of_a_server_reaches_the_only_client_that_it_can_mean() -> None:
    async with opened("a", "b") as hub:
        broker = Broker(hub)
        elsewhere, only = Told(broker, EndpointAddress("b")), Told(broker, EndpointAddress("a"))
        log = ("a", "notifications/message", {"level": "error", "data": "x"})
        broker.attribution.told(*log)
        assert (only.taken(), elsewhere.taken()) == ({"message"}, set())
        broker.attribution.told("a", "notifications/unknown", {})
        assert only.taken() == set()
        second = Told(broker)
        broker.attribution.told(*log)
        assert (only.taken(), second.taken()) == (set(), set()), "it may mean either"
        with pytest.raises(MCPError, match="cannot be attributed to one of several clients"):
            await broker.attribution.asked("a", "roots/list", None, None)
        assert "per-client" in broker.findings["a"]
        broker.detach(second.client)
        with pytest.raises(MCPError, match="this client cannot be asked"):
            await broker.attribution.asked("a", "roots/list", None, None)
        other_user = Told(broker, who=ANN)
        broker.detach(only.client)
        broker.attribution.told(*log)
        assert other_user.taken() == set(), "the connection served another user"
        broker.detach(other_user.client)
        with pytest.raises(MCPError, match="no client is connected"):
            await broker.attribution.asked("a", "roots/list", None, None)


async def test_a_modern_client_without_a_call_in_flight_cannot_be_asked() -> None:
    async with opened("a") as hub:
        broker = Broker(hub)
        told = Told(broker)
        told.client.modern = True
        with pytest.raises(MCPError, match="it has no call in flight"):
            await broker.attribution.asked("a", "roots/list", None, None)


@pytest.mark.requirement("SEC-14")
async def test_a_change_that_the_rules_hide_is_told_to_no_one_whom_they_hide_it_from() -> None:
    rules = [{"effect": "allow", "principals": ["ann"], "servers": ["a", "b"], "tools": ["read*"]}]
    async with opened("a", "b", access={"rules": rules}) as hub:
        broker = Broker(hub)
        ann, local = Told(broker, who=ANN), Told(broker)
        await ann.client.seen.settle()  # as each of her requests does
        publish(hub, "a", [Item("read"), Item("write", {"description": "another one"})])
        await broker.announcer.handle(published(hub, "a", "tools"))
        assert (ann.taken(), local.taken()) == (set(), {"tools/list_changed"})
        publish(hub, "a", [Item("read", {"description": "another one"})])
        publish(hub, "b", [Item("read")])
        await broker.announcer.handle(published(hub, "a", "tools", version=0))
        assert ann.taken() == {"tools/list_changed"}
        await broker.announcer.handle(published(hub, "b", "tools"))
        assert (ann.taken(), local.taken()) == (set(), {"tools/list_changed"}), "she sees what she saw"
        publish(hub, "b", [])
        await broker.announcer.handle(published(hub, "b", "tools"))
        assert ann.taken() == {"tools/list_changed"}, "one that is gone is a change too"


@pytest.mark.requirement("SEC-14")
async def test_a_reader_with_rules_whose_lists_no_one_has_looked_up_is_told_of_a_change() -> None:
    rules = [{"effect": "allow", "principals": ["ann"], "servers": ["a"], "tools": ["read*"]}]
    async with opened("a", "b", access={"rules": rules}) as hub:
        broker = Broker(hub)
        ann = Told(broker, who=ANN)
        await broker.announcer.handle(published(hub, "b", "tools"))
        assert ann.taken() == set(), "she does not see the server"
        publish(hub, "a", [Item("read", {"description": "another one"})])
        await broker.announcer.handle(published(hub, "a", "tools"))
        assert ann.taken() == {"tools/list_changed"}
