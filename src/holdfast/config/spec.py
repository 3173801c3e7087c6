"""Servers as the other packages use them: plain frozen dataclasses, cheap to import.

These classes and those of ``settings.py`` say what the file means. Where the file says it in the same way, a field has
the words for the file too (``in_file``), and ``file_models.py`` makes its model from them: so a key is written once.
Nothing here reads a file, and no ``repr`` shows an environment value, a header value or a secret.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias
from urllib.parse import quote, urlsplit

from holdfast.config.settings import ApprovalMode, Settings, in_file, one_of
from holdfast.errors import Problem

__all__ = [
    "IDENTITY_HEADERS",
    "UNIX",
    "AssertionService",
    "Config",
    "CredentialLadder",
    "ExchangeService",
    "HeaderSource",
    "OAuthSettings",
    "ServerSpec",
    "Target",
    "Targets",
    "TokenService",
    "ToolFilter",
    "Transport",
    "hub_url",
    "id_in_folder",
    "is_key_text",
    "targets_of",
]

UNIX = "unix:"
"""What the address of a hub on a Unix socket begins with."""

Transport: TypeAlias = Literal["stdio", "http", "sse"]

IDENTITY_HEADERS: Mapping[str, str] = MappingProxyType({"header": "Holdfast-User", "signed": "Holdfast-Identity"})
"""The header that tells a server who calls it, by ``ServerSpec.identity``."""

HeaderSource: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Headers for each request: a mapping, or a callable that returns fresh ones for each request."""


def hub_url(address: str, server: str) -> str:
    """The endpoint of one server at another hub of the same fleet. On a Unix socket there is no TLS, and no host.

    It lists all tools, also where the other hub's default is to find them.
    """
    base = "http://localhost" if address.startswith(UNIX) else f"https://{address}"
    return f"{base}/servers/{quote(server, safe='')}/mcp?tools=all"


def id_in_folder(server: str, folder: str) -> str:
    """The id of a server's copy for one folder. People read the folder's name; the hash keeps equal names apart."""
    mark = blake2b(folder.encode("utf-8", "surrogateescape"), digest_size=2).hexdigest()
    return f"{server}@{os.path.basename(folder) or 'root'}-{mark}"  # noqa: PTH119 - a text


@dataclass(frozen=True, kw_only=True)
class ToolFilter:
    """Which of a server's tools are shown: shell patterns over the server's own tool names."""

    include: tuple[str, ...] = field(
        default=("*",), metadata=in_file("Words", "Shell patterns (`read_*`) of the tools that are shown.")
    )
    exclude: tuple[str, ...] = field(
        default=(),
        metadata=in_file("Words", "Shell patterns of the tools that are hidden; they override `include`."),
    )


def is_key_text(value: str) -> bool:
    """Whether this is a private key itself (PEM or JWK), and not the path of its file."""
    return "{" in value or "-----BEGIN" in value


@dataclass(frozen=True, kw_only=True)
class OAuthSettings:
    """How Holdfast logs in to a server, as far as the server does not announce it."""

    enabled: bool = field(default=True, metadata=in_file("Flag", "Whether a login is used for this server."))
    client_id: str | None = field(
        default=None,
        metadata=in_file("Text", "Holdfast's client id at the authorization server, if it is registered there."),
    )
    client_secret: str | None = field(
        default=None,
        repr=False,
        metadata=in_file("Text", "The secret that goes with `clientId`: best written as `${env:NAME}`."),
    )
    private_key: str | None = field(
        default=None,
        repr=False,
        metadata=in_file(
            "Text",
            "The private key of `clientId`, or of the metadata document, for `private_key_jwt`: the path of its"
            " file (PEM or JWK), or the key itself, best written as `${env:NAME}`.",
        ),
    )
    client_metadata_url: str | None = field(
        default=None,
        metadata=in_file(
            "Url",
            "The https address of a client id metadata document: the client id at servers that accept one.",
        ),
    )
    scope: tuple[str, ...] = field(
        default=(),
        metadata=in_file("Scopes", "The scopes to ask for. Default: those that the server names."),
    )
    resource: str | None = field(
        default=None,
        metadata=in_file(
            "Resource",
            "The `resource` to ask for a token for. Default: what the server says of itself. `false` sends"
            " none, as Microsoft Entra ID demands.",
        ),
    )
    """Empty for ``false``."""
    redirect_uri: str | None = field(
        default=None,
        metadata=in_file("Url", "The redirect URI, if one is registered: an address of this machine."),
    )
    issuer: str | None = field(
        default=None,
        metadata=in_file("Url", "The authorization server to use. Default: the first that the server names."),
    )
    authorization_url: str | None = field(
        default=None,
        metadata=in_file("Url", "The authorization endpoint, if the authorization server publishes no metadata."),
    )
    token_url: str | None = field(
        default=None, metadata=in_file("Url", "The token endpoint, if it publishes no metadata.")
    )
    device_authorization_url: str | None = field(
        default=None,
        metadata=in_file("Url", "The device authorization endpoint, if its metadata has none."),
    )


