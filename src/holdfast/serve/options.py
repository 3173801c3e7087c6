"""The options of ``holdfast serve``, each spelled once, and what a start found or opened for them.

A field of ``ServeConfig`` is an option: its flag, its type, its help and its default. The command takes its parameters
from the fields, and the rest of this package reads them; a supervisor's workers and a successor get the same command
line and read it again. So a new option is one field, and the code that uses it.

``check`` refuses what no file and no socket is needed to refuse. It imports no web framework, so that a wrong option is
reported at once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from typer import Option

from holdfast.control import TOKEN_VARIABLE as CONTROL_TOKEN_VARIABLE
from holdfast.core import is_loopback
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.serve.takeover import Predecessor
    from holdfast.serve.worker_link import WorkerLink

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "DEFAULT_URL",
    "ServeConfig",
    "Serving",
    "endpoint_url",
]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 4653
"""HOLD on a telephone keypad."""

LAME_DUCK_SECONDS = 5.0
"""How long a hub that others reach through a balancer still serves after its end was announced."""

MOST_WORKERS = 64


def endpoint_url(host: str, port: int, path: str = "/mcp", *, tls: bool = False) -> str:
    """The URL of a hub that listens on this host and port."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
    return f"http{'s' if tls else ''}://{f'[{reachable}]' if ':' in reachable else reachable}:{port}{path}"


DEFAULT_URL = endpoint_url(DEFAULT_HOST, DEFAULT_PORT)


LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

