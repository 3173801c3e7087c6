"""Reads the files of an audit, and checks them: what was changed, removed, moved or cut off, and what cannot be said.

``verify`` computes every link again. What it can find, and against what:

=====================================  ==========================================================================
a changed record                       its own link
a removed or an added record           the numbers, and the link of the next record
records in another order               the numbers, and their links
a file that is missing or was added    the manifest
a file that was renamed                its first record, which has its name
a cut end of a closed file             the manifest, which has the last number and the last link
a cut end of any other file            the first record of the file that was opened next, and given checkpoints
a cut end of the manifest              checkpoints, and files that no entry names
=====================================  ==========================================================================

It cannot find that the end of a file was cut off which was not closed, behind the last checkpoint: the report says for
which files that holds. It cannot find a history that was written with the key. A half line at the end of a file is what
a crash leaves: it is a warning.

``AuditReader`` reads records for people, and ``replayed`` judges a recorded call by another policy.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.access.audit_writer import (
    LONGEST_LINE,
    MANIFEST,
    START,
    AuditKey,
    AuditRecord,
    Checkpoint,
    Line,
    link_of,
    read_line,
    read_record,
)
from holdfast.access.policy import AccessItem, ItemKind, Policy, PossiblePolicy, principal_named
from holdfast.core import MASK
from holdfast.errors import UsageError

__all__ = [
    "AuditFilter",
    "AuditReader",
    "ReplayChange",
    "Replayed",
    "Verified",
    "checkpoints_in",
    "latest_records",
    "replayed",
    "verify",
]

MOST_PROBLEMS: Final = 100
"""How many problems are listed; all of them are counted."""

_CHECKPOINT: Final = re.compile(
    r"holdfast audit checkpoint file=(?P<file>[\w.-]{1,255}) record=(?P<n>[0-9]{1,18}) link=(?P<link>[0-9a-f]{32})"
)


def checkpoints_in(text: str) -> list[Checkpoint]:
    """The checkpoints in a text, such as the log of a machine."""
    return [Checkpoint(one["file"], int(one["n"]), one["link"]) for one in _CHECKPOINT.finditer(text)]


@dataclass
class Verified:
    """What a check found."""

    files: int = 0
    records: int = 0
    problems: list[str] = field(default_factory=list)
    """What was changed, removed or cannot be checked; the first ones."""
    warnings: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    """The files whose end could have been cut off without a trace."""
    count: int = 0
    """How many problems there are."""

    def problem(self, words: str) -> None:
        """Note a problem."""
        self.count += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(words)


def verify(path: Path, key: AuditKey, checkpoints: Sequence[Checkpoint] = ()) -> Verified:
    """Check a folder, or one file of it. Raises ``UsageError`` where there is nothing to check."""
    found = Verified()
    if path.is_file():
        _ChainCheck(path, key, found).run()
        found.warnings.append("one file was checked: missing files are found only in the whole folder")
        return found
    names = sorted(one.name for one in path.glob("audit-*.jsonl")) if path.is_dir() else []
    if not names and not (path / MANIFEST).exists():
        raise UsageError(f"there are no audit files in {path}", hint="`audit.path` in the mcp.json names the folder")
    _FolderCheck(path, key, found, names).run(checkpoints)
    return found


class _ChainCheck:
    """Checks the chain of one file."""

    def __init__(self, file: Path, key: AuditKey, found: Verified, wanted: Iterable[int] = ()) -> None:
        self.file = file
        self._key = key
        self._found = found
        self._wanted = frozenset(wanted)
        self.last: Line | None = None
        self.links: dict[int, str] = {}
        """The links of the records that others refer to."""
        self.torn = False

    def run(self, *, manifest: bool = False) -> list[bytes]:
        """Check every line; returns the lines of a manifest."""
        kept: list[bytes] = []
        with self.file.open("rb") as stream:
            number = 0
            while line := stream.readline(LONGEST_LINE):
                number += 1
                if not line.endswith(b"\n"):
                    self._end_of_file(number, more=bool(stream.read(1)))
                    break
                self._line(number, line[:-1], manifest=manifest)
                if manifest:
                    kept.append(line[:-1])
        return kept

    def _end_of_file(self, number: int, *, more: bool) -> None:
        if more:
            self._found.problem(f"{self.file.name}: line {number} is longer than any record")
        else:
            self.torn = True
            self._found.warnings.append(
                f"{self.file.name}: line {number} is a part of a record: a crash leaves one, or the hub writes it now"
            )

    def _line(self, number: int, content: bytes, *, manifest: bool) -> None:
        line = read_line(content)
        if line is None:
            self._found.problem(f"{self.file.name}: line {number} is not a record")
            return
        if self.last is None:
            before = self._start(line, manifest=manifest)
        else:
            before = self.last.link
            if line.n != self.last.n + 1:
                what = "records are missing before it" if line.n > self.last.n else "it is in another place, or twice"
                self._found.problem(f"{self.file.name}: record {line.n} follows {self.last.n}: {what}")
        if before is not None and link_of(self._key, before, line.body) != line.link:
            self._found.problem(
                f"{self.file.name}: record {line.n} does not fit its link: it was changed, or the one before it was"
            )
        self.last = line
        if line.n in self._wanted:
            self.links[line.n] = line.link.decode()
        self._found.records += not manifest

    def _start(self, line: Line, *, manifest: bool) -> bytes | None:
        """The link before the first line; None if it is not known."""
        if manifest:
            return START
        with suppress(msgspec.DecodeError):
            record = read_record(line.body)
            if record.event == "opened":
                if record.file != self.file.name:
                    self._found.problem(f"{self.file.name}: it was written as {record.file}")
                if record.key != self._key.name:
                    self._found.problem(f"{self.file.name}: it was written with another key ({record.key})")
                return record.after.rpartition(" ")[2].encode() if record.after else START
        self._found.problem(f"{self.file.name}: its first record is missing")
        return None


class _FolderCheck:
    """Checks the files of a folder, their manifest, and what they say of each other."""

    def __init__(self, folder: Path, key: AuditKey, found: Verified, names: Sequence[str]) -> None:
        self._folder = folder
        self._key = key
        self._found = found
        self._names = names
        self._checks: dict[str, _ChainCheck] = {}

    def run(self, checkpoints: Sequence[Checkpoint]) -> None:
        entries = self._entries(self._found)
        # The hub goes on beside a check that takes seconds: it removes files, and opens others.
        removed = {one.file for one in entries if one.event == "removed" or self._is_later(one.file)}
        opened = [one.file for one in entries if one.event == "opened"]
        ends = {one.file: Checkpoint(one.file, one.last, one.end) for one in entries if one.event == "closed"}
        for name in opened:
            if name not in removed and name not in self._names:
                self._found.problem(f"{name}: the file is missing")
        for name in self._names:
            if name not in opened:
                self._found.problem(f"{name}: the manifest does not name this file")
        told = [*ends.values(), *checkpoints, *self._repeated()]
        for name in self._names:
            check = _ChainCheck(
                self._folder / name, self._key, self._found, {one.n for one in told if one.file == name}
            )
            with suppress(FileNotFoundError):
                check.run()
                self._checks[name] = check
                self._found.files += 1
                proven = max((one.n for one in told if one.file == name), default=0)
                self._check_end(check, ends.get(name), proven=proven)
        gone = set(self._names) - self._checks.keys()
        if gone:
            # The hub says in the manifest first which file it removes.
            removed |= {one.file for one in self._entries(Verified()) if one.event == "removed"}
        for name in sorted(gone - removed):
            self._found.problem(f"{name}: the file is missing")
        for point in told:
            self._check_point(point, removed)

    def _is_later(self, name: str) -> bool:
        """Whether a file was opened since the names were read."""
        return name not in self._names and (self._folder / name).exists()

    def _entries(self, found: Verified) -> list[AuditRecord]:
        """What the manifest says; what is wrong with it goes into ``found``."""
        manifest = self._folder / MANIFEST
        if not manifest.exists():
            found.problem(f"{MANIFEST}: the file is missing")
            return []
        lines = _ChainCheck(manifest, self._key, found).run(manifest=True)
        entries = []
        for line in lines:
            with suppress(msgspec.DecodeError):
                entries.append(read_record(line))
        return entries

    def _repeated(self) -> Iterator[Checkpoint]:
        """What each file repeats of the end of the file before."""
        for name in self._names:
            line = None
            with suppress(FileNotFoundError), (self._folder / name).open("rb") as stream:
                line = read_line(stream.readline(LONGEST_LINE).removesuffix(b"\n"))
            if line is None:
                continue
            with suppress(msgspec.DecodeError, ValueError):
                file, n, link = read_record(line.body).after.split(" ")
                follows = _process(file) == _process(name)
                if line.n != (int(n) + 1 if follows else 1):
                    self._found.problem(f"{name}: its first record has the number {line.n}")
                yield Checkpoint(file, int(n), link)

    def _check_end(self, check: _ChainCheck, end: Checkpoint | None, *, proven: int) -> None:
        """A closed file ends where the manifest says; the end of another one is proven up to some record."""
        last, name = check.last, check.file.name
        if end is not None:
            if last is None or last.n < end.n:
                self._found.problem(f"{name}: its end was cut off: it was closed after record {end.n}")
            elif last.n > end.n or check.torn:
                self._found.problem(f"{name}: it goes on after record {end.n}, where it was closed")
        elif last is None:
            self._found.warnings.append(f"{name}: it has no record: a crash leaves that, or all of it was cut off")
        elif last.n > proven:
            self._found.unproven.append(f"{name}: it was not closed; nothing proves its end after record {proven}")

    def _check_point(self, point: Checkpoint, removed: set[str]) -> None:
        check = self._checks.get(point.file)
        if check is None:
            if point.file not in removed:
                self._found.problem(f"{point.file}: a checkpoint names it, and the file is missing")
            return
        link = check.links.get(point.n)
        if link is None:
            cut = check.last is None or check.last.n < point.n
            what = "its end was cut off" if cut else "that record is missing"
            self._found.problem(f"{point.file}: {what}: a checkpoint has record {point.n}")
        elif link != point.link:
            self._found.problem(f"{point.file}: record {point.n} is not the one of a checkpoint")


def _process(name: str) -> str:
    """The part of a file's name that all files of one process have."""
    return name.rpartition("-")[0]


