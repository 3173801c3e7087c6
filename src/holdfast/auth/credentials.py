"""The credentials of a server's requests: their source, their state, and the token for each request.

A token is renewed before it expires or when it is refused. Nothing here asks a person: where only a new login can help,
the server's refusal is the result, and says so. Nothing here shows a token.

``Logins`` renews a grant: one process asks once for all that need it, and a failure loses nothing. A task takes the
turn of the grant in this process, then the lease of it among all processes (``GrantStore.renewing``), and reads the
store again: another one may have renewed it in the meantime.

What must never happen:

- Two requests use one refresh token. Authorization servers take that for a theft and revoke the login.
- A new refresh token is lost. The old one may be invalid from the moment that a request is sent: so the request is not
  cancelled after that, and what the store does not accept waits in memory (``_unsaved``) for the next try.
- A fault ends a login. Only a refusal by the authorization server does. After a network fault, an outage or an invalid
  answer, the refresh token is kept and used again after a growing pause.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

import anyio
import anyio.to_thread

from holdfast.auth.token_endpoint import IssuedTokens, NoTokenAnswer, TokenRefused, canonical, issued, post_form
from holdfast.auth.token_store import Grant, GrantKey, GrantStore, StoreUnusable, TokenStore, grant_of
from holdfast.config import ServerSpec
from holdfast.core import Login, LoginState, TokenNotRenewed, command_line, delay
from holdfast.errors import ServerFailure

__all__ = [
    "Bearer",
    "CredentialKind",
    "LoginStatus",
    "Logins",
    "Pause",
    "login_command",
    "status_of",
    "takes_login",
]

CredentialKind: TypeAlias = Literal["login", "none", "header", "callable", "off", "process"]
"""``login``: from the token store. ``none``: there is no login. ``header``: the definition has an
``Authorization`` of its own. ``callable``: a program gives the headers. ``off``: the definition says
``"oauth": false``. ``process``: it is a command, which gets no token."""


@dataclass(frozen=True, kw_only=True)
class LoginStatus:
    """One server's credentials."""

    server_id: str
    kind: CredentialKind
    place: str = ""
    """Where the tokens of a login are kept: the file's path, or the keyring."""
    grant: Grant | None = None
    """The login, where the credentials are one."""


def status_of(spec: ServerSpec, store: GrantStore) -> LoginStatus:
    """The state of a server's credentials. Reads the store and nothing else."""
    kind = _without_store(spec)
    grant = store.of(canonical(spec.url)) if kind is None else None
    if grant is None:
        return LoginStatus(server_id=spec.id, kind=kind or "none")
    place = store.place if grant.source == "file" else "the keyring"
    return LoginStatus(server_id=spec.id, kind="login", place=place, grant=grant)


def takes_login(spec: ServerSpec) -> bool:
    """Whether the server's requests use a login."""
    return _without_store(spec) in (None, "callable")


def _without_store(spec: ServerSpec) -> CredentialKind | None:
    """The source of the credentials if it is not the store."""
    if spec.transport == "stdio":
        return "process"
    if spec.hub or not spec.oauth.enabled:
        return "off"
    if not isinstance(spec.headers, Mapping):
        return "callable"
    return "header" if any(name.lower() == "authorization" for name in spec.headers) else None


EARLY = 30.0
"""How many seconds before its expiry a token is renewed: a request takes time, and clocks differ."""

SETTLED = 30.0
"""Seconds in which a new token is not renewed again: a server that refuses it refuses the next one too."""


