"""The token endpoint: requests, client authentication, and the meaning of its answers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from pydantic_core import from_json

from holdfast.auth.addresses import is_safe
from holdfast.auth.grant import OAuthClient
from holdfast.core import Redactor, classify_evidence, quoted, quoted_name, scopes_in
from holdfast.errors import ServerFailure
from holdfast.wire import HttpAnswer, exchange

__all__ = [
    "ANSWER_SECONDS",
    "IssuedTokens",
    "NoTokenAnswer",
    "TokenRefused",
    "document",
    "post_form",
    "request_tokens",
    "revoke",
]

ANSWER_SECONDS = 10.0
"""How long an authorization server may take to answer."""

_PASSING = frozenset({"temporarily_unavailable", "server_error"})
"""The errors for "I cannot answer now"."""

_FINAL = frozenset(
    {
        "invalid_client",
        "invalid_grant",
        "invalid_request",
        "invalid_scope",
        "unauthorized_client",
        "unsupported_grant_type",
    }
)
"""The errors for a refusal (RFC 6749, 5.2)."""


class NoTokenAnswer(Exception):
    """The authorization server did not answer, or gave no decision: a retry can help."""

    def __init__(self, reason: str, *, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


class TokenRefused(Exception):
    """The authorization server refused."""

    def __init__(self, code: str, description: str = "", *, status: int = 200) -> None:
        super().__init__(
            f"{quoted_name(code, ticks=True)}: {quoted(description)}" if description else quoted_name(code, ticks=True)
        )
        self.code = code
        self.description = description
        self.status = status

    @property
    def final(self) -> bool:
        """Whether a retry cannot help. A proxy that answers in its place uses other codes."""
        return self.status in (400, 401) and self.code in _FINAL


@dataclass(frozen=True, kw_only=True)
class IssuedTokens:
    """Tokens as the endpoint issued them."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    scope: str = ""
    expires_in: float | None = None

    def expires_at(self, now: float) -> float | None:
        """When the access token ends."""
        return now + self.expires_in if self.expires_in is not None else None


async def request_tokens(
    endpoint: str,
    form: Mapping[str, str],
    *,
    client: OAuthClient,
    allow_plain_http: bool = False,
    on_sending: Callable[[], None] | None = None,
) -> IssuedTokens:
    """Request tokens. Raises ``TokenRefused`` or ``NoTokenAnswer``."""
    fields = await post_form(endpoint, form, client=client, allow_plain_http=allow_plain_http, on_sending=on_sending)
    token, kind = fields.get("access_token"), fields.get("token_type", "bearer")
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise NoTokenAnswer("its answer contains no access token")
    if str(kind).lower() != "bearer":
        raise TokenRefused("unsupported_token_type", "it issues tokens that are not Bearer tokens")
    refresh = fields.get("refresh_token")
    return IssuedTokens(
        access_token=token,
        refresh_token=refresh if isinstance(refresh, str) and refresh else None,
        scope=" ".join(scopes_in(str(fields.get("scope") or ""))),
        expires_in=_seconds(fields.get("expires_in")),
    )


async def post_form(
    endpoint: str,
    form: Mapping[str, str],
    *,
    client: OAuthClient,
    allow_plain_http: bool = False,
    on_sending: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """POST a form to an authorization server as ``client``; returns the JSON object of its answer."""
    if not is_safe(endpoint, allow_plain_http=allow_plain_http):
        raise NoTokenAnswer("the authorization server has an unencrypted address, so Holdfast sends it nothing")
    fields, headers = _as_client(client, {name: value for name, value in form.items() if value})
    answer = await _post(endpoint, fields, headers, on_sending)
    return _meaning(answer, Redactor([*fields.values(), *headers.values()]))


async def revoke(endpoint: str, token: str, *, client: OAuthClient, allow_plain_http: bool = False) -> bool:
    """Revoke a token (RFC 7009); returns whether the authorization server confirmed it."""
    if not is_safe(endpoint, allow_plain_http=allow_plain_http):
        return False
    fields, headers = _as_client(client, {"token": token})
    try:
        return (await _post(endpoint, fields, headers)).status == 200
    except NoTokenAnswer:
        return False


def document(body: bytes) -> dict[str, Any] | None:
    """A JSON object; None for anything else."""
    try:
        parsed = from_json(body)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _as_client(client: OAuthClient, form: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The form and the headers that authenticate a client (RFC 6749, 2.3.1)."""
    if client.method == "client_secret_basic" and client.secret:
        pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
        return dict(form), {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    fields = {**form, "client_id": client.id}
    if client.method == "client_secret_post" and client.secret:
        fields["client_secret"] = client.secret
    return fields, {}


async def _post(
    endpoint: str,
    fields: Mapping[str, str],
    headers: Mapping[str, str],
    on_sending: Callable[[], None] | None = None,
) -> HttpAnswer:
    kinds = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
    try:
        return await exchange(
            "POST",
            endpoint,
            headers={**headers, **kinds},
            content=urlencode(fields).encode(),
            doing="the authorization server's answer",
            within=ANSWER_SECONDS,
            on_sending=on_sending,
        )
    except ServerFailure as failure:
        raise NoTokenAnswer(f"the authorization server: {classify_evidence(failure.evidence).reason}") from failure


def _meaning(answer: HttpAnswer, redactor: Redactor) -> dict[str, Any]:
    fields = document(answer.body)
    if answer.status in (200, 201) and fields is not None and "error" not in fields:
        return fields
    error = fields.get("error") if fields is not None else None
    if not isinstance(error, str) or answer.status >= 500 or answer.status == 429 or error in _PASSING:
        raise NoTokenAnswer(f"the authorization server answered HTTP {answer.status}", retry_after=_retry_after(answer))
    description = str((fields or {}).get("error_description") or "")
    said = redactor.mask(" ".join(description[:2_000].split()))[:200]
    raise TokenRefused(redactor.mask(error[:200])[:80], said, status=answer.status)


def _retry_after(answer: HttpAnswer) -> float | None:
    value = answer.headers.get("retry-after", "").strip()
    return float(value[:9]) if value.isascii() and value.isdigit() else None


def _seconds(value: object) -> float | None:
    """``expires_in``, also as a text; None for an invalid value."""
    try:
        seconds = float(value)  # type: ignore[arg-type]  # the value can be of any type
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds < 10**10 else None
