"""The hub as a client of its issuer, which says who sits at a browser: OpenID Connect, code flow with PKCE.

The browser is sent to the issuer and comes back with a code. The hub exchanges the code for an ID token, takes the name
of the person from it, and forgets the tokens: it asks the issuer for nothing else.

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
from typing import Any, Final, TypeAlias

from holdfast.auth.discovery import AuthorizationServer
from holdfast.auth.flows import AuthorizationRequest, authorization_request, code_in
from holdfast.auth.grant import OAuthClient, is_safe
from holdfast.auth.token_endpoint import (
    ANSWER_SECONDS,
    NoTokenAnswer,
    TokenRefused,
    as_accepted,
    document,
    post_form,
)
from holdfast.core import classify_evidence
from holdfast.errors import LoginFailed, ServerFailure
from holdfast.wire import exchange

__all__ = ["PendingSignIn", "SignInClient", "VerifyIdToken"]

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
        self._client_id = client_id
        self._redirect_uri = redirect_uri
        self._scope = tuple(scope)
        self._verify = verify
        self._secret = secret
        self._clock = clock
        self._known: tuple[float, AuthorizationServer] | None = None

    def __repr__(self) -> str:
        return f"<SignInClient {self._client_id} of {self.issuer}>"

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

    async def finish(self, pending: PendingSignIn, answer: Mapping[str, str]) -> Mapping[str, Any]:
        """The claims about the person, by the parameters that the browser came back with. Raises ``LoginFailed``."""
        server = await self._server()
        asked = AuthorizationRequest(
            url="",
            redirect_uri=self._redirect_uri,
            issuer=server.issuer,
            names_itself=server.names_itself,
            state=pending.state,
            verifier=pending.verifier,
        )
        code = code_in(answer, asked)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "code_verifier": pending.verifier,
        }

        async def ask(client: OAuthClient) -> dict[str, Any]:
            return await post_form(server.token_endpoint, form, client=client)

        try:
            _, fields = await as_accepted(self._client(server), server.methods, server.token_endpoint, ask)
        except (TokenRefused, NoTokenAnswer) as exc:
            raise LoginFailed(f"the issuer did not accept the sign-in: {exc}", hint="sign in again") from None
        return await self._claims(fields.get("id_token"), pending)

    async def _claims(self, token: object, pending: PendingSignIn) -> Mapping[str, Any]:
        if not isinstance(token, str):
            raise LoginFailed(
                "the issuer's answer contains no ID token", hint="`openid` must be among the scopes of --oidc-scope"
            )
        claims = await self._verify(token, self._client_id)
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
            id=self._client_id, secret=secret, method=method, audience=server.issuer, redirect_uri=self._redirect_uri
        )

    async def _server(self) -> AuthorizationServer:
        """The endpoints of the issuer."""
        if self._known is not None and self._clock() - self._known[0] < METADATA_SECONDS:
            return self._known[1]
        server = self._read(await self._metadata())
        self._known = self._clock(), server
        return server

    async def _metadata(self) -> dict[str, Any]:
        url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            answer = await exchange(
                "GET", url, headers={"accept": "application/json"}, doing="the metadata", within=ANSWER_SECONDS
            )
        except ServerFailure as failure:
            verdict = classify_evidence(failure.evidence)
            raise LoginFailed(f"the issuer could not be asked: {verdict.reason}", hint=verdict.hint) from None
        found = document(answer.body) if answer.status == 200 else None
        if found is None:
            raise LoginFailed(
                f"the issuer publishes no OpenID configuration (HTTP {answer.status})", hint=f"it belongs at {url}"
            )
        return found

    def _read(self, fields: Mapping[str, Any]) -> AuthorizationServer:
        def text(name: str) -> str:
            value = fields.get(name)
            return value if isinstance(value, str) else ""

        if text("issuer") != self.issuer:
            raise LoginFailed(
                "the issuer's metadata names another issuer", hint="write --jwt-issuer as the issuer writes itself"
            )
        endpoints = text("authorization_endpoint"), text("token_endpoint")
        if not all(is_safe(one) for one in endpoints):
            raise LoginFailed("the issuer names no endpoints with https to sign in at")
        methods = fields.get("token_endpoint_auth_methods_supported")
        return AuthorizationServer(
            issuer=self.issuer,
            authorization_endpoint=endpoints[0],
            token_endpoint=endpoints[1],
            methods=tuple(one for one in methods if isinstance(one, str)) if isinstance(methods, list) else (),
            names_itself=fields.get("authorization_response_iss_parameter_supported") is True,
        )
