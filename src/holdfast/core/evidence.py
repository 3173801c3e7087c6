"""Evidence: what was seen when a server was dialed or called. Typed, frozen, without a verdict.

``wire/`` makes evidence where a fault happens; ``classify`` judges it. No field that decides a
verdict holds the URL, the server's id or the user's arguments. Texts for people (``detail``,
``stderr``, ``body``) are separate fields and are masked before they are shown.

A ``Challenge`` is what a server says in ``WWW-Authenticate``. The header may be hostile, and people
paste the commands that Holdfast prints. So a scope is accepted only if it has the characters that
RFC 6749 allows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from holdfast.core.forbidden import Statement
from holdfast.core.messages import FailureStatus

__all__ = [
    "BadConfig",
    "Challenge",
    "CommandFault",
    "CommandUnusable",
    "CredentialRefused",
    "CredentialsUnavailable",
    "Evidence",
    "HttpStatus",
    "Login",
    "LoginState",
    "NetworkFailure",
    "NetworkFault",
    "NotMcp",
    "NotMcpFault",
    "OutOfDescriptors",
    "OverBound",
    "PlainHttpRefused",
    "ProcessExit",
    "Redirected",
    "RpcError",
    "TimedOut",
    "TlsFailure",
    "TlsFault",
    "TokenNotRenewed",
    "ToldByHub",
    "Unexpected",
    "read_challenge",
    "scopes_in",
]


class LoginState(Enum):
    """The state of the login that a server's requests use."""

    NONE = "none"
    EXPIRED = "expired"
    REFUSED = "refused"
    GOOD = "good"
    EXCHANGED = "exchanged"


@dataclass(frozen=True, kw_only=True)
class Login:
    """A server that takes a login: the state of the login, and the command to type."""

    state: LoginState
    """``EXPIRED``: it expired and cannot be renewed. ``REFUSED``: the authorization server refuses to renew it.
    ``GOOD``: no fault is known. ``EXCHANGED``: the hub gets the token itself, and no login helps."""
    command: str
    """``holdfast login github``; empty where no login helps."""
    note: str = ""
    """Why no other credential of the user could be used, in words; empty where the server takes logins alone."""


@dataclass(frozen=True, kw_only=True)
class HttpStatus:
    """The server, or something before it, answered a request with an error status."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Lower-case names; only those that explain the refusal."""
    body: str = ""
    """The first 2 KiB, decoded leniently and masked."""
    stated: Statement | None = None
    """What the body of a 403 states, judged before it was masked and cut; None where ``body`` is as it came."""
    retry_after: float | None = None
    """Seconds from now, from ``Retry-After`` in either of its forms."""
    credentials_sent: bool = False
    """Whether the request carried configured headers: decides between "log in" and "your token was rejected"."""
    login: Login | None = None
    """The server's login; None where credentials come from its definition, or it takes no login."""


@dataclass(frozen=True, kw_only=True)
class RpcError:
    """The server answered a request that a load needs with a JSON-RPC error."""

    method: str
    code: int
    message: str = ""
    data: object = field(default=None, repr=False)
    """The error's data, for the caller."""


class NetworkFault(Enum):
    """How the network path to a server failed."""

    NAME_RESOLUTION = "name_resolution"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    RESET = "reset"
    CLOSED = "closed"
    PROXY_FAILED = "proxy_failed"
    """The proxy on the way could not connect to it; ``detail`` says what the proxy did."""
    PROXY_REFUSED = "proxy_refused"
    """The proxy on the way does not connect to it."""
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class NetworkFailure:
    """A connection could not be made, or broke."""

    fault: NetworkFault
    stood: bool = False
    """Whether this connection had been established before it failed."""
    sent: bool = True
    """Whether the request may have reached the server; False where it was never written whole."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class TimedOut:
    """A deadline passed."""

    doing: str
    """What it waited for, in words: ``the answer to initialize``."""
    after: float
    setting: str = "holdfast.load.attemptTimeout"
    """The key that gives it longer, as written in the config."""
    stderr: str = ""
    """The last line that a process wrote there while it started."""
    sent: bool = True
    """Whether the server may have got the request; it has not while a connection is waited for."""


class TlsFault(Enum):
    """What is wrong with a TLS peer."""

    UNKNOWN_CA = "unknown_ca"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    WRONG_NAME = "wrong_name"
    NOT_VERIFIED = "not_verified"
    HANDSHAKE = "handshake"
    CLIENT_CERTIFICATE = "client_certificate"
    """It demands a certificate of its client."""


@dataclass(frozen=True, kw_only=True)
class TlsFailure:
    """The TLS handshake failed, or the certificate does not verify."""

    fault: TlsFault
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Redirected:
    """The server redirected to another origin, or in a way that would lose the request; not followed."""

    status: int
    location: str
    """Without user info, query and fragment."""
    downgrade: bool = False
    """Whether it leads from https to plain http."""


@dataclass(frozen=True, kw_only=True)
class PlainHttpRefused:
    """Credentials were configured for a plain http address beyond loopback; nothing was sent."""


@dataclass(frozen=True, kw_only=True)
class CredentialsUnavailable:
    """The callable that gives this server's headers failed; nothing was sent."""

    type: str
    network: bool = False
    """Whether it failed on the network: then a retry can help."""


