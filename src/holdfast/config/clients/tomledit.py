"""Take tables out of a TOML text and add others, and leave every other character as it is.

Only whole tables under a header of their own (``[mcp_servers.github]``) are taken out; whoever asks
compares what the result says with what it should say, and refuses where they differ.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["add_table", "remove_table", "table_text"]

_HEADER = re.compile(r"^[ \t]*\[\[?[^\[\]\n]*\]\]?[ \t]*(?:#[^\n]*)?$", re.MULTILINE)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TAIL = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*\Z")


def remove_table(text: str, path: tuple[str, ...]) -> str:
    """``text`` without the table at ``path`` and those below it; comments that follow them stay."""
    for block in reversed(list(_blocks(text))):
        if block.path[: len(path)] == path:
            body = text[block.start : block.end]
            tail = _TAIL.search(body)
            kept = body[tail.start() :].lstrip("\n") if tail else ""
            text = text[: block.start] + kept + text[block.end :]
    return text


def table_text(text: str, path: tuple[str, ...]) -> str:
    """The table at ``path`` and those below it, as they are written."""
    return "".join(text[block.start : block.end] for block in _blocks(text) if block.path[: len(path)] == path)


def add_table(text: str, path: tuple[str, ...], table: Mapping[str, object]) -> str:
    """``text`` with one more table at its end."""
    lines = [f"[{'.'.join(map(_key, path))}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]
    space = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    return text + space + "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Block:
    """A header and what stands under it."""

    path: tuple[str, ...]
    start: int
    end: int


def _blocks(text: str) -> Iterator[_Block]:
    headers = [(found.start(), path) for found in _HEADER.finditer(text) if (path := _path(text, found)) is not None]
    for (start, path), (end, _) in pairwise([*headers, (len(text), ())]):
        yield _Block(path, start, end)


def _path(text: str, header: re.Match[str]) -> tuple[str, ...] | None:
    """The names in a header; None for what only looks like one, inside a longer text or a list."""
    try:
        tomllib.loads(text[: header.start()])
        named: object = tomllib.loads(header.group().strip() + "\n")
    except tomllib.TOMLDecodeError:
        return None
    path: list[str] = []
    while named:
        if isinstance(named, list):
            named = named[0]
        elif isinstance(named, dict):
            ((name, named),) = named.items()
            path.append(name)
    return tuple(path)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return _text(str(value))


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