# The help shows the options in these groups, and each group in the order of the fields.
_Configuration = partial(Option, rich_help_panel="Configuration")
_Listen = partial(Option, rich_help_panel="Listen")
_OneClient = partial(Option, rich_help_panel="One client over stdin and stdout")
_Callers = partial(Option, rich_help_panel="Callers")
_SeveralHubs = partial(Option, rich_help_panel="Several hubs")
_End = partial(Option, rich_help_panel="End")
_Log = partial(Option, rich_help_panel="Log")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """What a person asked for, as it was typed."""

    config: Annotated[Path | None, _Configuration("--config", metavar="FILE", help="The mcp.json to use")] = None
    watch: Annotated[bool, _Configuration("--watch/--no-watch", help="Apply changes of the mcp.json at once")] = True
    demo: Annotated[bool, _Configuration("--demo", help="Serve the built-in demo servers")] = False
    approvals_lock: Annotated[
        Path | None,
        _Configuration(
            "--approvals-lock",
            metavar="FILE",
            envvar="HOLDFAST_APPROVALS_LOCK",
            help="Use only what this lock has; `holdfast approve --export` writes one",
        ),
    ] = None
    host: Annotated[str, _Listen("--host", metavar="HOST", help="The address to listen on")] = DEFAULT_HOST
    port: Annotated[
        int, _Listen("--port", metavar="PORT", min=0, max=65535, help="The port to listen on; 0 for a free one")
    ] = DEFAULT_PORT
    public_url: Annotated[
        str | None,
        _Listen(
            "--public-url",
            metavar="URL",
            envvar="HOLDFAST_PUBLIC_URL",
            help="The address that clients and browsers use, such as https://hub.example.com",
        ),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        _Listen("--allow-host", metavar="NAME", help="Another host name for requests; may be repeated"),
    ] = None
    tls_cert: Annotated[
        Path | None, _Listen("--tls-cert", metavar="FILE", help="Serve TLS with this certificate, in PEM form")
    ] = None
    tls_key: Annotated[
        Path | None, _Listen("--tls-key", metavar="FILE", help="The key of that certificate, in PEM form")
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        _Listen("--tls-client-ca", metavar="FILE", help="Require client certificates of this authority (mTLS)"),
    ] = None
    takeover: Annotated[
        bool, _Listen("--takeover", help="Take over from the running hub of this mcp.json, on its address")
    ] = False
    stdio: Annotated[
        bool, _OneClient("--stdio", help="Serve one client over stdin and stdout, with the hub that you already run")
    ] = False
    own: Annotated[bool, _OneClient("--own", help="With --stdio: a hub for this client alone, which ends with it")] = (
        False
    )
    folder: Annotated[
        Path | None, _OneClient("--folder", metavar="FOLDER", help="With --stdio: the folder that the client works in")
    ] = None
    tools: Annotated[
        Literal["all", "find"] | None,
        _OneClient(
            "--tools", help="With --stdio: list all tools, or with `find` a few that find, describe and call them"
        ),
    ] = None
    profile: Annotated[
        str | None,
        _OneClient("--profile", metavar="NAME", help="With --stdio: serve this profile of the mcp.json alone"),
    ] = None
    token: Annotated[
        str | None,
        _Callers(
            "--token",
            metavar="TOKEN",
            help="Require this bearer token from every caller; other users of the machine can see it here",
        ),
    ] = field(default=None, repr=False)
    token_file: Annotated[
        Path | None,
        _Callers("--token-file", metavar="FILE", help="Read that token from a file, and again when it changes"),
    ] = None
    tokens_file: Annotated[
        Path | None,
        _Callers("--tokens-file", metavar="FILE", help="Named tokens: JSON with name, sha256, groups and expires"),
    ] = None
    jwt_issuer: Annotated[str | None, _Callers("--jwt-issuer", metavar="URL", help="Accept JWTs of this issuer")] = None
    jwt_audience: Annotated[
        str | None, _Callers("--jwt-audience", metavar="NAME", help="The audience that a JWT must have")
    ] = None
    jwt_keys: Annotated[
        str | None, _Callers("--jwt-keys", metavar="URL|FILE", help="Its keys: a JWKS URL, or a PEM file")
    ] = None
    jwt_groups_claim: Annotated[
        str, _Callers("--jwt-groups-claim", metavar="NAME", help="The claim with the groups of a user")
    ] = "groups"
    jwt_scopes_claim: Annotated[
        str, _Callers("--jwt-scopes-claim", metavar="NAME", help="The claim with the scopes of a user")
    ] = "scope"
    jwt_user_claim: Annotated[
        str,
        _Callers("--jwt-user-claim", metavar="NAME", help="The claim that names a user, where `sub` is not the one"),
    ] = "sub"
    oidc_client_id: Annotated[
        str | None,
        _Callers(
            "--oidc-client-id",
            metavar="ID",
            help="Let people sign in to the status page at --jwt-issuer, where the hub has this client id",
        ),
    ] = None
    oidc_client_secret_file: Annotated[
        Path | None,
        _Callers("--oidc-client-secret-file", metavar="FILE", help="The secret of that client, if it has one"),
    ] = None
    oidc_scope: Annotated[
        str, _Callers("--oidc-scope", metavar="SCOPES", help="The scopes of that sign-in, such as `openid groups`")
    ] = "openid"
    gateway_secret_file: Annotated[
        Path | None,
        _Callers(
            "--gateway-secret-file",
            metavar="FILE",
            help="Trust the user headers of a gateway that sends this secret as Holdfast-Gateway-Secret",
        ),
    ] = None
    gateway_user_header: Annotated[
        str, _Callers("--gateway-user-header", metavar="NAME", help="The gateway's header with the user")
    ] = "X-Forwarded-User"
    gateway_groups_header: Annotated[
        str, _Callers("--gateway-groups-header", metavar="NAME", help="The gateway's header with the groups")
    ] = "X-Forwarded-Groups"
    gateway_mtls: Annotated[
        bool,
        _Callers("--gateway-mtls", help="Trust the user headers of a client with a certificate of --tls-client-ca"),
    ] = False
    gateway_cert_name: Annotated[
        list[str] | None,
        _Callers(
            "--gateway-cert-name",
            metavar="NAME",
            help="A name in the gateway's certificate, for --gateway-mtls; may be repeated",
        ),
    ] = None
    allow_uid: Annotated[
        list[str] | None,
        _Callers(
            "--allow-uid",
            metavar="USER",
            help="Another user of this machine that may call a hub without credentials; may be repeated",
        ),
    ] = None
    local_token: Annotated[
        bool, _Callers("--local-token", help="Require a token from local programs too; `import` gives it to clients")
    ] = False
    control_token_file: Annotated[
        Path | None,
        _Callers(
            "--control-token-file",
            metavar="FILE",
            help=f"The token of the control API, read again when it changes; or set ${CONTROL_TOKEN_VARIABLE}",
        ),
    ] = None
    workers: Annotated[
        str,
        _SeveralHubs(
            "--workers",
            metavar="N",
            envvar="HOLDFAST_WORKERS",
            help="How many processes serve together; `auto` for one a core",
        ),
    ] = "1"
    advertise: Annotated[
        str | None,
        _SeveralHubs(
            "--advertise",
            metavar="URL",
            envvar="HOLDFAST_ADVERTISE",
            help="Where the other replicas of --fleet reach this one: tcp://HOST:PORT, with a port of its own",
        ),
    ] = None
    session_key_file: Annotated[
        Path | None,
        _SeveralHubs(
            "--session-key-file",
            metavar="FILE",
            help="Keys for session ids, one a line, the newest first; the same file for all replicas",
        ),
    ] = None
    listen_hubs: Annotated[
        str | None,
        _SeveralHubs(
            "--listen-hubs",
            metavar="HOST:PORT",
            help='Serve other hubs there, which have {"hub": "HOST:PORT"}; or unix:/path on this machine',
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        _SeveralHubs("--only", metavar="ID", help="Serve only this server of the file; may be repeated"),
    ] = None
    fleet: Annotated[
        str | None,
        _SeveralHubs(
            "--fleet",
            metavar="URL",
            envvar="HOLDFAST_FLEET",
            help="Share switches, approvals and evidence with other hubs: redis://, rediss:// or redis+sentinel://",
        ),
    ] = field(default=None, repr=False)  # its address may have a password
    lame_duck: Annotated[
        float | None,
        _End(
            "--lame-duck",
            metavar="SECONDS",
            min=0,
            help="How long all is still served after SIGTERM while /readyz answers 503; 5 beyond loopback, else 0",
        ),
    ] = None
    drain: Annotated[
        float, _End("--drain", metavar="SECONDS", min=0, help="How long calls in flight may run after that")
    ] = 10.0
    log_format: Annotated[
        Literal["console", "json"],
        _Log("--log-format", envvar="HOLDFAST_LOG_FORMAT", help="The format of the log: text, or JSON lines"),
    ] = "console"
    log_level: Annotated[
        LogLevel, _Log("--log-level", envvar="HOLDFAST_LOG_LEVEL", help="The lowest level that is logged")
    ] = "info"

    @property
    def worker_count(self) -> int:
        """The number of workers: a number, or one for each core that this process may use."""
        text = self.workers
        if text == "auto":
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            return min(cores, MOST_WORKERS)
        if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MOST_WORKERS):
            raise UsageError(
                f"--workers is `{text[:20]}`",
                hint=f"give a number from 1 to {MOST_WORKERS}, or `auto`; more than there are cores brings nothing",
            )
        return int(text)

    @property
    def has_gateway(self) -> bool:
        """Whether the user headers of a gateway are trusted."""
        return self.gateway_secret_file is not None or self.gateway_mtls

    @property
    def jwt_for(self) -> str:
        """What a JWT may be for: the name that the operator gave, or the address of the hub."""
        return self.jwt_audience or self.public_url or ""

    @property
    def speaks_tls(self) -> bool:
        """Whether clients use TLS."""
        return self.tls_cert is not None

    def check(self, environ: Mapping[str, str]) -> None:
        """Refuse options that exclude each other, or that have no effect: each could hide a missing protection."""
        for is_wrong, what, hint in chain(self._wrong_values(), self._wrong_callers(environ), self._wrong_processes()):
            if is_wrong:
                raise UsageError(what, hint=hint)

    def _wrong_values(self) -> Iterator[_Rule]:
        """What is wrong with single values. Later rules read the address, and must not meet a broken one."""
        given = [("--token", self.token), ("--host", self.host)]
        given += [("--allow-host", one) for one in self.allow_host or ()]
        for name, value in given:
            # An unset variable in a unit file or a manifest must not remove a protection.
            is_empty = value is not None and not value.strip()
            yield is_empty, f"{name} is empty", "check the variable that it comes from, or leave the option out"
        yield (
            self.public_url is not None and not _is_public_url(self.public_url),
            "--public-url is not an address that clients can use",
            "write one such as https://hub.example.com, without a query and without /mcp",
        )

    def _wrong_callers(self, environ: Mapping[str, str]) -> Iterator[_Rule]:
        """What is wrong with the options about callers, and about how they are known."""
        public = urlsplit(self.public_url or "http://127.0.0.1")
        is_open = public.scheme != "https" and not is_loopback(public.hostname or "")
        jwt = (self.jwt_issuer, self.jwt_audience, self.jwt_keys)
        tls = (self.tls_cert, self.tls_key)
        has_tls = any(one is not None for one in (*tls, self.tls_client_ca))
        signs_in = self.oidc_client_id is not None
        yield from (
            (
                self.token is not None and self.token_file is not None,
                "--token and --token-file exclude each other",
                "use one of them",
            ),
            (
                any(one is not None for one in jwt) and not all((self.jwt_issuer, self.jwt_keys, self.jwt_for)),
                "--jwt-issuer, --jwt-audience and --jwt-keys belong together",
                (
                    "a JWT is checked for its issuer, its audience and its signature; the address in --public-url is "
                    "an audience too"
                ),
            ),
            (
                self.oidc_client_secret_file is not None and not signs_in,
                "--oidc-client-secret-file needs --oidc-client-id",
                "give both, or neither",
            ),
            (
                signs_in and self.jwt_issuer is None,
                "--oidc-client-id needs --jwt-issuer",
                "people sign in at that issuer",
            ),
            (
                signs_in and is_open,
                "people would sign in over an unencrypted address",
                "give a --public-url that begins with https://",
            ),
            (
                signs_in and bool(public.path.strip("/")),
                "the status page needs a host name of its own, and --public-url has a path",
                "give the hub a name such as https://hub.example.com to sign in by --oidc-client-id",
            ),
            (
                has_tls and None in tls,
                "--tls-cert and --tls-key belong together",
                "give both; --tls-client-ca is optional",
            ),
            (
                bool(self.gateway_cert_name) and not self.has_gateway,
                "--gateway-cert-name needs --gateway-mtls",
                "give both, or neither",
            ),
            (
                self.gateway_mtls and self.tls_client_ca is None,
                "--gateway-mtls needs --tls-client-ca",
                "it says whose certificates are valid",
            ),
            (
                self.control_token_file is not None and bool(environ.get(CONTROL_TOKEN_VARIABLE)),
                f"--control-token-file and {CONTROL_TOKEN_VARIABLE} exclude each other",
                "use one of them",
            ),
        )

    def _wrong_processes(self) -> Iterator[_Rule]:
        """What is wrong with the options about what this process serves, and beside which others."""
        several = self.worker_count > 1
        for_one = (("tools", self.tools), ("profile", self.profile), ("folder", self.folder))
        beside = (("--stdio", self.stdio), ("--takeover", self.takeover), ("--workers", several))
        yield from (
            (self.demo and self.config is not None, "--demo and --config exclude each other", "use one of them"),
            *(
                (
                    value is not None and not self.stdio,
                    f"--{option} needs --stdio",
                    f"over HTTP the address says it: /mcp?{option}=…",
                )
                for option, value in for_one
            ),
            (self.own and not self.stdio, "--own needs --stdio", "a hub over HTTP is always one of its own"),
            (several and self.stdio, "--workers does not go with --stdio", "several workers serve over HTTP"),
            *(
                (
                    self.listen_hubs is not None and given,
                    f"--listen-hubs does not go with {option}",
                    "a hub for other hubs runs its servers once, in one process",
                )
                for option, given in beside
            ),
        )


