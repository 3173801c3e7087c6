"""Where the credential of a user for a server comes from (AUTH-6): the ladder of ``credentials`` in its definition.

Theory of operation. A server that is per user takes a token of each user. The hub looks for it in this order:

    assertion   the issuer vouches for the user at the server's authorization server (ID-JAG, then RFC 7523). It needs
                her ID token, so she must have signed in to the hub at its issuer.
    exchange    an authorization server exchanges her token for the hub into one for the server (RFC 8693, or the
                on-behalf-of form of Microsoft Entra ID). It needs the JWT that her client sends to the hub.
    login       her own login, which she made herself.
    shared      the login of the hub itself, only where the definition says so.

The first two are rungs that the hub climbs alone. What it gets there stays in memory: for one user, one server and one
rung, never longer than the credential that it was made from, and the next one is made by asking again.

How the hub goes on from a rung:

* The user has no credential for it (she sends a static token, she did not sign in): the next one.
* The authorization server did not answer: the failure is transient, and no other rung is tried. An outage changes no
  one's identity.
* It refuses this credential (``invalid_grant``, ``invalid_request``), or asks for a person (``interaction_required``,
  ``consent_required``, ``login_required``): the next rung, but never ``shared``. Her own login is how a person answers.
* Any other refusal (``access_denied``, a target or a client that it does not know) is a decision about this user, or a
  fault of the configuration: she is denied, with the words of the authorization server.

What must never happen:

* A credential of a user reaches a server that it was not issued for. It goes to the token endpoint that the definition
  names, or to that of its own issuer, over TLS, and follows no redirect to another origin (``wire``).
* A user acts with the identity of another. Every question here has a principal.
* A user who has a credential of her own, accepted or not, acts as the hub. So ``shared`` needs a user for whom no
  other rung is open: an ended sign-in or a refused login is one that is open.
"""

from __future__ import annotations

import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

import anyio

from holdfast.auth.credentials import EARLY, SETTLED, Bearer, Logins, Pause, takes_login
from holdfast.auth.person_login import check_audience, unverified_claims
from holdfast.auth.sign_in import SIGN_IN, TOKEN_EXCHANGE, IdTokens
from holdfast.auth.token_endpoint import (
    UNKNOWN_CLIENT,
    IssuedTokens,
    NoTokenAnswer,
    OAuthClient,
    TokenRefused,
    canonical,
    configured_key,
    issued,
    post_as_accepted,
    signing_algorithm,
)
from holdfast.auth.user_tokens import UserGrants, UserTokenStore
from holdfast.config import AssertionService, ExchangeService, ServerSpec, TokenService
from holdfast.core import CredentialRefused, Login, LoginState, TokenNotRenewed
from holdfast.errors import LoginFailed, ServerFailure

__all__ = ["Ladder", "Ladders", "RungName", "RungStatus", "SubjectTokens", "rungs_of"]

JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a name of RFC 8693

ASKS_A_PERSON: Final = frozenset({"consent_required", "interaction_required", "login_required"})
NOT_ACCEPTED: Final = frozenset({"invalid_grant", "invalid_request"})
"""The credential is not accepted. RFC 8693 has the second one for it; RFC 7523 and Microsoft Entra ID the first."""

DECISIONS: Final = frozenset({200, 400, 401, 403})
"""The statuses of a decision; an error with another one is no answer."""

MOST_KEPT: Final = 8_192
"""Users' tokens, and users' ladders, in memory; the least recently used give way."""

RungName: TypeAlias = Literal["assertion", "exchange", "login", "shared"]


_NO_SUBJECT: Final = "the user's token for the hub has ended, and the next request of her client brings another one"
_NOT_SIGNED_IN: Final = "an identity assertion needs a sign-in to the hub at its issuer, and the user has none"
_SIGN_IN_ENDED: Final = "the user's sign-in to the hub has ended"
_ASK_OPERATOR: Final = "ask the operator of the hub: `credentials` of its definition has nothing for this user"


def _may_exchange(principal: str) -> bool:
    """Whether a user is the subject of a JWT. Only names of these, and of users of a gateway, have the mark."""
    source, mark, _ = principal.partition("#")
    return bool(mark) and source != "gateway"


def _no_exchange(principal: str) -> str:
    if principal.startswith("gateway#"):
        return "a token exchange needs the user's JWT, and the gateway passes none on"
    return "a token exchange needs a JWT, and the user sends a static token"


class UserCredential(NamedTuple):
    """What a rung exchanges: the token that a user's client sends to the hub, or her ID token. No ``repr`` shows it."""

    token: str
    expires_at: float

    def __repr__(self) -> str:
        return f"<UserCredential until {self.expires_at:.0f}>"


