"""Lets a package export names without importing the modules that hold them.

A package's ``__init__`` lists what other packages may use, once: as imports under ``if TYPE_CHECKING:``, which type
checkers and readers follow. ``lazy_exports`` reads that block when a name is asked for, and imports the module of that
name alone, so that ``holdfast --help`` and a config error do not wait for the MCP SDK (PERF-5).

The block is read as text: to parse it would take longer than the imports that it saves. Neither ``re`` nor ``typing``
is used here, because every client that joins a hub pays for them (PERF-10). For the same reason the packages that such
a client imports write ``TYPE_CHECKING = False``, which type checkers take for true.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``, made from the imports that it lists for type checkers."""
    homes: dict[str, str] = {}

    def names() -> list[str]:
        if not homes:
            homes.update(_listed(package))
        return sorted(homes)

    def get(name: str) -> Any:
        if name == "__all__":
            return names()
        if name not in names():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = _module(homes[name])
        # A whole module is exported like a name.
        return getattr(home, name) if hasattr(home, name) else _module(f"{home.__name__}.{name}")

    return get, names


def _listed(package: str) -> Iterator[tuple[str, str]]:
    """Each name that a package lists, and the module that has it."""
    loader: Any = sys.modules[package].__loader__  # of a file or of an archive: both read bytes
    source = loader.get_data(loader.get_filename(package)).decode()
    listed, inside = "", False
    for line in source.splitlines():
        if line[:1].strip():
            inside = line == "if TYPE_CHECKING:"
        elif inside:
            listed += line.partition("#")[0] + " "
    for statement in listed.split(" from ")[1:]:
        home, _, imported = statement.partition(" import ")
        for one in imported.strip(" ()").split(","):
            name, renamed, _ = one.strip().partition(" as ")
            if renamed:
                yield name, home


def _module(name: str) -> Any:
    __import__(name)
    return sys.modules[name]
