"""The file of what tools said when they were first seen: read, merged and written, for several hubs at once.

Every client may start a hub of its own for one configuration, and all of them share this file. So nobody writes
what they remember over what is there: under a lock, the file is read, this hub's own news are put into it, and it
is replaced whole. A file that does not parse is set aside, never deleted; one that cannot be read is left alone.
What counts as changed, and what is held, is not decided here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.files import locked, replace_file, set_aside

__all__ = ["Known", "News", "PinFile", "Tools", "merged"]

log = logging.getLogger("holdfast.hub")

FORMAT = 1

Tools: TypeAlias = dict[str, Mapping[str, Any]]
"""What tools say of themselves, by name."""


@dataclass(frozen=True)
class Known:
    """What the file holds, by server."""

    seen: Mapping[str, Tools] = field(default_factory=dict)
    """What was first seen, or last approved."""
    changed: Mapping[str, Tools] = field(default_factory=dict)
    """What those say by now that say something else."""


@dataclass(frozen=True, kw_only=True)
class News:
    """What one hub has to say since it wrote last."""

    known: Known
    approved: frozenset[tuple[str, str]] = frozenset()
    """Servers and tools that somebody approved: only those replace what was first seen."""
    dropped: frozenset[tuple[str, str]] = frozenset()
    """Servers and tools that are no longer remembered."""
    gone: frozenset[str] = frozenset()
    """Servers that are no longer configured."""


def merged(kept: Known, news: News) -> Known:
    """The file as it must be: of two hubs, who saw a tool first is believed, but an approval stands."""
    seen = {server: dict(tools) for server, tools in kept.seen.items() if server not in news.gone}
    for server, tool in news.dropped:
        seen.get(server, {}).pop(tool, None)
    for server, tools in news.known.seen.items():
        there = seen.setdefault(server, {})
        there.update(
            {tool: what for tool, what in tools.items() if tool not in there or (server, tool) in news.approved}
        )
    changed = {server: tools for server, tools in kept.changed.items() if server not in news.gone}
    return Known(seen, _still_changed(seen, {**changed, **news.known.changed}))


class PinFile:
    """The file of one configuration. Its methods block for a moment."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> Known:
        """What is kept; an ``OSError`` says that something may be there which cannot be read now."""
        try:
            return self._parsed()
        except ValueError:
            with self._writing():
                return self._read_locked()

    def add(self, news: News) -> bool:
        """Put a hub's news into the file, whole or not at all; False if it could not be done, which is said."""
        try:
            with self._writing():
                known = merged(self._read_locked(), news)
                replace_file(self._file, json.dumps({"format": FORMAT, "seen": known.seen, "changed": known.changed}))
        except OSError as exc:
            log.warning("%s could not be written: %s", self._file, exc)
            return False
        return True

    def _read_locked(self) -> Known:
        """Read, and set a damaged file aside: nobody can have mended it meanwhile."""
        try:
            return self._parsed()
        except ValueError as exc:
            aside = set_aside(self._file)
            log.warning("%s cannot be read (%s): every tool counts as seen for the first time", self._file, exc)
            log.warning("it was kept as %s", aside)
            return Known()

    def _parsed(self) -> Known:
        try:
            return _checked(json.loads(self._file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Known()
        except RecursionError as exc:
            raise ValueError("it is nested too deeply") from exc

    def _writing(self) -> AbstractContextManager[None]:
        return locked(self._file.with_name(f"{self._file.name}.lock"))


def _checked(read: object) -> Known:
    if not isinstance(read, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - what a file holds is a value, whatever its type
    seen = _by_server(read.get("seen"))
    return Known(seen, _still_changed(seen, _by_server(read.get("changed"))))


def _by_server(read: object) -> dict[str, Tools]:
    if not isinstance(read, dict) or not all(isinstance(tools, dict) for tools in read.values()):
        raise ValueError("it does not hold tools by server")
    if not all(isinstance(what, dict) for tools in read.values() for what in tools.values()):
        raise ValueError("it does not hold what tools said")
    return read


def _still_changed(seen: Mapping[str, Tools], changed: Mapping[str, Tools]) -> dict[str, Tools]:
    return {
        server: {
            tool: what for tool, what in tools.items() if tool in seen.get(server, {}) and what != seen[server][tool]
        }
        for server, tools in changed.items()
    }
