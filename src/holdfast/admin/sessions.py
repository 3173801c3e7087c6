"""Who may use the control API: the holder of the control token, and browsers that it signed in.

A browser is signed in by a code that works once and for a short time; it gets a token of its own in return.
Codes and the browsers' tokens are known to this process alone: they end with the hub.
"""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

import anyio

__all__ = ["Access", "Sessions", "TooManyGuesses"]

Access: TypeAlias = Literal["control", "session"]

CODE_SECONDS = 600.0
"""A code is printed where a person sees it, who may want to read on for a while first."""

MOST_CODES = 16
MOST_SESSIONS = 64
"""Over either, the oldest ends."""

GUESSES, GUESS_SECONDS = 20, 60.0
"""So many wrong codes within so many seconds, and no more are looked at: whoever types one by hand needs fewer."""


class TooManyGuesses(Exception):
    """Too many wrong codes came just now; it never leaves this room."""


class Sessions:
    """The tokens and codes of one run of the hub."""

    def __init__(self, control_token: str, *, clock: Callable[[], float] = anyio.current_time) -> None:
        self._control_token = control_token
        self._clock = clock
        self._codes: dict[str, float] = {}
        self._tokens: deque[str] = deque(maxlen=MOST_SESSIONS)
        self._wrong: deque[float] = deque(maxlen=GUESSES)

    def access(self, token: str) -> Access | None:
        """What a bearer token is good for; None if it is nobody's."""
        if _same(token, self._control_token):
            return "control"
        return "session" if any([_same(token, known) for known in self._tokens]) else None  # noqa: C419 - all, always

    def new_code(self) -> str:
        """A code that signs one browser in."""
        self._forget_old()
        while len(self._codes) >= MOST_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._clock() + CODE_SECONDS
        return code

    def sign_in(self, code: str) -> str | None:
        """A token for a code, which is used up by that; None if there is no such code."""
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
        return f"<Sessions of {len(self._tokens)} browsers>"


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), known.encode())
