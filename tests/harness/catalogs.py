"""Catalogs for tests: one server more, without a configuration."""

from __future__ import annotations

from holdfast.core import Catalog

__all__ = ["configured"]


def configured(catalog: Catalog, server: str, *, prefix: str | None = None) -> Catalog:
    """The catalog with this server too, or with another prefix for it: None for its id, empty for no prefix at all."""
    return catalog.arrange({**{name: one.prefix for name, one in catalog.servers.items()}, server: prefix})
