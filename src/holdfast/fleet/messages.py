"""Exchanges as bytes, and the signature on everything that passes through a store.

A store is not trusted: every record and every presence carries an HMAC over all of it, with a key derived from the
session key. A message with another signature is ignored and counted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import anyio.lowlevel

from holdfast.core import Claim, ClaimAnswer, ClaimRelease, FleetExchange, FleetRecord, FleetReply

__all__ = ["FleetStore", "SignedStore", "StoreUnavailable", "exchange_from", "exchange_to", "reply_from", "reply_to"]


class StoreUnavailable(Exception):
    """The store did not answer, or not in a way that can be used."""


class FleetStore(Protocol):
    """A store of a fleet."""

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


def exchange_to(asked: FleetExchange) -> dict[str, Any]:
    """As JSON can hold it."""
    return {
        "replica": asked.replica,
        "presence": asked.presence,
        "nonce": asked.nonce,
        "epoch": asked.epoch,
        "cursor": asked.cursor,
        "records": [[record.key, record.stamp, record.value] for record in asked.records],
        "claims": [[claim.key, claim.known, claim.due_in, claim.ttl, claim.instead_of] for claim in asked.claims],
        "releases": [[release.key, release.token, release.delay] for release in asked.releases],
        "drops": [list(one) for one in asked.drops],
        "roster": asked.roster,
        "leaving": asked.leaving,
        "sent": asked.sent,
    }


def exchange_from(read: Mapping[str, Any]) -> FleetExchange:
    """The other way; raises ``ValueError``, ``KeyError`` or ``TypeError`` for anything else."""
    return FleetExchange(
        replica=str(read["replica"]),
        presence=str(read["presence"]),
        nonce=str(read["nonce"]),
        epoch=str(read["epoch"]),
        cursor=int(read["cursor"]),
        records=tuple(FleetRecord(*map(str, one)) for one in read["records"]),
        claims=tuple(
            Claim(str(key), int(known), float(due), float(ttl), str(*instead))
            for key, known, due, ttl, *instead in read["claims"]
        ),
        releases=tuple(ClaimRelease(str(key), int(token), float(delay)) for key, token, delay in read["releases"]),
        drops=tuple((str(key), str(stamp)) for key, stamp in read["drops"]),
        roster=bool(read["roster"]),
        leaving=bool(read["leaving"]),
        sent=float(read.get("sent", 0.0)),  # a replica of an earlier release does not say it
    )


def reply_to(reply: FleetReply) -> dict[str, Any]:
    """As JSON can hold it."""
    return {
        "epoch": reply.epoch,
        "sequence": reply.sequence,
        "cursor": reply.cursor,
        "age": reply.age,
        "records": [[record.key, record.stamp, record.value] for record in reply.records],
        "claims": [[one.key, one.granted, one.token, one.wait, one.holder] for one in reply.claims],
        "replicas": dict(reply.replicas) if reply.replicas is not None else None,
        "now": reply.now,
        "wall": reply.wall,
    }


def reply_from(read: Any) -> FleetReply:
    """The other way; ``StoreUnavailable`` for anything else."""
    try:
        replicas = read["replicas"]
        return FleetReply(
            epoch=str(read["epoch"]),
            sequence=int(read["sequence"]),
            cursor=int(read["cursor"]),
            age=float(read["age"]),
            records=tuple(FleetRecord(*map(str, one)) for one in read["records"] or ()),
            claims=tuple(
                ClaimAnswer(str(key), bool(granted), int(token), float(wait), str(holder))
                for key, granted, token, wait, holder in read["claims"] or ()
            ),
            replicas={str(name): str(text) for name, text in replicas.items()} if isinstance(replicas, dict) else None,
            now=float(read.get("now", 0.0)),
            wall=float(read.get("wall", 0.0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise StoreUnavailable(f"its answer cannot be used ({type(exc).__name__})") from exc


OPENED_IN_A_ROW = 100
"""Signatures that are verified before other tasks get a turn: about a millisecond."""


class SignedStore:
    """A store behind signatures: nothing that another key signed gets in."""

    def __init__(self, store: FleetStore, keys: Callable[[], Sequence[bytes]], fleet: str) -> None:
        self._store = store
        self._fleet = fleet
        self._given = keys
        self._derived: dict[bytes, bytes] = {}
        self.refused = 0
        """Messages with a wrong signature so far."""

    @property
    def connections(self) -> int:
        """See ``FleetStore``."""
        return self._store.connections

    @property
    def name(self) -> str:
        """See ``FleetStore``."""
        return self._store.name

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        """See ``FleetStore``."""
        signed = replace(
            asked,
            presence=self._signed(asked.presence, "replica", asked.replica),
            records=tuple(replace(one, value=self._signed(one.value, one.key, one.stamp)) for one in asked.records),
        )
        reply = await self._store.exchange(signed)
        records = ((one, self._opened(one.value, one.key, one.stamp)) for one in reply.records)
        replicas, strangers = reply.replicas, 0
        if replicas is not None:
            opened: dict[str, str | None] = {}
            for number, (name, text) in enumerate(replicas.items(), start=1):
                opened[name] = self._opened(text, "replica", name)
                if number % OPENED_IN_A_ROW == 0:
                    await anyio.lowlevel.checkpoint()
            replicas = {name: text for name, text in opened.items() if text is not None}
            strangers = len(opened) - len(replicas)
        return replace(
            reply,
            records=tuple(replace(one, value=value) for one, value in records if value is not None),
            replicas=replicas,
            strangers=strangers,
        )

    async def close(self) -> None:
        """See ``FleetStore``."""
        await self._store.close()

    @property
    def _keys(self) -> list[bytes]:
        """Derived from the session keys in force; the first signs, all of them verify."""
        given = self._given()
        if self._derived.keys() != set(given):
            self._derived = {key: _derived(key) for key in given}
        return [self._derived[key] for key in given]

    def _signed(self, text: str, *about: str) -> str:
        return f"{self._mac(self._keys[0], text, about).decode()}.{text}"

    def _opened(self, message: str, *about: str) -> str | None:
        said, _, text = message.partition(".")
        mac = said.encode(errors="surrogatepass")  # another program may have written any text
        if any([hmac.compare_digest(mac, self._mac(key, text, about)) for key in self._keys]):  # noqa: C419 - constant time
            return text
        self.refused += 1
        return None

    def _mac(self, key: bytes, text: str, about: Sequence[str]) -> bytes:
        whole = json.dumps([self._fleet, *about, text]).encode()
        return hmac.new(key, whole, hashlib.sha256).hexdigest().encode()


def _derived(key: bytes) -> bytes:
    # The broker of workers signs nothing, and the supervisor that runs it stays small.
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 - the same

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"holdfast fleet messages").derive(key)
