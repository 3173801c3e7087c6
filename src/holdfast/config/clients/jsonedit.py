"""Changes one member of an object in a JSON text, and leaves every other character as it is.

The offsets come from ``jsonc.parse``. Comments stay, also those beside a removed member; comments
inside a removed member are removed with it.
"""

from __future__ import annotations

import json
import re

from holdfast.config.jsonc import Member, ObjectSpan, parse

__all__ = ["remove_member", "set_member"]

_BOM = "\ufeff"
_REST_OF_LINE = re.compile(r"[ \t]*(?:\r?\n|\Z)")
_INDENT = re.compile(r'^([ \t]+)"', re.MULTILINE)


def set_member(text: str, path: tuple[str, ...], key: str, value: object) -> str:
    """``text`` with ``key`` set in the object at ``path``; missing objects on the path are created."""
    if text.startswith(_BOM):
        return _BOM + set_member(text.removeprefix(_BOM), path, key, value)
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
    if text.startswith(_BOM):
        return _BOM + remove_member(text.removeprefix(_BOM), path, key)
    objects = parse(text).objects
    for depth, step in enumerate(path):
        if not _is_object(text, objects[path[:depth]].member(step)):
            return text
    if objects[path].member(key) is None:
        return text
    return remove_member(_cut(text, objects[path], key), path, key)


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
