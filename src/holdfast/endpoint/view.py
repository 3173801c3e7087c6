"""What one endpoint shows: all servers under the catalog's names, or one server under its own names.

Every question reads the current catalog, so an endpoint is never behind the hub. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mcp.shared.inbound import X_MCP_HEADER_KEY

from holdfast.config import Config
from holdfast.core import (
    Catalog,
    CatalogEntry,
    Kind,
    NameKey,
    Unknown,
    is_repeatable,
    nearest,
    unmarked,
)
from holdfast.endpoint.resource_uris import ResourceUris
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
        self._uris = ResourceUris(hub, server)
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
        return {**shown(entry), **self._named(entry)}

    def unmarked_item(self, entry: CatalogEntry) -> dict[str, Any] | None:
        """Return one item without the marks of the hub; None if it has none."""
        plain = unmarked(entry.item.raw)
        return None if entry.verified and plain is entry.item.raw else {**plain, **self._named(entry)}

    def find(self, kind: Kind, name: str) -> NameKey | Unknown:
        """Return the owner of an item and its original name; an endpoint of one server owns every name."""
        if kind is Kind.RESOURCE:
            return self._uris.find(name)
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
            route = ToolRoute(found, own, is_repeatable(catalog, catalog.names.get(found, "")), mirrors)
            if found in catalog.names:
                self._routes[name] = route
        return route

    def shown_uri(self, server: str, uri: str) -> str:
        """Return the URI of a server's resource at this endpoint; it gets a server prefix if it is ambiguous."""
        return self._uris.shown(server, uri)

    def input_schema(self, tool: str) -> Mapping[str, Any] | None:
        """Return the input schema of a listed tool."""
        found, catalog = self.find(Kind.TOOL, tool), self.hub.registry.catalog
        name = catalog.names.get(found) if isinstance(found, NameKey) else None
        entry = catalog.entry(name, Kind.TOOL) if name is not None else None
        schema = entry.item.raw.get("inputSchema") if entry is not None else None
        return schema if isinstance(schema, Mapping) else None

    def _named(self, entry: CatalogEntry) -> dict[str, str]:
        return {_NAME[entry.key.kind]: entry.name if self.server is None else entry.original}

    def __repr__(self) -> str:
        return f"<View of {self.server or 'all servers'}>"
