"""Tools as they were first seen: one that says something else later is reported, and can be held (SEC-5).

A server can change what a tool says of itself after people, or their models, came to trust it. What was first
seen is kept beside the hub's state, in a file of its own: it cannot be rebuilt by asking the servers again.
What waits for approval is kept too, so that it can be looked at, and decided, while its server is down.
A held tool stays in the list as it was first seen, and is not called, until somebody approves the change.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.core.catalog import Item, Listing
from holdfast.core.changed import WATCHED, ChangedTool, said
from holdfast.errors import ToolHeld, UnknownTool
from holdfast.hub.journal import Journal
from holdfast.hub.records import ToolApproved, ToolChanged

__all__ = ["HELD", "Approvals"]

log = logging.getLogger("holdfast.hub")

HELD = "holdfast/held"
"""The key in ``_meta`` that is true for a tool that is shown as it was, and not called."""

FORMAT = 1

REMEMBERED = 1_000
"""How many tools that a server no longer lists are remembered, so that they are known if they come back."""

_Tools: TypeAlias = dict[str, Mapping[str, Any]]


class Approvals:
    """What each server's tools said when they were first seen, or last approved; without a state file, for this run.

    ``holds`` says whether a server's changed tools are held.
    """

    def __init__(self, state_file: Path | None, *, holds: Callable[[str], bool], journal: Journal) -> None:
        self._file = state_file.with_suffix(".tools.json") if state_file is not None else None
        self._holds = holds
        self._journal = journal
        self._seen: dict[str, _Tools] = {}
        self._now: dict[str, _Tools] = {}
        """What those say now that say something else."""
        self._latest: dict[str, Listing] = {}
        self.unsaved = False
        """Whether the file is not what it must be."""

    @property
    def changed(self) -> Mapping[str, frozenset[str]]:
        """By server, the tools that say something else than when they were first seen."""
        return {server: frozenset(tools) for server, tools in self._now.items() if tools}

    def pending(self, server: str | None = None) -> tuple[ChangedTool, ...]:
        """Every change that nobody has approved, of one server or of all, in order of their names."""
        servers = sorted(self._now) if server is None else [server]
        return tuple(
            ChangedTool(server=one, tool=tool, held=self._holds(one), was=self._seen[one][tool], now=now)
            for one in servers
            for tool, now in sorted(self._now.get(one, {}).items())
        )

    def is_held(self, server: str, tool: str) -> bool:
        """Whether a tool may not be called until its change is approved."""
        return tool in self._now.get(server, {}) and self._holds(server)

    def review(self, listing: Listing) -> Listing:
        """A server's new listing, as it may be shown."""
        server, self._latest[listing.server] = listing.server, listing
        self._take_first_seen(listing)
        seen, before = self._seen[server], self._now.get(server, {})
        now: _Tools = {item.name: what for item in listing.tools if (what := said(item.raw)) != seen[item.name]}
        for name in sorted(now):
            if before.get(name) != now[name]:
                at = self._journal.clock.now()
                self._journal.tell(ToolChanged(server=server, tool=name, held=self._holds(server), at=at))
        self.unsaved |= now != before
        self._now[server] = now
        if not now or not self._holds(server):
            return listing
        return replace(
            listing, tools=tuple(_as_seen(item, seen) if item.name in now else item for item in listing.tools)
        )

    def approve(self, server: str, tool: str | None = None, *, mark: str | None = None) -> tuple[str, ...]:
        """Take what is pending of a server's tools for good, one of them or all; the tools that this changed.

        With the ``mark`` of the change that was looked at, nothing newer is approved.
        """
        pending = {change.tool: change for change in self.pending(server)}
        if tool is not None and tool not in self._seen.get(server, {}):
            raise UnknownTool(f"`{server}` has no tool named `{tool}`", hint=_waiting(pending))
        wanted = [change for name, change in pending.items() if tool in (None, name)]
        if mark is not None and any(change.mark != mark for change in wanted):
            raise ToolHeld(
                f"the tool `{tool}` of `{server}` changed again since it was looked at",
                hint="look at the change as it is now, and approve that",
            )
        for change in wanted:
            self._seen[server][change.tool] = self._now[server].pop(change.tool)
            self.unsaved = True
            self._journal.tell(ToolApproved(server=server, tool=change.tool, at=self._journal.clock.now()))
        return tuple(change.tool for change in wanted)

    def latest(self, server: str) -> Listing | None:
        """What a server listed last, in this run."""
        return self._latest.get(server)

    def forget(self, server: str) -> None:
        """The server is gone."""
        self.unsaved |= self._seen.pop(server, None) is not None
        self._now.pop(server, None)
        self._latest.pop(server, None)

    # The file.

    def load(self) -> None:
        """Read what was kept; a file that cannot be read is set aside, and every tool is seen for the first time."""
        if self._file is None or not self._file.exists():
            return
        try:
            self._seen, self._now = _checked(json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as exc:
            log.warning("%s cannot be read (%s): every tool counts as seen for the first time", self._file, exc)
            _set_aside(self._file)

    def to_save(self) -> str:
        """What the file must hold; from now on it is taken to hold it."""
        self.unsaved = False
        return json.dumps({"format": FORMAT, "seen": self._seen, "changed": self._now})

    def save(self, text: str) -> None:
        """Write the file, whole or not at all. For a worker thread, one at a time."""
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = self._file.with_name(f"{self._file.name}.new")
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, self._file)  # noqa: PTH105 - atomic, and says so
        except OSError as exc:
            log.warning("%s could not be written: %s", self._file, exc)

    def _take_first_seen(self, listing: Listing) -> None:
        seen = self._seen.setdefault(listing.server, {})
        listed = {item.name for item in listing.tools}
        for item in listing.tools:
            if item.name not in seen:
                seen[item.name], self.unsaved = said(item.raw), True
        for name in [name for name in seen if name not in listed][:-REMEMBERED]:
            del seen[name]
            self.unsaved = True


def _checked(read: object) -> tuple[dict[str, _Tools], dict[str, _Tools]]:
    if not isinstance(read, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - what a file holds is a value, whatever its type
    seen, now = _by_server(read.get("seen")), _by_server(read.get("changed"))
    return seen, {
        server: {tool: what for tool, what in tools.items() if tool in seen.get(server, {})}
        for server, tools in now.items()
    }


def _by_server(read: object) -> dict[str, _Tools]:
    if not isinstance(read, dict) or not all(isinstance(tools, dict) for tools in read.values()):
        raise ValueError("it does not hold tools by server")
    if not all(isinstance(what, dict) for tools in read.values() for what in tools.values()):
        raise ValueError("it does not hold what tools said")
    return read


def _set_aside(file: Path) -> None:
    try:
        os.replace(file, file.with_name(f"{file.name}.corrupt"))  # noqa: PTH105 - beside the other
    except OSError as exc:
        log.warning("%s could not be set aside: %s", file, exc)


def _as_seen(item: Item, seen: Mapping[str, Mapping[str, Any]]) -> Item:
    rest = {key: value for key, value in item.raw.items() if key not in WATCHED}
    meta = rest.get("_meta")
    rest["_meta"] = {**(meta if isinstance(meta, Mapping) else {}), HELD: True}
    return Item(item.name, {**rest, **seen[item.name]})


def _waiting(pending: Mapping[str, ChangedTool]) -> str:
    return f"waiting for approval: {', '.join(pending) or 'none'}"
