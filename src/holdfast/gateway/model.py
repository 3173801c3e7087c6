"""The model of a gateway config: one listener, one route for each server, authorization in front; and its defaults.

There is no field to fail open: during an outage of the authorization service, requests are refused. The Helm chart
and the compose files cannot import Python; a test compares their values with the defaults here.

Each AgentGateway version has its form of the configuration (``Family``).

The gateway refuses a config with an unknown field, so the form is never guessed: a version belongs to a known
family, is newer than all of them, or is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from holdfast.config import Target
from holdfast.errors import UsageError

__all__ = [
    "ADMIN_ADDRESS",
    "BODY_BYTES",
    "CHECK_PATH",
    "CHECK_ROUTE",
    "EXT_AUTH_PORT",
    "EXT_AUTH_TIMEOUT",
    "FAMILIES",
    "GATEWAY_VERSION",
    "HEALTH_ADDRESS",
    "LISTENER_NAME",
    "LISTEN_PORT",
    "OUTAGE_STATUS",
    "PATH_PREFIX",
    "ExtAuth",
    "Family",
    "Gateway",
    "Jwt",
    "Protocol",
    "Release",
    "Target",
    "check_address",
    "check_timeout",
    "family_of",
]

EXT_AUTH_TIMEOUT = "10s"
"""How long the gateway waits for the authorization service. The default of the gateway, 200 ms, is too short for a
cold start of that service. Ten seconds is longer than a healthy answer, and shorter than one attempt of a load."""

OUTAGE_STATUS = 503
"""The status for clients when the authorization service does not answer. No policy decision uses it."""

EXT_AUTH_PORT = 9100

BODY_BYTES = 8192
"""How many bytes of a request's body the authorization service gets: enough for the method and the tool name."""

GATEWAY_VERSION = "1.4.1"
"""The gateway that the chart and the compose files run."""

LISTEN_PORT = 8080

LISTENER_NAME = "mcp"

PATH_PREFIX = "/mcp"
"""The path of a server's route is this prefix and its id."""

CHECK_ROUTE, CHECK_PATH = "holdfast-check", "/holdfast/check"
"""A route without a server. A request to it shows only whether the caller is authorized."""

ADMIN_ADDRESS = "127.0.0.1:15000"
"""Only loopback, because the admin address can stop the gateway."""

HEALTH_ADDRESS = "127.0.0.1:9180"
"""Where the bridge serves its health."""


Protocol: TypeAlias = Literal["grpc", "http"]

PLAIN_DENIAL = 403
"""The status that looks like a decision of a policy. It can be chosen, and is ambiguous."""

LONGEST_BODY = 1 << 30

_TIMEOUT = re.compile(r"[1-9][0-9]{0,5}(ms|s|m)", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ExtAuth:
    """The authorization service, and what the gateway does without its answer."""

    host: str
    """``host:port``."""
    timeout: str = EXT_AUTH_TIMEOUT
    outage_status: int = OUTAGE_STATUS
    """The status for clients without a decision: 500 to 599, or 403 for the plain refusal of the gateway."""
    protocol: Protocol = "grpc"
    body_bytes: int = BODY_BYTES
    """How many bytes of the body the service gets; 0 for none."""

    def __post_init__(self) -> None:
        check_address(self.host, option="--ext-auth-host")
        check_timeout(self.timeout)
        if self.outage_status != PLAIN_DENIAL and not 500 <= self.outage_status <= 599:
            raise UsageError(
                f"the outage status cannot be {self.outage_status}",
                hint="use 500 to 599, or 403 to look like a denial; an outage never lets requests through",
            )
        if not 0 <= self.body_bytes <= LONGEST_BODY:
            raise UsageError(f"the authorization service cannot get {self.body_bytes} bytes of a body")


@dataclass(frozen=True, kw_only=True)
class Jwt:
    """The tokens that the gateway accepts. A request without a valid one is refused."""

    issuer: str
    jwks: str
    """The URL of the issuer's keys, or the path of a file that the gateway can read."""
    audiences: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """A whole configuration."""

    targets: tuple[Target, ...] = ()
    ext_auth: ExtAuth | None = None
    jwt: Jwt | None = None
    port: int = LISTEN_PORT
    admin: str = ADMIN_ADDRESS


def check_timeout(text: str) -> None:
    """Refuse a timeout that the gateway does not accept."""
    if not _TIMEOUT.fullmatch(text):
        raise UsageError(
            f"`{text}` is not a timeout that the gateway accepts",
            hint='write a whole number above 0 and a unit, as in "10s", "1500ms" or "1m"',
        )


def is_short(text: str) -> bool:
    """Whether a timeout is under one second. Such a timeout recreates the failures that the default avoids."""
    return bool(_TIMEOUT.fullmatch(text)) and text.endswith("ms") and int(text[:-2]) < 1000


def check_address(text: str, *, option: str, lowest: int = 1) -> str:
    """Return ``text`` if it is ``host:port``. Port 0, where allowed, is a free port."""
    host, _, port = text.rpartition(":")
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or not lowest <= int(port) <= 65535:
        raise UsageError(f"{option} is `{text}`, which is not host:port", hint="for example authz.internal:9100")
    return text


def is_address(url: str) -> bool:
    """Whether a text is an http or https URL with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


Minor: TypeAlias = tuple[int, int]

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.\d{1,4})?(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Releases with the same form of configuration."""

    minors: tuple[Minor, ...]
    """The known releases."""
    timeout: tuple[str, ...]
    """The path of the timeout inside an ``extAuthz`` block."""

    def __str__(self) -> str:
        first, last = (f"{major}.{minor}" for major, minor in (self.minors[0], self.minors[-1]))
        return first if first == last else f"{first} to {last}"


FAMILIES = (
    Family(minors=((0, 12),), timeout=("timeout",)),
    Family(
        minors=((1, 0), (1, 1), (1, 2), (1, 3), (1, 4)),
        timeout=("policies", "http", "requestTimeout"),
    ),
)
"""Oldest first."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """A gateway version, and how to render for it."""

    minor: Minor
    """The release whose form is used."""
    family: Family
    warning: str = ""
    """A warning if the version is uncertain."""


def family_of(version: str) -> Release:
    """The release for a version such as ``1.4.1``, ``v1.4`` or ``0.12.0``; ``UsageError`` if it is unknown."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise UsageError(f"`{version}` is not an AgentGateway version", hint=f"for example 1.4.1; known: {_known()}")
    minor = (int(match.group(1)), int(match.group(2)))
    newest = FAMILIES[-1]
    if minor > newest.minors[-1]:
        latest = ".".join(map(str, newest.minors[-1]))
        warning = f"AgentGateway {version} is newer than all known versions: rendered for {latest}"
        return Release(minor=newest.minors[-1], family=newest, warning=warning)
    for family in FAMILIES:
        if minor in family.minors:
            early = f"AgentGateway {version} is a pre-release: rendered for its release" if match.group(3) else ""
            return Release(minor=minor, family=family, warning=early)
    raise UsageError(
        f"AgentGateway {version} is not supported",
        hint=f"known: {_known()}; other versions use other fields, and refuse unknown ones",
    )


def _known() -> str:
    return ", ".join(map(str, FAMILIES))
