"""Requests that belong to another replica: how the endpoint asks which one, and how it says so.

A request can belong to another replica for one of two reasons. It continues a call that is pending there, which the
handle of the call says (its tag). Or it goes to a server that keeps a connection for each client, and the client's
connections are there: its home. ``fleet/`` implements ``RequestHomes``; a hub that is alone has none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from holdfast.endpoint.clients import Client

__all__ = ["CALL_LOST", "LivesElsewhere", "RequestHomes"]


class LivesElsewhere(Exception):
    """A request belongs to another replica; nothing of it was done here."""

    def __init__(self, replica: str, lost: str = "", *, moves: Callable[[], Awaitable[bool]] | None = None) -> None:
        super().__init__(f"the request belongs to the replica {replica}")
        self.replica = replica
        self.lost = lost
        """What to say if that replica does not answer."""
        self.moves = moves
        """Looks again who is present; whether the request belongs to another replica now. None if it never moves."""


CALL_LOST: Final = (
    "the call that this requestState belongs to is pending on a replica that does not answer. "
    "Make the call again, without requestState."
)


class RequestHomes(Protocol):
    """Finds the replica of a request; one for all endpoints of a hub."""

    @property
    def tag(self) -> str:
        """Names this replica in ids that clients get."""

    @property
    def long_tag(self) -> str:
        """Names this replica where another one with the same short tag must not be meant."""

    async def replica_of(self, tag: str) -> str | None:
        """The other replica with this tag, if it is present."""

    def check_task(self, home: str) -> bool:
        """Raise ``LivesElsewhere`` if another replica has a task; False if the one that had it is gone."""

    async def check(self, client: Client) -> None:
        """Raise ``LivesElsewhere`` if another replica has the connections of this client."""

    def known_elsewhere(self, client: Client) -> str | None:
        """The other replica that has the connections of a client, if one is known."""

    def lost_connection(self, client: Client) -> bool:
        """Whether a client had connections that are gone."""