@dataclass(frozen=True, kw_only=True)
class TokenNotRenewed:
    """The server's access token has expired, and the authorization server did not renew it.

    The login is still valid: the next try may renew the token.
    """

    reason: str
    """Why, in words."""
    retry_after: float | None = None
    exchanged: bool = False
    """Whether it is a token that the hub gets for a user by an exchange, without a login."""


@dataclass(frozen=True, kw_only=True)
class CredentialRefused:
    """The authorization server that the configuration names gives a user no token for the server. It was not asked."""

    reason: str
    """Why, in words."""
    hint: str


@dataclass(frozen=True, kw_only=True)
class OutOfDescriptors:
    """The hub itself has no free file descriptor. It says nothing about the server."""

    limit: int
    """How many the process may have."""


class NotMcpFault(Enum):
    """How a peer showed that it does not speak MCP."""

    CONTENT_TYPE = "content_type"
    NOT_JSON = "not_json"
    NOT_JSONRPC = "not_jsonrpc"
    NO_ANSWER = "no_answer"
    BROKEN_HTTP = "broken_http"
    BAD_RESULT = "bad_result"
    VERSION = "version"
    NO_ENDPOINT = "no_endpoint"
    CURSOR_REPEATS = "cursor_repeats"


@dataclass(frozen=True, kw_only=True)
class NotMcp:
    """The peer's answer is not MCP."""

    fault: NotMcpFault
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class OverBound:
    """Something from the server was larger, longer or more frequent than allowed."""

    bound: str
    limit: int
    setting: str
    """The key that raises it, as written in the config; empty where it is fixed."""

    @property
    def hint(self) -> str:
        """What changes it."""
        if self.setting:
            return f"if you trust this server, raise `{self.setting}`"
        return "no setting raises it: ask the author of the server to send less at once"


class CommandFault(Enum):
    """Why a command could not be started."""

    NOT_FOUND = "not_found"
    NOT_EXECUTABLE = "not_executable"
    BAD_DIRECTORY = "bad_directory"
    IS_FOLDER = "is_folder"
    BAD_FORMAT = "bad_format"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class CommandUnusable:
    """A stdio server's process could not be started at all."""

    command: str
    fault: CommandFault
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class ProcessExit:
    """A stdio server's process ended while it was needed."""

    code: int
    """As the OS gives it: negative is the signal that killed it."""
    stood: bool = False
    """Whether the handshake had been completed."""
    heard: bool = False
    """Whether it had read a request before it ended: then that request may have ended it."""
    sent: bool = True
    """Whether the request may have reached the process; False where it was never written whole."""
    stderr: str = ""
    """The last lines that it wrote there."""
    recent: str | None = None
    """What of them it wrote in the last seconds before its end; None where that is not known."""
    noise: str = ""
    """The first lines on stdout that were not the protocol."""


