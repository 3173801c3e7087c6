"""The hub as a client of its issuer, which says who sits at a browser: OpenID Connect, code flow with PKCE.

The browser is sent to the issuer and comes back with a code. The hub exchanges the code for an ID token, and takes the
name of the person from it. Then it forgets the tokens, unless a server takes identity assertions (``credentials``):
then ``IdTokens`` keeps the ID token for as long as the person is signed in, encrypted with the users' logins and bound
to her. It is renewed with its refresh token, and goes to the token endpoint of its own issuer alone.

What must never happen: a browser is signed in by an answer that it did not ask for. So the answer must have the state
of this browser's request, and the ID token its nonce; the issuer must be the configured one, in its metadata, in the
answer (RFC 9207) and in the token; the token must be for this client; and the code works only with the verifier, which
never left the hub but sealed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

import anyio.to_thread

from holdfast.auth.credentials import EARLY, Logins
from holdfast.auth.discovery import AuthorizationServer, document_at, server_in
from holdfast.auth.flows import authorization_request, code_in
from holdfast.auth.person_login import audience_of, unverified_claims
from holdfast.auth.token_endpoint import (
    UNUSABLE_ID_TOKEN,
    IssuedTokens,
    NoTokenAnswer,
    OAuthClient,
    TokenRefused,
    is_safe,
    post_as_accepted,
)
from holdfast.auth.token_store import Grant, GrantKey
from holdfast.auth.user_tokens import UserTokenStore
from holdfast.errors import LoginFailed

__all__ = ["ID_JAG", "SIGN_IN", "TOKEN_EXCHANGE", "IdTokens", "PendingSignIn", "SignInClient", "SignedIn"]

TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a name of RFC 8693
ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - a name of RFC 8693
ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"

SIGN_IN: Final = "urn:holdfast:sign-in"
"""The resource of the row with a person's ID token. It is the address of no server, so no server is sent the token."""

MOST_RENEWED: Final = 1_024
"""People whose renewals this process remembers."""

METADATA_SECONDS: Final = 300.0
"""How long the metadata of the issuer is used before it is asked for again."""

VerifyIdToken: TypeAlias = Callable[[str, str], Awaitable[Mapping[str, Any] | None]]
"""The claims of a token of the issuer that is for an audience; None if it does not verify."""


@dataclass(frozen=True, kw_only=True)
class PendingSignIn:
    """What a browser must bring back, and what only the hub knows."""

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class SignedIn:
    """A person who signed in, and what the issuer gave for her."""

    claims: Mapping[str, Any] = field(repr=False)
    id_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    token_endpoint: str


