"""What one endpoint shows: all servers under the catalog's names, or one server under its own names.

The address of an endpoint decides it: the server, whether tools are listed or found, and a profile, which is a named
part of the servers and tools. A profile narrows what there is and grants nothing. Where servers are per user, the
principal decides it too: each user has a view of her own, with her own catalog.

Every question reads the current catalog, so an endpoint is never behind the hub. Nothing here does I/O.

What a caller may not see is not there for her. ``seen_by`` gives the view of one principal: the same questions, and no
answer that her access rules (SEC-14) do not list. Everything that answers a caller asks that view, so that nothing else
needs to know of rules: what a view does not find is unknown, is not suggested, and is of no server. Principals for whom
the same rules hold share a view, and where nothing is limited it is the view of the endpoint itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final, NamedTuple

from mcp.shared.inbound import X_MCP_HEADER_KEY

from holdfast.access import LOCAL, Grants, Principal
from holdfast.config import Config, Settings, ToolsMode, id_in_folder
from holdfast.core import (
    Catalog,
    CatalogEntry,
    Kind,
    NameKey,
    ResourceIndex,
    Unknown,
    base_name,
    is_own_uri,
    is_repeatable,
    nearest,
    uri_leads,
)
from holdfast.hub import Hub, Slot, access_item, is_or_may_be, is_shown
from holdfast.turns import Turns
from holdfast.wire import dumps, read_template

__all__ = [
    "LIST_METHODS",
    "TOOLS_MODES",
    "EndpointAddress",
    "ToolRoute",
    "View",
    "has_all",
    "input_schema",
    "lists_tools_of",
    "news",
    "view_for",
]

LIST_METHODS: Mapping[str, tuple[Kind, str]] = {
    "tools/list": (Kind.TOOL, "tools"),
    "prompts/list": (Kind.PROMPT, "prompts"),
    "resources/list": (Kind.RESOURCE, "resources"),
    "resources/templates/list": (Kind.TEMPLATE, "resourceTemplates"),
}
"""The kind that each method lists, and the key of the list in its result."""


class ToolRoute(NamedTuple):
    """Where the calls of a tool go."""

    key: NameKey
    own_name: bytes | None
    """The tool's name at its server, as JSON; None if it is the same."""
    repeatable: bool
    """Whether the tool is declared read-only or idempotent."""
    mirrors: bool
    """Whether its schema wants arguments as headers too."""


MOST_VIEWS: Final = 256
"""How many different rights of callers an endpoint keeps a view for. One that is dropped is made again."""

_LABEL: Final = '["endpoint", '
"""How a label begins that is not the name of a server alone."""

TOOLS_MODES: Final[tuple[ToolsMode, ...]] = ("all", "find")


class EndpointAddress(NamedTuple):
    """Which endpoint a request is for: the part of its address that decides what it shows."""

    server: str | None = None
    """The one server of the endpoint; None for all servers."""
    tools: ToolsMode = "all"
    profile: str | None = None
    """The named part of the servers and tools that it shows; None for everything."""
    folder: str | None = None
    """The folder that its clients work in; None if that is not known. Servers of another folder are not shown."""

    @classmethod
    def asked(cls, settings: Settings, server: str | None, asked: Mapping[str, Any]) -> EndpointAddress | str:
        """The endpoint that the parameters of an address mean, or what is wrong with them. Others mean nothing."""
        tools, profile = asked.get("tools", settings.tools), asked.get("profile")
        mode = next((one for one in TOOLS_MODES if one == tools), None)
        if mode is None:
            modes = " or ".join(f"tools={one}" for one in TOOLS_MODES)
            return f"there is no endpoint with `tools={tools}`: write {modes}"
        known = [name for name, _ in settings.profiles]
        if profile is not None and profile not in known:
            return f"there is no profile {profile!r}; known: {', '.join(known) or 'none'}"
        return cls(server, mode, profile, asked.get("folder") or None)

    @property
    def label(self) -> str | None:
        """The address as a text, by which session ids and other replicas name it; None for the endpoint of all."""
        # A caller writes the name of the server: one that looks like a label must not be read as one.
        is_plain = self.tools == "all" and self.profile is None and self.folder is None
        if is_plain and not (self.server or "").startswith(_LABEL):
            return self.server
        return json.dumps(["endpoint", *self])

    @classmethod
    def of_label(cls, label: str | None) -> EndpointAddress:
        """The address that has this label."""
        if label is None or not label.startswith(_LABEL):
            return cls(label)
        return cls(*json.loads(label)[1:])


