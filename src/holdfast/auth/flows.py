"""The two login flows: authorization code with PKCE, and the device flow (RFC 8628).

The authorization code comes back to a listener on this machine, which takes one answer from a browser. Any program on
this machine can send requests to it: one without the expected ``state`` is refused. Every answer is checked before a
code is taken from it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.client.auth import PKCEParameters

from holdfast.auth.discovery import DEVICE_GRANT, AuthorizationServer
from holdfast.auth.token_endpoint import (
    IssuedTokens,
    NoTokenAnswer,
    OAuthClient,
    TokenRefused,
    issued,
    may_lead_to,
    post_as_accepted,
    post_form,
    seconds_in,
)
from holdfast.config import ServerSpec
from holdfast.core import is_loopback, plain, quoted, quoted_name
from holdfast.errors import LoginFailed

__all__ = [
    "DEFAULT_PATH",
    "AuthorizationRequest",
    "DeviceCode",
    "RedirectListener",
    "answer_in",
    "ask_for_code",
    "authorization_request",
    "code_in",
    "redirect_listener",
    "wait_for_tokens",
]


@dataclass(frozen=True, kw_only=True)
class AuthorizationRequest:
    """One authorization request: the address for the browser, the state that the answer must have, and the verifier."""

    url: str = field(repr=False)
    state: str = field(repr=False)
    verifier: str = field(repr=False)


def authorization_request(
    server: AuthorizationServer,
    client: OAuthClient,
    *,
    resource: str,
    scope: Sequence[str],
    redirect_uri: str,
    more: Mapping[str, str] | None = None,
) -> AuthorizationRequest:
    """A new authorization request, with a state and a verifier of its own, and with ``more`` fields."""
    if not server.authorization_endpoint:
        raise LoginFailed(
            f"the authorization server {server.issuer} has no page to log in at",
            hint="use `--device`" if server.device_authorization_endpoint else "",
        )
    pkce, state = PKCEParameters.generate(), secrets.token_urlsafe(32)
    fields = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": pkce.code_challenge,
        "code_challenge_method": "S256",
        **(more or {}),
    }
    if resource:
        fields["resource"] = resource
    if scope:
        fields["scope"] = " ".join(scope)
    if "offline_access" in scope:
        fields["prompt"] = "consent"  # OpenID Connect gives no refresh token without it
    return AuthorizationRequest(
        url=_with_query(server.authorization_endpoint, fields), state=state, verifier=pkce.code_verifier
    )


def answer_in(address: str) -> dict[str, str]:
    """The parameters in the address that a browser ended up at; none, if it is no address."""
    try:
        return dict(parse_qsl(urlsplit(address.strip()).query))
    except ValueError:
        return {}


def code_in(answer: Mapping[str, str], *, server: AuthorizationServer, state: str) -> str:
    """The code, if the answer belongs to our request with this state, and to its issuer. Raises ``LoginFailed``."""
    if not answer:
        raise LoginFailed(
            "that address contains no answer",
            hint="paste the whole address that the browser ended up at after the login, with all that follows the `?`",
        )
    # The state first, before anything else in the answer is believed, an error too: any page can open this address.
    if not secrets.compare_digest(answer.get("state", "").encode(), state.encode()):
        raise LoginFailed(
            "the browser returned an answer to another request (its `state` is not ours): Holdfast ignored it",
            hint="log in again, and use only the page that it opens. If it happens again, do not trust the server",
        )
    _check_issuer(answer.get("iss"), server)
    if "error" in answer:
        raise _refusal(answer)
    code = answer.get("code", "")
    if not code:
        raise LoginFailed("the browser returned an answer without a code", hint="log in again")
    return code


def _check_issuer(issuer: str | None, asked: AuthorizationServer) -> None:
    """RFC 9207: an answer by another authorization server than the one asked is an attack."""
    if issuer is None and not asked.names_itself:
        return
    if issuer != asked.issuer:
        by = f"by {quoted_name(issuer, 200, ticks=True)}" if issuer is not None else "without an issuer"
        raise LoginFailed(
            f"the answer came {by}, but `{asked.issuer}` was asked (its `iss` is wrong): Holdfast ignored it",
            hint="this can be an attack. Do not try again before the server's operator has checked it",
        )


def _refusal(answer: Mapping[str, str]) -> LoginFailed:
    said = quoted(answer.get("error_description", ""))
    if answer["error"] == "access_denied":
        return LoginFailed(f"access was denied{f': {said}' if said else ', at the page that asked for it'}")
    hint = ""
    if answer["error"] == "invalid_scope":
        hint = "name the scopes that it knows in `oauth.scope`; a logout forgets those of an earlier login"
    code = quoted_name(answer["error"], ticks=True)
    return LoginFailed(f"the authorization server answered {code}{f': {said}' if said else ''}", hint=hint)


def _with_query(url: str, fields: Mapping[str, str]) -> str:
    parts = urlsplit(url)
    query = "&".join(part for part in (parts.query, urlencode(fields)) if part)
    return urlunsplit(parts._replace(query=query, fragment=""))


INTERVAL = 5.0
"""The default seconds between two polls, and what ``slow_down`` adds (RFC 8628, 3.2 and 3.5)."""

SHORTEST_INTERVAL = 1.0

_DEVICE_REFUSALS = {
    "access_denied": "access was denied, at the page that asked for the code",
    "expired_token": "the code was not entered in time",
}


@dataclass(frozen=True, kw_only=True)
class DeviceCode:
    """The code for the person, and the code for our polls."""

    user_code: str
    address: str
    """Where to enter it."""
    complete_address: str = ""
    """The same address with the code in it, if there is one."""
    expires_in: float
    interval: float
    device_code: str = field(repr=False)


async def ask_for_code(
    server: AuthorizationServer, client: OAuthClient, *, resource: str, scope: Sequence[str], spec: ServerSpec
) -> tuple[OAuthClient, DeviceCode]:
    """Begin a device login; returns the client as the server accepted it, and the code. Raises ``LoginFailed``."""
    endpoint = server.device_authorization_endpoint
    if not endpoint:
        raise LoginFailed(
            f"the authorization server {server.issuer} has no device login",
            hint="use `--paste` on a machine without a browser; or write its address, if you know it, into"
            ' the server\'s definition: "oauth": {"deviceAuthorizationUrl": "…"}',
        )
    form = {"scope": " ".join(scope), "resource": resource}
    try:
        client, fields = await post_as_accepted(
            endpoint,
            form,
            client=client,
            methods=server.methods,
            token_endpoint=server.token_endpoint,
            allow_plain_http=spec.allow_plain_http,
        )
    except (TokenRefused, NoTokenAnswer) as exc:
        raise LoginFailed(f"the device login could not begin: {exc}") from None
    return client, _read(fields, server, spec)


async def wait_for_tokens(
    server: AuthorizationServer,
    client: OAuthClient,
    code: DeviceCode,
    *,
    resource: str,
    allow_plain_http: bool = False,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> IssuedTokens:
    """Poll until the person has decided or the code has expired. Raises ``LoginFailed``."""
    form = {"grant_type": DEVICE_GRANT, "device_code": code.device_code, "resource": resource}
    pause, waited = code.interval, 0.0
    while waited < code.expires_in:
        await sleep(pause)
        waited += pause
        try:
            return issued(
                await post_form(server.token_endpoint, form, client=client, allow_plain_http=allow_plain_http)
            )
        except NoTokenAnswer:
            pause = min(pause * 2, 60.0)  # an outage for a moment: the code is valid for longer
        except TokenRefused as exc:
            if exc.code == "slow_down":
                # RFC 8628 demands five seconds more, for all polls that follow.
                pause += INTERVAL
            elif exc.code != "authorization_pending":
                said = _DEVICE_REFUSALS.get(exc.code, f"the authorization server issued no token ({exc})")
                raise LoginFailed(said) from None
    raise LoginFailed("the code was not entered in time", hint="log in again for a new one")


def _read(fields: dict[str, Any], server: AuthorizationServer, spec: ServerSpec) -> DeviceCode:
    device_code, user_code = fields.get("device_code"), fields.get("user_code")
    address = fields.get("verification_uri") or fields.get("verification_url")
    if not isinstance(device_code, str) or not isinstance(user_code, str) or not isinstance(address, str):
        raise LoginFailed(f"the authorization server {server.issuer} sent an incomplete device authorization")
    if not may_lead_to(address, spec):
        raise LoginFailed(f"the authorization server {server.issuer} sends people to an unencrypted address")
    complete = fields.get("verification_uri_complete")
    whole = complete if isinstance(complete, str) and may_lead_to(complete, spec) else ""
    return DeviceCode(
        user_code=plain(user_code)[:80],
        address=plain(address)[:500],
        complete_address=plain(whole)[:500],
        expires_in=seconds_in(fields.get("expires_in")) or 600.0,
        interval=max(seconds_in(fields.get("interval")) or INTERVAL, SHORTEST_INTERVAL),
        device_code=device_code,
    )


DEFAULT_PATH = "/callback"
LONGEST_REQUEST = 32 * 1024
REQUEST_SECONDS = 10.0

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Holdfast</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:32rem;margin:20vh auto;padding:0 1rem;color:#222}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}}</style></head>
<body><h1>Back to the terminal</h1><p>Holdfast has the answer. The terminal says whether the login succeeded.
You can close this page.</p></body></html>"""

