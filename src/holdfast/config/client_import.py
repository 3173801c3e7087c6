"""Imports servers from clients. Every change is planned first, shown, and then made as planned.

An import changes Holdfast's file only. Pointing a client at the hub removes the imported servers from
the client's file and adds the hub. A server that cannot be imported stays in the client's file.

The first half of the file translates a client's entry for a server into Holdfast's keys. The result names the keys that
have no meaning here, and the variables that the user must still set. No value is quoted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qs, urlsplit

from holdfast.config.config_files import rewrite_config
from holdfast.config.definition import ReadContext, keys_of, read_definition
from holdfast.config.expand import gather_secrets, texts_in
from holdfast.config.fields import InvalidValue, format_duration, parse_duration, read_bare_timeout, read_transport
from holdfast.config.file_edit import Backup, Backups, ClientFile, FileEdit
from holdfast.config.file_models import ServerFile
from holdfast.config.jsonc import Document
from holdfast.config.known_clients import CLIENTS, HUB, ClientLocation, ClientPaths, KnownClient, Scope
from holdfast.errors import ConfigError, Problem, UsageError

__all__ = [
    "ClientEntry",
    "ImportPlan",
    "ImportRow",
    "Outcome",
    "PointingPlan",
    "UndoPlan",
    "entry_secrets",
    "plan_import",
    "plan_pointing",
    "plan_undoing",
    "read_entry",
    "still_pointed",
]

_OURS = frozenset(keys_of(ServerFile))
_REFERENCE = re.compile(r"(?<!\$)\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
_DOLLAR = re.compile(r"(?<![\w$\\])\$([A-Za-z_][A-Za-z0-9_]*)")
_BRACES = re.compile(r"(?<!\$)\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_INPUT = re.compile(r"\$\{input:([^}]*)\}")
_WORKSPACE = re.compile(r"(?<!\$)\$\{workspaceFolder(Basename)?\}")
_EDITORS_OWN = frozenset({"userHome", "pathSeparator", "workspaceFolder", "workspaceFolderBasename"})


@dataclass(frozen=True, kw_only=True)
class ClientEntry:
    """One server of a client, in Holdfast's keys."""

    name: str
    definition: Mapping[str, Any] = field(repr=False)
    dropped: tuple[str, ...] = ()
    """Keys without a meaning here, such as the client's own approvals."""
    needs: tuple[str, ...] = ()
    """Environment variables that the hub needs and that are not set here."""
    problems: tuple[Problem, ...] = ()
    """Why the entry cannot be used."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)


def read_entry(
    client: KnownClient, name: str, raw: object, *, environ: Mapping[str, str], project: Path | None
) -> ClientEntry:
    """Translate an entry of ``client``; ``project`` is the folder that relative paths start from, or None."""
    if not isinstance(raw, dict):
        return ClientEntry(name=name, definition={}, problems=(Problem(message="the entry is not an object"),))
    references = _REFERENCES.get(client.id, str) if client.expands else _escaped
    given = _with_durations(client, _TRANSLATIONS.get(client.id, dict)(_texts(raw, references)))
    if project is not None:
        # The folder itself instead of the editor's name for it: the hub serves many folders.
        given = _texts(given, partial(_WORKSPACE.sub, lambda found: project.name if found.group(1) else str(project)))
    definition = {key: value for key, value in given.items() if key in _OURS and value is not None}
    if project is not None and "command" in definition:
        definition.setdefault("cwd", str(project))
    named = (variable for text in texts_in(definition) for variable in _REFERENCE.findall(text))
    return ClientEntry(
        name=name,
        definition=definition,
        dropped=tuple(key for key in given if key not in _OURS),
        needs=tuple(dict.fromkeys(one for one in named if one not in environ and one not in _EDITORS_OWN)),
        problems=(*_problems(name, definition, environ), *_unknown_workspace(definition)),
        secrets=entry_secrets(definition),
    )


# References in texts


def _variable_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()
    return f"_{name}" if name[:1].isdigit() or not name else name


_REFERENCES: Mapping[str, Callable[[str], str]] = {
    **dict.fromkeys(("crush", "gemini", "qwen"), partial(_DOLLAR.sub, r"${env:\1}")),
    "opencode": partial(_BRACES.sub, r"${env:\1}"),
    # VS Code asks its user for an input. The hub cannot ask, so it uses a variable of that name.
    "vscode": partial(_INPUT.sub, lambda found: f"${{env:{_variable_name(found.group(1))}}}"),
}
"""How a client's references become Holdfast's, where they are others."""


def _escaped(text: str) -> str:
    """A text of a client that has no references: what looks like one is plain text."""
    return text.replace("${", "$${")


def _unknown_workspace(definition: Mapping[str, Any]) -> Iterator[Problem]:
    """A file of the user belongs to no project: the editor puts in the folder that is open, the hub has none."""
    if any(map(_WORKSPACE.search, texts_in(definition))):
        yield Problem(
            message="it uses `${workspaceFolder}`, the folder that is open in the editor; the hub has no such folder",
            hint="write the path of the folder instead, or define the server in the project and import with --project",
        )


def _texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item, change) for item in value]
    return value


# Keys of each client


def _gemini(given: dict[str, Any]) -> dict[str, Any]:
    """Gemini reads ``url`` as SSE unless ``type`` says otherwise, and ``httpUrl`` as streamable HTTP."""
    if "url" in given and "httpUrl" not in given and "type" not in given:
        return {**given, "type": "sse"}
    return given


def _zed(given: dict[str, Any]) -> dict[str, Any]:
    command = given.get("command")
    if isinstance(command, dict):
        return {**given, "command": command.get("path"), "args": command.get("args"), "env": command.get("env")}
    return given


def _codex(given: dict[str, Any]) -> dict[str, Any]:
    taken = dict(given)
    headers = dict(taken.pop("http_headers", None) or {})
    headers |= {key: f"${{env:{name}}}" for key, name in (taken.pop("env_http_headers", None) or {}).items()}
    if token := taken.pop("bearer_token_env_var", None):
        headers["Authorization"] = f"Bearer ${{env:{token}}}"
    env = {name: f"${{env:{name}}}" for name in _names(taken.pop("env_vars", None))} | dict(taken.get("env") or {})
    tools = {
        "includeTools": taken.pop("enabled_tools", None),
        "excludeTools": taken.pop("disabled_tools", None),
    }
    found = {"headers": headers, "env": env, **tools}
    return {**taken, **{key: value for key, value in found.items() if value}}


_DURATIONS: Mapping[str, tuple[str, Literal["s", "ms"] | None]] = {
    "timeout": ("timeout", None),
    "startTimeout": ("startTimeout", None),
    "tool_timeout_sec": ("timeout", "s"),
    "startup_timeout_sec": ("startTimeout", "s"),
    "startup_timeout_ms": ("startTimeout", "ms"),
}
"""The limits that clients write: our key, and the unit where the client's key says it."""


