"""Lets a package export names without importing the modules that hold them.

A package's ``__init__`` lists what other packages may use. Each name is imported when it is first used, so that
``holdfast --help`` and a config error do not wait for the MCP SDK (PERF-5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, names: Mapping[str, Iterable[str]], *, modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``: ``names`` by the module that holds them, and whole ``modules``."""
    homes = {name: home for home, held in names.items() for name in held}
    whole = {module.rpartition(".")[2]: module for module in modules}

    def get(name: str) -> Any:
        if name in homes:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        if name in whole:
            return import_module(f"{package}.{whole[name]}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names_of() -> list[str]:
        return sorted([*homes, *whole])

    return get, names_of
