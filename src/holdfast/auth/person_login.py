"""Log in to a server, and out again. This is the only place that asks a person.

The steps: read the server's challenge, discover its authorization server, register there, ask the person, check the
answer, keep the tokens. If a step fails, the earlier login stays valid.

``unverified_claims`` reads what an access token says of itself, where it is a JWT. Nothing is verified here: only its
server can do that.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

import anyio
import anyio.to_thread
import jwt

from holdfast.auth.discovery import Discovered, discover, identify, known_client
from holdfast.auth.flows import (
    DEFAULT_PATH,
    DeviceCode,
    RedirectListener,
    answer_in,
    ask_for_code,
    authorization_request,
    code_in,
    redirect_listener,
    wait_for_tokens,
)
from holdfast.auth.token_endpoint import (
    UNKNOWN_CLIENT,
    IssuedTokens,
    NoTokenAnswer,
    OAuthClient,
    TokenRefused,
    canonical,
    covers,
    is_safe,
    issued,
    post_as_accepted,
    post_form,
    revoke,
)
from holdfast.auth.token_store import Grant, GrantKey, GrantStore
from holdfast.config import Limits, ServerSpec
from holdfast.core import (
    Challenge,
    HttpStatus,
    Redactor,
    classify_evidence,
    masked,
    quoted_name,
    read_challenge,
    scopes_in,
)
from holdfast.errors import LoginFailed, ServerFailure
from holdfast.wire import Dialer, Warden

__all__ = [
    "LoggedOut",
    "LoginMethod",
    "LoginPrompt",
    "PendingLogin",
    "PlannedLogin",
    "audience_of",
    "begin_login",
    "check_audience",
    "finish_login",
    "log_in",
    "log_out",
    "plan_login",
    "unverified_claims",
]

LoginMethod: TypeAlias = Literal["browser", "paste", "device"]

DIAL_SECONDS = 15.0
PERSON_SECONDS = 300.0
"""How long a person has by default."""

NOT_HERE = f"http://127.0.0.1:8765{DEFAULT_PATH}"
"""The redirect URI for a browser on another machine. Nothing answers there; its address bar shows the answer."""


class LoginPrompt(Protocol):
    """How a login talks to the person who logs in."""

    def asked_for(self, scope: tuple[str, ...], issuer: str) -> None:
        """Show the scope that is about to be requested, and the issuer."""

    def visit(self, address: str) -> None:
        """Ask them to open this address in a browser, or open it."""

    def enter(self, code: DeviceCode) -> None:
        """Ask them to enter this code."""

    async def paste(self) -> str:
        """The address that their browser ended up at; never returns where they cannot be asked."""


@dataclass(frozen=True, kw_only=True)
class LoggedOut:
    """A login that was removed."""

    grant: Grant
    revoked: bool
    """Whether the authorization server confirmed the revocation."""


@dataclass(frozen=True)
class _Login:
    """One login: to which server, where its grant is kept, and what discovery found."""

    spec: ServerSpec
    store: GrantStore
    found: Discovered

    @property
    def resource(self) -> str:
        """The ``resource`` parameter of its requests; empty for none."""
        return self.found.resource if self.spec.oauth.resource is None else self.spec.oauth.resource


async def log_in(
    spec: ServerSpec,
    *,
    store: GrantStore,
    person: LoginPrompt,
    how: LoginMethod = "browser",
    scope: tuple[str, ...] = (),
    within: float = PERSON_SECONDS,
) -> Grant:
    """Log in to a server; ``scope`` adds to what it needs and what was granted before. Raises ``LoginFailed``."""
    login, wanted = await _wanted(spec, store, scope)
    person.asked_for(wanted, login.found.server.issuer)
    try:
        with anyio.fail_after(within):
            if how == "device":
                client, given = await _by_device(login, person, wanted)
            else:
                client, given = await _by_browser(login, person, wanted, pastes=how == "paste")
    except TimeoutError:
        raise LoginFailed(
            f"no login within {within:g} s",
            hint="log in again; --timeout gives longer. If the page does not know Holdfast, log out first:"
            " the next login then registers it again",
        ) from None
    return await _kept(login, client, given, wanted)


@dataclass(frozen=True, kw_only=True)
class PlannedLogin:
    """What a person is asked for, before she agrees."""

    issuer: str
    scope: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PendingLogin:
    """A login whose browser has not come back yet."""

    state: str = field(repr=False)
    verifier: str = field(repr=False)
    issuer: str
    """The authorization server that the browser was sent to: the code is for no other."""
    scope: tuple[str, ...]
    client: OAuthClient

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> PendingLogin:
        """What was kept of it as JSON."""
        client = OAuthClient(**kept["client"])
        return cls(
            state=kept["state"],
            verifier=kept["verifier"],
            issuer=kept.get("issuer", ""),  # the hub before this version kept none: that login begins again
            scope=tuple(kept["scope"]),
            client=client,
        )


async def plan_login(spec: ServerSpec, *, store: GrantStore) -> PlannedLogin:
    """What a login to a server will ask for. Raises ``LoginFailed``."""
    login, wanted = await _wanted(spec, store)
    return PlannedLogin(issuer=login.found.server.issuer, scope=wanted)


async def begin_login(spec: ServerSpec, *, store: GrantStore, agreed: str) -> tuple[str, PendingLogin]:
    """Where to send a browser that comes back to ``oauth.redirect_uri``, and what to keep. Raises ``LoginFailed``.

    ``agreed`` is the issuer that the person was shown (``plan_login``).
    """
    login, wanted = await _wanted(spec, store)
    _check_same_issuer(login, agreed)
    redirect = spec.oauth.redirect_uri or ""
    server = login.found.server
    client = await _known(login, wanted) or await identify(server, redirect_uri=redirect, scope=" ".join(wanted))
    asked = authorization_request(server, client, resource=login.resource, scope=wanted, redirect_uri=redirect)
    return asked.url, PendingLogin(
        state=asked.state, verifier=asked.verifier, issuer=server.issuer, scope=wanted, client=client
    )


async def finish_login(
    spec: ServerSpec, *, store: GrantStore, pending: PendingLogin, answer: Mapping[str, str]
) -> Grant:
    """Keep the login that a browser came back with. Raises ``LoginFailed``."""
    # Discovered again, not kept in the browser: the token endpoint must be the server's word of now.
    login = _Login(spec, store, await discover(spec, await _challenge(spec)))
    # The person logged in where she was sent. A server that names another issuer now would get her code, and with it
    # the client's secret, for a login at the first one (RFC 9700, 4.4: mix-up).
    _check_same_issuer(login, pending.issuer)
    code = code_in(answer, server=login.found.server, state=pending.state)
    redirect = spec.oauth.redirect_uri or ""
    client, given = await _exchange(login, pending.client, code, redirect, pending.verifier)
    return await _kept(login, client, given, pending.scope)


def _check_same_issuer(login: _Login, before: str) -> None:
    issuer = login.found.server.issuer
    if issuer != before:
        raise LoginFailed(
            f"`{login.spec.id}` names another authorization server than a moment ago:"
            f" {quoted_name(issuer, 200, ticks=True)}, not {quoted_name(before, 200, ticks=True)}",
            hint="begin the login again, and look where it leads; if it happens again, do not trust the server",
        )


async def _wanted(spec: ServerSpec, store: GrantStore, more: tuple[str, ...] = ()) -> tuple[_Login, tuple[str, ...]]:
    """The login to a server, and the scope that it asks for, with ``more``."""
    if not is_safe(spec.url, allow_plain_http=spec.allow_plain_http):
        raise LoginFailed(
            f"the token of `{spec.id}` would be sent unencrypted over plain http",
            hint='use https, or set `"allowPlainHttp": true` for this server if the network is trusted',
        )
    found = await discover(spec, await _challenge(spec))
    before = await anyio.to_thread.run_sync(store.get, GrantKey(found.server.issuer, found.resource))
    return _Login(spec, store, found), _scope(spec, found, before, more)


async def _kept(login: _Login, client: OAuthClient, given: IssuedTokens, wanted: tuple[str, ...]) -> Grant:
    """Check whom the tokens are for, and keep them."""
    if login.resource:
        check_audience(given.access_token, login.resource)
    grant = Grant(
        issuer=login.found.server.issuer,
        resource=login.found.resource,
        servers=(canonical(login.spec.url),),
        client=client,
        token_endpoint=login.found.server.token_endpoint,
        revocation_endpoint=login.found.server.revocation_endpoint,
        indicator=login.spec.oauth.resource,
        access_token=given.access_token,
        refresh_token=given.refresh_token,
        scope=_granted(given.scope, wanted),
        expires_at=given.expires_at(time.time()),
        login=secrets.token_hex(8),
    )
    # A renewal of the old login that is under way must not overwrite the new one.
    async with login.store.renewing(grant.key):
        return await anyio.to_thread.run_sync(login.store.put, grant)


async def log_out(spec: ServerSpec, *, store: GrantStore) -> LoggedOut | None:
    """Remove a server's login, and revoke it where that is possible; None if there was none."""
    seen = await anyio.to_thread.run_sync(store.of, canonical(spec.url))
    if seen is None:
        return None
    async with store.renewing(seen.key):
        # It may have been renewed while we waited: revoke the current token.
        grant = await anyio.to_thread.run_sync(store.get, seen.key) or seen
        await anyio.to_thread.run_sync(store.remove, grant.key)
    # The refresh token, if there is one: with it the issuer ends the access tokens too (RFC 7009).
    token, plain_http = grant.refresh_token or grant.access_token, spec.allow_plain_http
    revoked = await revoke(grant.revocation_endpoint, token, client=grant.client, allow_plain_http=plain_http)
    return LoggedOut(grant=grant, revoked=revoked)


