"""Lets a package export names without importing the modules that hold them.

A package's ``__init__`` lists what other packages may use, once: as imports under ``if TYPE_CHECKING:``, which type
checkers and readers follow. ``lazy_exports`` reads that block and imports each name when it is first used, so that
``holdfast --help`` and a config error do not wait for the MCP SDK (PERF-5).

The block is read as text, with one regular expression: to parse it would take longer than the imports that it saves.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["lazy_exports"]

_BLOCK = re.compile(r"^if TYPE_CHECKING:\n((?:[ \t]+.*\n|\n)*)", re.MULTILINE)
_IMPORT = re.compile(r"from (\S+) import (\([^)]*\)|.*)")
_NAME = re.compile(r"\w+(?= as \w)")


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``, made from the imports that it lists for type checkers."""
    loader = sys.modules[package].__loader__
    source = loader.get_source(package) if loader is not None else None  # type: ignore[attr-defined]  # of a file
    blocks = _BLOCK.findall(source or "")
    homes = {name: home for block in blocks for home, names in _IMPORT.findall(block) for name in _NAME.findall(names)}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        # A whole module is exported like a name.
        return getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")

    return get, lambda: sorted(homes)
