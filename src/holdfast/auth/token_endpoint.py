"""The token endpoint: requests, client authentication, and the meaning of its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from pydantic_core import from_json

from holdfast.auth.addresses import is_safe
from holdfast.auth.client_authentication import as_client, variants
from holdfast.auth.grant import OAuthClient
from holdfast.core import Redactor, classify_evidence, quoted, quoted_name, scopes_in
from holdfast.errors import ServerFailure
from holdfast.wire import HttpAnswer, exchange

__all__ = [
    "ANSWER_SECONDS",
    "UNKNOWN_CLIENT",
    "IssuedTokens",
    "NoTokenAnswer",
    "TokenRefused",
    "as_accepted",
    "document",
    "post_form",
    "request_tokens",
    "revoke",
    "seconds_in",
]

ANSWER_SECONDS = 10.0
"""How long an authorization server may take to answer."""

_PASSING = frozenset({"temporarily_unavailable", "server_error"})
"""The errors for "I cannot answer now"."""

UNKNOWN_CLIENT = frozenset(
    {"invalid_client", "unauthorized_client", "incorrect_client_credentials", "bad_client_secret", "invalid_client_id"}
)
"""The errors for a client that is not known, or did not prove who it is. The last three are GitHub's and Slack's."""

_FINAL = UNKNOWN_CLIENT | {
    "bad_refresh_token",
    "invalid_grant",
    "invalid_refresh_token",
    "invalid_request",
    "invalid_scope",
    "unsupported_grant_type",
}
"""The errors for a refusal (RFC 6749, 5.2), and GitHub's and Slack's words for a refresh token that is not valid."""

_PROVEN = frozenset({"dpop", "mac", "pop", "n_a"})
"""The kinds of tokens that are worth nothing without a proof. Every other kind is sent as a Bearer token: Slack calls
its own `user`."""

_SECRET_FIELDS = (
    "client_assertion",
    "client_secret",
    "code",
    "code_verifier",
    "device_code",
    "refresh_token",
)
"""What an answer must not repeat to a person. The other fields are words, which an error may be made of."""

T = TypeVar("T")


class NoTokenAnswer(Exception):
    """The authorization server did not answer, or gave no decision: a retry can help."""

    def __init__(self, reason: str, *, retry_after: float | None = None, status: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.status = status

    @property
    def unproven(self) -> bool:
        """Whether the client's proof of who it is can be the reason."""
        return self.status == 401


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
        """Whether a retry cannot help. GitHub and Slack refuse with 200; a proxy in the server's place does not."""
        return self.status in (200, 400, 401) and self.code in _FINAL

    @property
    def unproven(self) -> bool:
        """Whether the client's proof of who it is can be the reason."""
        return self.code in UNKNOWN_CLIENT or self.code == "invalid_request"


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
    token, kind = fields.get("access_token"), str(fields.get("token_type") or "bearer")
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise NoTokenAnswer("its answer contains no access token")
    if kind.lower() in _PROVEN:
        raise TokenRefused("unsupported_token_type", f"it issues {kind} tokens, which are not Bearer tokens")
    refresh = fields.get("refresh_token")
    return IssuedTokens(
        access_token=token,
        refresh_token=refresh if isinstance(refresh, str) and refresh else None,
        scope=_scope(fields.get("scope")),
        expires_in=seconds_in(fields.get("expires_in")),
    )


async def as_accepted(
    client: OAuthClient, methods: Sequence[str], endpoint: str, ask: Callable[[OAuthClient], Awaitable[T]]
) -> tuple[OAuthClient, T]:
    """Ask as this client, by each method that its credential allows, until the server accepts one.

    ``methods`` are those that the server names. Returns the client with the method that was accepted; raises the
    refusal of the first method if none was.
    """
    first: TokenRefused | NoTokenAnswer | None = None
    for one in variants(client, methods, endpoint):
        try:
            return one, await ask(one)
        except (TokenRefused, NoTokenAnswer) as exc:
            if not exc.unproven:
                raise
            first = first or exc
    raise first or AssertionError("a client has one method at least")


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
    fields, headers = as_client(client, {name: value for name, value in form.items() if value})
    answer = await _post(endpoint, fields, headers, on_sending)
    return _meaning(answer, Redactor([fields.get(name, "") for name in _SECRET_FIELDS] + [*headers.values()]))


async def revoke(endpoint: str, token: str, *, client: OAuthClient, allow_plain_http: bool = False) -> bool:
    """Revoke a token (RFC 7009); returns whether the authorization server confirmed it."""
    if not is_safe(endpoint, allow_plain_http=allow_plain_http):
        return False
    fields, headers = as_client(client, {"token": token})
    # The Python SDK's server demands a field `client_secret` here, from every client and with every method.
    for form in (fields, {**fields, "client_secret": client.secret or ""}):
        try:
            if (await _post(endpoint, form, headers)).status == 200:
                return True
        except NoTokenAnswer:
            return False
    return False


def document(body: bytes) -> dict[str, Any] | None:
    """A JSON object; None for anything else."""
    try:
        parsed = from_json(body)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


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
    fields = document(answer.body) or _form(answer) or {}
    error, description = fields.get("error"), fields.get("error_description")
    if isinstance(error, dict):  # the errors of some web frameworks
        description = description or error.get("message")
        error = error.get("code") or error.get("type")
    if answer.status in (200, 201) and fields and not error:
        return fields
    decided = isinstance(error, str) and error and error not in _PASSING
    if not decided or answer.status >= 500 or answer.status == 429:
        raise NoTokenAnswer(
            f"the authorization server answered HTTP {answer.status}",
            retry_after=_retry_after(answer),
            status=answer.status,
        )
    said = redactor.mask(" ".join(str(description or "")[:2_000].split()))[:200]
    raise TokenRefused(redactor.mask(str(error)[:200])[:80], said, status=answer.status)


def _form(answer: HttpAnswer) -> dict[str, Any] | None:
    """The fields of a form: GitHub answers with one where it does not read ``Accept``."""
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/x-www-form-urlencoded", "text/plain"):
        return None
    try:
        return dict(parse_qsl(answer.body.decode(), max_num_fields=100))
    except ValueError:
        return None


def _scope(value: object) -> str:
    """The granted scope; some servers answer with a list."""
    text = " ".join(str(one) for one in value) if isinstance(value, list) else str(value or "")
    return " ".join(scopes_in(text))


def _retry_after(answer: HttpAnswer) -> float | None:
    value = answer.headers.get("retry-after", "").strip()
    return float(value[:9]) if value.isascii() and value.isdigit() else None


def seconds_in(value: object) -> float | None:
    """A number of seconds, also as a text; None for an invalid one, and for 0, which some servers send for no end."""
    try:
        seconds = float(value)  # type: ignore[arg-type]  # the value can be of any type
    except (TypeError, ValueError):
        return None
    return seconds if 0 < seconds < 10**10 else None