class Bearer:
    """The login of one server (the ``Authorizer`` of the wire).

    A server with a login has the store looked at for each request: a logout must hold for the next one. A server
    without one does not: most servers need none, and the file may be on a slow disk. The hub watches the store
    (``hub.registry.watch_logins``, ``UserSlots.watch_logins``), and each read of a change makes a new ``known``.
    """

    def __init__(self, spec: ServerSpec, logins: Logins, command: str) -> None:
        self._server = canonical(spec.url)
        self._command = command
        self._plain_http = spec.allow_plain_http
        self._logins = logins
        self._given: tuple[str, float] = ("", 0.0)
        self._lacked_in: tuple[Grant, ...] | None = None
        """The logins among which this server had none; None before the first look, and while it has one."""

    async def token(self) -> str | None:
        """The access token for the next request, renewed if it expires soon."""
        if self._lacked_in is self._logins.store.known:
            return None
        grant = await self._grant()
        if grant is None:
            return None
        # A token that lives for less than EARLY is used until its end: it is not renewed for each request.
        ahead = 0.0 if self._is_fresh(grant.access_token) else EARLY
        if grant.refreshable and grant.expired(self._logins.now() + ahead):
            grant = await self._renewed_early(grant)
        return grant.access_token

    async def renewed(self, refused: str) -> bool:
        """Whether there is another token than the one that the server refused."""
        grant = await self._grant()
        if grant is None:
            return False
        # Another process renewed it while the request was under way.
        if grant.access_token != refused:
            return True
        # A server that refuses a token which is seconds old does not want another one: it wants other rights.
        if not grant.refreshable or self._is_fresh(refused):
            return False
        return await self._renew(grant) is not None

    def login(self) -> Login:
        """The state of the login, and the command for a new one."""
        return Login(state=self._state(), command=self._command)

    async def is_there(self) -> bool:
        """Whether there is a login, accepted or not."""
        return self._lacked_in is not self._logins.store.known and await self._grant() is not None

    async def _grant(self) -> Grant | None:
        await self._logins.up_to_date()
        # Taken once: a thread may read a new login between the search and the note that there was none.
        known = self._logins.store.known
        grant = grant_of(known, self._server)
        self._lacked_in = known if grant is None else None
        return grant

    async def _renewed_early(self, grant: Grant) -> Grant:
        """A new token; the old one if it has not expired yet, or if only a new login can replace it."""
        try:
            return await self._renew(grant) or grant
        except ServerFailure:
            if grant.expired(self._logins.now()):
                raise
            return grant

    async def _renew(self, grant: Grant) -> Grant | None:
        renewed = await self._logins.renew(grant.key, instead_of=grant.access_token, allow_plain_http=self._plain_http)
        if renewed is not None:
            self._given = (renewed.access_token, self._logins.now())
        return renewed

    def _is_fresh(self, token: str) -> bool:
        given, at = self._given
        return token == given and self._logins.now() < at + SETTLED

    def _state(self) -> LoginState:
        grant = grant_of(self._logins.store.known, self._server)
        if grant is None:
            return LoginState.NONE
        if grant.refused:
            return LoginState.REFUSED
        return LoginState.GOOD if grant.usable(self._logins.now()) else LoginState.EXPIRED


def login_command(server_id: str) -> str:
    """The command that logs in to a server."""
    return command_line("login", server=server_id)


FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""The pause in seconds after a failed renewal."""


class Pause:
    """The pause after requests for a token that had no answer. Tests pass time and chance."""

    def __init__(self, now: Callable[[], float], chance: Callable[[], float], *, exchanged: bool = False) -> None:
        self._now = now
        self._chance = chance
        self._exchanged = exchanged
        self._failures = 0
        self._until = 0.0
        self._reason = ""

    def check(self) -> None:
        """Raise the last failure again, without a request, while the pause lasts."""
        left = self._until - self._now()
        if 0 < left <= LONGEST_PAUSE:  # a longer pause means that the clock was set back
            raise ServerFailure(TokenNotRenewed(reason=self._reason, retry_after=left, exchanged=self._exchanged))

    def failed(self, why: NoTokenAnswer) -> ServerFailure:
        """Begin a pause, longer than the one before; returns what to raise."""
        self._failures += 1
        wait = delay(self._failures, base=FIRST_PAUSE, chance=self._chance(), retry_after=why.retry_after)
        wait = min(wait, LONGEST_PAUSE)
        self._until = self._now() + wait
        self._reason = why.reason
        return ServerFailure(TokenNotRenewed(reason=why.reason, retry_after=wait, exchanged=self._exchanged))

    def answered(self) -> None:
        """There was an answer: the next failure is the first again."""
        self._failures = 0
        self._until = 0.0

    def __repr__(self) -> str:
        return f"<Pause after {self._failures} failures>"


async def request_renewal(grant: Grant, *, allow_plain_http: bool, on_sending: Callable[[], None]) -> IssuedTokens:
    """Ask for new tokens with the refresh token. Raises ``TokenRefused`` or ``NoTokenAnswer``."""
    form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token or ""}
    form["resource"] = grant.named_resource
    return issued(
        await post_form(
            grant.token_endpoint, form, client=grant.client, allow_plain_http=allow_plain_http, on_sending=on_sending
        )
    )


class _Unsaved(NamedTuple):
    """A renewed grant that the store did not accept; the grant before it may be invalid by now."""

    before: Grant
    after: Grant


class Logins:
    """The logins of one process: a store of grants, and their renewal. Tests pass time and chance."""

    def __init__(
        self,
        store: GrantStore | None = None,
        *,
        now: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
        command: Callable[[str], str] = login_command,
        request: Callable[..., Awaitable[IssuedTokens]] = request_renewal,
    ) -> None:
        """``command`` gives the command that logs in to a server; ``request`` asks for new tokens."""
        self.store: GrantStore = store if store is not None else TokenStore()
        self._command = command
        self._chance = chance
        self.now = now
        self._request = request
        self._turns: dict[GrantKey, anyio.Lock] = {}
        self.pauses: dict[GrantKey, Pause] = {}
        self._unsaved: dict[GrantKey, _Unsaved] = {}

    def authorize(self, spec: ServerSpec) -> Bearer | None:
        """The authorizer of a server; None where its definition has credentials of its own or takes no login."""
        return Bearer(spec, self, self._command(spec.id)) if takes_login(spec) else None

    async def up_to_date(self) -> None:
        """Read the store if it changed.

        Raises ``ServerFailure`` with ``TokenNotRenewed`` if the store does not answer.
        """
        if not await self.store.up_to_date():
            raise ServerFailure(TokenNotRenewed(reason=self.store.problem))

    async def renew(self, key: GrantKey, *, instead_of: str, allow_plain_http: bool = False) -> Grant | None:
        """The grant with another access token than ``instead_of``; None if only a new login can bring one.

        Raises ``ServerFailure`` with ``TokenNotRenewed`` if the authorization server could not be asked.
        """
        # First the turn in this process, then the lease: the lease is polled, and a hundred tasks would poll it.
        async with self._turns.setdefault(key, anyio.Lock()):
            try:
                async with self.store.renewing(key):
                    return await self._renew(key, instead_of, allow_plain_http)
            except (OSError, StoreUnusable) as exc:
                why = exc.message if isinstance(exc, StoreUnusable) else exc.strerror or str(exc)
                raise ServerFailure(TokenNotRenewed(reason=f"the token store cannot be written: {why}")) from exc

    async def _renew(self, key: GrantKey, instead_of: str, plain_http: bool) -> Grant | None:
        await self.up_to_date()
        grant = await self._saved(next((one for one in self.store.known if one.key == key), None), key)
        if grant is not None and grant.access_token != instead_of:
            return grant  # another task or process renewed it while we waited
        if grant is None or not grant.refreshable:
            return None
        # After the store was read: another process may have had an answer, and then no pause counts.
        self._pause(key).check()
        with anyio.CancelScope() as scope:
            # Once the request is sent, the old refresh token may be invalid.
            # A cancelled caller must not lose the answer with the new one.
            return await self._ask(grant, plain_http, lambda: setattr(scope, "shield", True))
        raise AssertionError("the scope is never cancelled")

    def _pause(self, key: GrantKey) -> Pause:
        """The pause of one grant, by the clock of now: a test stops it."""
        return self.pauses.setdefault(key, Pause(lambda: self.now(), self._chance))  # noqa: PLW0108 - see above

    async def _saved(self, stored: Grant | None, key: GrantKey) -> Grant | None:
        """The stored grant, or its renewed form that could not be stored before and now is."""
        unsaved = self._unsaved.get(key)
        if unsaved is None:
            return stored
        if stored is None or (stored.login, stored.refresh_token) != (
            unsaved.before.login,
            unsaved.before.refresh_token,
        ):
            # The store is right: to write the renewed form now would undo what a person or another process did.
            del self._unsaved[key]  # there was a logout, a new login or another renewal since
            return stored
        return await self._keep_renewed(unsaved)

    async def _ask(self, grant: Grant, plain_http: bool, on_sending: Callable[[], None]) -> Grant | None:
        try:
            given = await self._request(grant, allow_plain_http=plain_http, on_sending=on_sending)
        except NoTokenAnswer as exc:
            raise self._pause(grant.key).failed(exc) from exc
        except TokenRefused as exc:
            # A proxy, or a server in trouble, refuses too. Only the issuer's own words end a login (AUTH-5).
            if not exc.final:
                why = NoTokenAnswer(f"the authorization server answered {exc}")
                raise self._pause(grant.key).failed(why) from exc
            await self._keep(replace(grant, refused=exc.code))
            return None
        self._pause(grant.key).answered()
        renewed = replace(
            grant,
            access_token=given.access_token,
            # A server that rotates nothing sends no refresh token: the one that was used stays valid (AUTH-2).
            refresh_token=given.refresh_token or grant.refresh_token,
            scope=given.scope or grant.scope,
            expires_at=given.expires_at(self.now()),
        )
        return await self._keep_renewed(_Unsaved(grant, renewed))

    async def _keep_renewed(self, unsaved: _Unsaved) -> Grant:
        # Noted before the write: if that fails, the next try finds the new token here and sends no request.
        self._unsaved[unsaved.after.key] = unsaved
        kept = await self._keep(unsaved.after)
        del self._unsaved[kept.key]
        return kept

    async def _keep(self, grant: Grant) -> Grant:
        return await anyio.to_thread.run_sync(self.store.put, grant)
