"""Adds the token to each request of a server, and renews it before it expires or when it is refused.

Nothing here asks a person. Where only a new login can help, the server's refusal is the result, and says so.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from holdfast.auth.addresses import canonical
from holdfast.auth.grant import Grant
from holdfast.auth.renew import Renewer
from holdfast.auth.status import takes_login
from holdfast.auth.store import TokenStore
from holdfast.config.spec import ServerSpec
from holdfast.core.evidence import Login, LoginState
from holdfast.errors import ServerFailure

__all__ = ["Bearer", "Logins", "login_command"]

EARLY = 30.0
"""How many seconds before its expiry a token is renewed: a request takes time, and clocks differ."""

SETTLED = 30.0
"""Seconds in which a new token is not renewed again: a server that refuses it refuses the next one too."""


class Logins:
    """The logins of one process: the token store and its renewer."""

    def __init__(self, store: TokenStore | None = None, *, now: Callable[[], float] = time.time) -> None:
        self.store = store if store is not None else TokenStore()
        self.renewer = Renewer(self.store, now=now)
        self.reading = self.renewer.reading

    def authorize(self, spec: ServerSpec) -> Bearer | None:
        """The authorizer of a server; None where its definition has credentials of its own or takes no login."""
        return Bearer(spec, self.renewer) if takes_login(spec) else None


class Bearer:
    """The login of one server (the ``Authorizer`` of the wire)."""

    def __init__(self, spec: ServerSpec, renewer: Renewer) -> None:
        self._server = canonical(spec.url)
        self._command = login_command(spec.id)
        self._plain_http = spec.allow_plain_http
        self._renewer = renewer
        self._given: tuple[str, float] = ("", 0.0)

    async def token(self) -> str | None:
        """The access token for the next request, renewed if it expires soon."""
        grant = await self._grant()
        if grant is None:
            return None
        now = self._renewer.now()
        if grant.refreshable and grant.expired(now + EARLY):
            grant = await self._renewed_early(grant)
        return grant.access_token

    async def renewed(self, refused: str) -> bool:
        """Whether there is another token than the one that the server refused."""
        grant = await self._grant()
        if grant is None:
            return False
        if grant.access_token != refused:
            return True
        if not grant.refreshable or self._is_fresh(refused):
            return False
        return await self._renew(grant) is not None

    def login(self) -> Login:
        """The state of the login, and the command for a new one."""
        return Login(state=self._state(), command=self._command)

    async def _grant(self) -> Grant | None:
        await self._renewer.up_to_date()
        return next((grant for grant in self._renewer.store.known if self._server in grant.servers), None)

    async def _renewed_early(self, grant: Grant) -> Grant:
        """A new token; the old one if it has not expired yet, or if only a new login can replace it."""
        try:
            return await self._renew(grant) or grant
        except ServerFailure:
            if grant.expired(self._renewer.now()):
                raise
            return grant

    async def _renew(self, grant: Grant) -> Grant | None:
        renewed = await self._renewer.renew(grant.key, instead_of=grant.access_token, allow_plain_http=self._plain_http)
        if renewed is not None:
            self._given = (renewed.access_token, self._renewer.now())
        return renewed

    def _is_fresh(self, token: str) -> bool:
        given, at = self._given
        return token == given and self._renewer.now() < at + SETTLED

    def _state(self) -> LoginState:
        grant = next((grant for grant in self._renewer.store.known if self._server in grant.servers), None)
        if grant is None:
            return LoginState.NONE
        if grant.refused:
            return LoginState.REFUSED
        ended = grant.expired(self._renewer.now()) and not grant.refresh_token
        return LoginState.EXPIRED if ended else LoginState.GOOD


def login_command(server_id: str) -> str:
    """The command that logs in to a server."""
    return f"holdfast login {shlex.quote(server_id)}"