async def _challenge(spec: ServerSpec) -> Challenge | None:
    """The challenge that the server sends without a login, by an ordinary dial. None if it accepts the connection."""
    redactor = Redactor(spec.secrets)
    try:
        async with (
            Warden() as warden,
            Dialer(warden=warden, limits=Limits()).connect(spec, within=DIAL_SECONDS, redactor=redactor),
        ):
            return None  # some servers announce only in their metadata what a login adds
    except ServerFailure as failure:
        seen = failure.evidence
    if isinstance(seen, HttpStatus) and seen.status in (401, 403):
        return read_challenge(seen.headers.get("www-authenticate", ""))
    verdict = classify_evidence(masked(seen, redactor))
    raise LoginFailed(f"the server `{spec.id}` did not say how to log in: {verdict.reason}", hint=verdict.hint)


def _scope(spec: ServerSpec, found: Discovered, before: Grant | None, more: tuple[str, ...]) -> tuple[str, ...]:
    """The scope to request: what was granted before, and what the server, the definition or the person names."""
    granted = scopes_in(before.scope) if before is not None else ()
    wanted = dict.fromkeys((*granted, *(spec.oauth.scope or found.scopes), *more))
    # Without it some issuers give no refresh token, and the login ends within the hour.
    if wanted and "offline_access" in found.server.scopes:
        wanted["offline_access"] = None
    return tuple(wanted)


