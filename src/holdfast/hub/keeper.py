"""Keeps the state file up to date in the background: changes coalesce, and a worker thread writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import anyio
import anyio.to_thread

from holdfast.config.spec import Config, ServerSpec
from holdfast.core.catalog import Catalog, NameKey
from holdfast.hub.approvals import Approvals
from holdfast.hub.store import Store, StoredServer, fingerprint

__all__ = ["Snapshot", "StateWriter"]

Snapshot: TypeAlias = "Callable[[], tuple[Config, Catalog, frozenset[str]]]"
"""Returns the configuration, the catalog and the disabled servers of this moment."""


class StateWriter:
    """The one writer of the store and of the approvals file; without a store, nothing is written."""

    def __init__(self, store: Store | None, approvals: Approvals) -> None:
        self._store = store
        self._approvals = approvals
        self._pending: Snapshot | None = None
        self._dirty = anyio.Event()
        self._writing = anyio.Lock()

    def restore(self, config: Config) -> Catalog:
        """Read the last good catalog, for the servers whose definition is unchanged."""
        self._approvals.load()
        catalog = Catalog()
        kept = self._store.load() if self._store is not None else {}
        for server in config.servers.values():
            catalog = catalog.configure(server.id, prefix=getattr(server, "prefix", None))
            one = kept.get(server.id)
            if one is not None and isinstance(server, ServerSpec) and one.fingerprint == fingerprint(server):
                catalog = _restored(catalog, one)
            if one is not None and one.disabled:
                # A disabled server stays disabled after a restart, also with a new definition.
                catalog = catalog.withdraw(server.id)
        return catalog

    def changed(self, snapshot: Snapshot) -> None:
        """Write soon: the state changed."""
        self._pending = snapshot
        self._dirty.set()

    async def run(self) -> None:
        """Write after each change, until cancelled."""
        while True:
            await self._dirty.wait()
            self._dirty = anyio.Event()
            await self._write()

    async def close(self, snapshot: Snapshot) -> None:
        """Write for the last time."""
        self._pending = snapshot
        await self._write()

    async def _write(self) -> None:
        async with self._writing:
            snapshot, self._pending = self._pending, None
            if self._store is not None and snapshot is not None:
                await anyio.to_thread.run_sync(self._store.save, _stored(*snapshot()))
            if self._store is not None and self._approvals.unsaved:
                await self._write_approvals()

    async def _write_approvals(self) -> None:
        changes = self._approvals.to_save()
        if not await anyio.to_thread.run_sync(self._approvals.save, changes):
            self._approvals.not_saved(changes)


def _restored(catalog: Catalog, kept: StoredServer) -> Catalog:
    catalog = replace(catalog, names={**catalog.names, **kept.names})
    return catalog.publish(kept.listing) if kept.listing is not None else catalog


def _stored(config: Config, catalog: Catalog, off: frozenset[str]) -> dict[str, StoredServer]:
    names: dict[str, dict[NameKey, str]] = {}
    for key, name in catalog.names.items():
        names.setdefault(key.server, {})[key] = name
    return {
        server.id: StoredServer(
            fingerprint=fingerprint(server) if isinstance(server, ServerSpec) else "",
            disabled=server.id in off,
            listing=catalog.servers[server.id].listing,
            names=names.get(server.id, {}),
        )
        for server in config.servers.values()
        if server.id in catalog.servers
    }
