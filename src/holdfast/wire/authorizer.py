"""Who gives a server's requests their token: the seam between the wire and the logins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from holdfast.config.spec import ServerSpec
from holdfast.core.evidence import Login

__all__ = ["Authorize", "Authorizer"]


class Authorizer(Protocol):
    """The login of one server. Whatever keeps it from giving a token is ``ServerFailure``."""

    async def token(self) -> str | None:
        """The access token for the next request; None where nobody has logged in."""

    async def renewed(self, refused: str) -> bool:
        """The server refused this token: whether there is another by now."""

    def login(self) -> Login:
        """How the login is, and what to type for a new one."""


Authorize: TypeAlias = Callable[[ServerSpec], Authorizer | None]
"""Finds a server's authorizer; None for a server that takes no login."""
