"""Log in to a server, and out again: the one place where a person is asked.

In order: see what the server wants, find out whom to ask, be somebody there, ask the person, check the
answer, keep the tokens. Whatever fails on the way, the login that there was before stands.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

import anyio
import anyio.to_thread

from holdfast.auth.addresses import canonical, is_safe
from holdfast.auth.claims import check_audience
from holdfast.auth.code import Question, answer_in, code_in, question
from holdfast.auth.device import DeviceCode, ask_for_code, wait_for_tokens
from holdfast.auth.discovery import Discovered, discover
from holdfast.auth.grant import Client, Grant, GrantKey
from holdfast.auth.identity import FORGOTTEN, identify, known_client
from holdfast.auth.lock import renewing
from holdfast.auth.loopback import DEFAULT_PATH, Loopback, listening
from holdfast.auth.store import TokenStore
from holdfast.auth.tokens import Given, Refused, Unanswered, request_tokens, revoke
from holdfast.config.spec import Limits, ServerSpec
from holdfast.core.challenge import Challenge, read_challenge, scopes_in
from holdfast.core.classify import classify
from holdfast.core.evidence import HttpStatus
from holdfast.core.redact import Redactor, masked
from holdfast.errors import LoginFailed, ServerFailure
from holdfast.wire.dial import Dialer
from holdfast.wire.warden import Warden

__all__ = ["How", "LoggedOut", "Person", "log_in", "log_out"]

How: TypeAlias = Literal["browser", "paste", "device"]

DIAL_SECONDS = 15.0
PATIENCE = 300.0
"""Seconds that a person has, unless told otherwise."""

NOT_HERE = f"http://127.0.0.1:8765{DEFAULT_PATH}"
"""Where a browser on another machine is sent, in vain: its address bar then holds the answer."""


class Person(Protocol):
    """Whoever logs in, as far as we can talk to them."""

    def asked_for(self, scope: tuple[str, ...], issuer: str) -> None:
        """What is about to be asked for, and of whom."""

    def visit(self, address: str) -> None:
        """They are to open this in a browser; it may be opened for them."""

    def enter(self, code: DeviceCode) -> None:
        """They are to enter this code."""

    async def paste(self) -> str:
        """The address that their browser ended up at; waits for ever where they cannot be asked."""


@dataclass(frozen=True, kw_only=True)
class LoggedOut:
    """A login that is no more."""

    grant: Grant
    revoked: bool
    """Whether the authorization server said that it took it back."""


@dataclass(frozen=True, kw_only=True)
class _Login:
    """What one login goes by."""

    spec: ServerSpec
    store: TokenStore
    person: Person
    how: How
    now: Callable[[], float]


async def log_in(
    spec: ServerSpec,
    *,
    store: TokenStore,
    person: Person,
    how: How = "browser",
    scope: tuple[str, ...] = (),
    within: float = PATIENCE,
    now: Callable[[], float] = time.time,
) -> Grant:
    """Log in to a server; ``scope`` is asked for beside what it needs and what was granted. Raises ``LoginFailed``."""
    if not is_safe(spec.url, allow_plain_http=spec.allow_plain_http):
        raise LoginFailed(
            f"the token of `{spec.id}` would travel unencrypted over plain http",
            hint='use https, or set `"allowPlainHttp": true` for this server if the network is trusted',
        )
    login = _Login(spec=spec, store=store, person=person, how=how, now=now)
    found = await discover(spec, await _challenge(spec))
    key = GrantKey(found.server.issuer, found.resource)
    before = await anyio.to_thread.run_sync(store.get, key)
    wanted = _scope(spec, found, before, scope)
    person.asked_for(wanted, found.server.issuer)
    try:
        with anyio.fail_after(within):
            client, given = await (_by_device if how == "device" else _by_browser)(login, found, wanted)
    except TimeoutError:
        raise LoginFailed(
            f"nobody logged in within {within:g} s",
            hint="log in again; --timeout gives longer. If the page does not know Holdfast, log out first:"
            " it is registered anew then",
        ) from None
    check_audience(given.access_token, found.resource)
    grant = _grant(login, found, client, given, wanted)
    # A renewal of the old login that is under way must not overwrite the new one.
    async with renewing(store.folder, key):
        return await anyio.to_thread.run_sync(store.put, grant)


async def log_out(spec: ServerSpec, *, store: TokenStore) -> LoggedOut | None:
    """Forget a server's login, and tell its authorization server, if that can be told; None if there was none."""
    seen = await anyio.to_thread.run_sync(store.of, canonical(spec.url))
    if seen is None:
        return None
    async with renewing(store.folder, seen.key):
        # It may have been renewed while we waited: what is taken back is what there is now.
        grant = await anyio.to_thread.run_sync(store.get, seen.key) or seen
        await anyio.to_thread.run_sync(store.remove, grant.key)
    token, plain_http = grant.refresh_token or grant.access_token, spec.allow_plain_http
    revoked = await revoke(grant.revocation_endpoint, token, client=grant.client, allow_plain_http=plain_http)
    return LoggedOut(grant=grant, revoked=revoked)


