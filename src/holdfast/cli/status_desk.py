"""Where a person is while watching: which server is selected, what is shown of it, and what a key means there.

Plain code: a key goes in, a wish comes out, and the shell fulfils it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["KEYS", "Desk", "Wish", "WishKind"]

WishKind: TypeAlias = Literal["quit", "suspend", "redraw", "reconnect", "enable", "disable"]

KEYS = "up/down select  enter details  r reconnect  e enable  d disable  q quit"
CARD_KEYS = "up/down scroll  esc back  r reconnect  e enable  d disable  q quit"

_ENDING = ("q", "Q", "ctrl-c", "ctrl-d")
_BACK = ("escape", "left", "backspace", "h")
_ACTS: dict[str, WishKind] = {"r": "reconnect", "e": "enable"}


@dataclass(frozen=True)
class Wish:
    """What the shell is to do."""

    kind: WishKind
    server: str = ""


@dataclass
class Desk:
    """Where a person is."""

    selected: str = ""
    in_full: bool = False
    """Whether the selected server is shown in full, and not the list."""
    top: int = 0
    """The first line that is shown of it."""
    asking: str = ""
    """The server that is switched off if the answer is yes."""
    message: str = ""
    """What came of the last wish."""
    page: int = 10
    """Lines that a page has; whoever draws sets it."""

    def settle(self, names: Sequence[str]) -> None:
        """Select something that is there: a server that is gone cannot be acted on."""
        if self.selected not in names:
            self.selected, self.in_full, self.asking = names[0] if names else "", False, ""

    def press(self, key: str, names: Sequence[str]) -> Wish | None:
        """Take a key; ``names`` are the servers in the order in which they are shown."""
        self.message = ""
        if key in _ENDING:
            return Wish("quit")
        if key == "ctrl-z":
            return Wish("suspend")
        if key == "ctrl-l":
            return Wish("redraw")
        if self.asking:
            return self._answer(key)
        if key in _ACTS and self.selected:
            return Wish(_ACTS[key], self.selected)
        if key == "d":
            self.asking = self.selected
        elif self.in_full:
            self._move_in_card(key)
        else:
            self._move_in_list(key, names)
        return None

    @property
    def prompt(self) -> str:
        """The last line of the screen: a question, what came of a wish, or the keys."""
        if self.asking:
            return f"switch {self.asking} off? calls under way on it end with an error  [y/n]"
        return self.message or (CARD_KEYS if self.in_full else KEYS)

    def _answer(self, key: str) -> Wish | None:
        server, self.asking = self.asking, ""
        return Wish("disable", server) if key in ("y", "Y") else None

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