_NOT_ASKED = "This is not the answer to the login that Holdfast waits for."


class RedirectListener:
    """The listener that the browser returns to."""

    def __init__(self, redirect_uri: str) -> None:
        self.redirect_uri = redirect_uri
        self._path = urlsplit(redirect_uri).path or "/"
        self._state = ""
        self._address = ""
        self._came = anyio.Event()

    def expect(self, state: str) -> None:
        """Accept only the answer with this state."""
        self._state = state

    async def answer(self) -> str:
        """Wait for the browser; returns the address that it requested."""
        await self._came.wait()
        return self._address

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        """Serve one request of one browser."""
        async with stream:
            with anyio.move_on_after(REQUEST_SECONDS):
                await self._serve(stream)

    async def _serve(self, stream: anyio.abc.SocketStream) -> None:
        try:
            head = await BufferedByteReceiveStream(stream).receive_until(b"\r\n\r\n", LONGEST_REQUEST)
            method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        except (
            anyio.EndOfStream,
            anyio.IncompleteRead,
            anyio.DelimiterNotFound,
            anyio.BrokenResourceError,
            ValueError,
        ):
            return  # not a browser
        status, page = self._reply(method, target)
        with suppress(anyio.BrokenResourceError):  # the browser has closed the connection, but its answer came
            await stream.send(_response(status, page))
        # The first answer counts. A browser may load the page again.
        if page == _PAGE and not self._came.is_set():
            self._address = target
            self._came.set()

    def _reply(self, method: str, target: str) -> tuple[str, str]:
        try:
            parts = urlsplit(target)
        except ValueError:
            return "404 Not Found", ""
        if method != "GET" or parts.path != self._path or not parts.query:
            return "404 Not Found", ""
        state = dict(parse_qsl(parts.query)).get("state", "")
        # Compared here too: a wrong answer must not end the wait for the right one.
        if not self._state or not secrets.compare_digest(state.encode(), self._state.encode()):
            return "400 Bad Request", _NOT_ASKED
        return "200 OK", _PAGE