async def _challenge(spec: ServerSpec) -> Challenge | None:
    """What the server says to somebody without a login: it is dialed as it always is. None if it lets us in."""
    redactor = Redactor(spec.secrets)
    try:
        async with (
            Warden() as warden,
            Dialer(warden=warden, limits=Limits()).connect(spec, within=DIAL_SECONDS, redactor=redactor),
        ):
            return None  # some say only in their metadata what more a login brings
    except ServerFailure as failure:
        seen = failure.evidence
    if isinstance(seen, HttpStatus) and seen.status in (401, 403):
        return read_challenge(seen.headers.get("www-authenticate", ""))
    verdict = classify(masked(seen, redactor))
    raise LoginFailed(f"the server `{spec.id}` cannot be asked how to log in: {verdict.reason}", hint=verdict.hint)


def _scope(spec: ServerSpec, found: Discovered, before: Grant | None, more: tuple[str, ...]) -> tuple[str, ...]:
    """What was granted before stays; what is new is what the server, the definition or the person names."""
    granted = scopes_in(before.scope) if before is not None else ()
    wanted = dict.fromkeys((*granted, *(spec.oauth.scope or found.scopes), *more))
    if wanted and "offline_access" in found.server.scopes:
        wanted["offline_access"] = None
    return tuple(wanted)


async def _by_browser(login: _Login, found: Discovered, scope: tuple[str, ...]) -> tuple[Client, Given]:
    """Authorization code with PKCE: the browser comes back to us, or the person pastes where it ended up."""
    async with AsyncExitStack() as stack:
        oauth = login.spec.oauth
        known = known_client(oauth, found.server, login.store.grants(), login.now())
        wanted = (known.redirect_uri if known is not None else oauth.redirect_uri) or ""
        ways: list[Callable[[], Awaitable[str]]] = [login.person.paste]
        redirect, place = wanted or NOT_HERE, None
        if login.how != "paste":
            known, place = await _place(stack, known, wanted, oauth.redirect_uri or "")
            ways, redirect = [login.person.paste, place.answer], place.redirect_uri
        client = known or await identify(found.server, redirect_uri=redirect, scope=" ".join(scope))
        asked = question(found.server, client, resource=found.resource, scope=scope, redirect_uri=redirect)
        if place is not None:
            place.expect(asked.state)
        login.person.visit(asked.url)
        code = code_in(answer_in(await _first(ways)), asked)
    return client, await _exchange(login, found, client, asked, code)


async def _place(
    stack: AsyncExitStack, known: Client | None, wanted: str, otherwise: str
) -> tuple[Client | None, Loopback]:
    """Listen where the client is registered to be sent back to; one registered on the spot can move."""
    try:
        return known, await stack.enter_async_context(listening(wanted))
    except LoginFailed:
        if known is None or known.origin != "registered":
            raise
    return None, await stack.enter_async_context(listening(otherwise))


async def _first(ways: Sequence[Callable[[], Awaitable[str]]]) -> str:
    """The answer of whichever of these has one first."""
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


async def _exchange(login: _Login, found: Discovered, client: Client, asked: Question, code: str) -> Given:
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": asked.redirect_uri,
        "code_verifier": asked.verifier,
        "resource": found.resource,
    }
    try:
        plain_http = login.spec.allow_plain_http
        return await request_tokens(found.server.token_endpoint, form, client=client, allow_plain_http=plain_http)
    except Refused as exc:
        if exc.code in FORGOTTEN:
            await _forget_client(login, client)
        raise LoginFailed(f"the authorization server gave no token ({exc})", hint=_cure(exc, client)) from None
    except Unanswered as exc:
        raise LoginFailed(f"the authorization server gave no token: {exc.reason}", hint="log in again") from None


async def _forget_client(login: _Login, client: Client) -> None:
    """A registration that the authorization server does not know any more is not used for another login.

    The logins that were made with it stand until they are refused themselves.
    """
    store, ended = login.store, replace(client, expires_at=login.now())
    for key in [grant.key for grant in await anyio.to_thread.run_sync(store.grants) if grant.client == client]:
        async with renewing(store.folder, key):
            grant = await anyio.to_thread.run_sync(store.get, key)
            if grant is not None and grant.client == client:
                await anyio.to_thread.run_sync(store.put, replace(grant, client=ended))


def _cure(exc: Refused, client: Client) -> str:
    if exc.code in FORGOTTEN:
        return "check `oauth.clientId` and `oauth.clientSecret`" if client.origin == "configured" else "log in again"
    return "log in again"


async def _by_device(login: _Login, found: Discovered, scope: tuple[str, ...]) -> tuple[Client, Given]:
    known = known_client(login.spec.oauth, found.server, login.store.grants(), login.now())
    redirect = login.spec.oauth.redirect_uri or NOT_HERE
    client = known or await identify(found.server, redirect_uri=redirect, scope=" ".join(scope))
    code = await ask_for_code(found.server, client, resource=found.resource, scope=scope, spec=login.spec)
    login.person.enter(code)
    return client, await wait_for_tokens(
        found.server, client, code, resource=found.resource, allow_plain_http=login.spec.allow_plain_http
    )


def _grant(login: _Login, found: Discovered, client: Client, given: Given, wanted: tuple[str, ...]) -> Grant:
    return Grant(
        issuer=found.server.issuer,
        resource=found.resource,
        servers=(canonical(login.spec.url),),
        client=client,
        token_endpoint=found.server.token_endpoint,
        revocation_endpoint=found.server.revocation_endpoint,
        access_token=given.access_token,
        refresh_token=given.refresh_token,
        scope=given.scope or " ".join(wanted),
        expires_at=given.expires_at(login.now()),
        login=secrets.token_hex(8),
    )
