"""What a person meets in a debugger says what it is and how it is, and shows no secret."""

from __future__ import annotations

import pytest

from holdfast.config import ServerSpec
from holdfast.core import Catalog, Item, Listing
from holdfast.core.breaker import Breaker
from holdfast.core.machine import Machine
from holdfast.errors import Problem
from holdfast.hub.approvals import Approvals
from holdfast.hub.hub import Hub
from holdfast.hub.journal import Journal
from holdfast.hub.lease import Lease
from holdfast.testing import FakeClock
from tests.harness.open_hubs import config


def test_a_hub_and_its_registry_say_whether_they_are_open() -> None:
    hub = Hub(config({"a": {"url": "http://127.0.0.1:9/mcp"}}))
    assert repr(hub) == "<Hub of 1 server, catalog 0, not open>"
    assert repr(hub.registry) == "<SlotRegistry not open, 0 slots, <Publisher version=0 waiting=[]>>"


def test_a_machine_says_its_state_and_that_of_its_breaker() -> None:
    assert repr(Breaker()) == "<Breaker closed failures=0 gen=0>"
    assert repr(Machine("a")) == "<Machine <Lifecycle 'a' disconnected gen=0> <Breaker closed failures=0 gen=0>>"


def test_a_catalog_counts_what_it_lists() -> None:
    catalog = Catalog().publish(Listing(server="a", generation=1, tools=(Item("echo"),)))
    assert repr(catalog).startswith("<Catalog version=")
    assert "of 1 servers: 1 tools, 0 prompts" in repr(catalog)


def test_approvals_say_what_waits_and_whether_it_is_saved() -> None:
    approvals = Approvals(None, mode=lambda _: "warn", journal=Journal(FakeClock()))
    assert repr(approvals) == "<Approvals <Pins of 0 servers, 0 changed, saved>>"
    approvals.listings.review(Listing(server="a", generation=1, tools=(Item("echo"),)))
    assert repr(approvals) == "<Approvals <Pins of 1 servers, 0 changed, unsaved>>"


@pytest.mark.anyio
async def test_a_lease_says_whether_it_stands() -> None:
    assert repr(Lease(3)) == "<Lease 3 dialing>"


def test_a_server_shows_no_secret() -> None:
    spec = ServerSpec(
        id="a",
        transport="http",
        url="https://user:pass@host/mcp",
        headers={"Authorization": "Bearer s3cret"},
        secrets=frozenset({"s3cret"}),
        problems=(Problem(message="the url names no host"),),
    )
    assert "s3cret" not in repr(spec)
    assert "pass@" not in repr(spec)
    assert "the url names no host" in repr(spec)
