"""Edits the servers in a client's YAML file: whole lines go and come, all others stay as they are.

A library that writes YAML writes the whole file again, and loses comments, quotes and the order of lines. So the parser
only says where an entry begins and ends, and the lines of that entry are cut out, or the lines of a new one put in.
What is written in one line (``extensions: {a: {…}}``), or hangs on an anchor, cannot be edited so. The caller reads the
new text again and refuses it unless it says exactly what it should (``ClientFile``).

Entries are the members of a mapping, or the items of a list that each have a ``name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import yaml

__all__ = ["remove_entry", "set_entry"]


LISTS = frozenset({"mcpServers"})
"""The keys whose value is a list where a file has none yet: Continue's. Goose has a mapping."""


class _Entry(NamedTuple):
    """One server: its name, its column, and its lines."""

    name: str
    column: int
    first: int
    last: int


class _Group(NamedTuple):
    """All servers of a file."""

    entries: tuple[_Entry, ...]
    line: int
    """The line of their key."""
    is_list: bool
    empty: tuple[int, int] | None
    """The columns of an empty value in the line of the key: ``{}`` or ``[]``."""


def remove_entry(text: str, key: str, name: str) -> str:
    """``text`` without the server; comments before and after it stay. Raises ``ValueError``."""
    group = _group(text, key)
    lines = text.splitlines(keepends=True)
    for entry in reversed(group.entries if group is not None else ()):
        if entry.name == name:
            del lines[entry.first : entry.last + 1]
    return "".join(lines)


def set_entry(text: str, key: str, name: str, value: Mapping[str, object]) -> str:
    """``text`` with one more server, after the others; an earlier one of that name is gone. Raises ``ValueError``."""
    text = remove_entry(text, key, name)
    end = "\r\n" if "\r\n" in text else "\n"
    text += "" if not text or text.endswith("\n") else end
    lines, group = text.splitlines(keepends=True), _group(text, key)
    entries = group.entries if group is not None else ()
    at, column = (entries[-1].last + 1, entries[-1].column) if entries else (len(lines), 2)
    if group is None:
        lines.append(f"{key}:{end}")
        at = len(lines)
    elif not entries:
        if group.empty is not None:
            before, after = (lines[group.line][cut] for cut in (slice(group.empty[0]), slice(group.empty[1], None)))
            lines[group.line] = before.rstrip() + after
        at = group.line + 1
    is_list = group.is_list if entries and group is not None else key in LISTS
    lines[at:at] = [f"{' ' * column}{line}{end}" for line in _written(name, value, is_list=is_list)]
    return "".join(lines)


def _written(name: str, value: Mapping[str, object], *, is_list: bool) -> list[str]:
    shown: object = [dict(value)] if is_list else {name: dict(value)}
    dumped: str = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=False, width=10_000)
    return dumped.splitlines()


def _group(text: str, key: str) -> _Group | None:
    """The servers under a key of the file's own; None if it has no such key."""
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:  # its message may quote the file
        raise ValueError("the text is no YAML after this edit") from None
    for found, value in document.value if isinstance(document, yaml.MappingNode) else ():
        if found.value == key:
            is_list = isinstance(value, yaml.SequenceNode)
            entries = tuple(_entries(value)) if not getattr(value, "flow_style", False) else ()
            is_empty = bool(getattr(value, "flow_style", False)) and not value.value
            empty = (value.start_mark.column, value.end_mark.column) if is_empty else None
            return _Group(entries, found.start_mark.line, is_list, empty)
    return None


def _entries(group: yaml.Node) -> list[_Entry]:
    if isinstance(group, yaml.MappingNode):
        return [_entry(str(key.value), key, value, key.start_mark.column) for key, value in group.value]
    if isinstance(group, yaml.SequenceNode):
        # A dash stands in the column of the list, and its item after it.
        return [_entry(_name_in(item), item, item, group.start_mark.column) for item in group.value]
    return []


def _entry(name: str, start: yaml.Node, value: yaml.Node, column: int) -> _Entry:
    first = start.start_mark.line
    return _Entry(name, column, first, max(first, _last_line(value)))


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