# Reading, for people.


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Which records are wanted."""

    principal: str = ""
    server: str = ""
    tool: str = ""
    outcome: str = ""
    since: datetime | None = None

    def __call__(self, record: AuditRecord) -> bool:
        """Whether a record is one of them. The writer's own records are none."""
        return (
            record.event not in ("opened", "closed")
            and (not self.principal or record.principal == self.principal)
            and (not self.server or record.server == self.server)
            and (not self.tool or record.tool == self.tool)
            and (not self.outcome or record.outcome == self.outcome)
            and (self.since is None or record.time >= self.since)
        )


class AuditReader:
    """Reads the records of all files of a folder in the order of their times, and later what came after them."""

    def __init__(self, folder: Path, wanted: AuditFilter) -> None:
        self._folder = folder
        self._wanted = wanted
        self._offsets: dict[str, int] = {}

    def read(self) -> Iterator[AuditRecord]:
        """The records since the last call; a line that is not whole yet comes with the next one."""
        since = self._wanted.since.timestamp() if self._wanted.since is not None else 0.0
        files = []
        for file in sorted(self._folder.glob("audit-*.jsonl")):
            with suppress(OSError):
                if file.stat().st_mtime >= since:
                    files.append(self._records(file))
        yield from heapq.merge(*files, key=lambda record: record.time)

    def _records(self, file: Path) -> Iterator[AuditRecord]:
        with suppress(FileNotFoundError), file.open("rb") as stream:  # the hub may remove an old one meanwhile
            stream.seek(self._offsets.get(file.name, 0))
            while (line := stream.readline(LONGEST_LINE)).endswith(b"\n"):
                self._offsets[file.name] = stream.tell()
                with suppress(msgspec.DecodeError):
                    record = read_record(line)
                    if self._wanted(record):
                        yield record


