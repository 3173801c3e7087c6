"""Access to the control API: the control token, and the tokens of signed-in browsers.

A browser signs in with a code that works once and for a short time, and gets a token of its own. Codes and browser
tokens exist only in this process: they end with the hub.
"""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

import anyio

__all__ = ["Access", "BrowserSessions", "TooManyGuesses"]

Access: TypeAlias = Literal["control", "session"]

CODE_SECONDS = 600.0
"""Long enough for a person who reads the terminal before opening the page."""

MOST_CODES = 16
MOST_SESSIONS = 64
"""Over either limit, the oldest one ends."""

GUESSES, GUESS_SECONDS = 20, 60.0
"""After this many wrong codes in this time, no code is checked: a person who types one needs fewer."""


class TooManyGuesses(Exception):
    """Too many wrong codes came within the last minute."""


class BrowserSessions:
    """The codes and browser tokens of one run of the hub."""

    def __init__(self, control_token: str, *, clock: Callable[[], float] = anyio.current_time) -> None:
        self._control_token = control_token
        self._clock = clock
        self._codes: dict[str, float] = {}
        self._tokens: deque[str] = deque(maxlen=MOST_SESSIONS)
        self._wrong: deque[float] = deque(maxlen=GUESSES)

    def access(self, token: str) -> Access | None:
        """Return the access that a bearer token gives; None if it is unknown."""
        if _same(token, self._control_token):
            return "control"
        return "session" if any([_same(token, known) for known in self._tokens]) else None  # noqa: C419 - compare with all tokens, for constant time

    def new_code(self) -> str:
        """Make a code that signs in one browser."""
        self._forget_old()
        while len(self._codes) >= MOST_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._clock() + CODE_SECONDS
        return code

    def sign_in(self, code: str) -> str | None:
        """Exchange a code for a token; None if the code is not valid. A code works once."""
        now = self._clock()
        if len(self._wrong) == GUESSES and now - self._wrong[0] < GUESS_SECONDS:
            raise TooManyGuesses
        self._forget_old()
        found = [known for known in self._codes if _same(code, known)]
        if not found:
            self._wrong.append(now)
            return None
        del self._codes[found[0]]
        token = secrets.token_urlsafe(32)
        self._tokens.append(token)
        return token

    def _forget_old(self) -> None:
        now = self._clock()
        self._codes = {code: until for code, until in self._codes.items() if until > now}

    def __repr__(self) -> str:
        return f"<BrowserSessions of {len(self._tokens)} browsers>"


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), known.encode())