def _with_durations(client: KnownClient, given: dict[str, Any]) -> dict[str, Any]:
    """The same, with each limit as a duration; one that cannot be read keeps its name, and is not copied."""
    taken = {key: value for key, value in given.items() if key not in _DURATIONS}
    for key, (ours, unit) in _DURATIONS.items():
        if key in given:
            written = _duration(given[key], unit or client.timeout_unit)
            taken[ours if written else f"{key} (no duration)"] = written or given[key]
    return taken


def _duration(value: object, unit: Literal["s", "ms"] | None) -> str:
    """A client's limit as Holdfast writes it; empty if it is none. The number itself tells a unit that is not known."""
    bare = read_bare_timeout(value)
    if isinstance(value, str) and _REFERENCE.search(value):
        return value  # it is read where the variable is known
    try:
        if bare is None:
            seconds = parse_duration(value)
        elif unit is None:
            seconds = bare
        else:
            seconds = float(str(value)) / (1_000 if unit == "ms" else 1)
        written = format_duration(seconds)
        return written if parse_duration(written) > 0 else ""
    except (InvalidValue, OverflowError):
        return ""


def _names(variables: object) -> Iterator[str]:
    for variable in variables if isinstance(variables, list) else ():
        yield str(variable["name"] if isinstance(variable, dict) else variable)


