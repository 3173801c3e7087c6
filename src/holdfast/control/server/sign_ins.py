"""Codes and browser tokens that every worker of a supervisor accepts: signed with a key that only they have.

A token says when it expires. A code works once: who uses it first makes a file for it in the private folder of the
supervisor, and a file can be made once. A change of the control token ends all of them, because it is part of the key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

__all__ = ["CODE_SECONDS", "SharedSignIns"]

CODE_SECONDS: Final = 600.0
"""How long a code is valid: long enough for a person who reads the terminal before opening the page."""

_RANDOM: Final = 18
_MAC: Final = 32
_TIME: Final = 6


class SharedSignIns:
    """The key and the folder of one supervisor."""

    def __init__(self, key: bytes, folder: Path, *, wall: Callable[[], float] = time.time) -> None:
        self._key = key
        self._folder = folder
        self._wall = wall

    def new_code(self, control_token: str) -> str:
        """A new code."""
        return self.make("code", CODE_SECONDS, control_token)

    def make(self, kind: Literal["code", "token"], seconds: float, control_token: str) -> str:
        """A new code, or a new token, for so long."""
        until = int(self._wall() + seconds).to_bytes(_TIME, "big")
        content = until + secrets.token_bytes(_RANDOM)
        return _text(content + self._mac(kind, content, control_token))

    def left(self, kind: Literal["code", "token"], text: str, control_token: str) -> float | None:
        """How many seconds a code or a token is still valid; None if it is not."""
        try:
            read = base64.urlsafe_b64decode(text.encode("ascii"))
        except ValueError:
            return None
        content, mac = read[:-_MAC], read[-_MAC:]
        if len(content) != _TIME + _RANDOM or not hmac.compare_digest(mac, self._mac(kind, content, control_token)):
            return None
        seconds = int.from_bytes(content[:_TIME], "big") - self._wall()
        return seconds if seconds > 0 else None

    def use(self, code: str) -> bool:
        """Use up a valid code; False if it was used already. Files of codes that expired are removed."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            used = self._folder / hashlib.sha256(code.encode()).hexdigest()
            os.close(os.open(used, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError:
            return False
        for old in self._folder.iterdir():
            with suppress(OSError):
                if old.stat().st_mtime < self._wall() - 2 * CODE_SECONDS:
                    old.unlink()
        return True

    def _mac(self, kind: str, content: bytes, control_token: str) -> bytes:
        about = hashlib.sha256(control_token.encode("utf-8", "surrogateescape")).digest()
        return hmac.digest(self._key, kind.encode() + b"\0" + about + content, hashlib.sha256)


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode()
