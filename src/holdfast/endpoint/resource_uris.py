"""The URIs of resources at one endpoint.

An endpoint of one server shows each URI as its server wrote it. At the endpoint of many servers two of them may have
the same one: then it gets a prefix of its server. A client may also read what no list has, by a template, by the
prefix, or because only one server has resources at all. No server has a URI of the hub's own (``holdfast://``).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

from holdfast.core import Kind, NameKey, Unknown, is_own_uri, uri_lead

if TYPE_CHECKING:
    from holdfast.endpoint.view import View

__all__ = ["ResourceUris"]


class ResourceUris:
    """Finds the server of a URI, and the URI of a server's resource, for one view."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._registry = view.hub.registry
        self._server = view.server

    def find(self, uri: str) -> NameKey | Unknown:
        """The owner of a resource: by the list, a template, the server prefix, or because one server has them all."""
        if self._server is not None:
            found: NameKey | Unknown = NameKey(Kind.RESOURCE, self._server, uri)
        else:
            found = self._owner_of(uri) or self._view.user.catalog.resolve(uri, Kind.RESOURCE)
        own = is_own_uri(uri) or (isinstance(found, NameKey) and is_own_uri(found.original))
        return Unknown(uri, ()) if own else found

    def shown(self, server: str, uri: str) -> str:
        """The URI of a server's resource at this endpoint. The hub's own resource is of no server."""
        if self._server is not None or not server:
            return uri
        key = NameKey(Kind.RESOURCE, server, uri)
        known = self._view.user.catalog.names.get(key)
        if known is not None:
            return known
        named = self._prefixes()[server] + uri
        return next((one for one in (uri, *self._by_own_templates(key)) if self._owner_of(one) == key), named)

    def _owner_of(self, uri: str) -> NameKey | None:
        if is_own_uri(uri):
            return None
        catalog = self._view.user.catalog
        listed = catalog.owners.get((Kind.RESOURCE, uri))
        if listed is not None:
            return listed
        for entry in catalog.templates:
            if _fits(entry.name, uri):
                lead = entry.name.removesuffix(entry.original)
                return NameKey(Kind.RESOURCE, entry.server, uri.removeprefix(lead))
        for server, lead in self._prefixes().items():
            if uri.startswith(lead):
                return NameKey(Kind.RESOURCE, server, uri.removeprefix(lead))
        having = {entry.server for kind in (Kind.RESOURCE, Kind.TEMPLATE) for entry in catalog.of(kind)}
        return NameKey(Kind.RESOURCE, having.pop(), uri) if len(having) == 1 else None

    def _by_own_templates(self, key: NameKey) -> Iterator[str]:
        for entry in self._view.user.catalog.templates:
            if entry.server == key.server and _fits(entry.original, key.original):
                yield entry.name.removesuffix(entry.original) + key.original

    def _prefixes(self) -> dict[str, str]:
        """The URI prefix of each server; equal prefixes get a number."""
        prefixes: dict[str, str] = {}
        taken: set[str] = set()
        for server in sorted(self._registry.slots):
            lead = next(lead for turn in count() if (lead := uri_lead(server, turn)) not in taken)
            prefixes[server] = lead
            taken.add(lead)
        return prefixes


def _fits(template: str, uri: str) -> bool:
    try:
        return UriTemplate.parse(template).match(uri) is not None
    except InvalidUriTemplate:
        return False