@asynccontextmanager
async def redirect_listener(redirect_uri: str = "") -> AsyncIterator[RedirectListener]:
    """Listen at a redirect URI on this machine, or at any free port if none is given."""
    parts = urlsplit(redirect_uri or f"http://127.0.0.1:0{DEFAULT_PATH}")
    host = parts.hostname or ""
    if parts.scheme != "http" or not is_loopback(host):
        raise LoginFailed(
            f"the redirect URI {redirect_uri} is not on this machine",
            hint="use `--paste`, or a redirect URI like http://localhost:8765/callback",
        )
    try:
        # Of `localhost` all addresses: a browser may use either.
        listener = await anyio.create_tcp_listener(
            local_host=host, local_port=parts.port if parts.port is not None else 80
        )
    except OSError as exc:
        raise LoginFailed(
            f"Holdfast cannot listen at {redirect_uri}: {exc.strerror or exc}",
            hint="another program may use that port: end it, or use `--paste`",
        ) from exc
    port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - no database is near
    place = RedirectListener(redirect_uri or f"http://127.0.0.1:{port}{DEFAULT_PATH}")
    tasks = await anyio.create_task_group().__aenter__()
    try:
        tasks.start_soon(listener.serve, place.serve)
        yield place
    finally:
        tasks.cancel_scope.cancel()
        try:
            # No exception is passed in: a task group would wrap it, and callers check its type.
            await tasks.__aexit__(None, None, None)
        finally:
            with anyio.CancelScope(shield=True):  # a caller that is cancelled now would leave sockets open
                await listener.aclose()


def _response(status: str, page: str) -> bytes:
    body = page.encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