ALL_SERVERS: Final = EndpointAddress()


class View:
    """The servers of one endpoint; ``server`` is None for all of them."""

    def __init__(
        self,
        hub: Hub,
        address: EndpointAddress = ALL_SERVERS,
        *,
        principal: str = LOCAL.name,
        grants: Grants | None = None,
    ) -> None:
        """``grants`` are the rights of those who see it; None where nothing is limited."""
        self.hub = hub
        self.principal = principal
        """Whose view it is, where servers are per user; else that of everyone, which is the one of ``local``."""
        self.grants = grants
        self.rights = grants.key if grants is not None else ""
        """Equal for all who see the same of this endpoint; empty where nothing is limited."""
        self.address = address
        self.server, self.tools, self.profile, self.folder = address
        self.uris = ResourceUris(self)
        """The URIs of resources at this endpoint."""
        self._looked_up: _LookedUp | None = None
        self.told: Mapping[Kind, Sequence[CatalogEntry]] | None = None
        """The lists when their readers were told of changes last (``news``), where they do not see everything."""
        self._limited: dict[str, View] = {}
        """The views of principals that do not see everything, by their grants."""

    def slot(self, server: str) -> Slot:
        """The slot that this user's calls go to: her own where a server is per user, else the shared one."""
        return self.hub.registry.users.slot(self.principal, server)

    @property
    def now(self) -> _LookedUp:
        """What was looked up in the catalog and the configuration of this moment."""
        registry, config = self.hub.registry, self.hub.registry.config
        is_of_all = self.principal == LOCAL.name
        catalog = registry.publisher.catalog if is_of_all else registry.users.catalogs.of(self.principal)
        known = self._looked_up
        if known is None or known.catalog is not catalog or known.config is not config:
            known = self._looked_up = _LookedUp(self, catalog, config)
        return known

    def seen_by(self, principal: Principal) -> View:
        """The part of this view that a principal may see, by the rules in force now."""
        policy = self.hub.registry.policy
        if policy.is_open or (grants := policy.grants(principal)).is_unlimited:
            return self
        view = self._limited.get(grants.key)
        if view is None:
            if len(self._limited) >= MOST_VIEWS:
                del self._limited[next(iter(self._limited))]
            view = self._limited[grants.key] = view_for(self, self.principal, grants)
        return view

    async def settle(self) -> None:
        """Look all items up by the rules, in short steps: the questions below then take no time of the loop."""
        if self.grants is None:
            return
        # Taken once: what changes between two steps begins another one, and this one is forgotten.
        now, policy, turns = self.now, self.hub.registry.policy, Turns()
        for kind in Kind:
            if kind in now.shown:
                continue
            shown_here: list[CatalogEntry] = []
            for entry in now.catalog.of(kind):
                policy.learn(access_item(self.hub.registry, entry.key))
                if self.covers(entry.server) and self.shows(entry.key):
                    shown_here.append(entry)
                await turns.offer()
            now.shown[kind] = shown_here
        if self.told is None:
            self.told = {kind: self.entries(kind) for kind in Kind}  # from here on its readers are told what changes

    @property
    def servers(self) -> list[str]:
        """The servers that the endpoint has now."""
        if self.server is not None:
            return [self.server]
        return [server for server in self.hub.registry.slots if self.covers(server)]

    def has(self, server: str) -> bool:
        """Whether the endpoint has this server now."""
        return self.covers(server) and server in self.hub.registry.slots

    def covers(self, server: str) -> bool:
        """Whether the endpoint has this server."""
        there = self.server in (None, server) and _in_profile(self, server) and _in_folder(self, server)
        return there and (self.grants is None or self.grants.may_see_server(_plain(self, server)))

    def shows(self, key: NameKey) -> bool:
        """Whether the endpoint shows an item of one of its servers."""
        return _shows(self, key) and (self.grants is None or self.grants.may_list(access_item(self.hub.registry, key)))

    def entries(self, kind: Kind) -> Sequence[CatalogEntry]:
        """Return all entries of one kind that the endpoint lists; in find mode the pinned tools alone."""
        if kind is Kind.TOOL and self.tools == "find":
            return [entry for entry in self.all_entries(kind) if _is_pinned(self, entry)]
        return self.all_entries(kind)

    def all_entries(self, kind: Kind) -> Sequence[CatalogEntry]:
        """Return all entries of one kind that the endpoint has, also those that must be found."""
        now = self.now
        if self.server is None and self.profile is None and not now.config.scoped and self.grants is None:
            return now.catalog.of(kind)
        if kind not in now.shown:
            now.shown[kind] = [one for one in now.catalog.of(kind) if self.covers(one.server) and self.shows(one.key)]
        return now.shown[kind]

    def name_of(self, entry: CatalogEntry) -> str:
        """The name of an item at this endpoint."""
        if self.server is not None:
            return entry.original
        return self.now.folder_names.get(entry.key, entry.name) if self.folder is not None else entry.name

    def find(self, kind: Kind, name: str) -> NameKey | Unknown:
        """Return the owner of an item and its original name; an endpoint of one server owns every name."""
        if kind is Kind.RESOURCE:
            found = self.uris.find(name)
        elif self.server is None:
            own = self.now.folder_keys.get((kind, name)) if self.folder is not None else None
            found = own or self.hub.registry.find(name, kind, principal=self.principal)
        else:
            found = NameKey(kind, self.server, name)
            if self.grants is not None and not is_or_may_be(self.hub.registry, found, self.principal):
                found = Unknown(name, ())  # the server's own words for it would differ from those for a hidden name
        if isinstance(found, NameKey) and self.covers(found.server) and self.shows(found):
            return found
        if isinstance(found, Unknown) and self.profile is None and not self.hub.config.scoped and self.grants is None:
            return found
        # What the endpoint does not show is unknown here, and is not suggested either.
        return Unknown(name, nearest(name, map(self.name_of, self.all_entries(kind))))

    def tool(self, name: str) -> ToolRoute | Unknown:
        """What a call of a tool needs to know; a listed tool is looked up once, while nothing changes."""
        now = self.now
        route = now.routes.get(name)
        if route is None:
            found = self.find(Kind.TOOL, name)
            if not isinstance(found, NameKey):
                return found
            own = dumps(found.original) if found.original != name else None
            schema = input_schema(self, name)
            mirrors = schema is not None and X_MCP_HEADER_KEY.encode() in dumps(schema)
            route = ToolRoute(found, own, is_repeatable(now.catalog, now.catalog.names.get(found, "")), mirrors)
            if found in now.catalog.names:
                now.routes[name] = route
        return route

    def __repr__(self) -> str:
        mode = "" if self.tools == "all" else f", tools={self.tools}"
        mode += f", profile={self.profile}" if self.profile is not None else ""
        mode += f", user={self.principal}" if self.principal != LOCAL.name else ""
        mode += f", {self.grants}" if self.grants is not None else ""
        return f"<View of {self.server or 'all servers'}{mode}>"


