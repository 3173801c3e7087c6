"""Which replica a request belongs to: tags in the ids that a replica gives to clients, and the homes of clients.

A question, an event and a pending call belong to the replica that made them, so their ids carry its tag. A tag opens
nothing: it says where to ask, and the replica that it names verifies the session and the principal.

A client that has connections of its own has a home: the replica with these connections. It is a claim in the store,
which the home extends while the connections stand. A replica that finds the home dead takes the claim over, if the
store still says that the dead one has it (compare and set): of several that try, one gets it, and the others learn
which one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2s

from holdfast.core.replicas.store import Claim, ClaimAnswer, ClaimRelease

__all__ = [
    "ClientHomes",
    "is_home_key",
    "preferred",
    "question_number",
    "replica_tag",
    "replicas_with_tag",
    "tag_of_question",
]

HOME_SECONDS = 10.0
"""How long a home is valid after it was extended last."""
MOST_KNOWN = 20_000
"""Homes on other replicas that are remembered."""

_TAG_DIGITS = 5
_QUESTION_BITS = 32
"""Bits of a question's number below the tag. Both fit a number that JavaScript reads exactly (53 bits)."""


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


def is_home_key(key: str) -> bool:
    """Whether a claim is the home of a client."""
    return key.startswith("client/")


@dataclass(slots=True)
class _Home:
    holder: str = ""
    token: int = 0
    extend_at: float = 0.0
    asking: bool = False
    instead_of: str = ""


def preferred(server: str, turn: str, replicas: Collection[str]) -> list[str]:
    """The replicas in the order of their turn: a rendezvous hash, so that every replica finds the same order."""
    return list(_preferred(server, turn, frozenset(replicas)))


@lru_cache(maxsize=4_096)
def _preferred(server: str, turn: str, replicas: frozenset[str]) -> tuple[str, ...]:
    def weight(replica: str) -> bytes:
        return blake2s(f"{server}\0{turn}\0{replica}".encode(), digest_size=8).digest()

    return tuple(sorted(replicas, key=lambda replica: (weight(replica), replica)))


class ClientHomes:
    """The homes of clients that this replica knows, by key."""

    def __init__(self, replica: str, using: Callable[[str], bool] = lambda _: True) -> None:
        self._replica = replica
        self.using = using
        """Whether connections of this client stand here; without them its home is given back."""
        self._homes: dict[str, _Home] = {}
        self._releases: list[ClaimRelease] = []

    def holder(self, key: str) -> str:
        """The home of a client, as the store said it last; empty if it is not known."""
        home = self._homes.get(key)
        return home.holder if home is not None else ""

    def token(self, key: str) -> int:
        """The token of the latest claim that is known."""
        home = self._homes.get(key)
        return home.token if home is not None else 0

    def is_first(self, key: str) -> bool:
        """Whether this replica is the first home that a client has: then no connection of it was lost."""
        home = self._homes.get(key)
        return home is not None and home.holder == self._replica and home.token == 1

    def is_again(self, key: str) -> bool:
        """Whether this replica is the home of a client that had one before: a connection of it was lost."""
        home = self._homes.get(key)
        return home is not None and home.holder == self._replica and home.token > 1

    def ask(self, key: str, *, instead_of: str = "") -> None:
        """Find the home of a client, and become it if it has none, or if it is the replica that was found dead."""
        home = self._homes.setdefault(key, _Home())
        home.asking, home.instead_of = True, instead_of

    def is_asking(self, key: str) -> bool:
        """Whether the store has not answered yet."""
        home = self._homes.get(key)
        return home is not None and home.asking

    def forget(self, key: str) -> None:
        """What is known about this home is wrong, or not needed any more."""
        home = self._homes.get(key)
        if home is not None and home.holder != self._replica:
            del self._homes[key]

    def claims(self, now: float) -> list[Claim]:
        """What is to be asked now, and which homes are extended. One without connections is given back."""
        for key, home in list(self._homes.items()):
            if home.holder == self._replica and not home.asking and home.extend_at <= now and not self.using(key):
                self._releases.append(ClaimRelease(_claim_key(key), home.token))
                del self._homes[key]
        return [
            Claim(_claim_key(key), home.token, 0.0, HOME_SECONDS, home.instead_of)
            for key, home in self._homes.items()
            if home.asking or (home.holder == self._replica and home.extend_at <= now)
        ]

    def extend_all(self) -> None:
        """The store may have lost the homes: tell it those of this replica with the next exchange."""
        for home in self._homes.values():
            home.extend_at = 0.0

    def releases(self, *, leaving: bool = False) -> tuple[ClaimRelease, ...]:
        """The homes that are given back; all of them if this replica leaves."""
        if leaving:
            own = [(key, home) for key, home in self._homes.items() if home.holder == self._replica]
            self._releases += [ClaimRelease(_claim_key(key), home.token) for key, home in own]
        return tuple(self._releases)

    def released(self, sent: Iterable[ClaimRelease]) -> None:
        """The store has taken these back."""
        done = set(sent)
        self._releases = [release for release in self._releases if release not in done]

    def answered(self, answer: ClaimAnswer, began: float) -> str | None:
        """Take the store's answer; the key of a home that was here and is not any more."""
        key = answer.key.removeprefix("client/")
        home = self._homes.get(key)
        if home is None:
            if answer.granted:
                self._releases.append(ClaimRelease(answer.key, answer.token))
            return None
        was_here = home.holder == self._replica
        home.holder = self._replica if answer.granted else answer.holder
        home.token, home.asking, home.instead_of = answer.token, False, ""
        home.extend_at = began + HOME_SECONDS / 2
        if not answer.granted:
            self._homes[key] = self._homes.pop(key)
            self._bound()
        return key if was_here and not answer.granted else None

    def _bound(self) -> None:
        if len(self._homes) > MOST_KNOWN:
            for key, home in list(self._homes.items()):
                if home.holder != self._replica and not home.asking:
                    del self._homes[key]
                    return


def _claim_key(key: str) -> str:
    return f"client/{key}"
