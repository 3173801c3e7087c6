"""The events of sessions in Redis: a list for each log, which Redis itself forgets after a while.

It has a connection of its own, so that events never delay an exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.fleet.event_store import KEPT_SECONDS, LogWrite
from holdfast.fleet.redis_store import RedisAddress, RedisClient

__all__ = ["RedisEvents"]


class RedisEvents:
    """An ``EventStore``."""

    def __init__(self, address: RedisAddress) -> None:
        self._redis = RedisClient(address)

    async def append(self, writes: Sequence[LogWrite]) -> None:
        """See ``EventStore``."""

        async def send(client: Any) -> None:
            pipe = client.pipeline(transaction=False)
            for write in writes:
                key = self._redis.key(f"events:{write.log}")
                pipe.rpush(key, write.blob)
                pipe.ltrim(key, -max(write.keep, 1), -1)
                pipe.expire(key, int(KEPT_SECONDS))
            await pipe.execute()

        await self._redis.use(send)

    async def read(self, log: str) -> list[bytes]:
        """See ``EventStore``."""

        async def ask(client: Any) -> list[bytes]:
            found: object = await client.lrange(self._redis.key(f"events:{log}"), 0, -1)
            if not isinstance(found, list) or not all(isinstance(one, bytes) for one in found):
                raise ValueError("its answer is no list of events")
            return found

        return await self._redis.use(ask)

    async def close(self) -> None:
        """See ``EventStore``."""
        await self._redis.close()
