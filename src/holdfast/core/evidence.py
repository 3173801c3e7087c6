"""What was seen when a server was dialed or called: typed, frozen, and free of opinion.

``wire/`` makes evidence where a thing happens; ``classify.py`` judges it. No field that a
judgement rests on holds the URL, the server's id or the user's arguments; texts that people
read (``detail``, ``stderr``, ``body``) are kept apart and are masked before they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

__all__ = [
    "BadConfig",
    "CommandFault",
    "CommandUnusable",
    "CredentialsUnavailable",
    "Evidence",
    "HttpStatus",
    "Login",
    "LoginState",
    "NetworkFailure",
    "NetworkFault",
    "NotMcp",
    "NotMcpFault",
    "OverBound",
    "PlainHttpRefused",
    "ProcessExit",
    "Redirected",
    "RpcError",
    "TimedOut",
    "TlsFailure",
    "TlsFault",
    "TokenNotRenewed",
    "Unexpected",
]


class LoginState(Enum):
    """What became of the login that a server's requests are made with."""

    NONE = "none"
    EXPIRED = "expired"
    REFUSED = "refused"
    GOOD = "good"


@dataclass(frozen=True, kw_only=True)
class Login:
    """A server that a person can log in to: how its login is, and what to type."""

    state: LoginState
    """``EXPIRED``: it ended, and cannot be renewed. ``REFUSED``: the authorization server renews it no more.
    ``GOOD``: as far as we know nothing is wrong with it."""
    command: str
    """``holdfast login github``"""


@dataclass(frozen=True, kw_only=True)
class HttpStatus:
    """The server, or something before it, answered a request with an error status."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Lower-case names; only those that say something about the refusal."""
    body: str = ""
    """The first 2 KiB, decoded leniently."""
    retry_after: float | None = None
    """Seconds from now, from ``Retry-After`` in either of its forms."""
    credentials_sent: bool = False
    """Whether the request carried configured headers: tells "log in" from "your token is no good"."""
    login: Login | None = None
    """The server's login; None where credentials come from its definition, or it takes no login."""


@dataclass(frozen=True, kw_only=True)
class RpcError:
    """The server answered a request that a load needs with a JSON-RPC error."""

    method: str
    code: int
    message: str = ""
    data: object = field(default=None, repr=False)
    """Whatever the server sent beside it, for the one who asked."""


class NetworkFault(Enum):
    """How the way to a server failed."""

    NAME_RESOLUTION = "name_resolution"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    RESET = "reset"
    CLOSED = "closed"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class NetworkFailure:
    """A connection could not be made, or broke."""

    fault: NetworkFault
    stood: bool = False
    """Whether this connection had been established before it failed."""
    errno: int | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class TimedOut:
    """A deadline passed."""

    doing: str
    """What was waited for, in words: ``the answer to initialize``."""
    after: float
    setting: str = "holdfast.load.attemptTimeout"
    """The key that gives it longer, as written in the config."""


class TlsFault(Enum):
    """What is wrong with a TLS peer."""

    UNKNOWN_CA = "unknown_ca"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    WRONG_NAME = "wrong_name"
    NOT_VERIFIED = "not_verified"
    HANDSHAKE = "handshake"


@dataclass(frozen=True, kw_only=True)
class TlsFailure:
    """The TLS handshake failed, or the certificate does not verify."""

    fault: TlsFault
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Redirected:
    """The server sent us to another origin, or in a way that would lose the request; not followed."""

    status: int
    location: str
    """Without user info, query and fragment."""


@dataclass(frozen=True, kw_only=True)
class PlainHttpRefused:
    """Credentials were configured for a plain http address beyond loopback; nothing was sent."""


@dataclass(frozen=True, kw_only=True)
class CredentialsUnavailable:
    """The program that gives this server's headers failed to give any; nothing was sent."""

    type: str
    network: bool = False
    """Whether it failed on the network: then trying again can help."""


@dataclass(frozen=True, kw_only=True)
class TokenNotRenewed:
    """The server's access token has ended, and the authorization server could not be asked for another.

    Nothing is lost by it: the login stands, and the next try may renew it.
    """

    reason: str
    """Why, in words."""
    retry_after: float | None = None


class NotMcpFault(Enum):
    """How a peer showed that it does not speak MCP."""

    CONTENT_TYPE = "content_type"
    NOT_JSON = "not_json"
    NOT_JSONRPC = "not_jsonrpc"
    BAD_RESULT = "bad_result"
    VERSION = "version"
    NO_ENDPOINT = "no_endpoint"
    CURSOR_REPEATS = "cursor_repeats"


@dataclass(frozen=True, kw_only=True)
class NotMcp:
    """The peer answered, and what it said is not the protocol."""

    fault: NotMcpFault
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class OverBound:
    """Something that came from the server was larger, longer or more frequent than allowed."""

    bound: str
    limit: int
    setting: str
    """The key that raises it, as written in the config."""


class CommandFault(Enum):
    """Why a command could not be started."""

    NOT_FOUND = "not_found"
    NOT_EXECUTABLE = "not_executable"
    BAD_DIRECTORY = "bad_directory"
    BAD_FORMAT = "bad_format"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class CommandUnusable:
    """A stdio server's process could not be started at all."""

    command: str
    fault: CommandFault
    errno: int | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class ProcessExit:
    """A stdio server's process ended while it was needed."""

    code: int
    """As the OS gives it: negative is the signal that killed it."""
    stood: bool = False
    """Whether the handshake had been completed."""
    heard: bool = False
    """Whether it had read what we sent before it ended: then our words may have ended it."""
    stderr: str = ""
    """The last lines that it wrote there."""
    noise: str = ""
    """The first lines on stdout that were not the protocol."""


@dataclass(frozen=True, kw_only=True)
class BadConfig:
    """The server's definition cannot be used."""

    problems: tuple[str, ...]
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Unexpected:
    """An exception that nobody foresaw: a fault of ours until shown otherwise."""

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
    | NotMcp
    | OverBound
    | CommandUnusable
    | ProcessExit
    | BadConfig
    | Unexpected
)
