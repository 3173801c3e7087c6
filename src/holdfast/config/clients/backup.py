"""What a client's file was before we changed it, kept until it is put back.

A backup may hold the user's tokens, as the file itself does: it is readable by the user alone.
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
from holdfast.config.clients.known import Place

__all__ = ["Backup", "Backups"]


@dataclass(frozen=True, kw_only=True)
class Backup:
    """One change of one file."""

    client: str
    place: Place
    before: str = field(repr=False)
    written: str
    """A hash of what we wrote: if the file still has it, nobody else has changed it."""
    moved: tuple[str, ...]
    """The servers that we took out."""
    kept_in: Path

    @property
    def number(self) -> int:
        """Which of all backups it is; later ones have higher numbers."""
        return _number(self.kept_in)

    def is_untouched(self, text: str) -> bool:
        """Whether the file is still as we wrote it."""
        return _hash(text) == self.written


class Backups:
    """The folder of all backups; the newest of a place is the one that is put back first."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        home = Path(environ.get("HOME") or Path.home())
        base = environ.get("XDG_STATE_HOME") or str(home / ".local" / "state")
        self._folder = Path(base) / "holdfast" / "backups"

    def keep(self, client: str, place: Place, *, before: str, written: str, moved: tuple[str, ...]) -> Path:
        """Keep what a file was."""
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

    def latest(self, client: str, place: Place) -> Backup | None:
        """The newest backup of a place."""
        found = (_read(file) for file in self._files(client))
        return next((backup for backup in found if backup.place == place), None)

    def forget(self, backup: Backup) -> None:
        """It was put back."""
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
        place=Place(file=Path(value["file"]), path=tuple(value["path"]), scope=value["scope"]),
        before=value["before"],
        written=value["written"],
        moved=tuple(value["moved"]),
        kept_in=file,
    )


def _hash(text: str) -> str:
    return hashlib.blake2s(text.encode()).hexdigest()
