"""The lifecycle's table as a diagram for the docs: ``python -m holdfast.core.diagram`` prints it.

The diagram leaves out the two events that end a slot from any state, and those that change no state.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.core.lifecycle.events import Event, RemoveRequested, ShutdownRequested
from holdfast.core.lifecycle.table import MOVES, State

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["diagram"]

_ENDINGS = frozenset({RemoveRequested, ShutdownRequested})


def diagram() -> str:
    """The table as a Mermaid state diagram, one line for each pair of states."""
    lines = [f"    {old.value} --> {new.value}: {', '.join(words)}" for old, new, words in _edges()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {State.DISCONNECTED.value}", *lines])


def _edges() -> Iterator[tuple[State, State, list[str]]]:
    for old, row in MOVES.items():
        for new in State:
            words = [_words(event) for event, to in row.items() if to is new and event not in _ENDINGS]
            if words:
                yield old, new, words


def _words(event: type[Event]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", event.__name__).lower()


if __name__ == "__main__":
    print(diagram())  # noqa: T201 - a command's output; the docs are made from it