class _LookedUp:
    """What one view looked up in one catalog, under one configuration.

    Both are immutable, so nothing in here is ever out of date: when one of them is replaced, the view begins another
    of these (``View.now``).
    """

    def __init__(self, view: View, catalog: Catalog, config: Config) -> None:
        self._view = view
        self.catalog = catalog
        self.config = config
        self.shown: dict[Kind, list[CatalogEntry]] = {}
        """What the endpoint has of each kind, where that is less than the catalog."""
        self.routes: dict[str, ToolRoute] = {}
        """Where the calls of listed tools go, by the tool's name here."""

    @cached_property
    def index(self) -> ResourceIndex:
        """Finds resources by their URIs."""
        return ResourceIndex(self.catalog)

    @cached_property
    def folder_names(self) -> Mapping[NameKey, str]:
        """The names of the tools and prompts of one folder's servers, for the clients that work there.

        In the catalog of the hub each name is used once, so two folders cannot both have ``files__read``. A client sees
        one folder alone: there each server has the name that its configuration gives it. Where a shared server has that
        name already, the name is that of the catalog.
        """
        names: dict[NameKey, str] = {}
        for kind in (Kind.TOOL, Kind.PROMPT):
            for entry in self.catalog.of(kind):
                spec = self.config.servers.get(entry.server)
                if spec is None or spec.folder != self._view.folder:
                    continue
                name = base_name(spec.plain_name, entry.original, spec.prefix, self.catalog.longest)
                other = self.catalog.entry(name, kind)
                if other is None or not self._view.covers(other.server):
                    names[entry.key] = name
        return names

    @cached_property
    def folder_keys(self) -> Mapping[tuple[Kind, str], NameKey]:
        """The items of these names."""
        return {(key.kind, name): key for key, name in self.folder_names.items()}

    def __repr__(self) -> str:
        return f"<_LookedUp by {self._view!r}: {len(self.routes)} routes>"


