"""Failed logins: counted for each peer, and limited (SEC-11).

After too many wrong credentials from one peer within a minute, unknown credentials from there are not looked at for a
while. Credentials that were valid before are: a stranger behind the same proxy locks no one out. A peer without a wrong
credential is never limited.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["FAILURES", "WINDOW_SECONDS", "FailedLogins"]

FAILURES: Final = 20
WINDOW_SECONDS: Final = 60.0
"""After so many wrong credentials in so many seconds, a peer waits. A person, or a client after a rotation, needs
fewer."""

MOST_PEERS: Final = 4_096
"""How many peers are remembered; the one that failed least recently is forgotten first."""

MOST_KNOWN: Final = 4_096
"""How many valid credentials are remembered, by hash."""


class FailedLogins:
    """The wrong credentials of each peer, and the credentials that were valid."""

    def __init__(
        self, *, most: int = FAILURES, window: float = WINDOW_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._window = window
        self._clock = clock
        self._failed: dict[str, deque[float]] = {}
        self._known: dict[bytes, None] = {}
        self.total = 0

    def wait_for(self, peer: str, credential: str) -> int:
        """Return how many seconds a peer must wait before this credential is looked at; 0 for none."""
        failed = self._failed.get(peer)
        if failed is None or len(failed) < self._most:
            return 0
        left = failed[0] + self._window - self._clock()
        if left <= 0:
            return 0
        if credential and _hash(credential) in self._known:
            return 0
        return math.ceil(left)

    def failed(self, peer: str) -> None:
        """Note a wrong credential."""
        self.total += 1
        times = self._failed.pop(peer, None) or deque(maxlen=self._most)
        times.append(self._clock())
        self._failed[peer] = times
        if len(self._failed) > MOST_PEERS:
            del self._failed[next(iter(self._failed))]

    def succeeded(self, credential: str) -> None:
        """Note a valid credential. Call it once for a connection, not for each request."""
        digest = _hash(credential)
        self._known.pop(digest, None)
        self._known[digest] = None
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]


def _hash(credential: str) -> bytes:
    return hashlib.sha256(credential.encode("utf-8", "surrogateescape")).digest()