_Rule: TypeAlias = tuple[bool, str, str]
"""Whether options are wrong, what is wrong, and the hint."""


def _is_public_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        named = bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:
        return False
    plain = text.isascii() and text.isprintable() and " " not in text and '"' not in text
    return named and plain and parts.scheme in ("http", "https") and not parts.query and not parts.fragment


@dataclass(frozen=True, kw_only=True)
class Serving:
    """One start: the options, and what was read and opened for them before a hub or a supervisor runs."""

    options: ServeConfig
    config: Config | None
    """None for the demo servers."""
    listener: socket.socket | None = None
    """Where connections come from; None for stdin and stdout."""
    host: str = ""
    port: int = 0
    """The address at which clients connect; the socket may have been opened by another process."""
    hub_listener: socket.socket | None = None
    """The listening socket for other hubs, if there is one."""
    token: str | None = field(default=None, repr=False)
    """The token of the callers."""
    token_file: Path | None = None
    """Where it comes from. The hub reads it again while it runs."""
    gateway_secret: str | None = field(default=None, repr=False)
    oidc_secret: str | None = field(default=None, repr=False)
    """The secret of the client that signs people in."""
    uids: tuple[int, ...] = ()
    """Further users of this machine that may call a hub without credentials."""
    control_token: str = field(default="", repr=False)
    predecessor: Predecessor | None = None
    """The hub that this one takes over from."""
    worker: WorkerLink | None = None
    """The link to the supervisor, in a worker of ``--workers``."""

    @property
    def is_demo(self) -> bool:
        """Whether it serves the demo servers."""
        return self.config is None

    @property
    def can_verify(self) -> bool:
        """Whether callers must identify themselves. Without that, programs of the same user may call."""
        options = self.options
        return any((self.token, options.tokens_file, options.jwt_issuer, options.has_gateway))

    @property
    def lame_duck(self) -> float:
        """How long all is still served after the end was announced. On this machine there is no balancer to tell."""
        if self.options.lame_duck is not None:
            return self.options.lame_duck
        return 0.0 if is_loopback(self.host) else LAME_DUCK_SECONDS

    @property
    def leave_seconds(self) -> float:
        """How long open connections are served after a successor took over, before their calls are cut."""
        return max(self.options.drain, self.lame_duck)

    @property
    def url(self) -> str:
        """The MCP endpoint."""
        return endpoint_url(self.host, self.port, tls=self.options.speaks_tls)

    @property
    def public_url(self) -> str:
        """The address that clients and browsers use, without a slash at its end."""
        return (self.options.public_url or self.url.removesuffix("/mcp")).rstrip("/")

    @property
    def open_to(self) -> str:
        """Who may call without credentials, in words; empty if all need them."""
        if self.can_verify:
            return ""
        return "every program of this user" + (" with a client certificate" if self.options.tls_client_ca else "")

    @property
    def needs_name(self) -> bool:
        """Whether other machines reach this hub, and it answers to none of the names that they may use."""
        named = self.options.allow_host or self.options.public_url
        return self.host in ("0.0.0.0", "::") and not named  # noqa: S104 - nothing is bound here
