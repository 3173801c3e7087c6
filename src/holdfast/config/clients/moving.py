"""Imports servers from clients. Every change is planned first, shown, and then made as planned.

An import changes Holdfast's file only. PointingPlan a client at the hub removes the imported servers from
the client's file and adds the hub. A server that cannot be imported stays in the client's file.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qs, urlsplit

from holdfast.config.clients.backup import Backup, Backups
from holdfast.config.clients.document import ClientFile
from holdfast.config.clients.entries import ClientEntry, read_entry
from holdfast.config.clients.known import HUB, ClientLocation, ClientPaths, KnownClient, Scope
from holdfast.config.trust_store import rewrite_config
from holdfast.errors import ConfigError, HoldfastError, Problem, UsageError

__all__ = [
    "ImportPlan",
    "ImportRow",
    "Outcome",
    "PointingPlan",
    "UndoPlan",
    "plan_import",
    "plan_pointing",
    "plan_undoing",
]

Outcome: TypeAlias = Literal["new", "there", "renamed", "conflict", "unusable"]

_EMPTY = '{\n  "mcpServers": {}\n}\n'


@dataclass(frozen=True, kw_only=True)
class ImportRow:
    """One server of one client, and what the import does with it."""

    client: KnownClient
    place: ClientLocation
    entry: ClientEntry
    outcome: Outcome
    reason: str = ""
    renamed: str = ""
    """Its name in Holdfast's file, if that is another one."""

    @property
    def is_ours(self) -> bool:
        """Whether Holdfast's file has the server after the import."""
        return self.outcome in ("new", "there", "renamed")


@dataclass(frozen=True, kw_only=True)
class ImportPlan:
    """What an import does to Holdfast's file."""

    destination: Path
    rows: tuple[ImportRow, ...]
    found: tuple[tuple[KnownClient, ClientLocation], ...]
    """The locations whose file exists."""
    searched: tuple[Path, ...]
    unreadable: tuple[Problem, ...] = ()
    text: str = field(default="", repr=False)

    @property
    def is_change(self) -> bool:
        """Whether the plan changes the file."""
        return any(row.outcome in ("new", "renamed") for row in self.rows)

    def perform(self) -> None:
        """Write the file. Only the user can read a new one, because it may contain tokens."""
        if self.is_change:
            rewrite_config(self.destination, self.text, environ=os.environ)


def plan_import(
    clients: Iterable[KnownClient],
    around: ClientPaths,
    *,
    destination: Path,
    scopes: tuple[Scope, ...],
    rename: bool = False,
) -> ImportPlan:
    """Read every file of the clients, and decide what is imported.

    With ``rename``, a server whose name is taken by another one gets the name of its client added.
    """
    return _Importing(around, destination, rename=rename).plan(clients, scopes)


class _Importing:
    """Makes one plan. Names in Holdfast's file and names imported before are taken."""

    def __init__(self, around: ClientPaths, destination: Path, *, rename: bool) -> None:
        self._around = around
        self._rename = rename
        self._destination = destination
        self._ours = ClientFile.read(destination) if destination.exists() else ClientFile(destination, _EMPTY)
        self._group = ("servers",) if self._ours.servers(("servers",)) else ("mcpServers",)
        self._taken: dict[str, Any] = self._ours.servers(self._group)
        self._fresh: dict[str, Any] = {}

    def plan(self, clients: Iterable[KnownClient], scopes: tuple[Scope, ...]) -> ImportPlan:
        places = [(client, place) for client in clients for place in client.places(self._around, scopes=scopes)]
        found = [(client, place) for client, place in places if os.path.isfile(place.file)]  # noqa: PTH113 - never raises
        rows: list[ImportRow] = []
        unreadable: list[Problem] = []
        for client, place in found:
            self._refuse_itself(place)
            try:
                rows += self._rows(client, place)
            except ConfigError as exc:
                unreadable += exc.problems
        return ImportPlan(
            destination=self._destination,
            rows=tuple(rows),
            found=tuple(found),
            searched=tuple(dict.fromkeys(place.file for _, place in places)),
            unreadable=tuple(unreadable),
            text=self._ours.edited(self._group, with_=self._fresh),
        )

    def _refuse_itself(self, place: ClientLocation) -> None:
        if os.path.realpath(place.file) == os.path.realpath(self._destination):
            raise UsageError(
                f"{place.file} is the client's file and Holdfast's file at the same time",
                hint="name another file with --config: the servers are copied into it",
            )

    def _rows(self, client: KnownClient, place: ClientLocation) -> Iterator[ImportRow]:
        project = self._around.project if place.scope == "project" else None
        for name, raw in ClientFile.read(place.file).servers(place.path).items():
            if name != HUB:
                entry = read_entry(client, name, raw, environ=self._around.environ, project=project)
                outcome, reason, renamed = self._judge(client, entry)
                yield ImportRow(
                    client=client, place=place, entry=entry, outcome=outcome, reason=reason, renamed=renamed
                )

    def _judge(self, client: KnownClient, entry: ClientEntry) -> tuple[Outcome, str, str]:
        """The outcome, its reason, and the new name if there is one."""
        if entry.problems:
            return "unusable", entry.problems[0].message, ""
        there = self._taken.get(entry.name)
        if there is None:
            self._take(entry.name, entry)
            return "new", "", ""
        if there == entry.definition:
            return "there", "", ""
        other = f"{entry.name}-{client.id}"
        if self._taken.get(other) == entry.definition:  # an earlier import renamed it
            return "there", "", other
        if self._rename:
            name = next(one for one in _numbered(other) if one not in self._taken)
            self._take(name, entry)
            return "renamed", "", name
        why = f"another server named `{entry.name}` is in {self._destination}: --rename copies this one as `{other}`"
        return "conflict", why, ""

    def _take(self, name: str, entry: ClientEntry) -> None:
        self._taken[name] = self._fresh[name] = dict(entry.definition)


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in count(2))