class SignInClient:
    """The hub's registration at its issuer. ``secret`` returns the current client secret; empty for none."""

    def __init__(
        self,
        issuer: str,
        client_id: str,
        *,
        redirect_uri: str,
        scope: Sequence[str],
        verify: VerifyIdToken,
        secret: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.issuer = issuer
        self.client_id = client_id
        self._redirect_uri = redirect_uri
        self._scope = tuple(scope)
        self._verify = verify
        self._secret = secret
        self._clock = clock
        self._known: tuple[float, AuthorizationServer] | None = None

    def __repr__(self) -> str:
        return f"<SignInClient {self.client_id} of {self.issuer}>"

    async def begin(self) -> tuple[str, PendingSignIn]:
        """Where to send a browser, and what to keep for it. Raises ``LoginFailed``."""
        server, nonce = await self._server(), secrets.token_urlsafe(32)
        asked = authorization_request(
            server,
            self._client(server),
            resource="",
            scope=self._scope,
            redirect_uri=self._redirect_uri,
            more={"nonce": nonce},
        )
        return asked.url, PendingSignIn(state=asked.state, nonce=nonce, verifier=asked.verifier)

    async def finish(self, pending: PendingSignIn, answer: Mapping[str, str]) -> SignedIn:
        """The claims about the person, by the parameters that the browser came back with. Raises ``LoginFailed``."""
        server = await self._server()
        code = code_in(answer, server=server, state=pending.state)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "code_verifier": pending.verifier,
        }
        try:
            fields = await self._ask(form)
        except (TokenRefused, NoTokenAnswer) as exc:
            raise LoginFailed(f"the issuer did not accept the sign-in: {exc}", hint="sign in again") from None
        claims, refresh = await self._claims(fields.get("id_token"), pending), fields.get("refresh_token")
        return SignedIn(
            claims=claims,
            id_token=fields["id_token"],
            refresh_token=refresh if isinstance(refresh, str) and refresh else None,
            token_endpoint=server.token_endpoint,
        )

    async def renew(self, row: Grant, *, on_sending: Callable[[], None]) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """Ask for another ID token; returns the answer and the claims. Raises ``TokenRefused``, ``NoTokenAnswer``."""
        form = {"grant_type": "refresh_token", "refresh_token": row.refresh_token or ""}
        fields = await self._ask(form, on_sending=on_sending)
        token = fields.get("id_token")
        claims = await self._verify(token, self.client_id) if isinstance(token, str) else None
        if claims is None:
            raise TokenRefused(UNUSABLE_ID_TOKEN, "the issuer's answer contains no ID token that verifies")
        return fields, claims

    async def assertion(self, id_token: str, *, audience: str, resource: str, scope: Sequence[str]) -> str:
        """The issuer's assertion about a person for another authorization server (ID-JAG).

        Raises ``TokenRefused`` or ``NoTokenAnswer``.
        """
        form = {
            "grant_type": TOKEN_EXCHANGE,
            "requested_token_type": ID_JAG,
            "audience": audience,
            "resource": resource,
            "scope": " ".join(scope),
            "subject_token": id_token,
            "subject_token_type": ID_TOKEN,
        }
        fields = await self._ask(form)
        token = fields.get("access_token")
        if fields.get("issued_token_type") != ID_JAG or not isinstance(token, str):
            raise TokenRefused("unsupported_token_type", "the issuer gave no identity assertion")
        # One for another authorization server must not leave the hub.
        if audience_of(unverified_claims(token) or {}) != (audience,):
            raise TokenRefused("invalid_target", "the issuer gave an identity assertion for another server")
        return token

    async def _ask(self, form: Mapping[str, str], *, on_sending: Callable[[], None] | None = None) -> dict[str, Any]:
        """A request to the token endpoint, as the hub's client."""
        try:
            server = await self._server()
        except LoginFailed as exc:
            raise NoTokenAnswer(exc.message) from exc
        client, endpoint = self._client(server), server.token_endpoint
        _, fields = await post_as_accepted(endpoint, form, client=client, methods=server.methods, on_sending=on_sending)
        return fields

    async def _claims(self, token: object, pending: PendingSignIn) -> Mapping[str, Any]:
        if not isinstance(token, str):
            raise LoginFailed(
                "the issuer's answer contains no ID token", hint="`openid` must be among the scopes of --oidc-scope"
            )
        claims = await self._verify(token, self.client_id)
        if claims is None:
            raise LoginFailed(
                "the ID token of the issuer does not verify",
                hint="its key must be in --jwt-keys, its issuer --jwt-issuer and its audience --oidc-client-id",
            )
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not secrets.compare_digest(nonce.encode(), pending.nonce.encode()):
            raise LoginFailed("the ID token belongs to another sign-in (its `nonce` is wrong)", hint="sign in again")
        return claims

    def _client(self, server: AuthorizationServer) -> OAuthClient:
        secret = self._secret() or None
        method = "client_secret_basic" if secret else "none"
        return OAuthClient(
            id=self.client_id, secret=secret, method=method, audience=server.issuer, redirect_uri=self._redirect_uri
        )

    async def _server(self) -> AuthorizationServer:
        """The endpoints of the issuer."""
        if self._known is not None and self._clock() - self._known[0] < METADATA_SECONDS:
            return self._known[1]
        url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        found = await document_at(url)
        if not isinstance(found, dict):
            raise found or LoginFailed("the issuer publishes no OpenID configuration", hint=f"it belongs at {url}")
        server = server_in(found)
        if server.issuer != self.issuer:
            raise LoginFailed(
                "the issuer's metadata names another issuer", hint="write --jwt-issuer as the issuer writes itself"
            )
        if not is_safe(server.authorization_endpoint) or not is_safe(server.token_endpoint):
            raise LoginFailed("the issuer names no endpoints with https to sign in at")
        self._known = self._clock(), server
        return server


