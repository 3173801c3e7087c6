"""The published catalog: an immutable snapshot of the last good listings of all servers.

A reader takes one reference and keeps it; every change makes a new snapshot with a higher
version. A server's items go only when it is withdrawn, removed, or publishes a newer listing.
Items are opaque: a name and the server's description of it.

A name stays with its owner for as long as the owner is configured, listed at the moment or not.
So a name never changes its meaning to another server's tool.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from holdfast.core.names import Kind, base_name, distinct_name, name_lead, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "Catalog",
    "CatalogEntry",
    "CatalogSource",
    "Collision",
    "Diff",
    "Item",
    "Kind",
    "Listing",
    "NameKey",
    "Unknown",
]

NEAREST = 3
"""How many names are suggested for one that is unknown."""

REMEMBERED = 1_000
"""How many names of unlisted items stay with their server: a server that lists other names
each time cannot fill the memory."""


@dataclass(frozen=True, slots=True)
class Item:
    """One tool, prompt, resource or template: its own name (or URI) and its description."""

    name: str
    raw: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """All that one server offers, read to the last page, stamped with the generation of its connection.

    Generation 0 is a listing from before this run: shown, and not yet verified.
    """

    server: str
    generation: int
    tools: tuple[Item, ...] = ()
    prompts: tuple[Item, ...] = ()
    resources: tuple[Item, ...] = ()
    templates: tuple[Item, ...] = ()
    failed: Mapping[Kind, str] = field(default_factory=dict)
    """The kinds that could not be listed, and why: they keep their last good list (LIFE-26)."""

    def keeping(self, last: Listing) -> Listing:
        """The same, with the last good items of the kinds that failed."""

        def items(kind: Kind) -> tuple[Item, ...]:
            return (last if kind in self.failed else self).of(kind)

        return replace(
            self,
            tools=items(Kind.TOOL),
            prompts=items(Kind.PROMPT),
            resources=items(Kind.RESOURCE),
            templates=items(Kind.TEMPLATE),
        )

    def of(self, kind: Kind) -> tuple[Item, ...]:
        """The items of one kind."""
        items: tuple[Item, ...] = getattr(self, kind.value)
        return items


@dataclass(frozen=True, slots=True)
class NameKey:
    """The owner of a name: one item of one server."""

    kind: Kind
    server: str
    original: str


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One item as the catalog shows it."""

    name: str
    key: NameKey
    item: Item
    generation: int

    @property
    def server(self) -> str:
        """The server to ask."""
        return self.key.server

    @property
    def original(self) -> str:
        """Its name at the server."""
        return self.key.original

    @property
    def verified(self) -> bool:
        """Whether the server listed it in this run."""
        return self.generation > 0


@dataclass(frozen=True, slots=True)
class Collision:
    """A name that was taken: the item is shown under ``given`` instead."""

    key: NameKey
    wanted: str
    given: str
    holder: NameKey