class SubjectTokens:
    """The tokens by which users call the hub, verified, for exchanges. In memory alone, and only where one is needed.

    A user may have several clients: the token that ends last is used.
    """

    def __init__(self, *, needed: Callable[[], bool], now: Callable[[], float] = time.time) -> None:
        """``needed`` says whether a server takes exchanged tokens; else nothing is kept."""
        self._needed = needed
        self._now = now
        self._known: OrderedDict[str, UserCredential] = OrderedDict()

    def wants(self, principal: str, token: str) -> bool:
        """Whether a token of a user is news here."""
        before = self._known.get(principal)
        return (before is None or before.token != token) and self._needed()

    def note(self, principal: str, token: str) -> None:
        """A user sent this token, which was verified for her."""
        if not self.wants(principal, token):
            return
        before = self._known.get(principal)
        expires = (unverified_claims(token) or {}).get("exp")
        # Without an end it could not be told when it is of no use any more.
        if not isinstance(expires, int | float) or (before is not None and before.expires_at >= expires):
            return
        self._known[principal] = UserCredential(token, float(expires))
        self._known.move_to_end(principal)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)

    def of(self, principal: str) -> UserCredential | None:
        """The valid token of a user; None if she sent none, or it has ended."""
        found = self._known.get(principal)
        return found if found is not None and found.expires_at > self._now() else None

    def is_known(self, principal: str) -> bool:
        """Whether a user sent a token that can be exchanged, ended or not."""
        return principal in self._known

    def __repr__(self) -> str:
        return f"<SubjectTokens of {len(self._known)} users>"


@dataclass(frozen=True, kw_only=True)
class RungStatus:
    """One rung of a server for one user, as far as it is known without a running hub."""

    rung: RungName
    open: bool
    """Whether the user can have a credential by it."""
    words: str


def rungs_of(spec: ServerSpec, grants: UserGrants, now: float) -> tuple[RungStatus, ...]:
    """The rungs of a server for a user, as far as the stored logins tell. A running hub knows her current token too."""
    ladder, found, principal = spec.credentials, list[RungStatus](), grants.principal
    if ladder.assertion is not None:
        row = next((one for one in grants.grants() if one.resource == SIGN_IN), None)
        ended = row is not None and (bool(row.refused) or (row.ends_at or 0.0) <= now or not row.usable(now))
        words = _NOT_SIGNED_IN if row is None else _SIGN_IN_ENDED if ended else "the user is signed in to the hub"
        found.append(RungStatus(rung="assertion", open=row is not None and not ended, words=words))
    if ladder.exchange is not None:
        can = _may_exchange(principal)
        words = "with the token that the user's client sends to the hub" if can else _no_exchange(principal)
        found.append(RungStatus(rung="exchange", open=can, words=words))
    if found or ladder.shared:
        stored = takes_login(spec) and grants.of(canonical(spec.url)) is not None
        words = "stored" if stored else "not logged in" if takes_login(spec) else "off in its definition"
        found.append(RungStatus(rung="login", open=stored, words=words))
    if ladder.shared:
        alone = not any(one.open for one in found)
        words = "the login of the hub" if alone else "not used: the user has a credential of her own"
        found.append(RungStatus(rung="shared", open=alone, words=words))
    return tuple(found)


