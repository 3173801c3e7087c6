"""What a store of replicas is: records and presence by exchanges, logs of events beside, and a signature on all of it.

Theory of operation. Replicas do not talk to each other about what they share: each one exchanges with the store. An
exchange sends the records that are new here, renews the presence of this replica, asks for the right to probe, and
brings what is new there. There are two stores: Redis (redis_store.py), and a broker in the supervisor for the workers
of one machine (local_store.py). Both do what ``SharedStore`` in ``core/replicas`` does, which is what the simulation
runs.

A store is not trusted. Every record and every presence carries an HMAC over all of it, its fleet included, with a key
that is derived from the session key. A message with another signature is ignored and counted. Events are sealed by
those who write them. So a store, or a program that writes into it, can lose things and can be slow; it can say nothing.
It can also give back an older record with its signature: the stamp is signed too, and an older one replaces nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import anyio.lowlevel

from holdfast.core import FleetExchange, FleetReply

if TYPE_CHECKING:  # the store of workers signs nothing, and the supervisor that runs it stays small
    from holdfast.keys import KeyRing

__all__ = [
    "KEPT_SECONDS",
    "EventStore",
    "FleetStore",
    "LogWrite",
    "SignedStore",
    "StoreUnavailable",
]

KEPT_SECONDS: Final = 300.0
"""How long a log of events is kept after its last one; a session idles as long before it is dropped from memory."""
PURPOSE: Final = "fleet messages"
OPENED_IN_A_ROW: Final = 100
"""Signatures that are verified before other tasks get a turn: about a millisecond."""


class StoreUnavailable(Exception):
    """The store did not answer, or not in a way that can be used."""


class FleetStore(Protocol):
    """Keeps the records, the presence and the claims of replicas."""

    @property
    def connections(self) -> int:
        """How many connections were made so far: a new one may lead to another store, or to an older copy."""

    @property
    def name(self) -> str:
        """Its address for people, without a secret."""

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        """One exchange; ``StoreUnavailable`` if it failed."""

    async def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True, slots=True)
class LogWrite:
    """One more blob of a log of events, and how many of its latest stay."""

    log: str
    blob: bytes
    keep: int


class EventStore(Protocol):
    """Keeps the sealed events of sessions, for a client that comes back to another replica.

    A log is a list of blobs that no store can read. Its replica says how many of the latest stay, and bounds what it
    sends; the store forgets a log after ``KEPT_SECONDS``.
    """

    async def append(self, writes: Sequence[LogWrite]) -> None:
        """Add blobs to logs; ``StoreUnavailable`` if it failed."""

    async def read(self, log: str) -> list[bytes]:
        """The blobs of a log, oldest first; ``StoreUnavailable`` if it failed."""

    async def close(self) -> None:
        """End the connection."""


class SignedStore:
    """A store behind signatures: nothing that another key signed gets in."""

    def __init__(self, store: FleetStore, keys: Callable[[], KeyRing], fleet: str) -> None:
        self._store = store
        self._keys = keys
        self._fleet = fleet
        self.refused = 0
        """Messages with a wrong signature so far."""

    @property
    def connections(self) -> int:
        """How many connections were made so far."""
        return self._store.connections

    @property
    def name(self) -> str:
        """Its address for people."""
        return self._store.name

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        """Sign what is sent, and take of the answer what this fleet signed."""
        reply = await self._store.exchange(
            replace(
                asked,
                presence=self._signed(asked.presence, "replica", asked.replica),
                records=tuple(replace(one, value=self._signed(one.value, one.key, one.stamp)) for one in asked.records),
            )
        )
        told = [(one.value, (one.key, one.stamp)) for one in reply.records]
        records = zip(reply.records, await self._opened(told), strict=True)
        replicas, strangers = reply.replicas, 0
        if replicas is not None:
            opened = await self._opened([(text, ("replica", name)) for name, text in replicas.items()])
            known = zip(replicas, opened, strict=True)
            replicas = {name: text for name, text in known if text is not None}
            strangers = len(opened) - len(replicas)
        return replace(
            reply,
            records=tuple(replace(one, value=value) for one, value in records if value is not None),
            replicas=replicas,
            strangers=strangers,
        )

    async def close(self) -> None:
        """End the connection."""
        await self._store.close()

    def _signed(self, text: str, *about: str) -> str:
        return f"{self._keys().sign(self._whole(text, about), purpose=PURPOSE).hex()}.{text}"

    def _whole(self, text: str, about: Sequence[str]) -> bytes:
        return json.dumps([self._fleet, *about, text]).encode()

    async def _opened(self, messages: Iterable[tuple[str, tuple[str, ...]]]) -> list[str | None]:
        """The texts of messages, each with what it must be about; None for one that this fleet did not sign."""
        ring, found = self._keys(), list[str | None]()
        for number, (message, about) in enumerate(messages, start=1):
            said, _, text = message.partition(".")
            is_ours = False
            with suppress(ValueError):  # another program may have written any text
                is_ours = ring.verify(bytes.fromhex(said), self._whole(text, about), purpose=PURPOSE)
            self.refused += not is_ours
            found.append(text if is_ours else None)
            if number % OPENED_IN_A_ROW == 0:
                await anyio.lowlevel.checkpoint()
        return found

    def __repr__(self) -> str:
        return f"<SignedStore {self._store.name} refused={self.refused}>"
