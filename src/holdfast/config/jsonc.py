"""Reads JSON with comments, trailing commas and a BOM, and records the position of every key and value.

Theory of operation. No library gives positions together with comments (ADR 0013), and two parts need them: errors name
a line and a column, also of a value that is valid JSON and wrong for us, and edits change one member and leave every
other character as it is. So this is the only tokenizer. ``_Scanner`` stands at an offset and reads what begins there;
``_Parser`` descends into objects and lists, and notes on the way where everything is:

* ``objects`` and ``spans``: offsets of members, commas and values. Edits are made with them, and messages get line and
  column from them. They count in the text as it is, also where it begins with a BOM;
* ``duplicates``: a key that occurs twice. The last one counts, as in every JSON reader, and the configuration refuses
  it.

A fault is raised where it is found and ends the reading: what follows a missing bracket would be nonsense. What was
probably meant is in tables (``_NO_VALUE``, ``_NO_KEY``), by the character that does not belong there.

What must never happen: any input ends in something other than a ``Document`` or a ``ConfigError`` that points at the
fault (``DEEPEST`` bounds the recursion); a message quotes a value, which may be a token (it shows keys and single
punctuation marks); a text is read that cannot be written again (half of a surrogate pair, a number without an end).
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeAlias

from holdfast.errors import ConfigError, Problem

__all__ = [
    "DEEPEST",
    "Document",
    "JsonValue",
    "KeyPath",
    "LineIndex",
    "Mark",
    "Member",
    "ObjectSpan",
    "joined",
    "parse",
    "quoted",
]

KeyPath: TypeAlias = tuple[str | int, ...]
"""The path from the top of a document to a value: keys of objects and indexes of lists."""

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"

DEEPEST = 64
"""The deepest nesting that is read. A configuration needs less, and the limit protects the stack."""

_LINE_END = re.compile(r"\r\n|\r|\n")
_SPACE = re.compile(r"[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
"""A text up to its closing quote, or up to the first character that cannot be in it."""
_SURROGATES = re.compile(r"(?:\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|(\\u[dD][89a-fA-F]..)|\\.")
"""The escapes of a text; the group is half of a surrogate pair."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?(?![\w.])", re.ASCII)
_WORD = re.compile(r"[^\s,:{}\[\]\"'/]+")
_CONSTANTS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
_MISSPELT = {"True": "true", "False": "false", "None": "null", "undefined": "null", "TRUE": "true", "FALSE": "false"}
_COMMENTS = "comments start with // or are between /* and */"
_CURLY_QUOTES = "\u201c\u201d\u201e\u2018\u2019"
_STRAY = {
    "#": ("`#` does not start a comment here", _COMMENTS),
    "/": ("`/` does not belong here", _COMMENTS),
    "\u00a0": ("this is a no-break space", "replace it by an ordinary space"),
}
"""What is wrong with a character that does not belong where it is, and what to do. The next three say more for what was
expected: a value, a key, or the end."""
_NO_VALUE = {
    **_STRAY,
    "": ("the file ends where a value was expected", "is the file complete?"),
    **dict.fromkeys(",}]", ("a value is missing before this", "write the value, or remove the key")),
    **dict.fromkeys("'" + _CURLY_QUOTES, ("a text must be in straight double quotes", 'use "')),
}
_NO_KEY = {
    **_STRAY,
    **{mark: (f"`{mark}` does not belong here", "is a bracket missing before it?") for mark in "}]"},
    **dict.fromkeys("'" + _CURLY_QUOTES, ("a key must be in straight double quotes", 'use "')),
}
_NOT_THE_END = {mark: (f"one `{mark}` too many", "remove it") for mark in "}]"}


