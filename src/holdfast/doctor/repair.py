"""The repairs of ``doctor --fix``: correct a file's mode, set a damaged file aside, write proposed edits.

Nothing is deleted. An edit is written exactly as the report shows it, after a backup, and can be undone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.config import (
    Backups,
    ClientFile,
    ClientLocation,
    FileEdit,
    KeyPath,
    entry_secrets,
    parse,
    rename_key,
    replace_value,
    set_member,
)
from holdfast.core import MASK
from holdfast.doctor.report import Edit, Finding, Repaired, Report
from holdfast.errors import HoldfastError
from holdfast.files import PRIVATE_FILE, set_aside

__all__ = ["EditPlan", "ProposedEdit", "plan_edits", "repair", "undo_edits"]

OWNER = "doctor"
"""The name of this command's backups."""


def repair(found: Finding) -> Repaired | None:
    """Make the repair that the finding names; None if it names none."""
    file = Path(found.target)
    try:
        match found.repair:
            case "chmod":
                file.chmod(PRIVATE_FILE)
                return Repaired(code=found.code, done=True, words=f"{file} can now be read only by you (mode 600)")
            case "set_aside":
                aside = set_aside(file)
                return Repaired(code=found.code, done=True, words=f"set {file} aside as {aside.name}")
            case None:
                return None
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        return Repaired(code=found.code, done=False, words=f"{file} could not be repaired: {why}")


@dataclass(frozen=True, kw_only=True)
class ProposedEdit:
    """An edit of the report, and the finding that proposes it."""

    server: str
    code: str
    edit: Edit

    def repaired(self, *, done: bool, why: str = "") -> Repaired:
        """The entry in the report about what became of the edit."""
        verb = "renamed to" if self.edit.action == "rename" else "is now"
        words = f"{self.edit.key} {verb} {self.edit.value}" if done else f"{self.edit.key}: {why}"
        return Repaired(code=self.code, server=self.server, done=done, words=words)


@dataclass(frozen=True, kw_only=True)
class EditPlan(FileEdit):
    """What ``--fix`` writes into one file: no more than the edits that the report shows."""

    edits: tuple[ProposedEdit, ...]
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """The secrets of the file, for the diff."""


def proposed_edits(report: Report) -> Iterator[ProposedEdit]:
    """Every edit of a report, in its order."""
    of_file = [("", found) for result in report.checks for found in result.findings]
    of_servers = [(server.id, found) for server in report.servers for found in server.findings]
    for server, found in (*of_file, *of_servers):
        for edit in found.remedy.edits:
            yield ProposedEdit(server=server, code=found.code, edit=edit)


def plan_edits(report: Report, *, certain: bool = True) -> tuple[EditPlan | None, list[Repaired]]:
    """The edits that can be written, as one plan, and why each of the others is not.

    With ``certain``, only edits without an alternative are planned. Otherwise only those that a person must choose.
    """
    if report.file is None:
        return None, []
    file = ClientFile.read(Path(report.file))
    text = file.text
    taken: list[ProposedEdit] = []
    left: list[Repaired] = []
    for proposed in proposed_edits(report):
        edit = proposed.edit
        # The first edit of a key wins: a second one was made for the text before it, and may contradict it.
        if edit.certain != certain or any(_overlap(edit.path, other.edit.path) for other in taken):
            continue
        if MASK in edit.value:
            left.append(proposed.repaired(done=False, why="its value contains a secret: write it by hand"))
            continue
        text = _edited(text, edit)
        taken.append(proposed)
    if not taken:
        return None, left
    plan = EditPlan(
        owner=OWNER,
        place=_location(file.file),
        before=file.text,
        after=text,
        note=" (repaired)",
        edits=tuple(taken),
        secrets=_secrets(file),
    )
    return plan, left


def _secrets(file: ClientFile) -> frozenset[str]:
    """The secrets of every definition. A text with a reference to a variable is none, and must be seen."""
    groups = (file.servers((group,)) for group in ("mcpServers", "servers"))
    found = (entry_secrets(raw) for group in groups for raw in group.values() if isinstance(raw, dict))
    return frozenset(secret for secrets in found for secret in secrets if "${" not in secret)


def undo_edits(file: Path) -> None:
    """Restore the file from its newest backup, which is gone then."""
    backups = Backups(os.environ)
    backup = backups.latest(OWNER, _location(file))
    if backup is None:
        raise HoldfastError(f"there is nothing to undo: `doctor --fix` has not edited {file}")
    if not backup.is_untouched(ClientFile.read(file).text):
        raise HoldfastError(
            f"{file} changed since `doctor --fix` wrote it: nothing was written",
            hint=f"the text before the edit is in {backup.kept_in}, under `before`",
        )
    backups.restore(backup, backup.before)


def _edited(text: str, edit: Edit) -> str:
    """The text with one edit, checked: it must contain the expected value and no other change."""
    value = json.loads(edit.value)
    document = parse(text)
    if edit.action == "rename":
        after = rename_key(text, edit.path, value)
    elif edit.path in document.spans:
        after = replace_value(text, edit.path, value)
    else:
        after = set_member(text, tuple(map(str, edit.path[:-1])), str(edit.path[-1]), value)
    if parse(after).value != _changed(document.value, edit.path, value, rename=edit.action == "rename"):
        raise HoldfastError(f"{edit.place} cannot be edited safely: nothing was changed", hint="edit the file by hand")
    return after


def _changed(whole: Any, path: KeyPath, value: object, *, rename: bool) -> Any:
    step, rest = path[0], path[1:]
    if isinstance(whole, list):
        inner = _changed(whole[int(step)], rest, value, rename=rename) if rest else value
        return [inner if index == step else item for index, item in enumerate(whole)]
    members = whole if isinstance(whole, dict) else {}
    if rename and not rest:
        return {value if key == step else key: item for key, item in members.items()}
    return {**members, step: _changed(members.get(step), rest, value, rename=rename) if rest else value}


def _overlap(one: KeyPath, other: KeyPath) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _location(file: Path) -> ClientLocation:
    return ClientLocation(file=file.absolute(), path=(), scope="user")
