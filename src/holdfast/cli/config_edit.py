"""Edits of an mcp.json by ``holdfast add`` and ``remove``: planned, shown, written with a backup, and undone.

Comments and formatting stay. Later changes by others stay too when an edit is undone.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from holdfast.config import Backup, Backups, ClientFile, ClientLocation, rewrite_config, user_folders
from holdfast.errors import HoldfastError, UnknownServer, UsageError

__all__ = ["ConfigEdit", "File", "file_to_edit", "plan_edit", "undo_last_edit"]

File: TypeAlias = Annotated[
    Path | None, typer.Option("--file", "--config", metavar="FILE", help="The mcp.json to edit [default: your own]")
]

_EMPTY = '{\n  "mcpServers": {}\n}\n'
_EDITOR = "holdfast"
"""The name under which backups of these edits are stored."""


@dataclass(frozen=True, kw_only=True)
class ConfigEdit:
    """One change of one file."""

    file: Path
    group: tuple[str, ...]
    """Where the servers are in it."""
    before: str = field(repr=False)
    after: str = field(repr=False)
    names: tuple[str, ...]
    is_new: bool
    """Whether the file does not exist yet."""

    def diff(self) -> Iterator[str]:
        """The change, line by line. It may hold secrets: mask it before it is shown."""
        before, after = ([] if self.is_new else self.before.splitlines()), self.after.splitlines()
        return difflib.unified_diff(before, after, str(self.file), str(self.file), n=1, lineterm="")

    def perform(self) -> None:
        """Store a backup, then write the file."""
        if not self.is_new and ClientFile.read(self.file).text != self.before:
            raise HoldfastError(f"{self.file} was changed in the meantime: nothing was written", hint="try again")
        place = ClientLocation(file=self.file, path=self.group, scope="user")
        Backups(os.environ).keep(_EDITOR, place, before=self.before, written=self.after, moved=self.names)
        rewrite_config(self.file, self.after, environ=os.environ)


def file_to_edit(named: Path | None) -> Path:
    """The file to edit: the named one, $HOLDFAST_CONFIG, else the user's own."""
    known = os.environ.get("HOLDFAST_CONFIG")
    chosen = named or (Path(known) if known else next(user_folders(os.environ)) / "mcp.json")
    return chosen.absolute()


def plan_edit(
    file: Path, *, add: Mapping[str, object] | None = None, remove: Sequence[str] = (), replace: bool = False
) -> ConfigEdit:
    """Plan a change; raises if a name exists already, or does not exist."""
    is_new = not file.exists()
    current = ClientFile(file, _EMPTY) if is_new else ClientFile.read(file)
    group = ("servers",) if current.servers(("servers",)) else ("mcpServers",)
    there = current.servers(group)
    for name in add or {}:
        if name in there and not replace:
            raise UsageError(f"{file} has a server named `{name}` already", hint="use another name, or --replace")
    for name in remove:
        if name not in there:
            hint = f"it has: {', '.join(sorted(there))}" if there else "it has no servers"
            raise UnknownServer(f"{file} has no server named `{name}`", hint=hint)
    after = current.edited(group, without=remove, with_=add)
    return ConfigEdit(
        file=file, group=group, before=current.text, after=after, names=(*(add or {}), *remove), is_new=is_new
    )


def undo_last_edit(file: Path) -> tuple[str, ...]:
    """Undo the last edit of a file; returns the names of its servers. Later changes by others are never lost."""
    backups = Backups(os.environ)
    for group in (("mcpServers",), ("servers",)):
        backup = backups.latest(_EDITOR, ClientLocation(file=file, path=group, scope="user"))
        if backup is None:
            continue
        now = ClientFile.read(file)
        after = backup.before if backup.is_untouched(now.text) else _merged(now, backup, group)
        rewrite_config(file, after, environ=os.environ)
        backups.forget(backup)
        return backup.moved
    raise HoldfastError(f"there is no edit of {file} to undo", hint="only `add` and `remove` can be undone")


def _merged(now: ClientFile, backup: Backup, group: tuple[str, ...]) -> str:
    """The current text with the edited servers as they were before."""
    old = ClientFile(now.file, backup.before).servers(group)
    return now.edited(
        group,
        without=[name for name in backup.moved if name not in old],
        with_={name: old[name] for name in backup.moved if name in old},
    )
