"""Finds what a caller names in the catalog, and refuses what cannot be called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.config.spec import Config, ServerSpec
from holdfast.core.catalog import Catalog, NameKey, Unknown
from holdfast.core.names import Kind
from holdfast.errors import ToolHeld, UnknownTool
from holdfast.hub.approvals import Approvals

__all__ = ["holds_changed", "is_repeatable", "refuse_held", "resolve"]


def resolve(catalog: Catalog, name: str, kind: Kind) -> NameKey:
    """The server and the original name of an item, whether it is listed now or not."""
    found = catalog.resolve(name, kind)
    if isinstance(found, Unknown):
        noun = kind.value.removesuffix("s")
        hint = f"did you mean {' or '.join(found.nearest)}?" if found.nearest else ""
        raise UnknownTool(f"no server has a {noun} named `{name}`", hint=hint)
    return found


def is_repeatable(catalog: Catalog, name: str) -> bool:
    """Whether a tool declares itself read-only or idempotent."""
    entry = catalog.entry(name)
    annotations = entry.item.raw.get("annotations") if entry is not None else None
    if not isinstance(annotations, Mapping):
        return False
    return annotations.get("readOnlyHint") is True or annotations.get("idempotentHint") is True


def holds_changed(config: Config, server: str) -> bool:
    """Whether a server's tools are held when they change."""
    spec = config.servers.get(server)
    return isinstance(spec, ServerSpec) and spec.hold_changed


def refuse_held(approvals: Approvals, server: str, method: str, params: Mapping[str, Any]) -> None:
    """Raise ``ToolHeld`` for a call to a tool that waits for approval."""
    tool = str(params.get("name"))
    if method == "tools/call" and approvals.is_held(server, tool):
        raise ToolHeld(
            f"the tool `{tool}` of `{server}` is held: it is not known to be unchanged since it was first seen",
            hint="A person must review the change and approve it before the tool can be called.",
        )