async def news(view: View, *, otherwise: Collection[str]) -> Collection[str]:
    """The kinds of lists that look different since this was asked last, or since they were first looked up.

    ``otherwise`` is the answer where they never were. The marks of the hub are no part of an item.
    """
    before = view.told
    await view.settle()
    view.told = listed = {kind: view.entries(kind) for kind in Kind}
    found, turns = set[str](), Turns()
    for kind, entries in listed.items():
        gone = {entry.key: entry for entry in (before or {}).get(kind, ())}
        for entry in entries:
            known = gone.pop(entry.key, None)
            if known is None or (view.name_of(known), known.item) != (view.name_of(entry), entry.item):
                found.add(kind.value)
            await turns.offer()
        if gone:
            found.add(kind.value)
    return found if before is not None else otherwise


def view_for(view: View, principal: str, grants: Grants | None = None) -> View:
    """The same view for another user, or for other rights."""
    return View(view.hub, view.address, principal=principal, grants=grants)


def input_schema(view: View, tool: str) -> Mapping[str, Any] | None:
    """Return the input schema of a listed tool."""
    found, catalog = view.find(Kind.TOOL, tool), view.now.catalog
    name = catalog.names.get(found) if isinstance(found, NameKey) else None
    entry = catalog.entry(name, Kind.TOOL) if name is not None else None
    schema = entry.item.raw.get("inputSchema") if entry is not None else None
    return schema if isinstance(schema, Mapping) else None


def _in_folder(view: View, server: str) -> bool:
    """Whether a server is for the clients of this endpoint: it is shared, or it runs for their folder.

    A server of the folder takes the place of a shared one with the same name. The endpoint of one server is asked for
    by the server's id, so it is meant.
    """
    config = view.hub.registry.config
    if not config.scoped or view.server is not None:
        return True
    spec = config.servers.get(server)
    if spec is None or spec.scope == "project":
        return spec is not None and view.folder is not None and spec.folder == view.folder
    return view.folder is None or id_in_folder(server, view.folder) not in config.servers


def has_all(view: View, server: str) -> bool:
    """Whether nothing of a server is limited for those who see this view."""
    return view.grants is None or view.grants.has_all_of(_plain(view, server))


def _plain(view: View, server: str) -> str:
    """The name of a server in the configuration: profiles, pins and rules mean that one."""
    spec = view.hub.registry.config.servers.get(server)
    return spec.plain_name if spec is not None else server


def _is_pinned(view: View, entry: CatalogEntry) -> bool:
    """Whether a tool is one of the patterns of ``server/tool``."""
    name = f"{_plain(view, entry.server)}/{entry.original}"
    return any(fnmatchcase(name, pin) for pin in view.hub.config.settings.pin)


def _shows(view: View, key: NameKey) -> bool:
    """Whether an endpoint shows an item of one of its servers: by its server's filter, and by its profile."""
    spec = view.hub.config.servers.get(key.server)
    if (
        key.kind is Kind.TOOL
        and view.server is not None
        and spec is not None
        and not is_shown(key.original, spec.tools)
    ):
        return False
    if view.profile is None or key.kind in (Kind.RESOURCE, Kind.TEMPLATE):
        return True  # a resource belongs to its server, and the profile has that
    return any(fnmatchcase(f"{_plain(view, key.server)}/{key.original}", pattern) for pattern in _patterns(view))


