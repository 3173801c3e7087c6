"""What the rest of Holdfast needs to know of a server and its policies: plain, frozen, cheap to import.

The file models (``models.py``) are what people write; these are what they mean. Nothing
here reads a file, and no ``repr`` shows an environment value, a header value or a secret.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias

from holdfast.errors import Problem

__all__ = [
    "BadServer",
    "BreakerSettings",
    "CallPolicy",
    "Config",
    "HeaderSource",
    "Limits",
    "LoadPolicy",
    "OAuthSettings",
    "PerClientSettings",
    "ReconnectSettings",
    "ServerSpec",
    "Settings",
    "Sharing",
    "ToolFilter",
    "Transport",
]

Transport: TypeAlias = Literal["stdio", "http", "sse"]
Sharing: TypeAlias = Literal["shared", "per-client"]

HeaderSource: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Headers for each request: a mapping, or a callable that gives fresh ones every time."""


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class ToolFilter:
    """Which of a server's tools are shown: shell patterns over the server's own tool names."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OAuthSettings:
    """How Holdfast logs in to a server, as far as that is not found out by asking."""

    enabled: bool = True
    """Whether a login is used at all, and whether a person is told to make one."""
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    client_metadata_url: str | None = None
    scope: tuple[str, ...] = ()
    redirect_uri: str | None = None
    issuer: str | None = None
    authorization_url: str | None = None
    token_url: str | None = None
    device_authorization_url: str | None = None


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """One server that can be dialed."""

    id: str
    transport: Transport
    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=_nothing, repr=False)
    cwd: Path | None = None
    url: str = field(default="", repr=False)
    headers: HeaderSource = field(default_factory=_nothing, repr=False)
    allow_plain_http: bool = False
    oauth: OAuthSettings = OAuthSettings()
    tools: ToolFilter = ToolFilter()
    prefix: str | None = None
    enabled: bool = True
    lazy: bool = False
    """Started at its first use, and stopped when it was unused for ``Settings.idle``."""
    hold_changed: bool = False
    """Whether a tool that says something else than when it was first seen is held until approved."""
    sharing: Sharing = "shared"
    """Whether all clients use one connection to it, or each has one of its own."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Strings that no output may show: header and env values, and whatever ``${…}`` brought in."""


@dataclass(frozen=True, kw_only=True)
class BadServer:
    """A server whose definition cannot be used: its permanent failure, and nobody else's."""

    id: str
    problems: tuple[Problem, ...]
    enabled: bool = True
    """False where the definition says so: then nobody waits for this server, and nobody need be told."""


@dataclass(frozen=True, kw_only=True)
class LoadPolicy:
    """How a load tries, waits and gives up. Times in seconds."""

    attempts: int = 3
    backoff: float = 0.25
    attempt_timeout: float = 15.0
    total_timeout: float = 45.0
    concurrency: int = 16


@dataclass(frozen=True, kw_only=True)
class CallPolicy:
    """How long one call may take, and how many may be under way. Times in seconds."""

    timeout: float = 60.0
    hard_timeout: float = 600.0
    ready_timeout: float = 5.0
    """How long a call waits for a server that is starting or coming back."""
    concurrency: int = 64
    """Calls under way to one server at once."""
    queue: int = 256
    """Calls beyond those that may wait for their turn; 0 lets none wait."""


@dataclass(frozen=True, kw_only=True)
class BreakerSettings:
    """When a server that keeps failing is left alone, and for how long. Times in seconds."""

    threshold: int = 3
    """Failures in a row, all within ``window``, that open the breaker."""
    window: float = 30.0
    cooldown: float = 60.0
    growth: float = 1.0
    """Each time in a row that the breaker opens multiplies the cooldown by this; 1 keeps it as it is."""
    max_cooldown: float = 600.0


@dataclass(frozen=True, kw_only=True)
class ReconnectSettings:
    """How a lost connection is made anew. Times in seconds."""

    failures: int = 3
    """Failures in a row of a connection that still stands, before it is given up."""
    backoff: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """The wait before each attempt; as many attempts may fail as there are waits."""
    self_probe: float | None = 300.0
    """How often a server whose attempts all failed is tried again; None for never."""
    standing: float = 30.0
    """How long a new connection must stand before earlier failures are forgotten."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on whatever comes from a server; over one, that server alone fails, and says so."""

    message_bytes: int = 16 * 1024 * 1024
    catalog_items: int = 20_000
    catalog_bytes: int = 64 * 1024 * 1024
    pages: int = 1_000
    stderr_bytes: int = 16 * 1024
    notifications_per_second: int = 1_000


@dataclass(frozen=True, kw_only=True)
class PerClientSettings:
    """Connections that clients have to themselves, of a server with ``sharing: per-client``. Times in seconds."""

    connections: int = 64
    """How many clients may have one to the same server at a time."""
    idle: float = 600.0
    """How long one may be unused whose client has no session that ends."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Holdfast's own settings, with their defaults."""

    load: LoadPolicy = LoadPolicy()
    call: CallPolicy = CallPolicy()
    limits: Limits = Limits()
    breaker: BreakerSettings = BreakerSettings()
    reconnect: ReconnectSettings = ReconnectSettings()
    per_client: PerClientSettings = PerClientSettings()
    refresh: float | None = 60.0
    """How often, in seconds, each server is asked again for what it offers; None for only when it says so."""
    idle: float = 300.0
    """How long, in seconds, a lazy server may be unused before it is stopped."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole configuration: every server that was named, usable or not, and the settings."""

    servers: Mapping[str, ServerSpec | BadServer]
    settings: Settings = Settings()
    source: Path | None = None