@dataclass(frozen=True, kw_only=True)
class BadConfig:
    """The server's definition cannot be used."""

    problems: tuple[str, ...]
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class ToldByHub:
    """The server is behind another hub, and that hub says that it could not serve the request.

    The connection to that hub works. So this says nothing about the next request here: the hub that told it has the
    breaker and the lifecycle of the server.
    """

    status: FailureStatus
    reason: str
    hint: str = ""
    words: str = ""
    """The whole text for the caller, in the words of that hub."""
    refused: str = ""
    """The error of a request that was not sent to the server, by its name in ``holdfast.errors``; empty if it was."""
    state: str = ""
    """The state of the server there, if the request was not sent."""
    retry_in: float | None = None
    closed: bool = False
    """Whether the connection to the server died during the request."""
    sent: bool = False
    """Whether the server may have acted on the request."""


@dataclass(frozen=True, kw_only=True)
class Unexpected:
    """An unexpected exception: treated as a fault of Holdfast."""

    type: str
    detail: str = ""


Evidence: TypeAlias = (
    HttpStatus
    | RpcError
    | NetworkFailure
    | TimedOut
    | TlsFailure
    | Redirected
    | PlainHttpRefused
    | CredentialsUnavailable
    | TokenNotRenewed
    | CredentialRefused
    | OutOfDescriptors
    | NotMcp
    | OverBound
    | CommandUnusable
    | ProcessExit
    | BadConfig
    | ToldByHub
    | Unexpected
)


_SCHEME = re.compile(r"(?i)(?:^|[,\s])bearer(?:\s++|$)")
_NEXT_SCHEME = re.compile(r",\s*+[A-Za-z][\w-]*+\s++[\w-]++\s*+=|,\s*+[A-Za-z][\w-]*+\s*+$")
_FIELD = re.compile(r"(?<![\w-])([A-Za-z_][\w-]*+)\s*+=\s*+(?:\"((?:[^\"\\]|\\.)*+)\"|([^\s,\"]++))")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")

_DESCRIBED_SCOPE = re.compile(r"(?i)\brequired scopes?:\s*+(.*)")
"""Where the Python SDK's server names the scope: in the description, one scope, and nowhere else."""
_PLAIN_SCOPE = re.compile(r"[\w.:/@*+=~-]+", re.ASCII)

MOST_SCOPES = 50

LONGEST_PASTED = 1_000
"""How many characters of scopes a command to paste may hold."""


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """A Bearer challenge; empty where the server made none."""

    made: bool = False
    """Whether there is one."""
    error: str = ""
    scope: tuple[str, ...] = ()
    resource_metadata: str = ""

    @property
    def wants_scope(self) -> bool:
        """Whether the token is valid but lacks a scope."""
        return self.error == "insufficient_scope"

    @property
    def scope_to_paste(self) -> str:
        """The scope for a command of ours; empty where a reader could take it for more than a scope."""
        wanted = " ".join(self.scope)
        return wanted if len(wanted) <= LONGEST_PASTED and all(map(_PLAIN_SCOPE.fullmatch, self.scope)) else ""


def read_challenge(header: str) -> Challenge:
    """The Bearer challenge in a ``WWW-Authenticate`` header that may hold others too."""
    bare = _without_quotes(header)
    begin = _SCHEME.search(bare)
    if begin is None:
        return Challenge()
    end = _NEXT_SCHEME.search(bare, begin.end())
    own = header[begin.end() : end.start() if end else None]
    fields = {name.lower(): quoted or bare for name, quoted, bare in _FIELD.findall(own)}
    error, scope = fields.get("error", ""), fields.get("scope", "")
    if error == "insufficient_scope" and not scope:
        described = _DESCRIBED_SCOPE.search(fields.get("error_description", ""))
        scope = described[1].replace(",", " ") if described else ""
    return Challenge(
        made=True,
        error=error,
        scope=scopes_in(scope),
        resource_metadata=fields.get("resource_metadata", ""),
    )


def scopes_in(text: str) -> tuple[str, ...]:
    """The scopes in a text separated by blanks, each once; invalid ones are left out."""
    return tuple(dict.fromkeys(part for part in text.split() if _SCOPE.fullmatch(part)))[:MOST_SCOPES]


def _without_quotes(text: str) -> str:
    """The same text with quoted parts replaced by as many ``x``: they may look like a scheme."""
    # A quote that is never closed reaches to the end: else each escaped one in it would be tried as the first.
    return re.sub(r"\"(?:[^\"\\]|\\.)*+\"?", lambda found: '"' + "x" * (len(found[0]) - 1), text)