async def _by_browser(
    login: _Login, person: LoginPrompt, scope: tuple[str, ...], *, pastes: bool
) -> tuple[OAuthClient, IssuedTokens]:
    """Authorization code with PKCE: the browser returns to us, or the person pastes its address."""
    async with AsyncExitStack() as stack:
        oauth = login.spec.oauth
        server = login.found.server
        known = await _known(login, scope)
        wanted = (known.redirect_uri if known is not None else oauth.redirect_uri) or ""
        ways: list[Callable[[], Awaitable[str]]] = [person.paste]
        redirect, place = wanted or NOT_HERE, None
        if not pastes:
            known, place = await _place(stack, known, wanted, oauth.redirect_uri or "")
            ways, redirect = [person.paste, place.answer], place.redirect_uri
        client = known or await identify(server, redirect_uri=redirect, scope=" ".join(scope))
        redirect = client.redirect_uri or redirect
        asked = authorization_request(server, client, resource=login.resource, scope=scope, redirect_uri=redirect)
        if place is not None:
            # The listener was open before: the client had to be registered with its port.
            place.expect(asked.state)
        person.visit(asked.url)
        code = code_in(answer_in(await _first(ways)), server=server, state=asked.state)
    return await _exchange(login, client, code, redirect, asked.verifier)


async def _known(login: _Login, scope: tuple[str, ...]) -> OAuthClient | None:
    """The client that needs no registration, unless the authorization server has forgotten it.

    A server that keeps its clients in memory forgets them at each restart. It says so on a page, to the person, who
    then waits in vain. So its token endpoint is asked first, with a refresh token that it cannot know.
    """
    # In a thread: another process may hold the store for seconds, and a hub logs people in beside its calls.
    grants = await anyio.to_thread.run_sync(login.store.grants)
    client = known_client(login.spec.oauth, login.found.server, grants, time.time(), scope)
    if client is None or client.origin != "registered":
        return client
    form = {"grant_type": "refresh_token", "refresh_token": secrets.token_urlsafe(24)}
    endpoint, plain_http = login.found.server.token_endpoint, login.spec.allow_plain_http
    try:
        await post_form(endpoint, form, client=client, allow_plain_http=plain_http)
    except TokenRefused as exc:
        # With 400, `unauthorized_client` says that a client is known and may not use this grant.
        if exc.code in UNKNOWN_CLIENT and (exc.code, exc.status) != ("unauthorized_client", 400):
            await _forget_client(login, client)
            return None
    except NoTokenAnswer:
        return client  # the exchange will say what is wrong
    return client


