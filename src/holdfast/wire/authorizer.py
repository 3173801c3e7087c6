"""The interface through which ``auth/`` gives a server's requests their token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from holdfast.config.spec import ServerSpec
from holdfast.core.evidence import Login

__all__ = ["Authorize", "Authorizer"]


class Authorizer(Protocol):
    """The login of one server. Its methods raise ``ServerFailure`` where a token cannot be had."""

    async def token(self) -> str | None:
        """The access token for the next request; None without a login."""

    async def renewed(self, refused: str) -> bool:
        """The server refused this token; returns whether there is another one now."""

    def login(self) -> Login:
        """The state of the login, and the command for a new one."""


Authorize: TypeAlias = Callable[[ServerSpec], Authorizer | None]
"""Finds a server's authorizer; None for a server that takes no login."""