class _NextRung(Exception):
    """The rung gives no token, and the next one may be tried."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words


@dataclass(frozen=True)
class _KeptToken:
    """A token that was obtained, and when it was."""

    token: str = field(repr=False)
    until: float
    at: float


class _Rung:
    """The tokens of one user for one server by one rung: at most one, obtained once for all that need it."""

    def __init__(self, name: RungName, source: _Source, *, now: Callable[[], float], pause: Pause) -> None:
        self.name = name
        self.source = source
        self._now = now
        self._pause = pause
        self._turn = anyio.Lock()
        self._kept: _KeptToken | None = None
        self._refused: tuple[object, TokenRefused] | None = None
        """The credential that was refused, and the refusal."""

    async def token(self, *, instead_of: str = "") -> str | None:
        """The user's token for the server; None if she has no credential.

        Raises ``_NextRung`` and ``ServerFailure``.
        """
        async with self._turn:
            credential = await self.source.credential()
            if credential is None:
                self._kept = None  # what was made of it ends with it
                return None
            kept = self._usable(instead_of)
            # Asked first for the credential: a user who signed out has no token, also if the last one is still valid.
            if kept is not None and not self._is_due(kept, credential):
                return kept.token
            try:
                return (await self._obtained(credential)).token
            except ServerFailure as failure:
                if kept is None or not isinstance(failure.evidence, TokenNotRenewed):
                    raise
                return kept.token  # it is renewed early: it is still valid

    def is_fresh(self, token: str) -> bool:
        """Whether a token was obtained just now: a server that refuses it refuses the next one too."""
        kept = self._kept
        return kept is not None and kept.token == token and self._now() < kept.at + SETTLED

    def ask_again(self) -> None:
        """Forget a refusal: a new connection asks once."""
        self._refused = None

    def _usable(self, instead_of: str) -> _KeptToken | None:
        kept = self._kept
        if kept is None or kept.token == instead_of or self._now() >= kept.until:
            return None
        return kept

    def _is_due(self, kept: _KeptToken, credential: UserCredential) -> bool:
        """Whether it is renewed before its end, if the credential lasts longer."""
        return self._now() + EARLY >= kept.until < credential.expires_at and not self.is_fresh(kept.token)

    async def _obtained(self, credential: UserCredential) -> _KeptToken:
        mark = self.source.mark
        # The same credential would be refused again; each try is a failed login in the issuer's log.
        if self._refused is not None and self._refused[0] == mark:
            raise _refusal(self.name, self._refused[1])
        self._pause.check()
        try:
            given = await self.source.obtain(credential)
        except NoTokenAnswer as exc:
            raise self._pause.failed(exc) from exc
        except TokenRefused as exc:
            if exc.status not in DECISIONS:
                raise self._pause.failed(NoTokenAnswer(f"the authorization server answered {exc}")) from exc
            self._kept, self._refused = None, (mark, exc)
            raise _refusal(self.name, exc) from exc
        self._pause.answered()
        self._refused = None
        now = self._now()
        ends = given.expires_at(now)
        # Not longer than what it was made of: the issuer may end a user's access with her token.
        until = min(ends if ends is not None else math.inf, credential.expires_at)
        self._kept = _KeptToken(given.access_token, until, now)
        return self._kept


_WORDS: Final = {"assertion": "the identity assertion", "exchange": "the token exchange"}


def _refusal(rung: RungName, exc: TokenRefused) -> Exception:
    """What a refusal by an authorization server means for the user."""
    words = f"the authorization server refused {_WORDS[rung]} for this user ({exc})"
    if exc.code in ASKS_A_PERSON or exc.code in NOT_ACCEPTED:
        return _NextRung(words)
    if exc.code in UNKNOWN_CLIENT:
        hint = f"correct `credentials.{rung}.clientId` and its secret in the definition"
    elif exc.code == "access_denied":
        hint = "ask the operator of the authorization server for access"
    else:
        hint = f"correct `credentials.{rung}` in the definition, or ask the operator of the authorization server"
    return ServerFailure(CredentialRefused(reason=words, hint=hint))


# Where the tokens of a rung come from. ``missing`` says in words why there is no credential, and ``mark`` changes when
# the user's credential does.


class _Exchange:
    """Token exchange, with the token that the user's client sends to the hub."""

    def __init__(
        self, service: ExchangeService, spec: ServerSpec, principal: str, subjects: SubjectTokens | None
    ) -> None:
        self._service = service
        self._spec = spec
        self._principal = principal
        self._subjects = subjects

    @property
    def is_open(self) -> bool:
        """Whether this user can have a credential for it, also one that has ended."""
        return _may_exchange(self._principal) or (
            self._subjects is not None and self._subjects.is_known(self._principal)
        )

    @property
    def missing(self) -> str:
        return _NO_SUBJECT if self.is_open else _no_exchange(self._principal)

    @property
    def mark(self) -> object:
        return self._subjects.of(self._principal) if self._subjects is not None else None

    async def credential(self) -> UserCredential | None:
        """The user's valid credential; None if there is none."""
        return self._subjects.of(self._principal) if self._subjects is not None else None

    async def obtain(self, credential: UserCredential) -> IssuedTokens:
        """A token for the server. Raises ``TokenRefused`` and ``NoTokenAnswer``."""
        service = self._service
        if service.form == "on-behalf-of":
            form = {"grant_type": JWT_BEARER, "requested_token_use": "on_behalf_of", "assertion": credential.token}
        else:
            form = {
                "grant_type": TOKEN_EXCHANGE,
                "subject_token": credential.token,
                "subject_token_type": ACCESS_TOKEN,
                "requested_token_type": ACCESS_TOKEN,
                "audience": service.audience,
            }
        return await _asked(service, self._spec, form)


