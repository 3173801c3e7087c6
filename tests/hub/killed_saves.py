"""Saves that are killed (SIGKILL) at each of their steps in turn: a statement of SQLite, or a change of a file.

Run as a program with a folder. It forks a process for each step, so that every save is one of a real process that is
gone afterwards; ``NAME-N`` is what a save left that was killed at its step N, and ``NAME-whole`` what one left that was
not killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.core import Item, Kind, Listing, NameKey
from holdfast.hub.state_store import PinChanges, PinnedTools, Store, StoredServer, add_pins

__all__ = ["AFTER", "BEFORE", "LARGE_AFTER", "LARGE_BEFORE", "PINS_AFTER", "PINS_BEFORE"]

Save = Callable[[Path], Callable[[], object]]
"""Prepares a save of a file; what it returns is killed."""


CACHE_PAGES = 10
"""SQLite may keep no more than these of a save in memory: the rest is in the file before the save is whole."""


def _servers(**servers: tuple[str, ...]) -> dict[str, StoredServer]:
    return {
        server: StoredServer(
            fingerprint=mark,
            listing=Listing(server=server, generation=0, tools=tuple(Item(name) for name in tools)),
            names={NameKey(Kind.TOOL, server, name): f"{server}__{name}" for name in tools},
        )
        for server, (mark, *tools) in servers.items()
    }


BEFORE = _servers(a=("1", "one", "two"), b=("1", "three"), gone=("1", "four"))
AFTER = _servers(a=("2", "five", "six"), b=("2", "seven", "eight"), new=("1", "nine"))
LARGE_BEFORE = _servers(**{f"s{n}": ("1", *(f"{i}" * 4_000 for i in range(4))) for n in range(4)})
LARGE_AFTER = _servers(**{f"s{n}": ("2", *(f"{i}" * 4_000 for i in range(4, 8))) for n in range(4)})
PINS_BEFORE: dict[str, Any] = {"a": {"one": {"description": "first"}}}
PINS_AFTER: dict[str, Any] = {"a": {"one": {"description": "approved"}}}


def _state(file: Path) -> Callable[[], object]:
    store = Store(file)
    store.load()
    store.save(BEFORE)
    return lambda: store.save(AFTER)


def _large_state(file: Path) -> Callable[[], object]:
    store = Store(file)
    store.load()
    store.save(LARGE_BEFORE)
    return lambda: store.save(LARGE_AFTER)


def _first_state(file: Path) -> Callable[[], object]:
    return lambda: Store(file).save(AFTER)


def _pins(file: Path) -> Callable[[], object]:
    add_pins(file, PinChanges(known=PinnedTools(PINS_BEFORE, {})))
    changes = PinChanges(known=PinnedTools(PINS_AFTER, {}), approved={("a", "one")})
    return lambda: add_pins(file, changes)


def _killed_at(number: int, save: Callable[[], object]) -> bool:
    """Whether a process that saves was killed at its step of this number: it may have fewer."""
    child = os.fork()
    if not child:
        left = [number]

        def step(*_: object) -> None:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

        _on_statements(step)
        sys.addaudithook(lambda event, _: step() if event in ("os.rename", "tempfile.mkstemp", "os.remove") else None)
        save()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _on_statements(step: Callable[..., None]) -> None:
    """Tell of every statement of SQLite, before it runs."""

    class Traced(sqlite3.Connection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.execute(f"PRAGMA cache_size = {CACHE_PAGES}")
            self.set_trace_callback(step)

    connect = sqlite3.connect
    setattr(sqlite3, "connect", lambda *args, **options: connect(*args, factory=Traced, **options))  # noqa: B010 - overloaded


def main(folder: Path) -> None:
    saves: dict[str, Save] = {"state": _state, "large": _large_state, "first": _first_state, "pins": _pins}
    for name, prepare in saves.items():
        number, killed = 0, True
        while killed:
            number += 1
            file = folder / f"{name}-{number}"
            killed = _killed_at(number, prepare(file))
            if not killed:
                shutil.move(file, folder / f"{name}-whole")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