class Mark(NamedTuple):
    """A position in a text, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Member:
    """Offsets of a member: the key's first quote, the value, the value's end, and the comma after it, if any."""

    key: str
    start: int
    value: int
    end: int
    comma: int | None


@dataclass(frozen=True)
class ObjectSpan:
    """Offsets of an object: its opening brace, its members, its closing brace. Edits are made with them."""

    start: int
    members: tuple[Member, ...]
    end: int

    def member(self, key: str) -> Member | None:
        """The member of that name; the last one if the key occurs twice, as in every JSON reader."""
        return next((member for member in reversed(self.members) if member.key == key), None)


def _after_bom(text: str) -> int:
    """Where the first line of a text begins: a byte order mark is no character of it."""
    return len(text) - len(text.removeprefix("\ufeff"))


class LineIndex:
    """Turns an offset into a line and a column."""

    def __init__(self, text: str) -> None:
        self._starts = [_after_bom(text), *(end.end() for end in _LINE_END.finditer(text))]

    def mark(self, offset: int) -> Mark:
        """The position of an offset."""
        line = bisect_right(self._starts, offset)
        return Mark(line, offset - self._starts[line - 1] + 1)


@dataclass(frozen=True, kw_only=True)
class Document:
    """The value of a text, and where its parts are. ``Document()`` stands for a value that no text has."""

    value: JsonValue = None
    file: Path | None = None
    objects: Mapping[KeyPath, ObjectSpan] = field(default_factory=dict)
    """Every object, by its path."""
    spans: Mapping[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """The offsets of every value: its start and its end."""
    duplicates: tuple[Problem, ...] = ()
    """The keys that occur a second time in their object."""
    lines: LineIndex | None = field(default=None, repr=False)

    def problem(self, path: KeyPath, message: str, *, hint: str = "", at_key: bool = False) -> Problem:
        """A problem with the value at ``path`` (or with its key); a missing value has its parent's position."""
        line, column = self._mark(path, at_key=at_key) or (0, 0)
        return Problem(
            message=message, hint=hint, file=self.file, line=line, column=column, path=joined(path), keys=path
        )

    def label(self, path: KeyPath) -> str:
        """The position in short form: ``mcp.json:12:7``."""
        mark = self._mark(path, at_key=False)
        if mark is None:
            return joined(path)
        return f"{self.file.name if self.file else 'line'}:{mark.line}:{mark.column}"

    def nearest(self, path: KeyPath) -> KeyPath:
        """The longest part of ``path`` that exists."""
        while path and path not in self.spans:
            path = path[:-1]
        return path

    def members(self, path: KeyPath) -> int | None:
        """The number of members of the object at ``path``; None if there is no object."""
        found = self.objects.get(path)
        return len(found.members) if found is not None else None

    def _mark(self, path: KeyPath, *, at_key: bool) -> Mark | None:
        if self.lines is None:
            return None
        around = self.objects.get(path[:-1]) if at_key and path else None
        member = around.member(str(path[-1])) if around is not None else None
        return self.lines.mark(member.start if member is not None else self.spans[self.nearest(path)][0])


def parse(data: bytes | str, *, file: Path | None = None) -> Document:
    """Parse ``data``; raises ``ConfigError`` with the position and a hint if that fails."""
    return _Parser(_decode(data, file), file).document()


def _problem_at(file: Path | None, mark: Mark, message: str, hint: str) -> Problem:
    return Problem(message=message, hint=hint, file=file, line=mark.line, column=mark.column)


def _decode(data: bytes | str, file: Path | None) -> str:
    try:
        return data.decode("utf-8") if isinstance(data, bytes) else data.encode("utf-8").decode("utf-8")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode("utf-8")
        is_utf16 = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
        hint = "the file is UTF-16: save it as UTF-8" if is_utf16 else "save the file as UTF-8"
        mark = LineIndex(before).mark(len(before))
        raise ConfigError([_problem_at(file, mark, "this is not UTF-8 text", hint)]) from None
    except UnicodeEncodeError as error:
        mark = LineIndex(error.object).mark(error.start)
        message = "this is half of a surrogate pair, not a character"
        raise ConfigError([_problem_at(file, mark, message, "remove it")]) from None


