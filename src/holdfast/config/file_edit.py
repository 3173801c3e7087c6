"""Edits of a client's file, JSON, TOML or YAML: its servers, and the same text with other servers in it.

Theory of operation. The file belongs to its user and to another program. So an edit is a change of its *text*: it
removes or adds the lines of one server, and comments, order, indentation, line ends and unknown keys stay. A library
that writes a whole file again would lose them. Each format has two functions, "remove" and "put", which know only where
an entry begins and ends:

* JSON: by the offsets of ``jsonc``. The new member is indented as its neighbours are; on one line if they are.
* TOML: by ``tomlkit``, which keeps what it read. Tables of one parent may stand in several parts of a file.
* YAML: by the lines that the parser names. The text of the new entry is PyYAML's.

None of them has to be right in every corner, because nothing is believed: ``ClientFile._check`` parses the new text and
compares it with what it should say, the edited servers and everything beside them. What differs is refused, and nothing
is written. An edit is planned (``FileEdit``), shown as a diff, and then made as planned: if the file changed since, it
is refused.

What must never happen: a file says something else after an edit than the diff showed; an edit cannot be undone. So a
backup with the text before is written first and kept until the edit is undone. It names a hash of the text that was
written: if the file still has it, undoing restores the old text byte for byte, else only the servers of the edit go
back and later changes by others stay. A backup may contain tokens, as the file itself does, so only the user can read
it.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import tomlkit
from tomlkit.container import Container
from tomlkit.items import AoT, Comment, InlineTable, Null, Table, Whitespace

from holdfast.config.config_files import read_config, rewrite_config, write_whole
from holdfast.config.jsonc import KeyPath, Member, ObjectSpan, parse
from holdfast.config.known_clients import ClientLocation
from holdfast.config.own_folders import state_folder
from holdfast.errors import ConfigError, HoldfastError, Problem

with contextlib.suppress(ImportError):  # an optional dependency, for the clients that write YAML
    import yaml

__all__ = ["Backup", "Backups", "ClientFile", "FileEdit", "rename_key", "replace_value", "set_member"]


_EMPTY = '{\n  "mcpServers": {}\n}\n'


class ClientFile:
    """The text of one file."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.text = text if text.strip() or file.suffix in (".toml", *_YAML) else "{}\n"
        self._value = _parsed(file, self.text)

    @classmethod
    def read(cls, file: Path) -> ClientFile:
        """Read the file; raises ``ConfigError`` with the position of the fault."""
        data = read_config(file)
        try:
            return cls(file, data.decode("utf-8"))
        except UnicodeDecodeError as exc:
            problem = Problem(message="this is not UTF-8 text", hint="save the file as UTF-8", file=file)
            raise ConfigError([problem]) from exc

    @classmethod
    def read_or_new(cls, file: Path) -> ClientFile:
        """Read Holdfast's own file, or begin one."""
        return cls.read(file) if file.exists() else cls(file, _EMPTY)

    @property
    def own_group(self) -> tuple[str, ...]:
        """Where Holdfast's own file has its servers."""
        return ("servers",) if self.servers(("servers",)) else ("mcpServers",)

    def servers(self, path: tuple[str, ...]) -> dict[str, Any]:
        """The servers at ``path``, by name."""
        found = self._at(path)
        if isinstance(found, list):  # Continue lists its servers, each with its name
            return {str(one["name"]): one for one in found if isinstance(one, dict) and "name" in one}
        return dict(found) if isinstance(found, dict) else {}

    def names(self, path: tuple[str, ...]) -> frozenset[str]:
        """The texts of a list at ``path``."""
        found = self._at(path)
        return frozenset(one for one in found if isinstance(one, str)) if isinstance(found, list) else frozenset()

    def _at(self, path: tuple[str, ...]) -> object:
        found: Any = self._value
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        return found

    def edited(
        self, path: tuple[str, ...], *, without: Iterable[str] = (), with_: Mapping[str, object] | None = None
    ) -> str:
        """The text without some servers and with others; raises if the edit cannot be made safely."""
        without, with_ = tuple(without), with_ or {}
        text = self._edit(path, without, with_)
        expected = {key: value for key, value in self.servers(path).items() if key not in without} | dict(with_)
        self._check(text, path, expected)
        return text

    def put_back(self, backup: Backup, names: Iterable[str]) -> str:
        """The text with these servers as they were before an edit; what else changed since stays."""
        path = backup.place.path
        old = ClientFile(self.file, backup.before).servers(path)
        back = {name: old[name] for name in names if name in old}
        return self.edited(path, without=[name for name in names if name not in old], with_=back)

    def _edit(self, path: tuple[str, ...], without: Iterable[str], with_: Mapping[str, object]) -> str:
        remove: Callable[[str, tuple[str, ...], str], str] = remove_member
        put: Callable[[str, tuple[str, ...], str, object], str] = set_member
        if self.file.suffix == ".toml":
            remove, put = remove_table, put_table
        elif self.file.suffix in _YAML:
            remove, put = remove_entry, put_entry
        text = self.text
        try:
            for name in without:
                text = remove(text, path, name)
            for name, value in with_.items():
                text = put(text, path, name, value)
        except ValueError:
            return self.text  # it does not say what it should, so it is refused
        return text

    def _check(self, text: str, path: tuple[str, ...], expected: Mapping[str, object]) -> None:
        with contextlib.suppress(ConfigError):
            edited = ClientFile(self.file, text)
            if edited.servers(path) == expected and _without(edited._value, path) == _without(self._value, path):
                return
        section = f"a section of its own, [{'.'.join(path)}.NAME]"
        lines = section if self.file.suffix == ".toml" else "lines of its own"
        raise HoldfastError(
            f"{self.file} cannot be edited safely: nothing was changed",
            hint=f"give each server {lines}, or edit the file by hand",
        )


