"""The catalog under any order of listings, withdrawals and removals."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from holdfast.core import catalog as catalogs, names
from holdfast.core.catalog import Catalog, Item, Listing, NameKey
from tests.core.pinned import CATALOG, play
from tests.harness.catalogs import configured

SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=75,
    stateful_step_count=30,
    report_multiple_bugs=False,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
ALLOWED = re.compile(r"[A-Za-z0-9_-]{1,48}")
SERVERS = st.sampled_from(["a", "a__b", "b", "c c"])
NAMES = st.lists(st.sampled_from(["b__c", "c", "x", "x.y", "x y", "l" * 90]) | st.text(max_size=3), max_size=5)
PREFIXES = st.sampled_from([None, "", "a"])


class AnythingToACatalog(RuleBasedStateMachine):
    catalog_type: ClassVar[type[Catalog]] = Catalog

    @initialize()
    def begin(self) -> None:
        self.catalog: Catalog = self.catalog_type()
        self.generation = 0
        self.newest: dict[str, int] = {}
        self.owners: dict[str, NameKey] = {}

    @rule(server=SERVERS, prefix=PREFIXES)
    def configure(self, server: str, prefix: str | None) -> None:
        if server not in self.catalog.servers:
            self.catalog = configured(self.catalog, server, prefix=prefix)
            self.owners = {}  # names follow from the configuration, and it changed

    @rule(server=SERVERS, names=NAMES)
    def publish(self, server: str, names: list[str]) -> None:
        self.configure(server, None)
        self.generation += 1
        self.newest[server] = self.generation
        others = self.listed() - self.listed(server)
        self.catalog = self.catalog.publish(self.listing(server, self.generation, names))
        assert {key.original for _, key, _ in self.listed(server)} == set(names), "a newer listing is shown whole"
        assert others <= self.listed(), "one server's listing takes nothing from another's"

    @rule(listed=st.dictionaries(SERVERS, NAMES, max_size=4), shared=st.booleans())
    def publish_together(self, listed: dict[str, list[str]], shared: bool) -> None:
        self.generation += 1
        listings = []
        for server, tools in listed.items():
            self.configure(server, None)
            self.newest[server] = self.generation
            uris = ("file:///shared", f"file:///{server}") if shared else ()
            listings.append(replace(self.listing(server, self.generation, tools), resources=tuple(map(Item, uris))))
        one_by_one = self.catalog
        for listing in listings:
            one_by_one = one_by_one.publish_all([listing])
        self.catalog = self.catalog.publish_all(listings)
        assert self.catalog.names == one_by_one.names, "together they get the names that they get one by one"
        assert self.catalog.servers == one_by_one.servers
        assert set(self.catalog.collisions) == set(one_by_one.collisions)

    @rule(server=SERVERS, names=NAMES, back=st.integers(1, 3))
    def publish_late(self, server: str, names: list[str], back: int) -> None:
        generation = self.newest.get(server, 0) - back
        if generation > 0:
            before = self.listed()
            self.catalog = self.catalog.publish(self.listing(server, generation, names))
            assert self.listed() == before, "a late listing changes nothing"

    @rule(server=SERVERS)
    def withdraw(self, server: str) -> None:
        others = self.listed() - self.listed(server)
        self.catalog = self.catalog.withdraw(server)
        assert self.listed() == others

    @rule(server=SERVERS)
    def reinstate(self, server: str) -> None:
        before = self.listed()
        self.catalog = self.catalog.reinstate(server)
        assert before <= self.listed()

    @rule(server=SERVERS)
    def remove(self, server: str) -> None:
        self.catalog = self.catalog.remove(server)
        self.newest.pop(server, None)
        self.owners = {}

    @invariant()
    def names_are_acceptable_unique_and_lead_back(self) -> None:
        shown = [entry.name for entry in self.catalog.tools]
        assert len(shown) == len(set(shown)), "no two tools share a name"
        for entry in self.catalog.tools:
            assert ALLOWED.fullmatch(entry.name), "names are within what clients accept"
            assert self.catalog.resolve(entry.name) == entry.key, "a name leads back to its tool"

    @invariant()
    def owners_are_those_of_the_names(self) -> None:
        given = {(key.kind, name): key for key, name in self.catalog.names.items()}
        assert self.catalog.owners == given, "what is kept of the owners is what the names say"

    @invariant()
    def names_stay_with_their_owners(self) -> None:
        for entry in self.catalog.tools:
            assert self.owners.setdefault(entry.name, entry.key) == entry.key, "a name keeps its meaning"
        for name, key in self.owners.items():
            assert self.catalog.resolve(name) == key, "what was ever listed is never unknown"

    def listing(self, server: str, generation: int, names: list[str]) -> Listing:
        return Listing(server=server, generation=generation, tools=tuple(Item(name) for name in names))

    def listed(self, server: str | None = None) -> set[tuple[str, NameKey, int]]:
        return {(e.name, e.key, e.generation) for e in self.catalog.tools if server in {None, e.server}}


@pytest.mark.requirement("LIFE-3", "LIFE-4")
def test_every_property_holds_after_every_publication() -> None:
    run_state_machine_as_test(AnythingToACatalog, settings=SETTINGS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_property_holds_in_a_longer_search() -> None:
    run_state_machine_as_test(AnythingToACatalog, settings=settings(SETTINGS, max_examples=1_000))


class TakesLateListings(Catalog):
    def publish(self, listing: Listing) -> Catalog:
        newest = max((s.listing.generation for s in self.servers.values() if s.listing), default=0)
        return super().publish(Listing(server=listing.server, generation=newest + 1, tools=listing.tools))


class ForgetsWithdrawnNames(Catalog):
    def withdraw(self, server: str) -> Catalog:
        return super().remove(server)


class ShrinksWithoutAReason(Catalog):
    def publish(self, listing: Listing) -> Catalog:
        made = super().publish(listing)
        return made.withdraw(next(iter(made.servers)))


with_mutants = pytest.mark.parametrize(
    ("mutant", "broken"),
    [
        (TakesLateListings, "a late listing changes nothing"),
        (ForgetsWithdrawnNames, "what was ever listed is never unknown"),
        (ShrinksWithoutAReason, "a newer listing is shown whole|takes nothing from another's"),
    ],
)


@with_mutants
def test_a_mutant_is_caught(mutant: type[Catalog], broken: str) -> None:
    steps = CATALOG[mutant.__name__]
    play(AnythingToACatalog, steps)
    with pytest.raises(AssertionError, match=broken):
        play(type("Mutated", (AnythingToACatalog,), {"catalog_type": mutant}), steps)


@pytest.mark.long
@with_mutants
def test_a_search_finds_the_mutant(mutant: type[Catalog], broken: str) -> None:
    caught(broken, catalog_type=mutant)


def test_a_catalog_that_does_not_check_names_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def joined(server: str, original: str, prefix: str | None, longest: int) -> str:
        return f"{server if prefix is None else prefix}__{original}"

    monkeypatch.setattr(catalogs, "base_name", joined)
    caught("names are within what clients accept")


def test_a_catalog_that_does_not_resolve_collisions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(_self: object, _key: NameKey, wanted: str) -> str:
        return wanted

    monkeypatch.setattr(catalogs, "claiming_prefix", lambda *_: None)
    monkeypatch.setattr(catalogs._Namer, "_free", same)
    caught("no two tools share a name|a name keeps its meaning|a name leads back|is what the names say")


def caught(broken: str, **attributes: object) -> None:
    mutated = type("Mutated", (AnythingToACatalog,), attributes)
    with pytest.raises(AssertionError, match=broken):
        run_state_machine_as_test(mutated, settings=settings(SETTINGS, max_examples=1_000))


def test_a_hash_that_collides_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(*identity: str) -> str:
        return "again" if len(identity) > 2 and identity[2] else "same"

    monkeypatch.setattr(names, "_digest", always)
    made = Catalog()
    for server in ("a b", "a.b"):
        made = made.publish(Listing(server=server, generation=1, tools=(Item("x"),)))
    assert [entry.name for entry in made.tools] == ["a_b__x_same", "a_b__x_same_same"]