async def _place(
    stack: AsyncExitStack, known: OAuthClient | None, wanted: str, otherwise: str
) -> tuple[OAuthClient | None, RedirectListener]:
    """Listen at the client's registered redirect URI; a dynamically registered client can use another one."""
    try:
        return known, await stack.enter_async_context(redirect_listener(wanted))
    except LoginFailed:
        if known is None or known.origin != "registered":
            raise
    return None, await stack.enter_async_context(redirect_listener(otherwise))


async def _first(ways: Sequence[Callable[[], Awaitable[str]]]) -> str:
    """The first answer of these."""
    answers: list[str | LoginFailed] = []

    async def wait(way: Callable[[], Awaitable[str]]) -> None:
        try:
            answers.append(await way())
        except LoginFailed as exc:  # raised below: a task group would wrap it
            answers.append(exc)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for way in ways:
            tasks.start_soon(wait, way)
    if isinstance(answers[0], LoginFailed):
        raise answers[0]
    return answers[0]


async def _exchange(
    login: _Login, client: OAuthClient, code: str, redirect_uri: str, verifier: str
) -> tuple[OAuthClient, IssuedTokens]:
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
        "resource": login.resource,
    }
    endpoint, plain_http = login.found.server.token_endpoint, login.spec.allow_plain_http
    try:
        accepted, fields = await post_as_accepted(
            endpoint, form, client=client, methods=login.found.server.methods, allow_plain_http=plain_http
        )
        return accepted, issued(fields)
    except TokenRefused as exc:
        if exc.code in UNKNOWN_CLIENT:
            await _forget_client(login, client)
        is_ours = exc.code in UNKNOWN_CLIENT and client.origin == "configured"
        hint = "check `oauth.clientId` and `oauth.clientSecret`" if is_ours else "log in again"
        raise LoginFailed(f"the authorization server issued no token ({exc})", hint=hint) from None
    except NoTokenAnswer as exc:
        raise LoginFailed(f"the authorization server issued no token: {exc.reason}", hint="log in again") from None


async def _forget_client(login: _Login, client: OAuthClient) -> None:
    """Do not use a registration again that the authorization server no longer knows.

    Logins that were made with it stay valid until they are refused themselves.
    """
    store, ended = login.store, replace(client, expires_at=time.time())
    # Under the lease of each: a renewal that is under way would bring the old registration back.
    for key in [grant.key for grant in await anyio.to_thread.run_sync(store.grants) if grant.client == client]:
        async with store.renewing(key):
            grant = await anyio.to_thread.run_sync(store.get, key)
            if grant is not None and grant.client == client:
                await anyio.to_thread.run_sync(store.put, replace(grant, client=ended))


async def _by_device(login: _Login, person: LoginPrompt, scope: tuple[str, ...]) -> tuple[OAuthClient, IssuedTokens]:
    redirect = login.spec.oauth.redirect_uri or NOT_HERE
    server = login.found.server
    client = await _known(login, scope) or await identify(server, redirect_uri=redirect, scope=" ".join(scope))
    client, code = await ask_for_code(server, client, resource=login.resource, scope=scope, spec=login.spec)
    person.enter(code)
    return client, await wait_for_tokens(
        server, client, code, resource=login.resource, allow_plain_http=login.spec.allow_plain_http
    )


def _granted(scope: str, wanted: tuple[str, ...]) -> str:
    """The scope that was granted. GitHub separates with commas, which a scope may also contain."""
    parts = tuple(part for part in scope.split(",") if part)
    return " ".join(parts if {*parts} <= {*wanted} else [scope]) or " ".join(wanted)


def unverified_claims(token: str) -> dict[str, Any] | None:
    """The claims of a JWT as it states them; None for a token that is no JWT.

    Use them to explain a refusal to a person, never to decide who the caller is.
    """
    try:
        return jwt.decode(token, options={"verify_signature": False})
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        return None


def audience_of(claims: dict[str, Any]) -> tuple[str, ...]:
    """The names in ``aud``, which is one text or a list."""
    named = claims.get("aud")
    if isinstance(named, str):
        return (named,)
    return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()


def check_audience(token: str, resource: str) -> None:
    """Raise ``LoginFailed`` if a token says that it is for another server.

    Most tokens say nothing, or name their audience by a word that only their issuer understands; then the server
    decides. A token that names addresses, none of them the server's, is for another server.
    """
    named = audience_of(unverified_claims(token) or {})
    addresses = [name for name in named if name.lower().startswith(("http:", "https:"))]
    if addresses and not any(covers(name, resource) or covers(resource, name) for name in addresses):
        raise LoginFailed(
            f"the authorization server gave a token for another server: {quoted_name(', '.join(addresses), 200)}",
            hint=f"Holdfast asked for a token for {resource}: the authorization server must support the `resource`"
            " parameter",
        )
