"""The device flow (RFC 8628): a code that a person enters in any browser, on any machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from holdfast.auth.addresses import may_lead_to
from holdfast.auth.discovery import AuthorizationServer
from holdfast.auth.grant import OAuthClient
from holdfast.auth.identity import DEVICE_GRANT
from holdfast.auth.tokens import IssuedTokens, NoTokenAnswer, TokenRefused, post_form, request_tokens
from holdfast.config.spec import ServerSpec
from holdfast.core.redact import plain
from holdfast.errors import LoginFailed

__all__ = ["DeviceCode", "ask_for_code", "wait_for_tokens"]

INTERVAL = 5.0
"""The default seconds between two polls, and what ``slow_down`` adds (RFC 8628, 3.2 and 3.5)."""

SHORTEST_INTERVAL = 1.0


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
) -> DeviceCode:
    """Begin a device login. Raises ``LoginFailed``."""
    endpoint = server.device_authorization_endpoint
    if not endpoint:
        raise LoginFailed(
            f"the authorization server {server.issuer} has no device login",
            hint="use `--paste` on a machine without a browser; or write its address, if you know it, into"
            ' the server\'s definition: "oauth": {"deviceAuthorizationUrl": "…"}',
        )
    form = {"scope": " ".join(scope), "resource": resource, "client_id": client.id}
    try:
        fields = await post_form(endpoint, form, client=client, allow_plain_http=spec.allow_plain_http)
    except (TokenRefused, NoTokenAnswer) as exc:
        raise LoginFailed(f"the device login could not begin: {exc}") from None
    return _read(fields, server, spec)


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
            return await request_tokens(server.token_endpoint, form, client=client, allow_plain_http=allow_plain_http)
        except NoTokenAnswer:
            pause = min(pause * 2, 60.0)  # an outage for a moment: the code is valid for longer
        except TokenRefused as exc:
            if exc.code == "slow_down":
                pause += INTERVAL
            elif exc.code != "authorization_pending":
                raise LoginFailed(*_words(exc)) from None
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
        expires_in=_number(fields.get("expires_in"), 600.0),
        interval=max(_number(fields.get("interval"), INTERVAL), SHORTEST_INTERVAL),
        device_code=device_code,
    )


def _words(exc: TokenRefused) -> tuple[str]:
    if exc.code == "access_denied":
        return ("access was denied, at the page that asked for the code",)
    if exc.code == "expired_token":
        return ("the code was not entered in time",)
    return (f"the authorization server issued no token ({exc})",)


def _number(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else default
