"""The events of sessions in Redis: a list for each log, which Redis itself forgets after a while.

It has a connection of its own, so that events never delay an exchange.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio

from holdfast.hub.fleet.event_store import KEPT_SECONDS, LogWrite
from holdfast.hub.fleet.messages import StoreUnavailable
from holdfast.hub.fleet.redis_store import EXCHANGE_SECONDS, RedisAddress, connect, library, reason

__all__ = ["RedisEvents"]

Answer = TypeVar("Answer")


class RedisEvents:
    """An ``EventStore``."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._client: Any = None
        self._using = anyio.Lock()

    async def append(self, writes: Sequence[LogWrite]) -> None:
        """See ``EventStore``."""

        async def send(client: Any) -> None:
            pipe = client.pipeline(transaction=False)
            for write in writes:
                key = self._key(write.log)
                pipe.rpush(key, write.blob)
                pipe.ltrim(key, -max(write.keep, 1), -1)
                pipe.expire(key, int(KEPT_SECONDS))
            await pipe.execute()

        await self._use(send)

    async def read(self, log: str) -> list[bytes]:
        """See ``EventStore``."""

        async def ask(client: Any) -> list[bytes]:
            found: object = await client.lrange(self._key(log), 0, -1)
            if not isinstance(found, list) or not all(isinstance(one, bytes) for one in found):
                raise ValueError("its answer is no list of events")
            return found

        return await self._use(ask)

    async def close(self) -> None:
        """See ``EventStore``."""
        client, self._client = self._client, None
        if client is not None:
            with anyio.move_on_after(EXCHANGE_SECONDS, shield=True):
                try:
                    await client.aclose()
                except (OSError, library().RedisError):
                    pass  # it is gone already

    async def _use(self, work: Callable[[Any], Awaitable[Answer]]) -> Answer:
        redis = library()
        try:
            with anyio.fail_after(EXCHANGE_SECONDS):
                async with self._using:
                    if self._client is None:
                        self._client = connect(self._address)
                    return await work(self._client)
        except (redis.RedisError, OSError, TimeoutError, ValueError, TypeError) as exc:
            await self.close()
            raise StoreUnavailable(reason(exc)) from exc

    def _key(self, log: str) -> str:
        return f"holdfast:{{{self._address.fleet}}}:events:{log}"
