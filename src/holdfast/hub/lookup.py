"""Find in the catalog what a caller names, and say what is wrong where it cannot be called."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.catalog import Catalog, NameKey, Unknown
from holdfast.core.names import Kind
from holdfast.errors import ToolHeld, UnknownTool

__all__ = ["held", "is_repeatable", "resolved"]


def resolved(catalog: Catalog, name: str, kind: Kind) -> NameKey:
    """Whose item that is, listed at the moment or not."""
    found = catalog.resolve(name, kind)
    if isinstance(found, Unknown):
        noun = kind.value.removesuffix("s")
        hint = f"did you mean {' or '.join(found.nearest)}?" if found.nearest else ""
        raise UnknownTool(f"no server has a {noun} named `{name}`", hint=hint)
    return found


def is_repeatable(catalog: Catalog, name: str) -> bool:
    """Whether a tool says that calling it twice is as good as once."""
    entry = catalog.entry(name)
    said = entry.item.raw.get("annotations") if entry is not None else None
    return isinstance(said, Mapping) and (said.get("readOnlyHint") is True or said.get("idempotentHint") is True)


def held(server: str, tool: str) -> ToolHeld:
    """A tool that waits for somebody's approval."""
    return ToolHeld(
        f"the tool `{tool}` of `{server}` is held: it is not what it was when it was first seen",
        hint="Somebody must look at the change and approve it before the tool can be called.",
    )
