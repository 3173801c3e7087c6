"""What one endpoint shows: all servers under the catalog's names, or one server under its own names.

Every question reads the current catalog, so an endpoint is never behind the hub. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from mcp.shared.inbound import X_MCP_HEADER_KEY
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

from holdfast.config import Config
from holdfast.core import (
    Catalog,
    CatalogEntry,
    Kind,
    NameKey,
    Unknown,
    is_own_uri,
    is_repeatable,
    nearest,
    unmarked,
    uri_lead,
)
from holdfast.hub import Hub, is_shown, shown
from holdfast.wire import dumps, text_as_json

__all__ = ["LIST_METHODS", "ToolRoute", "View"]

LIST_METHODS: Mapping[str, tuple[Kind, str]] = {
    "tools/list": (Kind.TOOL, "tools"),
    "prompts/list": (Kind.PROMPT, "prompts"),
    "resources/list": (Kind.RESOURCE, "resources"),
    "resources/templates/list": (Kind.TEMPLATE, "resourceTemplates"),
}
"""The kind that each method lists, and the key of the list in its result."""

_NAME = {Kind.TOOL: "name", Kind.PROMPT: "name", Kind.RESOURCE: "uri", Kind.TEMPLATE: "uriTemplate"}


class ToolRoute(NamedTuple):
    """Where the calls of a tool go."""

    key: NameKey
    own_name: bytes | None
    """The tool's name at its server, as JSON; None if it is the same."""
    repeatable: bool
    """Whether the tool is declared read-only or idempotent."""
    mirrors: bool
    """Whether its schema wants arguments as headers too."""


