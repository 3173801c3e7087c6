"""Read the token store without being held up by it: a locked keyring may wait for a person who is not there.

A read that takes too long is left to itself, and whoever wanted it goes on. Nothing is written here: what a
renewal brought must be kept however long that takes.
"""

from __future__ import annotations

import anyio
import anyio.to_thread

from holdfast.auth.store import TokenStore

__all__ = ["Reading"]

READ_SECONDS = 5.0
"""How long a read may take: a keyring that is open answers in milliseconds."""


class Reading:
    """The reads of one store, one at a time, in a thread that is not one of those that all others share."""

    def __init__(self, store: TokenStore, *, seconds: float = READ_SECONDS) -> None:
        self.seconds = seconds
        self._store = store
        self._turn = anyio.CapacityLimiter(1)

    async def up_to_date(self, *, within: float | None = None) -> bool:
        """Read the store if it changed; False if that could not be done in time."""
        with anyio.move_on_after(within if within is not None else self.seconds):
            while not self._store.current:
                await anyio.to_thread.run_sync(self._store.grants, abandon_on_cancel=True, limiter=self._turn)
            return True
        return False