class _Assertion:
    """Identity assertion, with the ID token of the user's sign-in to the hub."""

    def __init__(self, service: AssertionService, spec: ServerSpec, principal: str, id_tokens: IdTokens | None) -> None:
        self._service = service
        self._spec = spec
        self._principal = principal
        self._id_tokens = id_tokens

    @property
    def is_open(self) -> bool:
        """Whether this user can have a credential for it, also one that has ended."""
        return self._id_tokens is not None and self._id_tokens.known(self._principal) is not None

    @property
    def missing(self) -> str:
        if self._id_tokens is None:
            return "an identity assertion needs a hub where people sign in at their issuer (`--oidc-client-id`)"
        return _SIGN_IN_ENDED if self.is_open else _NOT_SIGNED_IN

    @property
    def mark(self) -> object:
        row = self._id_tokens.known(self._principal) if self._id_tokens is not None else None
        return (row.login, row.access_token) if row is not None else None

    async def credential(self) -> UserCredential | None:
        """The user's valid credential; None if there is none. Raises ``ServerFailure``."""
        row = await self._id_tokens.current(self._principal) if self._id_tokens is not None else None
        return UserCredential(row.access_token, row.expires_at or 0.0) if row is not None else None

    async def obtain(self, credential: UserCredential) -> IssuedTokens:
        """A token for the server. Raises ``TokenRefused`` and ``NoTokenAnswer``."""
        assert self._id_tokens is not None  # noqa: S101 - there is a credential
        service = self._service
        assertion = await self._id_tokens.client.assertion(
            credential.token,
            audience=service.issuer,
            resource=_resource(service, self._spec),
            scope=service.scope,
        )
        return await _asked(service, self._spec, {"grant_type": JWT_BEARER, "assertion": assertion})


_Source: TypeAlias = _Exchange | _Assertion


async def _asked(service: TokenService, spec: ServerSpec, form: dict[str, str]) -> IssuedTokens:
    """The token that the token endpoint of the definition gives for a form.

    The endpoint is the one of the definition, never one that a server names: the form has a credential of the user.
    """
    form |= {"resource": _resource(service, spec), "scope": " ".join(service.scope)}
    try:
        _, fields = await post_as_accepted(
            service.token_url, form, client=_client(service), methods=(), allow_plain_http=spec.allow_plain_http
        )
        given = issued(fields)
        check_audience(given.access_token, canonical(spec.url))
    except LoginFailed as exc:
        raise TokenRefused("invalid_target", exc.message) from exc
    return given


def _resource(service: TokenService, spec: ServerSpec) -> str:
    return canonical(spec.url) if service.resource is None else service.resource


def _client(service: TokenService) -> OAuthClient:
    key = configured_key(service.private_key) if service.private_key is not None else None
    method = "private_key_jwt" if key is not None else "client_secret_basic" if service.client_secret else "none"
    return OAuthClient(
        id=service.client_id,
        secret=service.client_secret,
        key=key,
        method=method,
        audience=service.issuer or service.token_url,
        algorithm=signing_algorithm(key, ()) if key is not None else "",
        origin="configured",
    )


