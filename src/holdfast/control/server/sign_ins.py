"""Who may use the control API: the holder of the control token, and browsers that signed in with a code.

A code signs in one browser, once and for a short time; the browser gets a token of its own, for a working day. Codes
and tokens are signed and say when they expire, so nothing has to be remembered of them, and every worker of one
supervisor accepts what another one made: they have the same key. Only the use of a code is remembered. Workers make a
file for it, because a file can be made once; a hub alone keeps a list.

What must never happen: a code works twice, one kind passes for the other, or something outlives a change of the control
token. So the kind and the control token are part of what is signed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeAlias

from holdfast.keys import KeyRing, as_text, from_text

__all__ = ["CODE_SECONDS", "Access", "BrowserSessions", "TooManyGuesses"]

Access: TypeAlias = Literal["control", "session"]

CODE_SECONDS: Final = 600.0
"""How long a code is valid: long enough for a person who reads the terminal before opening the page."""

SESSION_SECONDS: Final = 12 * 3600.0
"""How long a signed-in page may read and act: a working day. Then it must sign in again."""

GUESSES, GUESS_SECONDS = 20, 60.0
"""After this many wrong codes in this time, the answer to a wrong code says so: a person who types one needs fewer."""

_RANDOM: Final = 18
_MAC: Final = 32
_TIME: Final = 6


class TooManyGuesses(Exception):
    """Too many wrong codes came within the last minute."""


class BrowserSessions:
    """The control token, and the codes and browser tokens of one hub, or of all workers that have the same key."""

    def __init__(
        self,
        control_token: str,
        *,
        key: bytes = b"",
        used_in: Path | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Without a ``key`` it makes one. ``used_in`` is the folder in which workers note the codes that were used."""
        self._control_token = control_token
        self._ring = KeyRing([key or secrets.token_bytes(32)])
        self._used_in = used_in
        self._used: dict[str, float] = {}
        """The used codes, and when each expires."""
        self._wall = wall
        self._wrong: deque[float] = deque(maxlen=GUESSES)

    def __repr__(self) -> str:
        return f"<BrowserSessions {len(self._used)} codes used here, {len(self._wrong)} wrong guesses>"

    def use_control_token(self, token: str) -> None:
        """Accept another control token from now on; pages that signed in with the old one are signed out."""
        self._control_token = token

    def access(self, token: str) -> Access | None:
        """The access that a bearer token gives; None if it is unknown."""
        if hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._control_token.encode()):
            return "control"
        return "session" if self.left(token) is not None else None

    def left(self, token: str) -> float | None:
        """How many seconds the token of a signed-in page is still valid; None if it is not."""
        return self._left("token", token)

    def new_code(self) -> str:
        """Make a code that signs in one browser."""
        return self._made("code", CODE_SECONDS)

    def sign_in(self, code: str) -> str | None:
        """Exchange a code for a token; None if the code is not valid. A code works once."""
        left = self._left("code", code)
        if left is not None and self._use(code, left):
            return self._made("token", SESSION_SECONDS)
        # Only a wrong code is held against guesses: a stranger's guesses lock no one out.
        now = self._wall()
        if len(self._wrong) == GUESSES and now - self._wrong[0] < GUESS_SECONDS:
            raise TooManyGuesses
        self._wrong.append(now)
        return None

    def _use(self, code: str, left: float) -> bool:
        """Use up a valid code; False if it was used already."""
        name, now = hashlib.sha256(code.encode()).hexdigest(), self._wall()
        if self._used_in is not None:
            return _made_file(self._used_in, name, now)
        self._used = {one: until for one, until in self._used.items() if until > now}
        if name in self._used:
            return False
        self._used[name] = now + left
        return True

    def _made(self, kind: Literal["code", "token"], seconds: float) -> str:
        content = int(self._wall() + seconds).to_bytes(_TIME, "big") + secrets.token_bytes(_RANDOM)
        signature = self._ring.sign(self._about() + content, purpose=f"browser {kind}")
        return as_text(content + signature)

    def _left(self, kind: Literal["code", "token"], text: str) -> float | None:
        read = from_text(text) or b""
        content, signature = read[:-_MAC], read[-_MAC:]
        if len(content) != _TIME + _RANDOM:
            return None
        if not self._ring.verify(signature, self._about() + content, purpose=f"browser {kind}"):
            return None
        seconds = int.from_bytes(content[:_TIME], "big") - self._wall()
        return seconds if seconds > 0 else None

    def _about(self) -> bytes:
        return hashlib.sha256(self._control_token.encode("utf-8", "surrogateescape")).digest()


def _made_file(folder: Path, name: str, now: float) -> bool:
    """Whether this is the first worker that makes the file. Files of codes that expired are removed."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    for old in folder.iterdir():
        with suppress(OSError):
            if old.stat().st_mtime < now - 2 * CODE_SECONDS:
                old.unlink()
    return True