@dataclass(frozen=True, slots=True)
class Unknown:
    """No item ever had that name; these are similar."""

    name: str
    nearest: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CatalogSource:
    """What the catalog holds of one server."""

    prefix: str | None = None
    listing: Listing | None = None
    withdrawn: bool = False
    entries: tuple[CatalogEntry, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Diff:
    """What a reader of the older snapshot sees change, by kind."""

    added: Mapping[Kind, frozenset[str]]
    removed: Mapping[Kind, frozenset[str]]
    changed: Mapping[Kind, frozenset[str]]

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds with a changed list."""
        parts = (self.added, self.removed, self.changed)
        return frozenset(kind for kind in Kind if any(part[kind] for part in parts))

    def __bool__(self) -> bool:
        return bool(self.kinds)


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalog:
    """One snapshot. The methods that change something return another one, or the same if nothing did."""

    version: int = 0
    servers: Mapping[str, CatalogSource] = field(default_factory=dict)
    names: Mapping[NameKey, str] = field(default_factory=dict, repr=False)
    """Every name that was given out; keep it with the listings, and a restart gives the same names."""
    collisions: tuple[Collision, ...] = ()

    def configure(self, server: str, *, prefix: str | None = None) -> Catalog:
        """Make a server known, with its prefix: None for its id, empty for no prefix at all."""
        source = self.servers.get(server)
        if source is not None and source.prefix == prefix:
            return self
        if source is None or source.listing is None:
            return self._with(server, replace(source or CatalogSource(), prefix=prefix))
        renamed = self.remove(server).configure(server, prefix=prefix).publish(source.listing)
        return renamed.withdraw(server) if source.withdrawn else renamed

    def publish(self, listing: Listing) -> Catalog:
        """Show a newer complete listing; one from an older connection changes nothing."""
        source = self.servers.get(listing.server, CatalogSource())
        if source.listing is not None and listing.generation < source.listing.generation:
            return self
        if listing.failed and source.listing is not None:
            listing = listing.keeping(source.listing)
        if listing == source.listing and not source.withdrawn:
            return self
        namer = _Namer(self, listing.server, source.prefix)
        entries = tuple(namer.entries(listing))
        updated = replace(source, listing=listing, withdrawn=False, entries=entries)
        return self._with(listing.server, updated, names=namer.names, collisions=(*self.collisions, *namer.collisions))

    def withdraw(self, server: str) -> Catalog:
        """Stop showing a server's items: it was disabled. Their names stay its own."""
        source = self.servers.get(server)
        if source is None or source.withdrawn:
            return self
        return self._with(server, replace(source, withdrawn=True))

    def reinstate(self, server: str) -> Catalog:
        """Show the last good listing of a server again: it was enabled."""
        source = self.servers.get(server)
        if source is None or not source.withdrawn:
            return self
        return self._with(server, replace(source, withdrawn=False))

    def remove(self, server: str) -> Catalog:
        """Forget a server: it is no longer configured."""
        if server not in self.servers:
            return self
        return replace(
            self,
            version=self.version + 1,
            servers={name: source for name, source in self.servers.items() if name != server},
            names={key: name for key, name in self.names.items() if key.server != server},
            collisions=tuple(c for c in self.collisions if c.key.server != server),
        )

    def resolve(self, name: str, kind: Kind = Kind.TOOL) -> NameKey | Unknown:
        """The owner of a name, listed at the moment or not; else the nearest listed names."""
        key = self.owners.get((kind, name))
        if key is not None:
            return key
        return Unknown(name, nearest(name, (entry.name for entry in self.of(kind)), NEAREST))

    def possible_owners(self, name: str, kind: Kind = Kind.TOOL) -> Iterator[NameKey]:
        """The servers that may own a tool or a prompt that was never listed, the longest prefix first.

        The original name is the rest of the name; for a shortened name it is not the true one (``listed_name``).
        """
        leads = {server: name_lead(server, source.prefix) for server, source in self.servers.items()}
        for server, lead in sorted(leads.items(), key=lambda one: -len(one[1])):
            if name.startswith(lead) and name != lead:
                yield NameKey(kind, server, name.removeprefix(lead))

    def listed_name(self, guess: NameKey) -> str:
        """The true original name behind one of ``possible_owners``, if its server has listed it since."""
        source = self.servers.get(guess.server)
        if guess in self.names or source is None:
            return guess.original
        owner = self.owners.get((guess.kind, name_lead(guess.server, source.prefix) + guess.original))
        return owner.original if owner is not None and owner.server == guess.server else guess.original

    def entry(self, name: str, kind: Kind = Kind.TOOL) -> CatalogEntry | None:
        """The item that is listed under this name, if one is."""
        return self.listed.get((kind, name))

    def of(self, kind: Kind) -> tuple[CatalogEntry, ...]:
        """All that is listed of one kind, server by server."""
        return self._by_kind[kind]

    @property
    def tools(self) -> tuple[CatalogEntry, ...]:
        """The listed tools."""
        return self.of(Kind.TOOL)

    @property
    def prompts(self) -> tuple[CatalogEntry, ...]:
        """The listed prompts."""
        return self.of(Kind.PROMPT)

    @property
    def resources(self) -> tuple[CatalogEntry, ...]:
        """The listed resources."""
        return self.of(Kind.RESOURCE)

    @property
    def templates(self) -> tuple[CatalogEntry, ...]:
        """The listed resource templates."""
        return self.of(Kind.TEMPLATE)

    def since(self, older: Catalog) -> Diff:
        """What changed, seen from an older snapshot."""
        before, after = older.listed, self.listed
        changed = {
            at
            for at in before.keys() & after.keys()
            if before[at] is not after[at] and _shown(before[at]) != _shown(after[at])
        }
        return Diff(
            _by_kind(after.keys() - before.keys()),
            _by_kind(before.keys() - after.keys()),
            _by_kind(changed),
        )

    def _with(
        self,
        server: str,
        source: CatalogSource,
        *,
        names: Mapping[NameKey, str] | None = None,
        collisions: tuple[Collision, ...] | None = None,
    ) -> Catalog:
        return replace(
            self,
            version=self.version + 1,
            servers={**self.servers, server: source},
            names=self.names if names is None else names,
            collisions=self.collisions if collisions is None else collisions,
        )

    @cached_property
    def owners(self) -> Mapping[tuple[Kind, str], NameKey]:
        """The owner of each name, listed at the moment or not."""
        return {(key.kind, name): key for key, name in self.names.items()}

    @cached_property
    def listed(self) -> Mapping[tuple[Kind, str], CatalogEntry]:
        """What each name shows at the moment."""
        return {(kind, entry.name): entry for kind in Kind for entry in self.of(kind)}

    @cached_property
    def _by_kind(self) -> Mapping[Kind, tuple[CatalogEntry, ...]]:
        sorted_out: dict[Kind, list[CatalogEntry]] = {kind: [] for kind in Kind}
        for source in self.servers.values():
            for entry in () if source.withdrawn else source.entries:
                sorted_out[entry.key.kind].append(entry)
        return {kind: tuple(entries) for kind, entries in sorted_out.items()}


class _Namer:
    """Names the items of one listing, on a copy of the names given out so far."""

    def __init__(self, catalog: Catalog, server: str, prefix: str | None) -> None:
        self.names = dict(catalog.names)
        self.collisions: list[Collision] = []
        self._owners = dict(catalog.owners)
        self._server = server
        self._prefix = prefix

    def entries(self, listing: Listing) -> Iterator[CatalogEntry]:
        seen: set[NameKey] = set()
        for kind in Kind:
            for item in listing.of(kind):
                key = NameKey(kind, self._server, item.name)
                if key not in seen:
                    seen.add(key)
                    yield CatalogEntry(self._name(key), key, item, listing.generation)
        self._forget_all_but(seen)

    def _forget_all_but(self, listed: set[NameKey]) -> None:
        unlisted = [key for key in self.names if key.server == self._server and key not in listed]
        for key in unlisted[:-REMEMBERED]:
            del self.names[key]

    def _name(self, key: NameKey) -> str:
        known = self.names.get(key)
        if known is not None:
            return known
        wanted = base_name(key.kind, key.server, key.original, self._prefix)
        holder = self._owners.get((key.kind, wanted))
        given = wanted if holder is None else self._free(key, wanted)
        if holder is not None:
            self.collisions.append(Collision(key, wanted, given, holder))
        self.names[key] = given
        self._owners[key.kind, given] = key
        return given

    def _free(self, key: NameKey, wanted: str) -> str:
        turn = 0
        while (
            key.kind,
            name := distinct_name(key.kind, key.server, key.original, wanted, turn),
        ) in self._owners:
            turn += 1
        return name


def _shown(entry: CatalogEntry) -> tuple[Item, bool]:
    return entry.item, entry.verified


def _by_kind(names: set[tuple[Kind, str]]) -> Mapping[Kind, frozenset[str]]:
    return {kind: frozenset(name for its, name in names if its is kind) for kind in Kind}