class _Scanner:
    """A position in a text, and the scalars that begin there: texts, numbers and constants."""

    def __init__(self, text: str, file: Path | None) -> None:
        self._text = text
        self._file = file
        self._at = _after_bom(text)
        self._lines = LineIndex(text)
        self._duplicates: list[Problem] = []
        self._objects: dict[KeyPath, ObjectSpan] = {}
        self._spans: dict[KeyPath, tuple[int, int]] = {}

    def _here(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, mark: str) -> bool:
        if self._here() != mark:
            return False
        self._at += 1
        return True

    def _skip(self) -> None:
        while match := _SPACE.match(self._text, self._at):
            self._at = match.end()
        if self._text.startswith("/*", self._at):
            self._fail("this comment is never closed", "end it with */")

    def _string(self) -> str:
        start = self._at
        match = _STRING.match(self._text, start)
        assert match is not None  # noqa: S101 - a quote is here, and the pattern matches it alone too
        self._at = match.end()
        if not self._take('"'):
            self._fail_in_string(start)
        written = self._text[start : self._at]
        half = next((one for one in _SURROGATES.finditer(written) if one.group(1)), None)
        if half is not None:
            self._fail("this is half of a surrogate pair", "write the character itself", at=start + half.start())
        return str(json.loads(written))

    def _number_or_constant(self) -> JsonValue:
        start = self._at
        word = _WORD.match(self._text, start)
        if word is None:
            self._fail_here(_NO_VALUE, "a value was expected here", "did you mean to quote this?")
        if word.group() in _CONSTANTS:
            self._at = word.end()
            return _CONSTANTS[word.group()]
        if word.group() in _MISSPELT:
            self._fail(f"`{word.group()}` is not JSON", f"write {_MISSPELT[word.group()]}")
        number = _NUMBER.match(self._text, start)
        if number is None or number.end() != word.end():
            self._fail_here(_NO_VALUE, "this is not a JSON value", "did you mean to quote this?")
        self._at = number.end()
        return self._number(number, start)

    def _number(self, match: re.Match[str], start: int) -> int | float:
        try:
            value = float(match.group()) if match.group(1) or match.group(2) else int(match.group())
        except ValueError:  # Python refuses to read integers of thousands of digits
            value = math.inf
        if isinstance(value, float) and math.isinf(value):
            self._fail("this number is too large", "if it is a text, put it in quotes", at=start)
        return value

    def _fail(self, message: str, hint: str = "", *, at: int | None = None) -> NoReturn:
        mark = self._lines.mark(self._at if at is None else at)
        raise ConfigError([_problem_at(self._file, mark, message, hint)])

    def _fail_in_string(self, start: int) -> NoReturn:
        here = self._here()
        if self._text.startswith("\\u", self._at):
            self._fail(r"`\u` needs four hexadecimal digits", r"as in \u00e9")
        if here == "\\":
            self._fail("this escape does not exist", r"a backslash itself is written \\")
        if not here or here in "\r\n":
            self._fail("this text is not closed before the end of the line", 'end it with "', at=start)
        self._fail("this text contains a control character", rf"write it as \u{ord(here):04x}")

    def _fail_here(self, known: Mapping[str, tuple[str, str]], message: str, hint: str) -> NoReturn:
        """Fail at a character that does not belong here, with what is known about it."""
        self._fail(*known.get(self._here(), (message, hint)))


