"""The published catalog: an immutable snapshot of the last good listings of all servers.

A reader takes one reference and keeps it; every change makes a new snapshot with a higher
version. A server's items go only when it is withdrawn, removed, or publishes a newer listing.
Items are opaque: a name and the server's description of it.

The name of a tool or a prompt follows from the configuration alone, listed at the moment or not. So a name
never changes its meaning to another server's tool, and means the same on every replica of a hub. A URI that
two servers list belongs to the one that comes first in the configuration.

Three things look alike and are kept apart. A *listing* is what one server said last. An *entry* is an item of it under
its name here, gone as soon as it is not listed. A *name* outlives both: it stays its item's own while the server does
not list it, so that a call of a tool that is away is answered with the truth about that tool, never with "unknown" or
by another server.

What must never happen: a reader sees half of a change. So a snapshot is never changed. ``_Namer`` works on copies, and
the snapshot is made of them at the end. To copy the names is what a change costs; several listings are therefore
published in one step, and a listing that is equal to the last one makes no snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import merge
from itertools import chain, count
from typing import NamedTuple

from holdfast.core.names import (
    LONGEST_NAME,
    NAME_LENGTH,
    Kind,
    assign_prefixes,
    base_name,
    claiming_prefix,
    distinct_name,
    hash_in,
    is_own_name,
    is_own_uri,
    is_shortened,
    lead_of,
    name_leads,
    named_server,
    nearest,
    shortened_tails,
    uri_lead,
    uri_leads,
    without_own_keys,
)

__all__ = [
    "Catalog",
    "CatalogEntry",
    "CatalogSource",
    "ChangedKinds",
    "Collision",
    "Item",
    "Kind",
    "Listing",
    "NameKey",
    "ResourceIndex",
    "Unknown",
    "is_repeatable",
    "unmarked",
]

NEAREST = 3
"""How many names are suggested for one that is unknown."""

MOST_LIKE = 50
"""How many templates of a server are compared with one URI: it can list thousands that begin in the same way."""

MOST_TEMPLATES = 1_000
LONGEST_TEMPLATE = 256
"""How many templates of a server URIs are compared with at all, and their characters."""

MOST_VARIABLES = 8
"""How many variables such a template has: a comparison takes longer with each of them."""

_VARIABLE = re.compile(r"[{,](?=[^{}]*})")

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
    instructions: str | None = None
    """The server's instructions for its use; None where they are not known, as after a restart."""
    failed: Mapping[Kind, str] = field(default_factory=dict)
    """The kinds that could not be listed, and why: they keep their last good list (LIFE-26)."""

    def after(self, last: Listing) -> Listing:
        """The same, with the items of ``last`` where a kind failed, or differs in nothing but the order.

        Some servers list in another order each time. A list that is the same for its readers stays the same bytes.
        """
        kept = {
            kind.value: last.of(kind)
            for kind in Kind
            if kind in self.failed or _are_the_same(self.of(kind), last.of(kind))
        }
        return replace(self, **kept)  # type: ignore[arg-type]  # the values of ``Kind`` are these four fields

    def of(self, kind: Kind) -> tuple[Item, ...]:
        """The items of one kind."""
        items: tuple[Item, ...] = getattr(self, kind.value)
        return items


def _are_the_same(one: tuple[Item, ...], other: tuple[Item, ...]) -> bool:
    """Whether two lists have the same items, each once, in any order."""
    known = {item.name: item for item in other}
    return len(one) == len(other) == len(known) and {item.name: item for item in one} == known


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
    """A name that was taken: the item is shown under ``given`` instead, or not at all if that is empty."""

    key: NameKey
    wanted: str
    given: str

    @property
    def of_hub(self) -> bool:
        """Whether the name is the hub's own."""
        return is_own_uri(self.wanted) if self.key.kind in BY_URI else is_own_name(self.wanted)


@dataclass(frozen=True, slots=True)
class Unknown:
    """No item ever had that name; these are similar."""

    name: str
    nearest: tuple[str, ...]


