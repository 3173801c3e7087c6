"""Keeps the state file up to date behind the hub's back: changes coalesce, and a worker thread writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import anyio
import anyio.to_thread

from holdfast.config.spec import Config, ServerSpec
from holdfast.core.catalog import Catalog, NameKey
from holdfast.hub.approvals import Approvals
from holdfast.hub.store import Kept, Store, fingerprint

__all__ = ["Keeper", "Snapshot"]

Snapshot: TypeAlias = "Callable[[], tuple[Config, Catalog, frozenset[str]]]"
"""The configuration, the catalog, and who was switched off, at the moment of asking."""


class Keeper:
    """One writer for one store, and for what was approved beside it; without a store, nothing is kept."""

    def __init__(self, store: Store | None, approvals: Approvals) -> None:
        self._store = store
        self._approvals = approvals
        self._pending: Snapshot | None = None
        self._came = anyio.Event()
        self._writing = anyio.Lock()

    def restore(self, config: Config) -> Catalog:
        """Read what was kept; the catalog as it was last seen, for the servers whose definition is still the same."""
        self._approvals.load()
        catalog = Catalog()
        kept = self._store.load() if self._store is not None else {}
        for server in config.servers.values():
            catalog = catalog.configure(server.id, prefix=getattr(server, "prefix", None))
            one = kept.get(server.id)
            if one is not None and isinstance(server, ServerSpec) and one.fingerprint == fingerprint(server):
                catalog = _shown_again(catalog, one)
            if one is not None and one.disabled:
                # Whoever switched it off meant the server, whatever its definition says by now.
                catalog = catalog.withdraw(server.id)
        return catalog

    def changed(self, snapshot: Snapshot) -> None:
        """Something that is kept changed; it will be written soon."""
        self._pending = snapshot
        self._came.set()

    async def run(self) -> None:
        """Write whenever something changed, until cancelled."""
        while True:
            await self._came.wait()
            self._came = anyio.Event()
            await self._write()

    async def close(self, snapshot: Snapshot) -> None:
        """Write a last time."""
        self._pending = snapshot
        await self._write()

    async def _write(self) -> None:
        async with self._writing:
            snapshot, self._pending = self._pending, None
            if self._store is not None and snapshot is not None:
                await anyio.to_thread.run_sync(self._store.save, _kept(*snapshot()))
            if self._store is not None and self._approvals.unsaved:
                await self._write_approvals()

    async def _write_approvals(self) -> None:
        news = self._approvals.to_save()
        if not await anyio.to_thread.run_sync(self._approvals.save, news):
            self._approvals.not_saved(news)


def _shown_again(catalog: Catalog, kept: Kept) -> Catalog:
    catalog = replace(catalog, names={**catalog.names, **kept.names})
    return catalog.publish(kept.listing) if kept.listing is not None else catalog


def _kept(config: Config, catalog: Catalog, off: frozenset[str]) -> dict[str, Kept]:
    names: dict[str, dict[NameKey, str]] = {}
    for key, name in catalog.names.items():
        names.setdefault(key.server, {})[key] = name
    return {
        server.id: Kept(
            fingerprint=fingerprint(server) if isinstance(server, ServerSpec) else "",
            disabled=server.id in off,
            listing=catalog.servers[server.id].listing,
            names=names.get(server.id, {}),
        )
        for server in config.servers.values()
        if server.id in catalog.servers
    }
