"""A server behind another hub: what that hub says of it holds here (FLEET-6)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.core import Kind, State
from holdfast.hub import record_of, remedy_for
from holdfast.testing import HttpServer
from tests.harness.open_hubs import reaches, running, settled, until
from tests.harness.served_hub import Served, front

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-6")]


@pytest.fixture
async def inner() -> AsyncIterator[Served]:
    async with (
        HttpServer({"hello": "hi"}) as server,
        front({"db": server.definition}, largeResults={"over": 1000}) as served,
    ):
        yield served


async def test_the_state_of_the_server_is_that_which_its_hub_tells(inner: Served) -> None:
    async with running({"db": {"type": "http", "url": inner.one("db")}}) as hub:
        await settled(hub)
        slot = hub.registry.slot("db")
        assert [entry.original for entry in hub.catalog.tools] == ["hello"]
        record = record_of(slot)
        assert (record.health.state, len(record.hubs), record.kind) == (State.CONNECTED, 1, "")
        await inner.hub.toggle("db", False)
        await reaches(hub, "db", State.DISABLED)
        assert slot.lease is not None, "its hub still answers"
        assert [entry.original for entry in hub.catalog.tools] == ["hello"], "an empty list is not what it offers"
        assert (record_of(slot).health.state, remedy_for(slot).login) == (State.DISABLED, "")
        await inner.hub.toggle("db", True)
        await reaches(hub, "db")


async def test_a_hub_that_is_itself_behind_another_names_both(inner: Served) -> None:
    async with (
        front({"db": {"type": "http", "url": inner.one("db")}}) as middle,
        running({"db": {"type": "http", "url": middle.one("db")}}) as hub,
    ):
        await settled(hub)
        await until(hub, "db", lambda: len(record_of(hub.registry.slot("db")).hubs) == 2)
        assert (await hub.call_tool("db__hello")).text == "hi"


async def test_what_a_hub_offers_of_its_own_is_not_offered_again(inner: Served) -> None:
    async with running({"all": {"type": "http", "url": inner.all}}) as hub:
        await settled(hub)
        assert [entry.original for entry in hub.catalog.tools] == ["db__hello"]
        kinds = (Kind.RESOURCE, Kind.TEMPLATE)
        assert [entry.original for kind in kinds for entry in hub.catalog.of(kind)] == []