@dataclass(frozen=True, kw_only=True)
class PointingPlan:
    """What pointing a client at the hub does to the client's file."""

    client: KnownClient
    place: ClientLocation
    before: str = field(repr=False)
    after: str = field(repr=False)
    moved: tuple[str, ...]
    stays: tuple[str, ...]
    secrets: frozenset[str] = field(repr=False)

    def diff(self) -> Iterator[str]:
        """The change as a diff. It may contain secrets: mask it before it is shown."""
        name = str(self.place.file)
        before, after = self.before.splitlines(), self.after.splitlines()
        return difflib.unified_diff(before, after, name, f"{name} (with the hub)", n=1, lineterm="")

    def perform(self, backups: Backups) -> Path:
        """Make a backup, then write the file; returns the path of the backup."""
        if ClientFile.read(self.place.file).text != self.before:
            raise HoldfastError(f"{self.place.file} changed in the meantime: nothing was written", hint="try again")
        kept = backups.keep(self.client.id, self.place, before=self.before, written=self.after, moved=self.moved)
        rewrite_config(self.place.file, self.after, environ=os.environ)
        return kept


def plan_pointing(
    plan: ImportPlan, *, url: str, command: tuple[str, ...], stdio: bool, token: str = ""
) -> Iterator[PointingPlan]:
    """The plans that point the clients at the hub; clients that are already pointed at it are left out.

    Each plan is made after the one before it was performed, because two locations may be in one file. The token that
    the hub requires is written into the user's own files only: a project's file is shared with others.
    """
    find = _is_find_mode(plan.destination, url)
    for client, place in _one_place_each(plan):
        given = token if place.scope == "user" else ""
        entry = client.hub_entry(url, command, stdio=stdio, token=given, find=find)
        pointing = _one_pointing(plan, client, place, entry, token)
        if pointing.after != pointing.before:
            yield pointing


def _is_find_mode(config: Path, url: str) -> bool:
    """Whether the hub at this address lists a few tools that find the others: the address says it, or the file."""
    asked = parse_qs(urlsplit(url).query).get("tools")
    ours = ClientFile.read(config).servers(("holdfast",)) if config.exists() else {}
    return (asked[-1] if asked else ours.get("tools")) == "find"


def _one_place_each(plan: ImportPlan) -> Iterator[tuple[KnownClient, ClientLocation]]:
    """Every location with imported servers; for a client without any, its first location."""
    with_rows = {(row.client.id, row.place) for row in plan.rows if row.is_ours}
    for number, (client, place) in enumerate(plan.found):
        first = client.id not in {earlier.id for earlier, _ in plan.found[:number]}
        if (client.id, place) in with_rows or (first and not any(which == client.id for which, _ in with_rows)):
            yield client, place


def _one_pointing(
    plan: ImportPlan, client: KnownClient, place: ClientLocation, entry: dict[str, object], token: str
) -> PointingPlan:
    rows = [row for row in plan.rows if (row.client, row.place) == (client, place)]
    moved = tuple(row.entry.name for row in rows if row.is_ours)
    file = ClientFile.read(place.file)
    return PointingPlan(
        client=client,
        place=place,
        before=file.text,
        after=file.edited(place.path, without=moved, with_={HUB: entry}),
        moved=moved,
        stays=tuple(row.entry.name for row in rows if not row.is_ours),
        secrets=frozenset({token} - {""}).union(*(row.entry.secrets for row in rows)),
    )


@dataclass(frozen=True, kw_only=True)
class UndoPlan:
    """What undoing an edit does to a client's file."""

    client: KnownClient
    backup: Backup
    after: str = field(repr=False)
    exact: bool
    """Whether the file gets its old text, byte for byte: nothing changed it since the edit."""

    def perform(self, backups: Backups) -> None:
        """Write the file, then delete the backup."""
        rewrite_config(self.backup.place.file, self.after, environ=os.environ)
        backups.forget(self.backup)


def plan_undoing(clients: Iterable[KnownClient], around: ClientPaths, backups: Backups) -> Iterator[UndoPlan]:
    """For each edited location, the plan that undoes its newest edit. Later changes by others stay.

    The newest comes first. Each plan is made after the one before it was performed, because two locations
    may be in one file.
    """
    scopes: tuple[Scope, ...] = ("user", "project")
    places = ((client, place) for client in clients for place in client.places(around, scopes=scopes))
    kept = [(client, backup) for client, place in places if (backup := backups.latest(client.id, place)) is not None]
    for client, backup in sorted(kept, key=lambda one: one[1].number, reverse=True):
        yield _undoing(client, backup)


def _undoing(client: KnownClient, backup: Backup) -> UndoPlan:
    place = backup.place
    if not place.file.exists():
        return UndoPlan(client=client, backup=backup, after=backup.before, exact=True)
    now = ClientFile.read(place.file)
    if backup.is_untouched(now.text):
        return UndoPlan(client=client, backup=backup, after=backup.before, exact=True)
    after = now.put_back(place.path, ClientFile(place.file, backup.before), backup.moved, hub=HUB)
    return UndoPlan(client=client, backup=backup, after=after, exact=False)
