"""The fleet option of ``holdfast serve``: a store in Redis that the replicas share."""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.front import SessionKeys
from holdfast.hub import Fleet, RedisAddress, RedisStore, SignedStore

__all__ = ["FLEET_VARIABLE", "make_fleet"]

FLEET_VARIABLE = "HOLDFAST_FLEET"


def make_fleet(url: str | None, keys: SessionKeys) -> Fleet | None:
    """The fleet of this hub; None if it is alone."""
    if url is None:
        return None
    if not keys.shared:
        raise UsageError(
            "a fleet needs a session key that all its replicas have",
            hint="give each of them the same --session-key-file FILE, or the same HOLDFAST_SESSION_KEY",
        )
    address = RedisAddress.parse(url)
    return Fleet(SignedStore(RedisStore(address), lambda: keys.material, address.fleet))
