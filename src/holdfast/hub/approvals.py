"""Tools as they were first seen: one that says something else later is reported, and can be held (SEC-5).

A server can change what a tool says of itself after people, or their models, came to trust it. What was first
seen is kept beside the hub's state, in a file of its own: it cannot be rebuilt by asking the servers again.
A held tool stays in the list as it was first seen, and is not called, until somebody approves the change.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from holdfast.core.catalog import Item, Listing

__all__ = ["HELD", "Approvals"]

log = logging.getLogger("holdfast.hub")

HELD = "holdfast/held"
"""The key in ``_meta`` that is true for a tool that is shown as it was, and not called."""

_WATCHED = ("description", "title", "inputSchema", "outputSchema", "annotations")
"""What a model goes by when it calls a tool."""


class Approvals:
    """What each server's tools said when they were first seen, or last approved; without a file, for this run."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._seen: dict[str, dict[str, Mapping[str, Any]]] = {}
        self._latest: dict[str, Listing] = {}
        self._held: set[tuple[str, str]] = set()
        self._dirty = False
        self._version = self._written = 0
        self._writing = Lock()
        self.changed: dict[str, frozenset[str]] = {}
        """By server, the tools that say something else than when they were first seen."""

    def load(self) -> None:
        """Read what was kept; a file that cannot be read is as good as none, and is said to be so."""
        try:
            if self._file is not None and self._file.exists():
                self._seen = _checked(json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as exc:
            log.warning("%s cannot be read (%s): every tool counts as seen for the first time", self._file, exc)

    def unsaved(self) -> Callable[[], None] | None:
        """What writes the file as it must be now, in a worker thread; None if it is as it must be."""
        if self._file is None or not self._dirty:
            return None
        self._dirty, self._version = False, self._version + 1
        return partial(self._save, self._file, json.dumps(self._seen), self._version)

    def _save(self, file: Path, text: str, version: int) -> None:
        """Write it, whole or not at all; an older state never over a newer one."""
        with self._writing:
            if version < self._written:
                return
            self._written = version
            try:
                file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                fresh = file.with_name(f"{file.name}.new")
                fresh.write_text(text, encoding="utf-8")
                os.replace(fresh, file)  # noqa: PTH105 - atomic, and says so
            except OSError as exc:
                log.warning("%s could not be written: %s", file, exc)

    def review(self, listing: Listing, *, hold: bool) -> Listing:
        """The listing as it may be shown."""
        server, self._latest[listing.server] = listing.server, listing
        seen = self._seen.setdefault(server, {})
        for item in listing.tools:
            if item.name not in seen:
                seen[item.name], self._dirty = _said(item.raw), True
        changed = frozenset(item.name for item in listing.tools if _said(item.raw) != seen[item.name])
        for name in sorted(changed - self.changed.get(server, frozenset())):
            log.warning("%s: the tool %s is not what it was when it was first seen%s", server, name, _so(hold=hold))
        self.changed[server] = changed
        self._held = {key for key in self._held if key[0] != server}
        if not hold or not changed:
            return listing
        self._held |= {(server, name) for name in changed}
        return replace(listing, tools=tuple(_as_seen(item, seen, changed) for item in listing.tools))

    def is_held(self, server: str, tool: str) -> bool:
        """Whether a tool may not be called until its change is approved."""
        return (server, tool) in self._held

    def approve(self, server: str, tool: str | None = None) -> Listing | None:
        """Take what a server's tools say now for good, one of them or all; the listing to be shown again."""
        latest = self._latest.get(server)
        for item in latest.tools if latest is not None else ():
            if tool in (None, item.name):
                self._seen[server][item.name], self._dirty = _said(item.raw), True
        return latest

    def forget(self, server: str) -> None:
        """The server is another one now, or gone."""
        self._dirty |= self._seen.pop(server, None) is not None
        self._latest.pop(server, None)
        self.changed.pop(server, None)
        self._held = {key for key in self._held if key[0] != server}


def _checked(read: object) -> dict[str, dict[str, Mapping[str, Any]]]:
    if isinstance(read, dict) and all(isinstance(tools, dict) for tools in read.values()):
        return read
    raise ValueError("it does not hold tools by server")


def _said(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: raw[key] for key in _WATCHED if raw.get(key) is not None}


def _as_seen(item: Item, seen: Mapping[str, Mapping[str, Any]], changed: frozenset[str]) -> Item:
    if item.name not in changed:
        return item
    rest = {key: value for key, value in item.raw.items() if key not in _WATCHED}
    meta = rest.get("_meta")
    rest["_meta"] = {**(meta if isinstance(meta, Mapping) else {}), HELD: True}
    return Item(item.name, {**rest, **seen[item.name]})


def _so(*, hold: bool) -> str:
    return ": it is held until the change is approved" if hold else ""