def _opencode(given: dict[str, Any]) -> dict[str, Any]:
    """Opencode writes the program and its arguments as one list, and calls the kinds ``local`` and ``remote``."""
    taken = {key: value for key, value in given.items() if key not in ("type", "command", "environment")}
    command = given.get("command")
    if isinstance(command, list) and command:
        taken |= {"command": command[0], **({"args": command[1:]} if command[1:] else {})}
    elif command is not None:
        taken["command"] = command
    return taken | ({"env": given["environment"]} if given.get("environment") else {})


def _goose(given: dict[str, Any]) -> dict[str, Any]:
    """Goose has ``cmd``, ``envs`` and ``uri``; its built-in extensions are no servers of others."""
    kinds = {"streamable_http": "http", "sse": "sse"}
    names = {"cmd": "command", "envs": "env", "uri": "url"}
    own = ("type", "name", "description", "bundled", "display_name", "available_tools", "env_keys")
    taken = {
        names.get(key, key): value for key, value in given.items() if key not in own and value not in (None, {}, [])
    }
    taken["env"] = {name: f"${{env:{name}}}" for name in _names(given.get("env_keys"))} | dict(taken.get("env") or {})
    if not taken["env"]:
        del taken["env"]
    return taken | ({"type": kinds[given["type"]]} if given.get("type") in kinds else {})


def _continue(given: dict[str, Any]) -> dict[str, Any]:
    """Continue names each server inside its entry, and has headers under ``requestOptions``."""
    taken = {key: value for key, value in given.items() if key not in ("name", "requestOptions", "connectionTimeout")}
    options = given.get("requestOptions")
    headers = options.get("headers") if isinstance(options, dict) else None
    return taken | ({"headers": headers} if headers else {})


_TRANSLATIONS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "codex": _codex,
    "continue": _continue,
    "goose": _goose,
    "opencode": _opencode,
    "qwen": _gemini,
    "gemini": _gemini,
    "zed": _zed,
}


# Problems, variables and secrets of the result


def _problems(name: str, definition: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Problem, ...]:
    """Why the entry cannot be used. A variable that is not set here is no reason: ``needs`` names it."""
    context = ReadContext(document=Document(), environ=environ)
    found = read_definition(name, dict(definition), (name,), context).server.problems
    return tuple(problem for problem in found if not problem.variable)


def entry_secrets(definition: Mapping[str, Any]) -> frozenset[str]:
    """The strings that no output may show; a reference to a variable is not a secret."""

    def texts(key: str) -> dict[str, str]:
        found = definition.get(key)
        return {name: str(value) for name, value in found.items()} if isinstance(found, dict) else {}

    args = definition.get("args")
    url = next((str(definition[key]) for key in ("url", "serverUrl", "httpUrl") if key in definition), "")
    found = gather_secrets(
        env=texts("env"),
        headers=texts("headers"),
        url=url,
        args=[str(arg) for arg in args] if isinstance(args, list) else [],
        expanded=(),
    )
    return frozenset(secret for secret in found if not _REFERENCE.fullmatch(secret))