@dataclass(frozen=True, kw_only=True)
class TokenService:
    """An authorization server that gives the hub a token for a user. Her credential goes to ``token_url`` alone."""

    token_url: str = field(
        metadata=in_file(
            "Url",
            "The token endpoint. A user's credential is sent there and nowhere else: https, or this machine.",
        )
    )
    client_id: str = field(metadata=in_file("Text", "The hub's client id there."))
    client_secret: str | None = field(
        default=None,
        repr=False,
        metadata=in_file("Text", "The secret that goes with `clientId`: best written as `${env:NAME}`."),
    )
    private_key: str | None = field(
        default=None,
        repr=False,
        metadata=in_file(
            "Text",
            "The private key of `clientId`, for `private_key_jwt`: the path of its file (PEM or JWK), or the key"
            " itself, best written as `${env:NAME}`.",
        ),
    )
    issuer: str = ""
    """Whom an identity assertion is for; empty for an exchange."""
    resource: str | None = field(
        default=None,
        metadata=in_file(
            "Resource",
            "The `resource` to ask for a token for. Default: the address of the server. `false` sends none.",
        ),
    )
    """The `resource` that requests name: None for the address of the server, empty for none."""
    scope: tuple[str, ...] = field(default=(), metadata=in_file("Scopes", "The scopes to ask for."))


@dataclass(frozen=True, kw_only=True)
class AssertionService(TokenService):
    """Identity assertion: the issuer of the hub's users vouches for a user at the server's authorization server."""

    issuer: str = field(metadata=in_file("Url", "The authorization server of the server, as its metadata names it."))