class IdTokens:
    """The ID tokens of the people who are signed in to the hub, one row a person among the users' logins.

    ``needed`` says whether a server takes identity assertions; else nothing is kept. ``name_of`` is the principal that
    claims name.
    """

    def __init__(
        self,
        client: SignInClient,
        tokens: UserTokenStore,
        *,
        needed: Callable[[], bool],
        name_of: Callable[[Mapping[str, Any]], str | None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.client = client
        self._tokens = tokens
        self._needed = needed
        self._name_of = name_of
        self._now = now
        self._key = GrantKey(client.issuer, SIGN_IN)
        self._logins = lru_cache(maxsize=MOST_RENEWED)(self._logins_of)
        """What renews the ID token of a person: one for each, so that one process asks once."""

    async def keep(self, principal: str, given: SignedIn, *, session: str, until: float) -> None:
        """Someone signed in: her ID token is kept until her session ends. Raises ``StoreUnusable``."""
        if not self._needed():
            return
        row = Grant(
            issuer=self._key.issuer,
            resource=self._key.resource,
            servers=(),
            client=OAuthClient(id=self.client.client_id, origin="configured"),
            token_endpoint=given.token_endpoint,
            access_token=given.id_token,
            refresh_token=given.refresh_token,
            expires_at=float(given.claims["exp"]),
            login=session,
            ends_at=until,
        )
        store = self._tokens.of(principal)
        # A renewal of the row before must not overwrite this one.
        async with store.renewing(self._key):
            await anyio.to_thread.run_sync(store.put, row)

    async def forget(self, principal: str, *, session: str) -> None:
        """Someone signed out: the ID token of this session ends with it."""
        store = self._tokens.of(principal)
        async with store.renewing(self._key):
            row = await anyio.to_thread.run_sync(store.get, self._key)
            if row is not None and row.login == session:
                await anyio.to_thread.run_sync(store.remove, self._key)

    def known(self, principal: str) -> Grant | None:
        """The row of a person as it was last read, ended or not."""
        return next((one for one in self._tokens.of(principal).known if one.key == self._key), None)

    async def current(self, principal: str) -> Grant | None:
        """The row with a person's valid ID token, renewed where needed; None if she has none.

        Raises ``ServerFailure`` with ``TokenNotRenewed`` if the issuer could not be asked.
        """
        logins = self._logins(principal)
        await logins.up_to_date()
        row, now = self.known(principal), self._now()
        if row is None or row.refused or (row.ends_at is not None and now >= row.ends_at):
            return None
        if row.refreshable and row.expired(now + EARLY):
            row = await logins.renew(self._key, instead_of=row.access_token)
        return row if row is not None and not row.expired(self._now()) else None

    def _logins_of(self, principal: str) -> Logins:
        return Logins(self._tokens.of(principal), now=self._now, request=partial(self._request, principal))

    async def _request(
        self,
        principal: str,
        row: Grant,
        *,
        allow_plain_http: bool,
        on_sending: Callable[[], None],
    ) -> IssuedTokens:
        """Another ID token of the same person. Raises ``TokenRefused`` or ``NoTokenAnswer``."""
        fields, claims = await self.client.renew(row, on_sending=on_sending)
        if self._name_of(claims) != principal:
            raise TokenRefused(UNUSABLE_ID_TOKEN, "the issuer gave the ID token of another person")
        refresh = fields.get("refresh_token")
        return IssuedTokens(
            access_token=fields["id_token"],
            refresh_token=refresh if isinstance(refresh, str) and refresh else None,
            expires_in=float(claims["exp"]) - self._now(),
        )

    def __repr__(self) -> str:
        return f"<IdTokens by {self.client!r}>"
