"""Change one member of an object in a JSON text, and leave every other character as it is.

The text must have been parsed before (``jsonc.parse``): nothing here tells of mistakes. Comments stay,
also those beside a member that goes; those inside it go with it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

__all__ = ["remove_member", "set_member"]

_SPACE = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PLAIN = re.compile(r"[^\s,\]}/]+")
_REST_OF_LINE = re.compile(r"[ \t]*(?:\r?\n|\Z)")
_INDENT = re.compile(r'^([ \t]+)"', re.MULTILINE)


def set_member(text: str, path: tuple[str, ...], key: str, value: object) -> str:
    """``text`` with ``key`` set in the object at ``path``; objects on the way are made if they are missing."""
    found = _root(text)
    for number, step in enumerate(path):
        member = found.member(step)
        if member is None or text[member.value] != "{":
            nested: object = {key: value}
            for further in reversed(path[number + 1 :]):
                nested = {further: nested}
            return _put(text, found, step, nested)
        found = _object(text, member.value)
    return _put(text, found, key, value)


def remove_member(text: str, path: tuple[str, ...], key: str) -> str:
    """``text`` without ``key`` in the object at ``path``, however often it stands there."""
    found = _root(text)
    for step in path:
        member = found.member(step)
        if member is None or text[member.value] != "{":
            return text
        found = _object(text, member.value)
    if found.member(key) is None:
        return text
    return remove_member(_cut(text, found, key), path, key)


@dataclass(frozen=True)
class _Member:
    """Offsets: of the key's first quote, of the value, of its end, and of the comma after it if there is one."""

    key: str
    start: int
    value: int
    end: int
    comma: int | None


@dataclass(frozen=True)
class _Object:
    start: int
    members: tuple[_Member, ...]
    end: int
    """The offset of the closing brace."""

    def member(self, key: str) -> _Member | None:
        """The member of that name; the last one, as every reader of JSON has it."""
        return next((member for member in reversed(self.members) if member.key == key), None)


# Finding one's way


def _root(text: str) -> _Object:
    return _object(text, _skip(text, 0))


def _object(text: str, at: int) -> _Object:
    members: list[_Member] = []
    here = _skip(text, at + 1)
    while text[here] != "}":
        colon = _skip(text, _string_end(text, here))
        value = _skip(text, colon + 1)
        end = _end(text, value)
        after = _skip(text, end)
        comma = after if text[after] == "," else None
        members.append(_Member(json.loads(text[here : _string_end(text, here)]), here, value, end, comma))
        here = after if comma is None else _skip(text, comma + 1)
    return _Object(at, tuple(members), here)


def _end(text: str, at: int) -> int:
    match text[at]:
        case "{":
            return _object(text, at).end + 1
        case "[":
            return _array_end(text, at)
        case '"':
            return _string_end(text, at)
        case _:
            return _matched(_PLAIN, text, at)


def _array_end(text: str, at: int) -> int:
    here = _skip(text, at + 1)
    while text[here] != "]":
        here = _skip(text, _end(text, here))
        if text[here] == ",":
            here = _skip(text, here + 1)
    return here + 1


def _skip(text: str, at: int) -> int:
    return _matched(_SPACE, text, at)


def _string_end(text: str, at: int) -> int:
    return _matched(_STRING, text, at)


def _matched(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None  # noqa: S101 - the text was parsed before
    return found.end()


# Changing


def _put(text: str, into: _Object, key: str, value: object) -> str:
    there = into.member(key)
    if there is not None:
        written = _written(text, value, indent=_indent_at(text, there.start), inline="\n" not in text)
        return text[: there.value] + written + text[there.end :]
    return _append(text, into, key, value) if into.members else _fill(text, into, key, value)


def _append(text: str, into: _Object, key: str, value: object) -> str:
    first, last = into.members[0], into.members[-1]
    separated = text[: last.end] + "," + text[last.end if last.comma is None else last.comma + 1 : into.end]
    if "\n" not in text[into.start : first.start]:
        member = _member(text, key, value, indent="", inline=True)
        return f"{separated.rstrip()} {member}{text[into.end :]}"
    indent = _indent_at(text, first.start)
    body = separated.rstrip()
    space = separated[len(body) :]
    return body + _line_end(text) + indent + _member(text, key, value, indent=indent) + space + text[into.end :]


def _fill(text: str, into: _Object, key: str, value: object) -> str:
    before = text[: into.end].rstrip()
    if "\n" not in text.strip():
        return before + _member(text, key, value, indent="", inline=True) + text[into.end :]
    outer = _indent_at(text, into.start)
    indent = outer + _unit(text)
    member = _member(text, key, value, indent=indent)
    return before + _line_end(text) + indent + member + _line_end(text) + outer + text[into.end :]


def _cut(text: str, out_of: _Object, key: str) -> str:
    number = max(number for number, member in enumerate(out_of.members) if member.key == key)
    member = out_of.members[number]
    start, end = _extent(text, member)
    rest = text[end:]
    before = out_of.members[number - 1].comma if number and member.comma is None else None
    if before is not None:  # it was the last one: strict readers allow no comma before the brace
        between = text[before + 1 : start]
        return text[:before] + (between if between.strip() or "\n" in between else "") + rest
    return text[:start] + rest


def _extent(text: str, member: _Member) -> tuple[int, int]:
    """What goes with a member: its comma, and its lines if it has them to itself."""
    end = member.end if member.comma is None else member.comma + 1
    line = text.rfind("\n", 0, member.start) + 1
    rest = _REST_OF_LINE.match(text, end)
    if rest is not None and not text[line : member.start].strip():
        return line, rest.end()
    return member.start, _matched(re.compile(r"[ \t]*"), text, end)


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