MOST_FILES: Final = 32
TAIL_BYTES: Final = 256 * 1024
"""How much of how many files is read for the latest records: what a page shows is in there."""


def latest_records(folder: Path, wanted: AuditFilter, most: int) -> list[AuditRecord]:
    """The latest records, the newest first. It blocks for some milliseconds."""
    files: list[tuple[float, Path]] = []
    for file in folder.glob("audit-*.jsonl"):
        with suppress(OSError):
            files.append((file.stat().st_mtime, file))
    found: list[AuditRecord] = []
    for _, file in heapq.nlargest(MOST_FILES, files):
        with suppress(OSError), file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - TAIL_BYTES))
            lines = stream.read(TAIL_BYTES).split(b"\n")
            for line in lines[1:] if size > TAIL_BYTES else lines:
                with suppress(msgspec.DecodeError):
                    record = read_record(line)
                    if wanted(record):
                        found.append(record)
    return heapq.nlargest(most, found, key=lambda record: record.time)


# Calls of the past under another policy (SEC-14).

_METHODS: Final[Mapping[str, ItemKind]] = {
    "tools/call": "tool",
    "prompts/get": "prompt",
    "resources/read": "resource",
}

ReplayChange: TypeAlias = Literal["refused", "asks", "allowed", "same", "unknown"]
"""What changes for a recorded call: it was made and would be refused, or would wait for a person; it was denied and
would be allowed; nothing; or it cannot be said, because the arguments are not known.
"""


class Replayed(NamedTuple):
    """A recorded call under another policy."""

    change: ReplayChange
    effect: str
    """``allow``, ``ask`` or ``deny``; all that are possible, where it is not known."""
    rule: str
    reason: str


def replayed(record: AuditRecord, policy: Policy, possible: PossiblePolicy) -> Replayed | None:
    """What a policy would have decided about a recorded call; None for a record that is none."""
    kind = _METHODS.get(record.method)
    if record.event != "call" or kind is None or not record.server:
        return None
    principal = principal_named(record.principal, record.groups, record.scopes)
    item = AccessItem(kind, record.server, record.tool)
    known, arguments = _arguments(record)
    was_denied = record.outcome == "denied" and bool(record.rule)
    was_made = record.outcome not in ("denied", "refused")
    if not known and len(effects := possible.effects(principal, item)) > 1:
        return Replayed("unknown", " or ".join(sorted(effects)), "", "a condition needs arguments that were hashed")
    decision = policy.decide(principal, item, arguments)
    change: ReplayChange = "same"
    if decision.effect == "deny" and was_made:
        change = "refused"
    elif decision.effect == "ask" and was_made and not record.approval:
        change = "asks"
    elif decision.effect == "allow" and was_denied:
        change = "allowed"
    return Replayed(change, decision.effect, decision.rule, decision.reason)


def _arguments(record: AuditRecord) -> tuple[bool, bytes | Mapping[str, Any] | None]:
    """Whether the arguments of a call are known, and what they are. A masked part makes them unknown."""
    if not record.argument_bytes:
        return True, None
    shown = bytes(record.arguments)
    return bool(shown) and MASK.encode() not in shown, shown or None