class Ladder:
    """The credentials of one user for one server (the ``Authorizer`` of the wire)."""

    def __init__(self, spec: ServerSpec, rungs: tuple[_Rung, ...], login: Bearer | None, shared: Bearer | None) -> None:
        self.spec = spec
        self._rungs = rungs
        self._login = login
        self._shared = shared
        self._used: _Rung | Bearer | None = None
        self.came_to_login = False
        """Whether the last request used the user's own login, or lacked it."""
        self._notes: tuple[str, ...] = ()
        self._failed_with: tuple[object, ...] | None = None

    async def token(self) -> str | None:
        """The token for the next request, by the first rung that gives one."""
        self._used, self.came_to_login, notes = None, False, list[str]()
        try:
            for rung in self._rungs:
                try:
                    found = await rung.token()
                except _NextRung as refused:
                    notes.append(refused.words)
                    continue
                if found is not None:
                    self._used, self._failed_with = rung, None
                    return found
                notes.append(rung.source.missing)
            return await self._by_login(notes)
        except ServerFailure:
            self._failed_with = self._marks()
            raise
        finally:
            self._notes = tuple(notes)

    async def _by_login(self, notes: list[str]) -> str | None:
        if self._login is not None and await self._login.is_there():
            self.came_to_login = True
            self._used, self._failed_with = self._login, None
            return await self._login.token()
        # A user who can act as herself never falls back to the shared identity, also while her own fails (SEC-13).
        is_open = any(rung.source.is_open for rung in self._rungs)
        if self._shared is not None and not is_open:
            self._used, self._failed_with = self._shared, None
            return await self._shared.token()
        self._failed_with = self._marks()
        if _NO_SUBJECT in notes:
            raise ServerFailure(TokenNotRenewed(reason=_NO_SUBJECT, exchanged=True))
        if self._login is None and self._rungs:
            hint = "sign in to the hub" if _SIGN_IN_ENDED in notes or _NOT_SIGNED_IN in notes else _ASK_OPERATOR
            raise ServerFailure(CredentialRefused(reason="; ".join(notes), hint=hint))
        self.came_to_login = self._login is not None
        return None

    async def renewed(self, refused: str) -> bool:
        """Whether there is another token than the one that the server refused."""
        if isinstance(self._used, Bearer):
            return await self._used.renewed(refused)
        if self._used is None or self._used.is_fresh(refused):
            return False
        try:
            return await self._used.token(instead_of=refused) not in (None, refused)
        except _NextRung:
            return False

    def login(self) -> Login:
        """The state of the user's login, the command for a new one, and why no other rung served."""
        source = self._used or self._login
        if source is None or isinstance(source, _Rung):
            return Login(state=LoginState.EXCHANGED, command="")
        found = source.login()
        return Login(state=found.state, command=found.command, note="; ".join(self._notes))

    def ask_again(self) -> None:
        """A new connection is made: what was refused may be asked for once more."""
        for rung in self._rungs:
            rung.ask_again()

    def take_news(self) -> bool:
        """Whether the user has another credential than the one that did not serve; says so once."""
        if self._failed_with is None or self._failed_with == self._marks():
            return False
        self._failed_with = None
        return True

    def _marks(self) -> tuple[object, ...]:
        return tuple(rung.source.mark for rung in self._rungs)

    def __repr__(self) -> str:
        return f"<Ladder of {self.spec.id}: {', '.join(rung.name for rung in self._rungs) or 'login'}>"


class Ladders:
    """The credentials of all users. ``shared`` are the logins of the hub itself."""

    def __init__(
        self,
        tokens: UserTokenStore,
        shared: Logins,
        *,
        subjects: SubjectTokens | None = None,
        id_tokens: IdTokens | None = None,
        now: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.tokens = tokens
        """The logins of the users."""
        self._shared = shared
        self._subjects = subjects
        self._id_tokens = id_tokens
        self._now = now
        self._chance = chance
        self._ladders: OrderedDict[tuple[str, str], Ladder] = OrderedDict()

    def authorize(self, principal: str, spec: ServerSpec) -> Ladder | Bearer | None:
        """The authorizer of a user for a server; None for a server that takes no credential."""
        login = self.tokens.of(principal).logins.authorize(spec)
        ladder = spec.credentials
        if spec.transport == "stdio" or not (ladder.assertion or ladder.exchange or ladder.shared):
            return login
        found = self._ladders.get((principal, spec.id))
        if found is None or found.spec != spec:
            found = self._ladders[principal, spec.id] = self._made(principal, spec, login)
        self._ladders.move_to_end((principal, spec.id))
        while len(self._ladders) > MOST_KEPT:
            self._ladders.popitem(last=False)
        found.ask_again()
        return found

    def lacks_login(self, principal: str, spec: ServerSpec) -> bool:
        """Whether the user's own login is what a server that denied her lacks; without a read."""
        ladder = self._ladders.get((principal, spec.id))
        if ladder is not None and not ladder.came_to_login:
            return False
        return self.tokens.of(principal).lacks_login(spec)

    def has_news(self, principal: str, server: str) -> bool:
        """Whether a user has shown a credential since the one that did not serve; says so once."""
        ladder = self._ladders.get((principal, server))
        return ladder is not None and ladder.take_news()

    def _made(self, principal: str, spec: ServerSpec, login: Bearer | None) -> Ladder:
        service, rungs = spec.credentials, list[_Rung]()
        if service.assertion is not None:
            rungs.append(self._rung("assertion", _Assertion(service.assertion, spec, principal, self._id_tokens)))
        if service.exchange is not None:
            rungs.append(self._rung("exchange", _Exchange(service.exchange, spec, principal, self._subjects)))
        shared = self._shared.authorize(spec) if service.shared else None
        return Ladder(spec, tuple(rungs), login, shared)

    def _rung(self, name: RungName, source: _Source) -> _Rung:
        return _Rung(name, source, now=self._now, pause=Pause(self._now, self._chance, exchanged=True))

    def __repr__(self) -> str:
        return f"<Ladders {len(self._ladders)}, {self._subjects!r}, {self._id_tokens!r}>"
