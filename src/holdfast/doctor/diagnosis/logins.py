"""Findings for a server that needs a login, with all values that the definition lacks for it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anyio
import anyio.to_thread

from holdfast.auth.discovery import AuthorizationServer, discover
from holdfast.auth.identity import known_client
from holdfast.core.challenge import Challenge
from holdfast.core.evidence import Login, LoginState
from holdfast.doctor.case import Case
from holdfast.doctor.findings import Finding, finding, shell
from holdfast.errors import LoginFailed

__all__ = ["login_scope", "login_wanted"]

ASKING_SECONDS = 5.0
"""The longest time for login discovery in seconds; the server's own deadline may end earlier."""

REDIRECT = "http://localhost:8765/callback"
"""A redirect URI that a native app can register."""


async def login_wanted(case: Case, challenge: Challenge, login: Login) -> Finding:
    """The finding for a server that needs a login, or does not accept the present one."""
    match login.state:
        case LoginState.NONE:
            return await _first_login(case, challenge, login)
        case LoginState.GOOD:
            words = "the server does not accept the login (HTTP 401)"
            return finding("HF-AUTH-REJECTED", words, "log in again", login.command)
        case LoginState.EXPIRED | LoginState.REFUSED:
            words = f"its login has ended (HTTP 401): {case.learned.login_ended or 'it cannot be renewed'}"
            return finding("HF-LOGIN-ENDED", words, "log in again", login.command)


def login_scope(challenge: Challenge, login: Login) -> Finding:
    """The finding for a valid login that lacks a scope."""
    wanted = " ".join(challenge.scope)
    words = f"its login lacks {f'the scope `{wanted}`' if wanted else 'a scope'}, which the server requires"
    command = f"{login.command} {shell('--scope', wanted)}" if wanted else login.command
    return finding("HF-AUTH-SCOPE", words, "log in again with that scope; scopes granted before are kept", command)


async def _first_login(case: Case, challenge: Challenge, login: Login) -> Finding:
    words = "the server asks for a login, and there is none (HTTP 401)"
    server: AuthorizationServer | None = None
    with anyio.move_on_after(min(ASKING_SECONDS, case.left)):
        try:
            server = (await discover(case.spec, challenge)).server
        except LoginFailed as exc:
            # Without the quotes, so that the placeholder is not masked as a value.
            text = exc.hint.replace('"…"', "…") or "ask the server's operator how to log in, then log in"
            return finding("HF-AUTH-NEEDED", f"{words}; {exc.message}", text, login.command)
    missing = dict(await _missing_inputs(case, server)) if server is not None else {}
    if not missing:
        return finding("HF-AUTH-NEEDED", words, "log in", login.command)
    named = ", ".join(f"`oauth.{key}`" for key in missing)
    words = f"the server asks for a login, and its definition lacks {named}"
    text = "ask the operator of the authorization server for them, write them into the definition, then log in"
    edits = tuple(case.edit(f"oauth.{key}", example) for key, example in missing.items())
    return finding("HF-LOGIN-INPUT", words, text, login.command, edits=edits)


async def _missing_inputs(case: Case, server: AuthorizationServer) -> list[tuple[str, str]]:
    """The missing keys of ``oauth`` that discovery cannot find, each with an example."""
    grants = await anyio.to_thread.run_sync(case.tools.logins.store.grants, abandon_on_cancel=True)
    known = known_client(case.spec.oauth, server, grants, time.time()) is not None
    return list(_inputs(case, server, registers=known or bool(server.registration_endpoint)))


def _inputs(case: Case, server: AuthorizationServer, *, registers: bool) -> Iterator[tuple[str, str]]:
    oauth = case.spec.oauth
    if not registers:
        yield "clientId", "the id that Holdfast was registered with"
        if oauth.redirect_uri is None and server.authorization_endpoint:
            yield "redirectUri", REDIRECT
    if not server.authorization_endpoint and not server.device_authorization_endpoint:
        yield "authorizationUrl", f"{server.issuer}/authorize"
        yield "deviceAuthorizationUrl", f"{server.issuer}/device"