class ChangedKinds(NamedTuple):
    """The kinds of one server's items that look different."""

    shown: frozenset[Kind]
    """Under the names of the catalog."""
    own: frozenset[Kind]
    """Under the server's own names: a new prefix changes nothing there."""


@dataclass(frozen=True, slots=True)
class CatalogSource:
    """What the catalog holds of one server."""

    prefix: str | None = None
    listing: Listing | None = None
    withdrawn: bool = False
    entries: tuple[CatalogEntry, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class CatalogNames:
    """What a snapshot holds, and what readers ask it: who owns a name, and what is listed."""

    version: int = 0
    servers: Mapping[str, CatalogSource] = field(default_factory=dict)
    names: Mapping[NameKey, str] = field(default_factory=dict, repr=False)
    """Every name that was given out, for items that are not listed at the moment too."""
    collisions: tuple[Collision, ...] = ()
    prefixes: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The servers by the prefix that each uses."""
    longest: int = NAME_LENGTH
    """The most characters of a name that is given out."""

    def resolve(self, name: str, kind: Kind = Kind.TOOL) -> NameKey | Unknown:
        """The owner of a name, listed at the moment or not; else the nearest listed names.

        A name that the item had at another length leads to it too: clients keep names for long.
        """
        key = self.owners.get((kind, name)) or _former_owner(self, name, kind)
        if key is not None:
            return key
        return Unknown(name, nearest(name, (entry.name for entry in self.of(kind)), NEAREST))

    def possible_owners(self, name: str, kind: Kind = Kind.TOOL) -> Iterator[NameKey]:
        """The servers that may own a tool or a prompt that was never listed, the longest prefix first.

        The original name is the rest of the name; for a shortened name it is not the true one (``listed_name``).
        """
        if is_own_name(name):
            return
        for server, lead in _leads_of(self, name):
            yield NameKey(kind, server, name.removeprefix(lead))

    def listed_name(self, guess: NameKey) -> str:
        """The true original name behind one of ``possible_owners``, if its server has listed it since."""
        if guess in self.names or guess.server not in self.servers:
            return guess.original
        # A guess is what is left of a name without its lead. Of a shortened name that is a part of the original, and a
        # hash: the name is made again with each lead that it can have had, and looked up.
        for lead in name_leads(guess.server, self.own_prefixes[guess.server], self.longest):
            name = lead + guess.original
            owner = self.owners.get((guess.kind, name)) or _former_of(self, guess.server, name, guess.kind)
            if owner is not None and owner.server == guess.server:
                return owner.original
        return guess.original

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

    def changes(self, older: CatalogNames) -> dict[str, ChangedKinds]:
        """The servers whose items look different to a reader of an older snapshot, and which kinds of them do.

        The marks of the hub are no part of an item, and neither is the order of a list. Most servers are the same
        object in both: only the others are compared.
        """
        before, after = older.servers, self.servers
        differ = [server for server, source in after.items() if before.get(server) is not source]
        gone = [server for server in before if server not in after]
        compared = {server: _changed_kinds(before.get(server), after.get(server)) for server in (*differ, *gone)}
        return {server: kinds for server, kinds in compared.items() if kinds.shown}

    @cached_property
    def owners(self) -> Mapping[tuple[Kind, str], NameKey]:
        """The owner of each name, listed at the moment or not."""
        return {(key.kind, name): key for key, name in self.names.items()}

    @cached_property
    def own_prefixes(self) -> Mapping[str, str]:
        """The prefix of each server."""
        return {server: prefix for prefix, server in self.prefixes.items()}

    @cached_property
    def keys(self) -> Mapping[str, list[NameKey]]:
        """All items that have a name, by server, the oldest first."""
        keys: dict[str, list[NameKey]] = {}
        for key in self.names:
            keys.setdefault(key.server, []).append(key)
        return keys

    @cached_property
    def listed(self) -> Mapping[tuple[Kind, str], CatalogEntry]:
        """What each name shows at the moment."""
        return {(kind, entry.name): entry for kind in Kind for entry in self.of(kind)}

    @cached_property
    def _by_kind(self) -> Mapping[Kind, tuple[CatalogEntry, ...]]:
        sorted_out: dict[Kind, list[CatalogEntry]] = {kind: [] for kind in Kind}
        # One pass for all kinds: a reader of one list nearly always asks for the others too.
        for source in self.servers.values():
            for entry in () if source.withdrawn else source.entries:
                sorted_out[entry.key.kind].append(entry)
        return {kind: tuple(entries) for kind, entries in sorted_out.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalog(CatalogNames):
    """One snapshot. The methods return another one, or the same if nothing changed."""

    def __repr__(self) -> str:
        listed = ", ".join(f"{len(self.of(kind))} {kind.value}" for kind in Kind)
        return f"<Catalog version={self.version} of {len(self.servers)} servers: {listed}>"

    def arrange(self, written: Mapping[str, str | None], *, longest: int | None = None) -> Catalog:
        """Make exactly these servers known, with their prefixes, in the order of the configuration.

        A prefix is None for the id of the server, and empty for no prefix at all.
        ``longest`` is the most characters of a name; None leaves it as it is.
        """
        longest = self.longest if longest is None else longest
        known = [(name, one.prefix) for name, one in self.servers.items()]
        if known == list(written.items()) and longest == self.longest:
            return self
        servers = {name: replace(self.servers.get(name, CatalogSource()), prefix=p) for name, p in written.items()}
        prefixes = {prefix: name for name, prefix in assign_prefixes(written).items()}
        # All items are named afresh, in the order of the file: so replicas with one file give the same names.
        bare = {name: replace(one, entries=()) for name, one in servers.items()}
        renamed = replace(self, prefixes=prefixes, longest=longest)
        # Names of items that are not listed now are kept as far as the new prefixes give them too. URIs are not: their
        # owner follows from all listings together, which are named again below.
        unnamed = replace(renamed, servers=bare, names=_kept(renamed, self.names), collisions=())
        listings = [(one.listing, one.withdrawn) for one in servers.values() if one.listing is not None]
        return unnamed._named(listings)  # noqa: SLF001 - of the same class

    def publish(self, listing: Listing) -> Catalog:
        """Show a newer complete listing; one from an older connection changes nothing."""
        return self.publish_all((listing,))

    def publish_all(self, listings: Iterable[Listing]) -> Catalog:
        """The same for the listings of several servers, in one step: all names are copied once, not for each."""
        known, newer = self, list[tuple[Listing, bool]]()
        for listing in listings:
            source = known.servers.get(listing.server, CatalogSource())
            # Of an older connection, which was slow (LIFE-3).
            if source.listing is not None and listing.generation < source.listing.generation:
                continue
            shown = listing.after(source.listing) if source.listing is not None else listing
            # The same list makes no new version: no client is told to read it again.
            if shown != source.listing or source.withdrawn:
                if listing.server not in known.servers:
                    written = {name: one.prefix for name, one in known.servers.items()}
                    known = known.arrange({**written, listing.server: None})
                newer.append((shown, False))
        return known._named(newer) if newer else self  # noqa: SLF001 - of the same class

    def restore_names(self, names: Mapping[NameKey, str]) -> Catalog:
        """Remember names from before a restart, as far as the configuration gives the same ones."""
        return replace(self, names={**_kept(self, names), **self.names})

    def withdraw(self, server: str) -> Catalog:
        """Stop showing a server's items: it was disabled. Their names stay its own."""
        return self._shown(server, withdrawn=True)

    def reinstate(self, server: str) -> Catalog:
        """Show the last good listing of a server again: it was enabled."""
        return self._shown(server, withdrawn=False)

    def remove(self, server: str) -> Catalog:
        """Forget a server: it is no longer configured."""
        if server not in self.servers:
            return self
        return self.arrange({name: source.prefix for name, source in self.servers.items() if name != server})

    def _shown(self, server: str, *, withdrawn: bool) -> Catalog:
        source = self.servers.get(server)
        if source is None or source.withdrawn is withdrawn:
            return self
        servers = {**self.servers, server: replace(source, withdrawn=withdrawn)}
        return replace(self, version=self.version + 1, servers=servers)

    def _named(self, listings: Iterable[tuple[Listing, bool]]) -> Catalog:
        """The next snapshot, with these listings; each comes with whether it is withdrawn."""
        # Everything is done on copies: a listing that raises in the middle leaves the snapshot as it was.
        namer = _Namer(self)
        for listing, withdrawn in listings:
            namer.take(listing, withdrawn=withdrawn)
        named = replace(
            self,
            version=self.version + 1,
            servers=namer.servers,
            names=namer.names,
            collisions=tuple(namer.collisions),
        )
        named.__dict__["owners"] = namer.owners  # the cached property: it is known here, and large
        return named


class ResourceIndex:
    """Finds what one catalog has for a URI that no list has."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.servers = frozenset(entry.server for entry in (*catalog.resources, *catalog.templates))
        """The servers that list resources or templates."""
        self._beginnings: dict[str, list[int]] = {}
        """The places of the templates, by their text up to the first variable."""
        known: dict[str, int] = {}
        for at, entry in enumerate(catalog.templates):
            known[entry.server] = known.get(entry.server, 0) + 1
            is_short = len(entry.name) <= LONGEST_TEMPLATE and len(_VARIABLE.findall(entry.name)) <= MOST_VARIABLES
            if is_short and known[entry.server] <= MOST_TEMPLATES:
                self._beginnings.setdefault(entry.name.partition("{")[0], []).append(at)
        self._lengths = frozenset(map(len, self._beginnings))

    def templates_like(self, uri: str) -> Iterator[CatalogEntry]:
        """The listed templates whose text up to the first variable begins the URI, in their order."""
        found = (self._beginnings.get(uri[:length], ()) for length in self._lengths if length <= len(uri))
        given: dict[str, int] = {}
        # Merged by their places: so they come in the order of the catalog, as if all of it had been compared.
        for at in merge(*found):
            entry = self.catalog.templates[at]
            given[entry.server] = given.get(entry.server, 0) + 1
            if given[entry.server] <= MOST_LIKE:
                yield entry

    def __repr__(self) -> str:
        return f"<ResourceIndex of {self.catalog!r}>"


def _kept(catalog: CatalogNames, names: Mapping[NameKey, str]) -> dict[NameKey, str]:
    """The tools and prompts that had these names and go on to answer to them, under the names of now."""
    own = catalog.own_prefixes
    given = {
        key: _tool_name(key, own[key.server], catalog.prefixes, catalog.longest)
        for key in names
        if key.server in own and key.kind not in BY_URI
    }
    return {key: name for key, name in given.items() if names[key] == name or _had(catalog, key, names[key])}


def _had(catalog: CatalogNames, key: NameKey, name: str) -> bool:
    """Whether this configuration gives an item that name at another length."""
    prefix = catalog.own_prefixes[key.server]
    if name == lead_of(prefix) + key.original:
        return len(name) <= LONGEST_NAME and claiming_prefix(name, prefix, catalog.prefixes) is None
    found, tails = hash_in(name), shortened_tails(name, key.server, prefix)
    return found is not None and is_shortened(key.server, key.original, found, tails)


def _former_owner(catalog: CatalogNames, name: str, kind: Kind) -> NameKey | None:
    if kind in BY_URI or len(name) > LONGEST_NAME or is_own_name(name):
        return None
    return next((key for server in catalog.servers if (key := _former_of(catalog, server, name, kind))), None)


def _former_of(catalog: CatalogNames, server: str, name: str, kind: Kind) -> NameKey | None:
    """The item of one server that had a name at another length."""
    prefix = catalog.own_prefixes[server]
    if name.startswith(lead := lead_of(prefix)):
        whole = NameKey(kind, server, name.removeprefix(lead))
        if whole in catalog.names and _had(catalog, whole, name):
            return whole
    found = hash_in(name)
    if found is None or not (tails := shortened_tails(name, server, prefix)):
        return None
    of_kind = (key for key in catalog.keys.get(server, ()) if key.kind is kind)
    return next((key for key in of_kind if is_shortened(server, key.original, found, tails)), None)


def _leads_of(catalog: CatalogNames, name: str) -> list[tuple[str, str]]:
    """The servers that may own a name, each with what the name begins with; the longest first."""
    found = []
    for prefix, server in catalog.prefixes.items():
        leads = name_leads(server, prefix, catalog.longest)
        if (lead := next((one for one in leads if name.startswith(one) and name != one), None)) is not None:
            found.append((server, lead))
    return sorted(found, key=lambda one: -len(one[1]))


BY_URI = frozenset({Kind.RESOURCE, Kind.TEMPLATE})


def _tool_name(key: NameKey, prefix: str, prefixes: Mapping[str, str], longest: int) -> str:
    """The name of a tool or a prompt: from its server's prefix, unless it falls under a longer one, or is the hub's."""
    wanted = base_name(key.server, key.original, prefix, longest)
    if is_own_name(wanted):
        wanted = f"{key.server}__{key.original}"
        wanted = f"mcp_{wanted}" if is_own_name(wanted) else wanted
    elif claiming_prefix(wanted, prefix, prefixes) is None:
        return wanted
    return distinct_name(key.server, key.original, wanted, 0, longest)


class _Namer:
    """Names the items of listings, on copies of what was given out so far."""

    def __init__(self, catalog: Catalog) -> None:
        self.servers = dict(catalog.servers)
        self.names = dict(catalog.names)
        self.owners = dict(catalog.owners)
        self.collisions = [*catalog.collisions]
        self._before = catalog
        self._server = self._prefix = ""
        self._written: str | None = None
        self._new: list[Collision] = []
        self._renamed: dict[NameKey, str] = {}
        """Items of other servers that lost a URI to this server, and their new names."""

    def take(self, listing: Listing, *, withdrawn: bool) -> None:
        """Name the items of one listing."""
        server = self._server = listing.server
        before = self.servers[server]
        self._prefix, self._written = self._before.own_prefixes[server], before.prefix
        self._new, self._renamed = [], {}
        seen: set[NameKey] = set()
        entries = tuple(self._entries(listing, seen))
        # A first listing forgets nothing: the names that were restored are those of items not listed yet.
        if before.listing is not None:
            self._forget_all_but(seen)
        self.servers |= self._outranked()
        self.servers[server] = replace(before, listing=listing, withdrawn=withdrawn, entries=entries)
        kept = [one for one in self.collisions if one.key not in self._renamed and one.key.server != server]
        self.collisions = kept + self._new

    def _entries(self, listing: Listing, seen: set[NameKey]) -> Iterator[CatalogEntry]:
        for kind in Kind:
            for item in listing.of(kind):
                key = NameKey(kind, self._server, item.name)
                if kind in BY_URI and is_own_uri(item.name):
                    self._new.append(Collision(key, item.name, ""))
                elif key not in seen:
                    seen.add(key)
                    name = self._uri_name(key) if kind in BY_URI else self._tool_name(key)
                    yield CatalogEntry(name, key, item, listing.generation)

    def _outranked(self) -> dict[str, CatalogSource]:
        """The other servers whose items were renamed, with their new names."""
        return {
            server: replace(
                self.servers[server],
                entries=tuple(
                    replace(entry, name=self._renamed.get(entry.key, entry.name))
                    for entry in self.servers[server].entries
                ),
            )
            for server in {key.server for key in self._renamed}
        }

    def _forget_all_but(self, listed: set[NameKey]) -> None:
        unlisted = [key for key in self._before.keys.get(self._server, ()) if key not in listed]
        # The oldest go first. A name that is forgotten is "unknown" again, and no other server's.
        for key in unlisted[:-REMEMBERED]:
            self._release(key, self.names.pop(key))

    def _give(self, key: NameKey, name: str) -> None:
        before = self.names.get(key, name)
        if before != name:
            self._release(key, before)
        self.names[key] = name
        self.owners[key.kind, name] = key

    def _release(self, key: NameKey, name: str) -> None:
        # The name may be that of another item by now: an item that was outranked gave it up before this one is
        # released.
        if self.owners.get((key.kind, name)) == key:
            del self.owners[key.kind, name]

    def _tool_name(self, key: NameKey) -> str:
        longest = self._before.longest
        given = _tool_name(key, self._prefix, self._before.prefixes, longest)
        wanted = base_name(key.server, key.original, self._written, longest)
        if given != wanted:
            self._new.append(Collision(key, wanted, given))
        if self.owners.get((key.kind, given), key) != key:
            given = self._free(key, wanted)  # two hashes are equal: one in four billion
        self._give(key, given)
        return given

    def _uri_name(self, key: NameKey) -> str:
        given = wanted = key.original
        holder = self.owners.get((key.kind, wanted))
        # By the order of the file, not of the listings: who is up first must not decide what a URI means.
        is_held = holder is not None and self._rank[holder.server] < self._rank[key.server]
        if is_held or named_server(wanted, self._uri_leads, but=key.server):
            given = self._free(key, wanted)
            self._new.append(Collision(key, wanted, given))
        elif holder is not None and holder.server != key.server:
            self._rename(holder, wanted)
        self._give(key, given)
        return given

    @cached_property
    def _uri_leads(self) -> Mapping[str, tuple[str, ...]]:
        return uri_leads(self.servers)

    @cached_property
    def _rank(self) -> Mapping[str, int]:
        return {name: rank for rank, name in enumerate(self.servers)}

    def _rename(self, holder: NameKey, wanted: str) -> None:
        given = self._renamed[holder] = self._free(holder, wanted)
        self._give(holder, given)
        self._new.append(Collision(holder, wanted, given))

    def _free(self, key: NameKey, wanted: str) -> str:
        # Both are endless: a name is always found, however many items want the same one.
        names: Iterator[str]
        if key.kind in BY_URI:
            leads = chain(self._uri_leads[key.server][:1], (uri_lead(key.server, turn) for turn in count()))
            names = (lead + key.original for lead in leads)
        else:
            longest = self._before.longest
            names = (distinct_name(key.server, key.original, wanted, turn, longest) for turn in count())
        return next(name for name in names if self.owners.get((key.kind, name), key) == key)


def _changed_kinds(before: CatalogSource | None, after: CatalogSource | None) -> ChangedKinds:
    old, new = _shown(before), _shown(after)
    shown = _differing(
        {(entry.key.kind, entry.name): entry.item for entry in old},
        {(entry.key.kind, entry.name): entry.item for entry in new},
    )
    # A new prefix renames everything at the endpoint of all servers. The endpoint of the server itself has its own
    # names, and nothing has changed there.
    if not shown or {entry.name for entry in old} == {entry.name for entry in new}:
        return ChangedKinds(shown, shown)
    return ChangedKinds(
        shown,
        _differing(
            {(entry.key.kind, entry.original): entry.item for entry in old},
            {(entry.key.kind, entry.original): entry.item for entry in new},
        ),
    )


def _shown(source: CatalogSource | None) -> tuple[CatalogEntry, ...]:
    return source.entries if source is not None and not source.withdrawn else ()


def _differing(old: Mapping[tuple[Kind, str], Item], new: Mapping[tuple[Kind, str], Item]) -> frozenset[Kind]:
    return frozenset(
        kind for kind, name in old.keys() | new.keys() if not _same(old.get((kind, name)), new.get((kind, name)))
    )


def _same(old: Item | None, new: Item | None) -> bool:
    if old is None or new is None:
        return old is new
    # The first comparison is the cheap one, and true for nearly all items of a listing that changed in a few.
    return old == new or unmarked(old.raw) == unmarked(new.raw)


def is_repeatable(catalog: Catalog, name: str) -> bool:
    """Whether a tool declares itself read-only or idempotent: then a call of it may be sent twice."""
    entry = catalog.entry(name)
    annotations = entry.item.raw.get("annotations") if entry is not None else None
    if not isinstance(annotations, Mapping):
        return False
    return annotations.get("readOnlyHint") is True or annotations.get("idempotentHint") is True


def unmarked(raw: Mapping[str, object]) -> Mapping[str, object]:
    """A description without the hub's own marks (not verified, held): a list that differs in them has not changed."""
    plain = without_own_keys(raw)
    if plain is raw or plain["_meta"]:
        return plain
    return {key: value for key, value in plain.items() if key != "_meta"}
