"""Removes tables from a TOML text and adds others with tomlkit; comments and order of the rest stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import tomlkit
from tomlkit.container import Container
from tomlkit.items import AoT, Comment, InlineTable, Null, Table, Whitespace

__all__ = ["add_table", "remove_table", "table_text"]


def remove_table(text: str, path: tuple[str, ...]) -> str:
    """``text`` without the table at ``path`` and those below it; comments that follow them stay."""
    document = tomlkit.parse(text)
    for container, index in list(_found(document, path)):
        key, item = container.body[index]
        if key is not None and isinstance(item, Table):
            container.body[index] = (None, Whitespace(_tail(item).lstrip("\n")))
        elif key is not None:
            container.remove(key)
    return document.as_string()


def table_text(text: str, path: tuple[str, ...]) -> str:
    """The table at ``path`` and those below it, as they are written."""
    document = tomlkit.parse(text)
    _keep(document, path)
    return document.as_string()


def add_table(text: str, path: tuple[str, ...], table: Mapping[str, object]) -> str:
    """``text`` with one more table at its end."""
    added = tomlkit.table()
    added.update(table)
    for step in reversed(path[1:]):
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


def _keep(container: Container, path: tuple[str, ...]) -> None:
    """Drop everything but the table at ``path``."""
    for index, (key, item) in enumerate(container.body):
        if key is None or key.key != path[0]:
            container.body[index] = (None, Null())
        elif len(path) > 1 and isinstance(item, Table):
            _keep(item.value, path[1:])


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
