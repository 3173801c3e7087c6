"""Which replica a request belongs to: tags in the ids that a replica gives to clients, and the homes of clients.

A question, an event and a pending call belong to the replica that made them, so their ids carry its tag. A tag opens
nothing: it says where to ask, and the replica that it names verifies the session and the principal.

A client that has connections of its own has a home: the replica with these connections. No store decides it, so it is
the same with and without one: it is the replica that the client's session names, while that one is present; else a
rendezvous hash over the replicas last known. Two replicas that know the same others find the same home. One that gets
a request for a client whose home it is not, by what it knows itself, refuses it: so a state never alternates between
two, also while the replicas learn that one has come or left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from hashlib import blake2s

__all__ = ["home_of", "preferred", "question_number", "replica_tag", "replicas_with_tag", "tag_of_question"]

_TAG_DIGITS = 5
_QUESTION_BITS = 32
"""Bits of a question's number below the tag. Both fit a number that JavaScript reads exactly (53 bits)."""


def home_of(client: str, named: str, replicas: Collection[str]) -> str:
    """The home of a client among these replicas: the one that its session names, or the first by a rendezvous hash."""
    return named if named in replicas else preferred(client, "home", replicas)[0]


def preferred(subject: str, turn: str, replicas: Collection[str]) -> list[str]:
    """The replicas in the order of their turn: a rendezvous hash, so that every replica finds the same order.

    A replica that leaves changes the first one only for what it was the first one of.
    """
    return list(_preferred(subject, turn, frozenset(replicas)))


@lru_cache(maxsize=4_096)
def _preferred(subject: str, turn: str, replicas: frozenset[str]) -> tuple[str, ...]:
    def weight(replica: str) -> bytes:
        return blake2s(f"{subject}\0{turn}\0{replica}".encode(), digest_size=8).digest()

    return tuple(sorted(replicas, key=lambda replica: (weight(replica), replica)))


def replica_tag(replica: str) -> str:
    """Five hex digits that name a replica in ids. Two replicas may have the same ones: then both are asked."""
    return blake2s(replica.encode(), digest_size=8, person=b"tag").hexdigest()[:_TAG_DIGITS]


def replicas_with_tag(tag: str, replicas: Iterable[str]) -> list[str]:
    """The replicas that a tag may name."""
    return [replica for replica in replicas if replica_tag(replica) == tag]


def question_number(tag: str, number: int) -> int:
    """The id of a question that a replica asks a client."""
    return (int(tag, 16) << _QUESTION_BITS) | (number & ((1 << _QUESTION_BITS) - 1))


def tag_of_question(number: int) -> str:
    """The tag in the id of a question; empty if it has none."""
    top = number >> _QUESTION_BITS
    return f"{top:0{_TAG_DIGITS}x}" if 0 <= top < 16**_TAG_DIGITS else ""