_YAML = (".yaml", ".yml")


def _parsed(file: Path, text: str) -> Any:
    if file.suffix in _YAML:
        return _parsed_yaml(file, text)
    if file.suffix != ".toml":
        return _object(file, parse(text, file=file).value)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError([Problem(message=f"this is not TOML: {_where(exc)}", file=file)]) from exc


def _parsed_yaml(file: Path, text: str) -> Any:
    """What a YAML file says."""
    if find_spec("yaml") is None:
        hint = "install PyYAML beside Holdfast: `pipx inject holdfast-mcp pyyaml`"
        raise ConfigError([Problem(message="this is YAML, and PyYAML is not installed", hint=hint, file=file)])
    try:
        return _object(file, yaml.safe_load(text) or {})
    except (yaml.YAMLError, RecursionError, ValueError):  # its message may quote the file
        raise ConfigError([Problem(message="this is not YAML", file=file)]) from None


def _object(file: Path, value: object) -> object:
    if not isinstance(value, dict):
        raise ConfigError([Problem(message="the file must hold an object", hint="write { … }", file=file)])
    return value


def _where(exc: tomllib.TOMLDecodeError) -> str:
    """The position in the parser's message; the rest of the message may quote the file."""
    found = str(exc)
    return found[found.rfind("(at ") :].strip("()") if "(at " in found else "it cannot be read"


def _without(value: Any, path: tuple[str, ...]) -> Any:
    """The value without its part at ``path``, and without objects on the path that are empty then."""
    if not isinstance(value, dict):
        return value
    rest = {key: item for key, item in value.items() if key != path[0]}
    if len(path) > 1:
        inner = _without(value.get(path[0]) or {}, path[1:])
        return {**rest, path[0]: inner} if inner else rest
    return rest


@dataclass(frozen=True, kw_only=True)
class Backup:
    """The backup of one edit of one file."""

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
        self._folder = state_folder(environ) / "backups"

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

    def of(self, client: str) -> Iterator[Backup]:
        """The backups of one client, the newest first."""
        return map(_read, self._files(client))

    def latest(self, client: str, place: ClientLocation) -> Backup | None:
        """The newest backup of a location."""
        return next((backup for backup in self.of(client) if backup.place == place), None)

    def restore(self, backup: Backup, text: str) -> None:
        """Write the file as it is to be after the edit is undone, then delete the backup."""
        rewrite_config(backup.place.file, text, environ=os.environ)
        backup.kept_in.unlink()

    def _files(self, client: str = "*") -> list[Path]:
        """Newest first."""
        return sorted(self._folder.glob(f"{client}-[0-9]*.json"), key=_number, reverse=True)


def _number(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])