def _in_profile(view: View, server: str) -> bool:
    """Whether the profile of an endpoint has something of a server."""
    return view.profile is None or _names_server(_patterns(view), _plain(view, server))


def _patterns(view: View) -> tuple[str, ...]:
    """What the profile of an endpoint has now; nothing if it was taken out of the configuration."""
    return dict(view.hub.config.settings.profiles).get(view.profile or "", ())


def lists_tools_of(view: View, server: str) -> bool:
    """Whether the list of tools changes with those of a server; in find mode only if one of them is pinned."""
    if view.tools == "all":
        return True
    return _names_server(view.hub.config.settings.pin, server)


def _names_server(patterns: Iterable[str], server: str) -> bool:
    """Whether one of the patterns ``server/name`` may mean something of a server. Both names may have a slash."""
    leads = (lead for one in patterns for lead in (one.partition("/")[0], one.rpartition("/")[0]))
    return any(fnmatchcase(server, lead) for lead in leads)


LONGEST_MATCHED: Final = 1024
"""Characters of a URI that is compared with templates: a comparison of a longer one takes a millisecond."""


class ResourceUris:
    """Finds the server of a URI, and the URI of a server's resource, for one view.

    An endpoint of one server shows each URI as its server wrote it. At the endpoint of many servers two of them may
    have the same one: then it gets a prefix of its server. A client may also read what no list has, by a template, by
    the prefix, or because only one server has resources at all. No server has a URI of the hub's own (``holdfast://``).
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._leads: dict[str, str] = {}

    def find(self, uri: str) -> NameKey | Unknown:
        """The owner of a resource: by the list, a template, the server prefix, or because one server has them all."""
        if self._view.server is not None:
            found: NameKey | Unknown = NameKey(Kind.RESOURCE, self._view.server, uri)
        else:
            found = self._owner_of(uri) or self._view.now.catalog.resolve(uri, Kind.RESOURCE)
        own = is_own_uri(uri) or (isinstance(found, NameKey) and is_own_uri(found.original))
        return Unknown(uri, ()) if own else found

    def shown(self, server: str, uri: str) -> str:
        """The URI of a server's resource at this endpoint. The hub's own resource is of no server.

        A server may be removed while the URIs of its result are read: then each stays as it is.
        """
        if self._view.server is not None or not server:
            return uri
        key = NameKey(Kind.RESOURCE, server, uri)
        known = self._view.now.catalog.names.get(key)
        if known is not None:
            return known
        return uri if self._owner_of(uri) == key else self._prefixes().get(server, "") + uri

    def _owner_of(self, uri: str) -> NameKey | None:
        if is_own_uri(uri):
            return None
        now = self._view.now
        listed = now.catalog.owners.get((Kind.RESOURCE, uri))
        if listed is not None:
            return listed
        like = [*now.index.templates_like(uri)]
        renamed = next((entry for entry in like if entry.name != entry.original and _fits(entry.name, uri)), None)
        if renamed is not None:
            lead = renamed.name.removesuffix(renamed.original)
            return NameKey(Kind.RESOURCE, renamed.server, uri.removeprefix(lead))
        for server, lead in self._prefixes().items():  # before other templates: none takes what names another server
            if uri.startswith(lead):
                return NameKey(Kind.RESOURCE, server, uri.removeprefix(lead))
        fitting = next((entry for entry in like if entry.name == entry.original and _fits(entry.name, uri)), None)
        if fitting is not None:
            return NameKey(Kind.RESOURCE, fitting.server, uri)
        having = now.index.servers
        return NameKey(Kind.RESOURCE, next(iter(having)), uri) if len(having) == 1 else None

    def _prefixes(self) -> dict[str, str]:
        """The URI prefix of each server; equal prefixes get a number."""
        servers = sorted(self._view.hub.registry.slots)
        if servers != list(self._leads):
            self._leads = {server: lead[0] for server, lead in uri_leads(servers).items()}
        return self._leads


def _fits(template: str, uri: str) -> bool:
    read = read_template(template)
    return read is not None and read.match(uri, max_uri_length=LONGEST_MATCHED) is not None
