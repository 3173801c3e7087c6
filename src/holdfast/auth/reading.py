"""Read the token store with a time limit: a locked keyring may wait for a person who is not there.

A read that takes too long goes on in its thread, and its caller does not wait for it. Writes are not limited: a
renewed token must be kept.
"""

from __future__ import annotations

import anyio
import anyio.to_thread

from holdfast.auth.store import TokenStore

__all__ = ["StoreReader"]

READ_SECONDS = 5.0
"""How long a read may take: an unlocked keyring answers in milliseconds."""


class StoreReader:
    """The reads of one store, one at a time, outside the shared thread pool."""

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
