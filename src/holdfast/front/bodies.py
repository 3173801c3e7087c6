"""How many bytes the bodies of requests may hold, in all and for each principal (SEC-11).

A body counts from its first byte until its request has its answer: it is in memory for so long, and a second time on
its way to a server. Room is taken before a body is read. One principal gets its quota at most, and half of what the
others leave. So several of them cannot use up the room, and small bodies have room left beside large ones.

What came of a body before its sender is known has a bound of its own, for all connections together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.front.requests import Request

__all__ = ["ALL_BODY_BYTES", "BODY_BYTES", "BodyBudget", "BodyLease", "NoRoom"]

ALL_BODY_BYTES: Final = 96 * 1024 * 1024
"""In all. With a copy for each server and what is read from them, a hub at this bound stays below 1 GiB."""

BODY_BYTES: Final = 32 * 1024 * 1024
"""For one principal, by default: two messages of the largest size."""

UNKNOWN_BYTES: Final = 32 * 1024 * 1024
"""What came of the bodies of requests whose reader has not asked for them: their sender may not be known yet."""

SMALL_BODY: Final = 64 * 1024
"""A body of this size may use all the room that is left."""

UNCOUNTED: Final = 4 * 1024
"""A body of this size is not counted: its head takes as much, and calls are limited too."""


class NoRoom(Exception):
    """There is no room for a body. ``of_principal`` says that its principal has used up its own."""

    def __init__(self, *, of_principal: bool) -> None:
        super().__init__("no room for the body")
        self.of_principal = of_principal


class BodyLease:
    """The room of one request."""

    __slots__ = ("_budget", "_principal", "size")

    def __init__(self, budget: BodyBudget, principal: str) -> None:
        self._budget = budget
        self._principal = principal
        self.size = 0

    def hold(self, size: int) -> None:
        """Have room for so many bytes in all; raises ``NoRoom``."""
        if size > self.size:
            self._budget.take(self._principal, size - self.size, size)
            self.size = size

    def end(self) -> None:
        """The request has its answer."""
        if self.size:
            self._budget.give_back(self._principal, self.size)
            self.size = 0


class BodyBudget:
    """The room of all requests of one process."""

    def __init__(
        self,
        *,
        most: int = ALL_BODY_BYTES,
        of_principal: Callable[[], int] = lambda: BODY_BYTES,
        unknown: int = UNKNOWN_BYTES,
        on_refused: Callable[[str, bool], None] = lambda _principal, _own: None,
    ) -> None:
        self._most = most
        self._of_principal = of_principal
        self._unknown = unknown
        self._on_refused = on_refused
        self._held: dict[str, int] = {}
        self.held = 0
        """Bytes of bodies that have room."""
        self.waiting = 0
        """Bytes that came of bodies whose reader has not asked for them."""

    def hold(self, request: Request, principal: str, size: int) -> None:
        """Have room for the body of a request, so many bytes in all, until ``lease.end``; raises ``NoRoom``."""
        if size > UNCOUNTED:
            if request.lease is None:
                request.lease = BodyLease(self, principal)
            request.lease.hold(size)

    def take(self, principal: str, more: int, size: int) -> None:
        """Take room for a body of some size; see ``BodyLease.hold``. One body always has room, however large."""
        own = self._held.get(principal, 0)
        if own + more > max(self._of_principal(), size if own + more == size else 0):
            self._refuse(principal, own=True)
        left = self._most - self.held
        fits = more <= left if size <= SMALL_BODY else own + more <= (left + own) // 2
        if not fits and self.held > size - more:  # other bodies hold some
            self._refuse(principal, own=False)
        self._held[principal] = own + more
        self.held += more

    def give_back(self, principal: str, size: int) -> None:
        """Give room back."""
        self.held -= size
        left = self._held.get(principal, 0) - size
        if left > 0:
            self._held[principal] = left
        else:
            self._held.pop(principal, None)

    def wait(self, before: int, now: int) -> bool:
        """A connection holds so many bytes that no reader asked for, after so many before; False if that is too much.

        It may give some back, and then is always right.
        """
        self.waiting += now - before
        return now <= max(before, UNCOUNTED) or self.waiting <= self._unknown

    def _refuse(self, principal: str, *, own: bool) -> None:
        self._on_refused(principal, own)
        raise NoRoom(of_principal=own)