class _Parser(_Scanner):
    """Reads one document in one pass, recursive and bounded in depth: objects, arrays, and where everything is."""

    def document(self) -> Document:
        self._skip()
        if not self._here():
            self._fail("the file is empty", 'an empty configuration is written {"mcpServers": {}}')
        value = self._value(())
        self._skip()
        if self._here():
            message = "there is text after the end of the document"
            self._fail_here(_NOT_THE_END, message, "the whole file is one { … }")
        return Document(
            value=value,
            file=self._file,
            objects=self._objects,
            spans=self._spans,
            duplicates=tuple(self._duplicates),
            lines=self._lines,
        )

    def _value(self, path: KeyPath) -> JsonValue:
        start = self._at
        value: JsonValue
        match self._here():
            case "{":
                value = self._object(path)
            case "[":
                value = self._array(path)
            case '"':
                value = self._string()
            case _:
                value = self._number_or_constant()
        self._spans[path] = (start, self._at)
        return value

    def _object(self, path: KeyPath) -> dict[str, JsonValue]:
        opened = self._open(path)
        result: dict[str, JsonValue] = {}
        first: dict[str, int] = {}
        members: list[Member] = []
        while not self._closes("}", opened):
            start = self._at
            key = self._key(path, first)
            self._skip()
            if not self._take(":"):
                self._fail("a colon is missing before this", 'a key and its value are written "key": value')
            self._skip()
            at = self._at
            result[key] = self._value((*path, key))
            end = self._at
            members.append(Member(key, start, at, end, self._separate("}", opened)))
        self._objects[path] = ObjectSpan(opened, tuple(members), self._at - 1)
        return result

    def _array(self, path: KeyPath) -> list[JsonValue]:
        opened = self._open(path)
        result: list[JsonValue] = []
        while not self._closes("]", opened):
            result.append(self._value((*path, len(result))))
            self._separate("]", opened)
        return result

    def _open(self, path: KeyPath) -> int:
        if len(path) >= DEEPEST:
            self._fail(f"this is nested more than {DEEPEST} levels deep", "is this the right file?")
        self._at += 1
        return self._at - 1

    def _closes(self, closing: str, opened: int) -> bool:
        self._skip()
        if not self._here():
            self._fail_unclosed(opened)
        if self._here() == ",":
            self._fail("a value is missing before this comma", "remove the comma, or write the value")
        return self._take(closing)

    def _separate(self, closing: str, opened: int) -> int | None:  # noqa: RET503 - `_fail` does not return
        """Read the comma after a value and return its offset; it is optional before the closing bracket."""
        self._skip()
        here = self._here()
        if here == closing:
            return None
        if self._take(","):
            return self._at - 1
        if not here:
            self._fail_unclosed(opened)
        if here in "}]":
            self._fail(
                f"`{here}` does not close the `{self._text[opened]}` of {self._where(opened)}", f"write {closing}"
            )
        if here in ":=":
            self._fail(f"`{here}` does not belong here", "check the quote before it")
        self._fail("a comma is missing before this", "put a comma after the value before it")

    def _key(self, path: KeyPath, first: dict[str, int]) -> str:
        start = self._at
        if self._here() != '"':
            self._fail_here(_NO_KEY, "a key was expected here", "did you mean to quote this?")
        key = self._string()
        if key in first:
            message = f"the key {quoted(key)} occurs here a second time; the first is at {self._where(first[key])}"
            again = _problem_at(self._file, self._lines.mark(start), message, "remove one of the two")
            self._duplicates.append(replace(again, keys=(*path, key)))
        first.setdefault(key, start)
        return key

    def _fail_unclosed(self, opened: int) -> NoReturn:
        mark = self._text[opened]
        closing = "}" if mark == "{" else "]"
        self._fail(f"the file ends, but the `{mark}` of {self._where(opened)} is not closed", f"write {closing}")

    def _where(self, offset: int) -> str:
        mark = self._lines.mark(offset)
        return f"line {mark.line}, column {mark.column}"


_LONGEST = 60
_SIMPLE_KEY = re.compile(r"[\w$-]+")


def joined(path: KeyPath) -> str:
    """A path as text: ``mcpServers.github.args[1]``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _SIMPLE_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f'["{_visible(step)}"]'
    return text


def quoted(text: str) -> str:
    """A name from a configuration in backquotes, shortened, without control characters."""
    return f"`{_visible(text)}`"


def _visible(text: str) -> str:
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in shown)
