"""The registry of a hub: who owns a name, and what a hub that is not open says."""

from __future__ import annotations

import pytest

from holdfast.core import Item, Kind, Listing, NameKey, Unknown
from holdfast.errors import HubClosed, HubNotOpen, UnknownServer
from holdfast.hub.hub import Hub
from holdfast.testing import HttpServer
from tests.harness.open_hubs import config

pytestmark = pytest.mark.anyio

DOWN = {"url": "http://127.0.0.1:9/mcp"}


async def test_a_name_that_was_never_listed_may_be_of_a_server_that_is_not_up() -> None:
    async with HttpServer({"tool": "hi"}) as server, Hub(config({"a": server.definition, "b": DOWN})) as hub:
        assert await hub.ready(30)
        find, long = hub.registry.find, "tool" * 40
        assert find("a__tool", Kind.TOOL) == NameKey(Kind.TOOL, "a", "tool")
        assert find("b__other", Kind.TOOL) == NameKey(Kind.TOOL, "b", "other")
        assert find("b__other", Kind.PROMPT) == NameKey(Kind.PROMPT, "b", "other")
        assert isinstance(find("a__other", Kind.TOOL), Unknown), "a connected server has listed all that it has"
        assert isinstance(find("b__other", Kind.RESOURCE), Unknown), "a URI has no prefix that tells its owner"
        hub.registry.publisher.publish(Listing(server="b", generation=1, tools=(Item(long, {}),)))
        (shown,) = (entry.name for entry in hub.catalog.tools if entry.server == "b")
        assert find(shown, Kind.TOOL) == NameKey(Kind.TOOL, "b", long), "a shortened name is no guess once it is listed"


async def test_a_held_item_has_an_owner_although_no_list_shows_it() -> None:
    async with HttpServer({"x": "hi"}) as server, Hub(config({"a": server.definition}, approvals="hold")) as hub:
        assert await hub.ready(30)
        (first,) = (entry.item for entry in hub.catalog.tools)
        hub.registry.publisher.publish(Listing(server="a", generation=9, tools=(first, Item("new", {}))))
        assert hub.registry.approvals.held("a") == ("new",)
        assert hub.registry.find("a__new", Kind.TOOL) == NameKey(Kind.TOOL, "a", "new")
        assert isinstance(hub.registry.find("a__new", Kind.PROMPT), Unknown), "it is a tool that is held"


async def test_a_hub_says_whether_it_is_not_open_yet_or_closed() -> None:
    hub = Hub(config({"a": DOWN}))
    for use in (hub.registry.require_use, hub.registry.require_open, lambda: hub.registry.slot("a"), hub.tools):
        with pytest.raises(HubNotOpen, match="not open yet"):
            use()
    hub.listen(lambda _: None)()  # to hear of its start
    async with hub:
        hub.registry.require_use()
        with pytest.raises(UnknownServer):
            hub.registry.slot("b")
    with pytest.raises(HubClosed) as closed:
        hub.registry.require_use()
    assert (closed.value.server_id, closed.value.state) == ("", "disconnected")
    with pytest.raises(HubClosed):
        hub.listen(lambda _: None)
    with pytest.raises(HubClosed):
        await hub.registry.open()
    assert await hub.registry.apply(config({})) is None, "nothing revives"
