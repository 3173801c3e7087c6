"""The state of ``status --watch``: the selected server, the view, and what each key does.

Pure: a key goes in, an action comes out, and the caller performs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["LIST_KEYS", "ActionKind", "KeyAction", "WatchState"]

ActionKind: TypeAlias = Literal["quit", "suspend", "redraw", "reconnect", "enable", "disable"]

LIST_KEYS = "up/down select  enter details  r reconnect  e enable  d disable  q quit"
CARD_KEYS = "up/down scroll  esc back  r reconnect  e enable  d disable  q quit"

_ENDING = ("q", "Q", "ctrl-c", "ctrl-d")
_BACK = ("escape", "left", "backspace", "h")
_ACTS: dict[str, ActionKind] = {"r": "reconnect", "e": "enable"}


@dataclass(frozen=True)
class KeyAction:
    """What the caller has to do."""

    kind: ActionKind
    server: str = ""


@dataclass
class WatchState:
    """The selection, the scroll position and the prompt."""

    selected: str = ""
    in_full: bool = False
    """Whether the details of the selected server are shown instead of the list."""
    top: int = 0
    """The first visible line."""
    asking: str = ""
    """The server that is disabled if the answer is yes."""
    message: str = ""
    """The result of the last action."""
    page: int = 10
    """The lines of a page; set when the screen is drawn."""

    def settle(self, names: Sequence[str]) -> None:
        """Select a server that still exists."""
        if self.selected not in names:
            self.selected, self.in_full, self.asking = names[0] if names else "", False, ""

    def press(self, key: str, names: Sequence[str]) -> KeyAction | None:
        """Handle a key. ``names`` are the servers in the order on the screen."""
        self.message = ""
        if key in _ENDING:
            return KeyAction("quit")
        if key == "ctrl-z":
            return KeyAction("suspend")
        if key == "ctrl-l":
            return KeyAction("redraw")
        if self.asking:
            return self._answer(key)
        if key in _ACTS and self.selected:
            return KeyAction(_ACTS[key], self.selected)
        if key == "d":
            self.asking = self.selected
        elif self.in_full:
            self._move_in_card(key)
        else:
            self._move_in_list(key, names)
        return None

    @property
    def prompt(self) -> str:
        """The last line of the screen: a question, the result of an action, or the keys."""
        if self.asking:
            return f"disable {self.asking}? its calls in flight end with an error  [y/n]"
        return self.message or (CARD_KEYS if self.in_full else LIST_KEYS)

    def _answer(self, key: str) -> KeyAction | None:
        server, self.asking = self.asking, ""
        return KeyAction("disable", server) if key in ("y", "Y") else None

    def _move_in_list(self, key: str, names: Sequence[str]) -> None:
        if key in ("enter", "right", "l") and self.selected:
            self.in_full, self.top = True, 0
            return
        at = names.index(self.selected) if self.selected in names else 0
        to = self._moved(key, at, len(names))
        if names:
            self.selected = names[to]

    def _move_in_card(self, key: str) -> None:
        if key in _BACK or key == "enter":
            self.in_full, self.top = False, 0
            return
        self.top = self._moved(key, self.top, 10_000)

    def _moved(self, key: str, at: int, length: int) -> int:
        to = {
            "up": at - 1,
            "k": at - 1,
            "down": at + 1,
            "j": at + 1,
            "page_up": at - self.page,
            "page_down": at + self.page,
            "home": 0,
            "g": 0,
            "end": length - 1,
            "G": length - 1,
        }.get(key, at)
        return max(0, min(to, length - 1))