Outcome: TypeAlias = Literal["new", "there", "renamed", "conflict", "unusable"]


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
        self._ours = ClientFile.read_or_new(destination)
        self._group = self._ours.own_group
        self._taken: dict[str, Any] = self._ours.servers(self._group)
        self._fresh: dict[str, Any] = {}

    def plan(self, clients: Iterable[KnownClient], scopes: tuple[Scope, ...]) -> ImportPlan:
        places = [(client, place) for client in clients for place in client.places(self._around, scopes=scopes)]
        found = [(client, place) for client, place in places if os.path.isfile(place.file)]  # noqa: PTH113 - never raises
        rows: list[ImportRow] = []
        unreadable: list[Problem] = []
        for client, place in found:
            if os.path.realpath(place.file) == os.path.realpath(self._destination):
                raise UsageError(
                    f"{place.file} is the client's file and Holdfast's file at the same time",
                    hint="name another file with --config: the servers are copied into it",
                )
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

    def _rows(self, client: KnownClient, place: ClientLocation) -> Iterator[ImportRow]:
        project = self._around.project if place.scope == "project" else None
        file = ClientFile.read(place.file)
        excluded = file.names(client.excluded) if client.excluded else frozenset()
        for name, raw in file.servers(place.path).items():
            if name != HUB and not _is_built_in(client, raw):
                if name in excluded and isinstance(raw, dict):
                    raw = {**raw, "enabled": False}  # noqa: PLW2901 - its user switched it off in another place
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
        if _meaning(there) == _meaning(entry.definition):
            return "there", "", ""
        other = f"{entry.name}-{client.id}"
        if _meaning(self._taken.get(other)) == _meaning(entry.definition):  # an earlier import renamed it
            return "there", "", other
        if self._rename:
            numbered = (f"{other}-{number}" for number in count(2))
            name = next(one for one in chain([other], numbered) if one not in self._taken)
            self._take(name, entry)
            return "renamed", "", name
        why = f"another server named `{entry.name}` is in {self._destination}: --rename copies this one as `{other}`"
        return "conflict", why, ""

    def _take(self, name: str, entry: ClientEntry) -> None:
        self._taken[name] = self._fresh[name] = dict(entry.definition)


def _meaning(definition: object) -> object:
    """A definition without what it would mean anyway: two that differ by a default alone are the same server."""
    if not isinstance(definition, Mapping):
        return definition
    kind = "stdio" if "command" in definition else "http"
    anyway: dict[str, object] = {"type": kind, "transport": kind, "enabled": True, "disabled": False}
    empty: tuple[object, ...] = ({}, [], None)
    read = {key: read_transport(value) or value for key, value in definition.items()}
    return {key: value for key, value in read.items() if value not in empty and anyway.get(key, ...) != value}


def _is_built_in(client: KnownClient, raw: object) -> bool:
    """Whether an entry is a part of the client itself. Goose lists those among its extensions."""
    return client.id == "goose" and isinstance(raw, dict) and raw.get("type") in ("builtin", "platform", "frontend")


@dataclass(frozen=True, kw_only=True)
class PointingPlan(FileEdit):
    """What pointing a client at the hub does to the client's file."""

    client: KnownClient
    stays: tuple[str, ...]
    """The servers that stay in the client's file."""
    secrets: frozenset[str] = field(repr=False)


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
        entry = client.hub_entry(url, command, stdio=stdio, token=given, find=find, scope=place.scope)
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
    done = {client for client, _ in with_rows}
    for client, place in plan.found:
        if (client.id, place) in with_rows or client.id not in done:
            done.add(client.id)
            yield client, place


def _one_pointing(
    plan: ImportPlan, client: KnownClient, place: ClientLocation, entry: dict[str, object], token: str
) -> PointingPlan:
    rows = [row for row in plan.rows if (row.client, row.place) == (client, place)]
    moved = tuple(row.entry.name for row in rows if row.is_ours)
    file = ClientFile.read(place.file)
    return PointingPlan(
        client=client,
        owner=client.id,
        place=place,
        note=" (with the hub)",
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
        backups.restore(self.backup, self.after)


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


def still_pointed(around: ClientPaths) -> Iterator[tuple[str, Path]]:
    """The clients whose user's file still has the hub: its title and the file."""
    for client in CLIENTS.values():
        for place in client.places(around, scopes=("user",)):
            try:
                if place.file.is_file() and HUB in ClientFile.read(place.file).servers(place.path):
                    yield client.title, place.file
            except (ConfigError, OSError):
                continue  # a file that cannot be read was not written by Holdfast


def _undoing(client: KnownClient, backup: Backup) -> UndoPlan:
    place = backup.place
    now = ClientFile.read(place.file) if place.file.exists() else None
    if now is None or backup.is_untouched(now.text):
        return UndoPlan(client=client, backup=backup, after=backup.before, exact=True)
    here = now.servers(place.path)  # a server that its user wrote again since stays as it is now
    after = now.put_back(backup, [HUB, *(name for name in backup.moved if name not in here)])
    return UndoPlan(client=client, backup=backup, after=after, exact=False)
