"""The catalog of a hub: what a listing changes, who is told, and what is sent under its names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.access import LOCAL
from holdfast.core import Catalog, Item, Kind, Listing, NameKey
from holdfast.errors import ToolHeld
from holdfast.hub import OneClientRecord, Published, findings, publisher
from holdfast.hub.approvals import Approvals
from holdfast.hub.hub import Hub
from holdfast.hub.journal import HubRecord, Journal, ListFailed
from holdfast.hub.publisher import Publisher
from holdfast.hub.slot_call import SlotCall
from holdfast.testing import FakeClock
from holdfast.wire import Fields
from tests.harness.open_hubs import config, records
from tests.harness.waiting import came_true

pytestmark = pytest.mark.anyio


def finding(catalog: Catalog, server: str) -> str:
    """What is wrong with one server; empty if there is nothing."""
    return findings(catalog, servers=(server,)).get(server, "")


class Shown:
    """A publisher with the servers ``a`` and ``b``, and all that it tells."""

    def __init__(self) -> None:
        self.records: list[HubRecord] = []
        self.told: list[tuple[object, ...]] = []
        self.shared: list[Listing] = []
        journal = Journal(FakeClock())
        journal.add_sink(self.records.append, calls=None)
        self.approvals = Approvals(None, mode=lambda _: "hold", journal=journal)
        self.publisher = Publisher(
            self.approvals,
            journal,
            listings=self,
            on_change=lambda: self.told.append(("change",)),
            on_withdraw=lambda server: self.told.append(("withdraw", server)),
            on_review=lambda server: self.told.append(("review", server)),
        )
        self.publisher.start_with(Catalog().arrange({"a": None, "b": None}))

    def published(self, listing: Listing) -> None:
        self.shared.append(listing)

    def names(self) -> list[str]:
        return [entry.name for entry in self.publisher.catalog.tools]

    def changes(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(one.server, one.kinds) for one in self.records if isinstance(one, Published)]


def listing(*tools: str, server: str = "a", generation: int = 1, **more: Any) -> Listing:
    return Listing(server=server, generation=generation, tools=tuple(Item(name, {}) for name in tools), **more)


async def test_a_listing_is_shown_told_and_shared_and_one_that_changes_nothing_is_no_news() -> None:
    shown = Shown()
    shown.publisher.publish(listing("x"))
    assert (shown.names(), shown.changes()) == (["a__x"], [("a", ("tools",))])
    assert (shown.shared, shown.told) == ([listing("x")], [("change",), ("change",)]), "the names, and the pins"
    shown.approvals.pins.to_save()
    shown.publisher.publish(listing("x", generation=2))
    assert shown.changes() == [("a", ("tools",))]
    shown.publisher.publish(listing("x", server="gone"))
    assert (shown.names(), len(shown.shared)) == (["a__x"], 2)


async def test_a_disabled_server_is_hidden_with_its_last_listing_and_a_removed_one_is_forgotten() -> None:
    shown = Shown()
    shown.publisher.publish(listing("x"))
    shown.publisher.withdraw("a", removed=False)
    assert (shown.names(), "a" in shown.approvals.pins.seen) == ([], True)
    shown.publisher.publish_again("a")
    shown.publisher.show_unverified(listing("y"))
    assert shown.names() == [], "what others have of it does not show it either"
    shown.publisher.reinstate("a")
    assert shown.names() == ["a__y"]
    shown.publisher.withdraw("a", removed=True)
    assert (shown.names(), "a" in shown.approvals.pins.seen) == ([], False)
    shown.publisher.publish_again("a")
    assert [one for one in shown.told if one != ("change",)] == [
        ("withdraw", "a"), ("review", "a"), ("withdraw", "a"), ("review", "a"),
    ]  # fmt: skip


async def test_what_was_approved_is_shown_at_once() -> None:
    shown = Shown()
    shown.publisher.publish(listing("x"))
    shown.publisher.publish(listing("x", "y", generation=2))
    assert shown.names() == ["a__x"]
    shown.approvals.approve("a", "y")
    shown.publisher.publish_again("a")
    assert shown.names() == ["a__x", "a__y"]


async def test_a_kind_that_cannot_be_listed_is_told_once_for_each_reason() -> None:
    shown = Shown()
    for reason in ("slow", "slow", "broken", "slow"):
        shown.publisher.publish(listing("x", failed={Kind.PROMPT: reason}))
    told = [(one.server, one.kind, one.reason) for one in shown.records if isinstance(one, ListFailed)]
    assert told == [("a", "prompts", "slow"), ("a", "prompts", "broken"), ("a", "prompts", "slow")]
    assert finding(shown.publisher.catalog, "a") == "its prompts could not be listed: slow"
    assert findings(shown.publisher.catalog) == {"a": "its prompts could not be listed: slow"}
    assert finding(shown.publisher.catalog, "gone") == ""


@pytest.mark.requirement("SEC-21")
async def test_a_server_with_names_of_the_hub_is_said_so_with_some_of_them() -> None:
    shown = Shown()
    catalog = shown.publisher.catalog.arrange({"a": "", "b": None})
    own = ["find_tools", "call_tool", "read_result", "holdfast_doctor"]
    few = catalog.publish(listing(*own[:3]))
    assert finding(few, "a").startswith("it uses names that are Holdfast's own: ")
    assert "more" not in finding(few, "a")
    assert [name for name in own[:3] if name not in finding(few, "a")] == []
    many = catalog.publish(listing(*own))
    assert finding(many, "a").endswith(", and 1 more")
    assert findings(many) == {"a": finding(many, "a")}
    assert finding(many, "b") == ""


@pytest.mark.requirement("SEC-7")
async def test_large_listings_are_published_in_their_order_and_the_newest_of_each_server_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "AT_ONCE", 2)
    shown = Shown()
    shown.publisher.publish(listing("x", "y"))
    assert shown.names() == ["a__x", "a__y"], "so many are no large catalog"
    for one in (listing("p", server="b"), listing("x", generation=2), listing("q", server="b", generation=2)):
        shown.publisher.publish(one)
    assert shown.names() == ["a__x", "a__y"]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shown.publisher.run)
        await came_true(lambda: shown.names() == ["a__x", "b__q"])
        assert [(one.server, one.generation) for one in shown.shared[1:]] == [("a", 2), ("b", 2)]
        shown.publisher.publish(listing("r", "s", "t", server="b", generation=3))
        shown.publisher.publish(listing("u", "v", "w", generation=3))
        shown.publisher.withdraw("b", removed=True)
        await came_true(lambda: len(shown.shared) == 4)
        tasks.cancel_scope.cancel()
    assert [one.server for one in shown.shared[3:]] == ["a"], "a server that is gone no longer waits"
    assert shown.publisher.catalog.servers.keys() == {"a"}


async def test_a_catalog_is_arranged_once_unless_another_one_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, made = Shown(), list[Catalog]()
    arrange, changes_it = Catalog.arrange, True

    def counted(self: Catalog, *given: Any, **more: Any) -> Catalog:
        made.append(self)
        if changes_it:
            shown.publisher.catalog = arrange(self, {"a": None, f"c{len(made)}": None})
        return arrange(self, *given, **more)

    monkeypatch.setattr(Catalog, "arrange", counted)
    wanted = config({"b": {"url": "http://127.0.0.1:9/mcp"}})
    catalog, _ = await shown.publisher.arranged(wanted)
    assert len(made) == publisher.ARRANGE_TRIES + 1, "others publish all the time: the last one is made on the loop"
    changes_it = False
    made.clear()
    catalog, changes = await shown.publisher.arranged(wanted)
    assert (len(made), [*catalog.servers]) == (1, ["b"])
    shown.publisher.replace(catalog, changes)
    before = list(shown.told)
    shown.publisher.replace(catalog, changes)
    assert (shown.publisher.catalog is catalog, shown.told) == (True, before)


async def test_a_call_is_sent_under_the_name_that_is_listed_now_unless_it_is_held() -> None:
    shown, long = Shown(), "tool" * 40
    shown.publisher.publish(listing(long, "x", prompts=(Item("p", {}),)))
    (short,) = (one.removeprefix("a__") for one in shown.names() if one != "a__x")

    def prepared(server: str, method: str, params: Fields, *, late: bool) -> Fields:
        slot: Any = SimpleNamespace(id=server)
        context: Any = SimpleNamespace(host=shown.publisher, approvals=shown.approvals)
        call = SlotCall(slot, context, method, params, None, "", False, None, False, None, late=late, began=0.0)
        return call.prepared()

    guess = {"name": f'"{short}"'.encode(), "arguments": b"{}"}
    assert prepared("a", "tools/call", guess, late=False) is guess
    assert prepared("a", "resources/read", guess, late=True) is guess
    assert prepared("a", "tools/call", guess, late=True) == {"name": f'"{long}"'.encode(), "arguments": b"{}"}
    shown.publisher.publish(listing(long, "x", "new", generation=2, prompts=(Item("p", {"description": "other"}),)))
    for method, name in (("tools/call", b'"new"'), ("prompts/get", b'"p"')):
        for late in (True, False):
            with pytest.raises(ToolHeld):
                prepared("a", method, {"name": name}, late=late)
    assert prepared("a", "prompts/get", {"name": b'"new"'}, late=False) == {"name": b'"new"'}, "the tool is held"
    assert prepared("b", "tools/call", {"name": b'"new"'}, late=False) == {"name": b'"new"'}
    assert prepared("a", "tools/call", {}, late=False) == {}


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    lazy = {"url": "http://127.0.0.1:9/mcp", "lazy": True}
    async with Hub(config({"mail": {**lazy, "sharing": "per-user"}, "plain": lazy}), has_local=False) as hub:
        yield hub


def seen(hub: Hub, who: str) -> list[str]:
    return sorted(entry.name for entry in hub.registry.users.catalogs.of(who).tools)


@pytest.mark.requirement("SEC-13")
async def test_a_user_sees_her_own_listings_beside_the_shared_ones(hub: Hub) -> None:
    catalogs = hub.registry.users.catalogs
    hub.registry.publisher.publish(listing("p", server="plain"))
    hub.registry.publisher.publish(listing("of_local", server="mail"))
    catalogs.publish("ann", listing("hers", server="mail"))
    assert seen(hub, LOCAL.name) == ["mail__of_local", "plain__p"]
    assert seen(hub, "ann") == ["mail__hers", "plain__p"]
    assert seen(hub, "bob") == ["plain__p"], "what `local` has is not for other users"
    hub.registry.publisher.withdraw("plain", removed=False)
    assert seen(hub, "ann") == ["mail__hers"]
    key = NameKey(Kind.TOOL, "mail", "hers")
    assert [catalogs.of(who).names.get(key) for who in ("ann", "bob")] == ["mail__hers", None]


@pytest.mark.requirement("SEC-13")
async def test_the_listings_of_users_who_are_gone_are_forgotten_first(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MOST_USERS", 2)
    catalogs, connected = hub.registry.users.catalogs, hub.registry.users.slots.servers_of
    connected["ann"] = {"mail"}
    for user in ("ann", "bob", "eve"):
        catalogs.publish(user, listing(user, server="mail"))
    assert [bool(seen(hub, user)) for user in ("ann", "bob", "eve")] == [True, False, True]
    connected.update({user: {"mail"} for user in ("eve", "joe")})
    catalogs.publish("joe", listing("joe", server="mail"))
    assert [bool(seen(hub, user)) for user in ("ann", "eve", "joe")] == [False, True, True], "else the oldest goes"
    connected.clear()


@pytest.mark.requirement("SEC-7", "SEC-13")
async def test_a_user_is_told_of_a_large_catalog_once_and_keeps_it_while_another_is_made(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "AT_ONCE", 2)
    catalogs, told = hub.registry.users.catalogs, records(hub)

    def of_ann() -> list[tuple[str, ...]]:
        mine = (one.record for one in told if isinstance(one, OneClientRecord) and one.principal == "ann")
        return [one.kinds for one in mine if isinstance(one, Published)]

    catalogs.publish("ann", listing("x", "y", "z", server="mail"))
    await came_true(of_ann)
    assert of_ann() == [("tools",)]
    hub.registry.publisher.publish(listing("p", server="plain"))
    assert seen(hub, "ann") == ["mail__x", "mail__y", "mail__z"], "what she was told of, although she had not looked"
    await came_true(lambda: "plain__p" in seen(hub, "ann"))
    catalogs.publish("bob", listing("x", "y", "z", server="mail", generation=4))
    await came_true(lambda: len(seen(hub, "bob")) == 4)
    assert catalogs.of("bob") is catalogs.of("ann"), "equal listings make one catalog"
    assert seen(hub, "eve") == ["plain__p"]
