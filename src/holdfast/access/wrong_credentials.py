"""Wrong credentials: counted for each peer and in all, and answered late where there are many (SEC-11).

A credential is always looked at: behind a proxy, strangers and users have one address, and a token that was renewed a
moment ago is as unknown as a guess. What is limited is the work for wrong ones. One request of a connection waits for
the answer to the one before it, and connections are limited: so an answer that comes late bounds the guesses. A valid
credential never waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["DELAY_SECONDS", "FAILURES", "LONG_DELAY_SECONDS", "MOST_FAILURES", "WINDOW_SECONDS", "WrongCredentials"]

FAILURES: Final = 20
WINDOW_SECONDS: Final = 60.0
DELAY_SECONDS: Final = 1.0
"""After so many wrong credentials in so many seconds, further ones of a peer are answered after this time. A person, or
a client after a rotation, needs fewer."""

MOST_FAILURES: Final = 1_000
LONG_DELAY_SECONDS: Final = 5.0
"""The same for all peers together."""

MOST_PEERS: Final = 4_096
"""How many peers are remembered; the one that failed least recently is forgotten first."""


class WrongCredentials:
    """The wrong credentials of the last minute."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: dict[str, deque[float]] = {}
        self._all: deque[float] = deque(maxlen=MOST_FAILURES)

    def count(self, peer: str) -> float:
        """Note a wrong credential; after how many seconds it is answered."""
        now = self._clock()
        times = self._failed.pop(peer, None) or deque(maxlen=FAILURES)
        many, in_all = self._is_full(times, now), self._is_full(self._all, now)
        times.append(now)
        self._all.append(now)
        self._failed[peer] = times
        if len(self._failed) > MOST_PEERS:
            del self._failed[next(iter(self._failed))]
        return LONG_DELAY_SECONDS if in_all else DELAY_SECONDS if many else 0.0

    @staticmethod
    def _is_full(times: deque[float], now: float) -> bool:
        return len(times) == times.maxlen and times[0] > now - WINDOW_SECONDS
