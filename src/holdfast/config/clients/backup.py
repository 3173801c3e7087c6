"""Backups of files that Holdfast edits, kept until the edit is undone.

A backup may contain tokens, as the file itself does, so only the user can read it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.config.clients.document import write_whole
from holdfast.config.clients.known import ClientLocation

__all__ = ["Backup", "Backups"]


@dataclass(frozen=True, kw_only=True)
class Backup:
    """The backup of one edit of one file."""

    client: str
    place: ClientLocation
    before: str = field(repr=False)
    written: str
    """A hash of the written text: if the file still has it, nothing else changed the file."""
    moved: tuple[str, ...]
    """The servers that the edit removed."""
    kept_in: Path

    @property
    def number(self) -> int:
        """The number of the backup; later ones have higher numbers."""
        return _number(self.kept_in)

    def is_untouched(self, text: str) -> bool:
        """Whether the file still has the text that was written."""
        return _hash(text) == self.written


class Backups:
    """The folder of all backups. The newest of a location is restored first."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        home = Path(environ.get("HOME") or Path.home())
        base = environ.get("XDG_STATE_HOME") or str(home / ".local" / "state")
        self._folder = Path(base) / "holdfast" / "backups"

    def keep(self, client: str, place: ClientLocation, *, before: str, written: str, moved: tuple[str, ...]) -> Path:
        """Save the text of a file before an edit."""
        number = max(map(_number, self._files()), default=0) + 1
        kept_in = self._folder / f"{client}-{number:04d}.json"
        value = {
            "client": client,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "file": str(place.file),
            "path": list(place.path),
            "scope": place.scope,
            "moved": list(moved),
            "written": _hash(written),
            "before": before,
        }
        write_whole(kept_in, json.dumps(value, indent=2, ensure_ascii=False))
        return kept_in

    def latest(self, client: str, place: ClientLocation) -> Backup | None:
        """The newest backup of a location."""
        found = (_read(file) for file in self._files(client))
        return next((backup for backup in found if backup.place == place), None)

    def forget(self, backup: Backup) -> None:
        """Delete a backup after it was restored."""
        backup.kept_in.unlink()

    def _files(self, client: str = "*") -> list[Path]:
        """Newest first."""
        return sorted(self._folder.glob(f"{client}-[0-9]*.json"), key=_number, reverse=True)


def _number(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])


def _read(file: Path) -> Backup:
    value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return Backup(
        client=value["client"],
        place=ClientLocation(file=Path(value["file"]), path=tuple(value["path"]), scope=value["scope"]),
        before=value["before"],
        written=value["written"],
        moved=tuple(value["moved"]),
        kept_in=file,
    )


def _hash(text: str) -> str:
    return hashlib.blake2s(text.encode()).hexdigest()