@dataclass(frozen=True, kw_only=True)
class ExchangeService(TokenService):
    """Token exchange: a user's token for the hub becomes her token for the server."""

    form: Literal["token-exchange", "on-behalf-of"] = field(
        default="token-exchange",
        metadata=one_of(
            "`token-exchange`: RFC 8693. `on-behalf-of`: the form of Microsoft Entra ID.",
            hint='write "token-exchange" for RFC 8693, "on-behalf-of" for Microsoft Entra ID',
        ),
    )
    audience: str = field(
        default="",
        metadata=in_file(
            "Text",
            "The `audience` to ask for, where the authorization server knows the server by a name. Then no"
            " `resource` is sent unless it is written.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class CredentialLadder:
    """Where the credentials of its users come from, for a server that is `per-user`. The order is fixed.

    Assertion, exchange, her own login, the hub's. Her own login is as `oauth` describes it; `"oauth": false` leaves it
    out.
    """

    assertion: AssertionService | None = field(
        default=None,
        metadata=in_file(
            AssertionService, "Identity assertion (ID-JAG), for users who signed in to the hub at its issuer."
        ),
    )
    exchange: ExchangeService | None = field(
        default=None,
        metadata=in_file(ExchangeService, "Token exchange, for users whose clients send a JWT to the hub."),
    )
    shared: bool = field(
        default=False,
        metadata=in_file(
            "Flag",
            "Whether a user without a credential of her own acts with the login of the hub. A user who has"
            " one never does.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """One configured server, usable or not.

    A definition that cannot be used is a server too: it has its name, whether it is enabled, its secrets, and
    ``problems``. All its other fields have their defaults. It is listed and shown everywhere and never dialed; its
    problems are the evidence of why not. A disabled server's problems are not reported as failures.
    """

    id: str
    transport: Transport = "stdio"
    problems: tuple[Problem, ...] = ()
    """Why its definition cannot be used; empty for a server that can be dialed."""
    command: str = field(default="", metadata=in_file("Text", "The program to start: a name on PATH, or a path."))
    args: tuple[str, ...] = field(
        default=(), repr=False, metadata=in_file("Arguments", "Its arguments, one text for each.")
    )
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path | None = field(
        default=None, metadata=in_file("Text", "The folder that it runs in. Default: the project's folder.")
    )
    url: str = field(
        default="", repr=False, metadata=in_file("Url", "The address of a server that is already running.")
    )
    headers: HeaderSource = field(default_factory=dict, repr=False)
    hub: str = field(
        default="",
        metadata=in_file(
            "HubAddress",
            "Another hub of the same session key that has this server under the same name: `HOST:PORT`, or "
            "`unix:/path` on this machine. The state of the server there is its state here. Instead of `command` or "
            "`url`.",
        ),
    )
    """The hub of the same fleet that has this server: ``HOST:PORT`` or ``unix:PATH``; empty if there is none."""
    allow_plain_http: bool = field(
        default=False,
        metadata=in_file("Flag", "Allow credentials to go over plain http to a host that is not this machine."),
    )
    oauth: OAuthSettings = OAuthSettings()
    credentials: CredentialLadder = CredentialLadder()
    tools: ToolFilter = ToolFilter()
    prefix: str | None = field(
        default=None,
        metadata=in_file(
            "Prefix", "The prefix of its tools' names. Default: the server's id; an empty text for no prefix."
        ),
    )
    enabled: bool = field(default=True, metadata=in_file("Flag", "Whether the server is used."))
    start_timeout: float = field(
        default=120.0,
        metadata=in_file(
            "Timeout",
            "How long its process may take to answer for the first time; it is not ended before. A first run of `npx` "
            "or `uvx` installs packages and can take a minute.",
        ),
    )
    timeout: float | None = field(
        default=None,
        metadata=in_file(
            "CallTimeout",
            "How long a call of it may go without an answer or progress. Default: `holdfast.call.timeout`. One that is "
            "longer than `holdfast.call.hardTimeout` takes its place for this server. A number without a unit is read "
            "as other clients mean it: below 1000 as seconds, from 1000 on as milliseconds.",
        ),
    )
    """In seconds; None for ``CallPolicy.timeout``."""
    era: Literal["auto", "legacy", "modern"] = field(
        default="auto",
        metadata=one_of(
            "The protocol era to speak with it. `auto`: the one that it speaks, and that of each client where it "
            "speaks both. `legacy`: `initialize` (2024-11-05 to 2025-11-25). `modern`: 2026-07-28.",
            hint='write "legacy" for `initialize`, "modern" for `server/discover`',
        ),
    )
    lazy: bool = field(
        default=False,
        metadata=in_file("Flag", "Start the server at its first use, and stop it after `holdfast.idle` without use."),
    )
    approvals: ApprovalMode | None = field(
        default=None,
        metadata=in_file(
            "ApprovalName",
            "What happens when this server changes a tool, a prompt or its instructions, or adds one, after it was "
            "first listed: `off`, `warn` (reported) or `hold` (shown as first seen, or hidden, until a person approves "
            "it). Left out, `holdfast.approvals` decides.",
        ),
    )
    sharing: Literal["shared", "per-client", "per-user"] = field(
        default="shared",
        metadata=one_of(
            "Whether all clients of the hub share one connection, each client has its own (`per-client`: for browsers, "
            "shells and other servers that keep state), or each user has her own with her own login (`per-user`: for "
            "servers where each person must act as herself).",
            hint='write "per-client" for a connection of each client, "per-user" for one of each user with her own '
            "login",
        ),
    )
    identity: Literal["none", "header", "signed"] = field(
        default="none",
        metadata=one_of(
            "What a server with a `url` is told about who calls: `none`; `header`, the name of the principal in "
            "`Holdfast-User`; `signed`, a short-lived JWT of the hub in `Holdfast-Identity`, for this server alone. "
            "Its keys are at `/.well-known/jwks.json` of the hub. The caller's own token is never sent.",
            hint='write "signed" to tell the server who calls, in a form that it can verify',
        ),
    )
    scope: Literal["shared", "project"] = field(
        default="shared",
        metadata=one_of(
            "`project`: it runs once for each folder that clients work in, with that folder as its working folder and "
            "as `${workspaceFolder}`. A definition in your own file that uses `${workspaceFolder}` is one too.",
            hint='write "project" to run it once for each folder',
        ),
    )
    folder: str = ""
    """The folder that it runs for; empty for one that is shared, and for the definition of others."""
    configured_as: str = ""
    """Its name in the configuration, where its id is another one: rules and people mean that name."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Strings that no output may show: header values, env values, and values from ``${…}``."""

    @property
    def plain_name(self) -> str:
        """Its name in the configuration."""
        return self.configured_as or self.id

    def behind(self, address: str) -> ServerSpec:
        """The same server, where the hub at this address has it: what this hub shows of it stays as it is."""
        return ServerSpec(
            id=self.id,
            transport="http",
            url=hub_url(address, self.id),
            hub=address,
            command=self.command,  # people see what runs, also where another hub runs it
            args=self.args,
            era="modern",
            tools=self.tools,
            prefix=self.prefix,
            enabled=self.enabled,
            timeout=self.timeout,
            approvals=self.approvals,
            # The other hub keeps clients apart by their keys. The lists of users differ, so each asks for her own.
            sharing="per-user" if self.sharing == "per-user" else "shared",
        )

    def in_folder(self, folder: str) -> ServerSpec:
        """Its copy for the clients of one folder, with an id of its own."""
        own_id = id_in_folder(self.id, folder)
        return replace(self, id=own_id, scope="project", folder=folder, configured_as=self.id)

    def connects_like(self, other: ServerSpec) -> bool:
        """Whether a connection of one serves the other: they differ at most in how long calls may take."""
        return replace(self, timeout=other.timeout) == other


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole configuration: every configured server, usable or not, and the settings."""

    servers: Mapping[str, ServerSpec]
    settings: Settings = field(default_factory=Settings)
    source: Path | None = None
    scoped: bool = False
    """Whether some of its servers are for the clients of one folder alone."""
    found: bool = False
    """Whether the search found the file and no one named it: then a changed file needs the user's trust again."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One MCP server behind the gateway."""

    id: str
    url: str
    transport: Literal["http", "sse"] = "http"


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The servers that get a route, and the reasons why others get none. No ``repr`` shows an address."""

    found: tuple[Target, ...] = field(default=(), repr=False)
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Facts about a target that its owner should know."""


def targets_of(config: Config) -> Targets:
    """The targets among a configuration's servers, in the order of their ids."""
    servers = [server for _, server in sorted(config.servers.items())]
    enabled = [server for server in servers if server.enabled]
    usable = [server for server in enabled if not _reason_left_out(server)]
    return Targets(
        found=tuple(
            Target(id=server.id, url=server.url, transport="sse" if server.transport == "sse" else "http")
            for server in usable
        ),
        left_out=MappingProxyType({server.id: _reason_left_out(server) for server in enabled if server not in usable}),
        notes=tuple(
            f"`{server.id}`: its `headers` are not passed to the gateway; the gateway forwards the client's headers"
            for server in usable
            if server.headers
        ),
    )


def _reason_left_out(server: ServerSpec) -> str:
    """Why a server gets no route; empty if it gets one."""
    if server.problems:
        return "; ".join(problem.message for problem in server.problems)
    if server.transport == "stdio":
        return "it is a command: the gateway routes only to URLs"
    if server.hub:
        return "it is behind another hub, which the gateway cannot call: it has no certificate of the fleet"
    if "@" in urlsplit(server.url).netloc:
        return "its URL holds a user name or password, which the gateway's config would show: use a header instead"
    return ""