def _read(file: Path) -> Backup:
    value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return Backup(
        place=ClientLocation(file=Path(value["file"]), path=tuple(value["path"]), scope=value["scope"]),
        before=value["before"],
        written=value["written"],
        moved=tuple(value["moved"]),
        kept_in=file,
    )


def _hash(text: str) -> str:
    return hashlib.blake2s(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class FileEdit:
    """A planned edit of one file: it is shown as a diff, then made as planned, with a backup."""

    owner: str
    """Who makes it: a client, or a command of Holdfast. Each undoes its own edits."""
    place: ClientLocation
    before: str = field(repr=False)
    after: str = field(repr=False)
    moved: tuple[str, ...] = ()
    """The servers that the edit removes or adds."""
    is_new: bool = False
    """Whether the file does not exist yet."""
    note: str = ""
    """What the diff says about the new text."""

    def diff(self) -> Iterator[str]:
        """The change as a diff. It may contain secrets: mask it before it is shown."""
        name = str(self.place.file)
        before, after = [] if self.is_new else self.before.splitlines(), self.after.splitlines()
        return difflib.unified_diff(before, after, name, name + self.note, n=1, lineterm="")

    def perform(self, backups: Backups) -> Path:
        """Make a backup, then write the file; returns the path of the backup."""
        file = self.place.file
        if not self.is_new and ClientFile.read(file).text != self.before:
            raise HoldfastError(f"{file} changed in the meantime: nothing was written", hint="try again")
        kept = backups.keep(self.owner, self.place, before=self.before, written=self.after, moved=self.moved)
        rewrite_config(file, self.after, environ=os.environ)
        return kept


# JSON

_KEY_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_REST_OF_LINE = re.compile(r"[ \t]*(?:\r?\n|\Z)")
_INDENT = re.compile(r'^([ \t]+)"', re.MULTILINE)


def set_member(text: str, path: tuple[str, ...], key: str, value: object) -> str:
    """``text`` with ``key`` set in the object at ``path``; missing objects on the path are created."""
    objects = parse(text).objects
    for depth, step in enumerate(path):
        if not _is_object(text, objects[path[:depth]].member(step)):
            nested: object = {key: value}
            for further in reversed(path[depth + 1 :]):
                nested = {further: nested}
            return _put(text, objects[path[:depth]], step, nested)
    return _put(text, objects[path], key, value)


def remove_member(text: str, path: tuple[str, ...], key: str) -> str:
    """``text`` without ``key`` in the object at ``path``, also if the key occurs there twice."""
    objects = parse(text).objects
    for depth, step in enumerate(path):
        if not _is_object(text, objects[path[:depth]].member(step)):
            return text
    if objects[path].member(key) is None:
        return text
    return remove_member(_cut(text, objects[path], key), path, key)


def replace_value(text: str, path: KeyPath, value: object) -> str:
    """``text`` with another value at ``path``, which must exist; also inside a list."""
    start, end = parse(text).spans[path]
    return text[:start] + _written(text, value, indent=_indent_at(text, start), inline="\n" not in text) + text[end:]


def rename_key(text: str, path: KeyPath, name: str) -> str:
    """``text`` with another key in place of the last one of ``path``, which must exist; its value stays."""
    member = parse(text).objects[path[:-1]].member(str(path[-1]))
    if member is None:
        raise KeyError(path[-1])
    end = member.start + len(_KEY_TEXT.match(text, member.start)[0])  # type: ignore[index]  # the text was parsed
    return text[: member.start] + json.dumps(name, ensure_ascii=False) + text[end:]


def _is_object(text: str, member: Member | None) -> bool:
    return member is not None and text[member.value] == "{"


def _put(text: str, into: ObjectSpan, key: str, value: object) -> str:
    there = into.member(key)
    if there is not None:
        written = _written(text, value, indent=_indent_at(text, there.start), inline="\n" not in text)
        return text[: there.value] + written + text[there.end :]
    return _append(text, into, key, value) if into.members else _fill(text, into, key, value)


def _append(text: str, into: ObjectSpan, key: str, value: object) -> str:
    first, last = into.members[0], into.members[-1]
    separated = text[: last.end] + "," + text[last.end if last.comma is None else last.comma + 1 : into.end]
    if "\n" not in text[into.start : first.start]:
        member = _member(text, key, value, indent="", inline=True)
        return f"{separated.rstrip()} {member}{text[into.end :]}"
    indent = _indent_at(text, first.start)
    body = separated.rstrip()
    space = separated[len(body) :]
    return body + _line_end(text) + indent + _member(text, key, value, indent=indent) + space + text[into.end :]


def _fill(text: str, into: ObjectSpan, key: str, value: object) -> str:
    before = text[: into.end].rstrip()
    if "\n" not in text.strip():
        return before + _member(text, key, value, indent="", inline=True) + text[into.end :]
    outer = _indent_at(text, into.start)
    indent = outer + _unit(text)
    member = _member(text, key, value, indent=indent)
    return before + _line_end(text) + indent + member + _line_end(text) + outer + text[into.end :]


def _cut(text: str, out_of: ObjectSpan, key: str) -> str:
    # The last one of equal keys: it is the one that counts. The caller comes again for those before it.
    number = max(number for number, member in enumerate(out_of.members) if member.key == key)
    member = out_of.members[number]
    start, end = _extent(text, member)
    rest = text[end:]
    before = out_of.members[number - 1].comma if number and member.comma is None else None
    if before is not None:  # strict readers do not allow a comma before the brace
        between = text[before + 1 : start]
        return text[:before] + (between if between.strip() or "\n" in between else "") + rest
    return text[:start] + rest


def _extent(text: str, member: Member) -> tuple[int, int]:
    """What is removed with a member: its comma, and its lines if nothing else is on them."""
    end = member.end if member.comma is None else member.comma + 1
    line = text.rfind("\n", 0, member.start) + 1
    rest = _REST_OF_LINE.match(text, end)
    if rest is not None and not text[line : member.start].strip():
        return line, rest.end()
    return member.start, end + len(text[end:]) - len(text[end:].lstrip(" \t"))


def _member(text: str, key: str, value: object, *, indent: str, inline: bool = False) -> str:
    return f"{json.dumps(key, ensure_ascii=False)}: {_written(text, value, indent=indent, inline=inline)}"


def _written(text: str, value: object, *, indent: str, inline: bool) -> str:
    lines = json.dumps(value, ensure_ascii=False, indent=None if inline else _unit(text)).split("\n")
    return (_line_end(text) + indent).join(lines)


def _indent_at(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    found = _INDENT.search(text)
    return found.group(1) if found else "  "


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


# TOML


def remove_table(text: str, path: tuple[str, ...], name: str) -> str:
    """``text`` without the table ``name`` at ``path`` and those below it; comments that follow them stay."""
    document = tomlkit.parse(text)
    for container, index in list(_found(document, (*path, name))):
        key, item = container.body[index]
        if key is not None and isinstance(item, Table):
            # In its place, not by `remove`: comments after its last value stand before the next table, and are not its.
            container.body[index] = (None, Whitespace(_tail(item).lstrip("\n")))
        elif key is not None:
            container.remove(key)
    return document.as_string()


def put_table(text: str, path: tuple[str, ...], name: str, value: object) -> str:
    """``text`` with the table at its end; an earlier one of that name is gone."""
    text = remove_table(text, path, name)
    added = tomlkit.table()
    added.update(value if isinstance(value, Mapping) else {})
    for step in reversed((*path[1:], name)):
        parent = tomlkit.table(is_super_table=True)
        parent.append(step, added)
        added = parent
    fragment = tomlkit.document()
    fragment.append(path[0], added)
    space = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    return text + space + fragment.as_string()


def _found(container: Container, path: tuple[str, ...]) -> Iterator[tuple[Container, int]]:
    """Every container and index at ``path``: tables with a common parent may be in several parts of a file."""
    for index, (key, item) in enumerate(container.body):
        if key is not None and key.key == path[0]:
            if len(path) == 1:
                yield container, index
            elif isinstance(item, Table | InlineTable):
                yield from _found(item.value, path[1:])


def _tail(table: Table) -> str:
    """The comments and blank lines after a table's last value. They belong to what follows the table."""
    tail: list[str] = []
    for _, item in reversed(table.value.body):
        if isinstance(item, Comment | Whitespace):
            tail.append(item.as_string())
        elif isinstance(item, Table):
            return _tail(item) + "".join(reversed(tail))
        elif isinstance(item, AoT) and item.body:
            return _tail(item.body[-1]) + "".join(reversed(tail))
        elif not isinstance(item, Null):
            break
    return "".join(reversed(tail))


# YAML: the parser only says where an entry begins and ends, and the lines of that entry go or come. Entries are the
# members of a mapping, or the items of a list that each have a `name`.

LISTS = frozenset({"mcpServers"})
"""The keys whose value is a list where a file has none yet: Continue's. Goose has a mapping."""


class _YamlEntry(NamedTuple):
    """One server: its name, its column, and its lines."""

    name: str
    column: int
    first: int
    last: int


class _YamlGroup(NamedTuple):
    """All servers of a file."""

    entries: tuple[_YamlEntry, ...]
    line: int
    """The line of their key."""
    is_list: bool
    empty: tuple[int, int] | None
    """The columns of an empty value in the line of the key: ``{}`` or ``[]``."""


def remove_entry(text: str, path: tuple[str, ...], name: str) -> str:
    """``text`` without the server; comments before and after it stay. Raises ``ValueError``."""
    group = _yaml_group(text, path)
    lines = text.splitlines(keepends=True)
    for entry in reversed(group.entries if group is not None else ()):
        if entry.name == name:
            del lines[entry.first : entry.last + 1]
    return "".join(lines)


def put_entry(text: str, path: tuple[str, ...], name: str, value: object) -> str:
    """``text`` with one more server, after the others; an earlier one of that name is gone. Raises ``ValueError``."""
    text = remove_entry(text, path, name)
    end = "\r\n" if "\r\n" in text else "\n"
    text += "" if not text or text.endswith("\n") else end
    lines, group = text.splitlines(keepends=True), _yaml_group(text, path)
    entries = group.entries if group is not None else ()
    at, column = (entries[-1].last + 1, entries[-1].column) if entries else (len(lines), 2)
    if group is None:
        lines.append(f"{path[0]}:{end}")
        at = len(lines)
    elif not entries:
        if group.empty is not None:
            before, after = (lines[group.line][cut] for cut in (slice(group.empty[0]), slice(group.empty[1], None)))
            lines[group.line] = before.rstrip() + after
        at = group.line + 1
    is_list = group.is_list if entries and group is not None else path[0] in LISTS
    shown: object = [value] if is_list else {name: value}
    dumped: str = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=False, width=10_000)
    lines[at:at] = [f"{' ' * column}{line}{end}" for line in dumped.splitlines()]
    return "".join(lines)


def _yaml_group(text: str, path: tuple[str, ...]) -> _YamlGroup | None:
    """The servers under a key of the file's own; None if it has no such key."""
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:  # its message may quote the file
        raise ValueError("the text is no YAML after this edit") from None
    for found, value in document.value if isinstance(document, yaml.MappingNode) else ():
        if found.value == path[0]:
            is_list = isinstance(value, yaml.SequenceNode)
            entries = tuple(_yaml_entries(value)) if not getattr(value, "flow_style", False) else ()
            is_empty = bool(getattr(value, "flow_style", False)) and not value.value
            empty = (value.start_mark.column, value.end_mark.column) if is_empty else None
            return _YamlGroup(entries, found.start_mark.line, is_list, empty)
    return None


def _yaml_entries(group: yaml.Node) -> list[_YamlEntry]:
    if isinstance(group, yaml.MappingNode):
        return [_yaml_entry(str(key.value), key, value, key.start_mark.column) for key, value in group.value]
    if isinstance(group, yaml.SequenceNode):
        # A dash stands in the column of the list, and its item after it.
        return [_yaml_entry(_name_in(item), item, item, group.start_mark.column) for item in group.value]
    return []


def _yaml_entry(name: str, start: yaml.Node, value: yaml.Node, column: int) -> _YamlEntry:
    first = start.start_mark.line
    return _YamlEntry(name, column, first, max(first, _last_line(value)))


def _name_in(item: yaml.Node) -> str:
    members = item.value if isinstance(item, yaml.MappingNode) else ()
    return next((str(value.value) for key, value in members if key.value == "name"), "")


def _last_line(node: yaml.Node) -> int:
    """The last line of a value. A block ends, for the parser, where the next one begins, after blanks and comments."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return max(map(_last_line, last)) if isinstance(last, tuple) else _last_line(last)
    end = node.end_mark
    is_after_line_end = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">") and end.column == 0
    return int(end.line) - 1 if is_after_line_end else int(end.line)