class View:
    """The servers of one endpoint; ``server`` is None for all of them."""

    def __init__(self, hub: Hub, server: str | None = None) -> None:
        self.hub = hub
        self.server = server
        self._listed: dict[Kind, tuple[Catalog, list[CatalogEntry]]] = {}
        self._routes: dict[str, ToolRoute] = {}
        self._routes_of: tuple[Catalog, Config] | None = None

    @property
    def servers(self) -> list[str]:
        """The servers that the endpoint has now."""
        return [self.server] if self.server is not None else list(self.hub.registry.slots)

    def has(self, server: str) -> bool:
        """Whether the endpoint has this server now."""
        return self.covers(server) and server in self.hub.registry.slots

    def covers(self, server: str) -> bool:
        """Whether the endpoint has this server."""
        return self.server in (None, server)

    def items(self, kind: Kind) -> list[dict[str, Any]]:
        """Return all items of one kind, as they go over the wire."""
        return [self._item(entry) for entry in self.entries(kind)]

    def entries(self, kind: Kind) -> Sequence[CatalogEntry]:
        """Return all entries of one kind that the endpoint shows."""
        catalog = self.hub.registry.catalog
        if self.server is None:
            return catalog.of(kind)
        known = self._listed.get(kind)
        if known is None or known[0] is not catalog:
            known = catalog, [entry for entry in catalog.of(kind) if entry.server == self.server]
            self._listed[kind] = known
        return known[1]

    def item(self, entry: CatalogEntry) -> dict[str, Any]:
        """Return one item, as it goes over the wire."""
        return self._item(entry)

    def unmarked_item(self, entry: CatalogEntry) -> dict[str, Any] | None:
        """Return the same without the marks of the hub; None if it has none."""
        plain = unmarked(entry.item.raw)
        return None if entry.verified and plain is entry.item.raw else {**plain, **self._named(entry)}

    def find(self, kind: Kind, name: str) -> NameKey | Unknown:
        """Return the owner of an item and its original name; an endpoint of one server owns every name."""
        if kind is Kind.RESOURCE:
            return self._find_resource(name)
        if self.server is None:
            return self.hub.registry.find(name, kind)
        spec = self.hub.config.servers.get(self.server)
        if kind is Kind.TOOL and spec is not None and not is_shown(name, spec.tools):
            return Unknown(name, nearest(name, (entry.original for entry in self.entries(kind))))
        return NameKey(kind, self.server, name)

    def tool(self, name: str) -> ToolRoute | Unknown:
        """What a call of a tool needs to know; a listed tool is looked up once, while nothing changes."""
        registry = self.hub.registry
        catalog, config = registry.catalog, registry.config
        if self._routes_of is None or self._routes_of[0] is not catalog or self._routes_of[1] is not config:
            self._routes, self._routes_of = {}, (catalog, config)
        route = self._routes.get(name)
        if route is None:
            found = self.find(Kind.TOOL, name)
            if not isinstance(found, NameKey):
                return found
            own = text_as_json(found.original) if found.original != name else None
            schema = self.input_schema(name)
            mirrors = schema is not None and X_MCP_HEADER_KEY.encode() in dumps(schema)
            route = ToolRoute(found, own, self.is_repeatable(found), mirrors)
            if found in catalog.names:
                self._routes[name] = route
        return route

    def shown_uri(self, server: str, uri: str) -> str:
        """Return the URI of a server's resource at this endpoint; it gets a server prefix if it is ambiguous.

        The hub's own resource is of no server.
        """
        if self.server is not None or not server:
            return uri
        key = NameKey(Kind.RESOURCE, server, uri)
        known = self.hub.registry.catalog.names.get(key)
        if known is not None:
            return known
        named = self._prefixes()[server] + uri
        return next((one for one in (uri, *self._by_own_templates(key)) if self._owner_of(one) == key), named)

    def input_schema(self, tool: str) -> Mapping[str, Any] | None:
        """Return the input schema of a listed tool."""
        found = self.find(Kind.TOOL, tool)
        entry = self._entry(found) if isinstance(found, NameKey) else None
        schema = entry.item.raw.get("inputSchema") if entry is not None else None
        return schema if isinstance(schema, Mapping) else None

    def is_repeatable(self, key: NameKey) -> bool:
        """Whether a tool is declared read-only or idempotent."""
        return is_repeatable(self.hub.registry.catalog, self.hub.registry.catalog.names.get(key, ""))

    def _entry(self, key: NameKey) -> CatalogEntry | None:
        name = self.hub.registry.catalog.names.get(key)
        return self.hub.registry.catalog.entry(name, key.kind) if name is not None else None

    def _item(self, entry: CatalogEntry) -> dict[str, Any]:
        return {**shown(entry), **self._named(entry)}

    def _named(self, entry: CatalogEntry) -> dict[str, str]:
        return {_NAME[entry.key.kind]: entry.name if self.server is None else entry.original}

    def _find_resource(self, uri: str) -> NameKey | Unknown:
        """Find the owner of a resource; no server has one of the hub's own, at the endpoint of one server either."""
        found = self._resource(uri)
        own = is_own_uri(uri) or (isinstance(found, NameKey) and is_own_uri(found.original))
        return Unknown(uri, ()) if own else found

    def _resource(self, uri: str) -> NameKey | Unknown:
        """Find the owner by the list, a template, the server prefix, or because one server has all resources."""
        if self.server is not None:
            return NameKey(Kind.RESOURCE, self.server, uri)
        return self._owner_of(uri) or self.hub.registry.catalog.resolve(uri, Kind.RESOURCE)

    def _owner_of(self, uri: str) -> NameKey | None:
        if is_own_uri(uri):
            return None
        listed = self.hub.registry.catalog.owners.get((Kind.RESOURCE, uri))
        if listed is not None:
            return listed
        for entry in self.hub.registry.catalog.templates:
            if _fits(entry.name, uri):
                lead = entry.name.removesuffix(entry.original)
                return NameKey(Kind.RESOURCE, entry.server, uri.removeprefix(lead))
        for server, lead in self._prefixes().items():
            if uri.startswith(lead):
                return NameKey(Kind.RESOURCE, server, uri.removeprefix(lead))
        having = {
            entry.server for kind in (Kind.RESOURCE, Kind.TEMPLATE) for entry in self.hub.registry.catalog.of(kind)
        }
        return NameKey(Kind.RESOURCE, having.pop(), uri) if len(having) == 1 else None

    def _by_own_templates(self, key: NameKey) -> Iterator[str]:
        for entry in self.hub.registry.catalog.templates:
            if entry.server == key.server and _fits(entry.original, key.original):
                yield entry.name.removesuffix(entry.original) + key.original

    def _prefixes(self) -> dict[str, str]:
        """Return the URI prefix of each server; equal prefixes get a number."""
        prefixes: dict[str, str] = {}
        taken: set[str] = set()
        for server in sorted(self.servers):
            lead = next(lead for turn in count() if (lead := uri_lead(server, turn)) not in taken)
            prefixes[server] = lead
            taken.add(lead)
        return prefixes


def _fits(template: str, uri: str) -> bool:
    try:
        return UriTemplate.parse(template).match(uri) is not None
    except InvalidUriTemplate:
        return False
