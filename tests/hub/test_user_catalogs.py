"""The catalogs of users: a large one holds up no one, and users with the same listing share the work (SEC-7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import anyio
import pytest

from holdfast.core.catalog import Catalog, Item, Listing
from holdfast.hub import OneClientRecord, Published, publisher
from holdfast.hub.hub import Hub
from tests.front.loop_steps import LONGEST_STEP, measured_loop
from tests.harness.open_hubs import config, records
from tests.harness.waiting import came_true

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-7", "SEC-13")]

MANY = 10_000


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    servers = {"mail": {"url": "http://127.0.0.1:9/mcp", "sharing": "per-user", "lazy": True}}
    async with Hub(config(servers), has_local=False) as hub:
        yield hub


def listing(whose: str, count: int = MANY) -> Listing:
    schema = {"type": "object", "properties": {"to": {"type": "string"}}}
    raw = [{"name": f"{whose}_{n}", "description": "Sends it.", "inputSchema": schema} for n in range(count)]
    return Listing(server="mail", generation=1, tools=tuple(Item(str(one["name"]), one) for one in raw))


def names(hub: Hub, who: str) -> set[str]:
    return {entry.name for entry in hub.registry.users.catalogs.of(who).tools}


async def test_the_large_catalog_of_a_user_is_made_in_short_steps(hub: Hub) -> None:
    catalogs, whose = hub.registry.users.catalogs, iter(range(100))
    with measured_loop() as steps:

        async def appears() -> None:
            user = f"user{next(whose)}"
            catalogs.publish(user, listing(user))
            await came_true(lambda: len(names(hub, user)) == MANY)

        assert await steps.longest_in(appears) < LONGEST_STEP, steps.what
    assert "mail__user0_7" not in names(hub, "user1")


async def test_users_with_the_same_listing_have_one_catalog_that_is_made_once(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    publish_all = Catalog.publish_all

    def counted(self: Catalog, listings: Iterable[Listing]) -> Catalog:
        made.append(1)
        return publish_all(self, listings)

    monkeypatch.setattr(Catalog, "publish_all", counted)
    for user in ("ada", "bob", "eve"):
        hub.registry.users.catalogs.publish(user, listing("all"))
    with anyio.fail_after(60):
        await came_true(lambda: all(len(names(hub, user)) == MANY for user in ("ada", "bob", "eve")))
    assert len(made) == 1
    assert hub.registry.users.catalogs.of("ada") is hub.registry.users.catalogs.of("eve")


async def test_while_a_large_catalog_is_made_a_user_sees_what_she_saw_and_no_other_user_s(hub: Hub) -> None:
    catalogs = hub.registry.users.catalogs
    catalogs.publish("ada", listing("small", 3))
    before = names(hub, "ada")
    catalogs.publish("ada", listing("ada"))
    assert names(hub, "ada") == before
    assert names(hub, "bob") == set()
    await came_true(lambda: len(names(hub, "ada")) == MANY)
    assert names(hub, "bob") == set()


async def test_what_a_server_listed_is_forgotten_when_it_goes_and_told_when_it_is_approved(hub: Hub) -> None:
    catalogs, told = hub.registry.users.catalogs, records(hub)
    catalogs.publish("ada", listing("small", 3))
    catalogs.publish_again("mail")
    of_ada = [one.record for one in told if isinstance(one, OneClientRecord) and one.principal == "ada"]
    assert [one.kinds for one in of_ada if isinstance(one, Published)] == [
        ("tools",),
        ("prompts", "resources", "templates", "tools"),
    ]
    catalogs.publish("bob", listing("bob"))
    catalogs.withdrawn("other")
    await came_true(lambda: len(names(hub, "bob")) == MANY)
    catalogs.publish("eve", listing("eve"))
    catalogs.withdrawn("mail")
    await anyio.wait_all_tasks_blocked()
    assert [names(hub, user) for user in ("ada", "bob", "eve")] == [set(), set(), set()]


async def test_as_many_catalogs_are_kept_as_the_bound_says(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MOST_CATALOGS", 2)
    catalogs = hub.registry.users.catalogs
    for user in ("ada", "bob"):
        catalogs.publish(user, listing(user, 1))
    kept = [catalogs.of(user) for user in ("ada", "bob")]
    assert all(catalogs.of(user) is one for user, one in zip(("ada", "bob"), kept, strict=True))


async def test_before_her_large_catalog_is_made_a_user_has_names_of_the_length_that_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "AT_ONCE", -1)
    servers = {"mail": {"url": "http://127.0.0.1:9/mcp", "sharing": "per-user", "lazy": True}}
    async with Hub(config(servers, nameLength=64), has_local=False) as hub:
        assert hub.registry.users.catalogs.of("ada").longest == hub.catalog.longest == 64
