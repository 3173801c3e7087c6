"""Where the hub listens and who may call it: the default address, the accepted callers, the listening socket.

It imports no web framework, so that wrong options are reported at once.
"""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from holdfast.config import state_folder
from holdfast.core import is_loopback
from holdfast.errors import HoldfastError, UsageError
from holdfast.files import NotPrivate, private_folder, read_secret, replace_file

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "DEFAULT_URL",
    "AcceptedJwt",
    "CallerAuth",
    "GatewayAuth",
    "TlsOptions",
    "bind",
    "check_token_length",
    "endpoint",
    "inherited_socket",
    "local_token",
    "local_token_file",
    "notify_ready",
    "notify_successor",
    "read_token",
    "require_auth_beyond_loopback",
    "uid_of",
]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 4653
"""HOLD on a telephone keypad."""

SHORTEST_TOKEN = 16
"""Characters. A shorter token can be guessed by anyone who can reach the port."""

FIRST_INHERITED = 3
"""The descriptor of the first socket that systemd passes."""


def endpoint(host: str, port: int, path: str = "/mcp", *, tls: bool = False) -> str:
    """The URL of a hub that listens on this host and port."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
    return f"http{'s' if tls else ''}://{f'[{reachable}]' if ':' in reachable else reachable}:{port}{path}"


def needs_name(host: str, names: Sequence[str]) -> bool:
    """Whether other machines reach a hub on this host, and it answers to none of the names that they may use."""
    return host in ("0.0.0.0", "::") and not names  # noqa: S104 - nothing is bound here


DEFAULT_URL = endpoint(DEFAULT_HOST, DEFAULT_PORT)


@dataclass(frozen=True, kw_only=True)
class AcceptedJwt:
    """The JWTs that the hub accepts."""

    issuer: str
    audience: str
    keys: str
    """The URL of a JWKS, or the path of a public key."""
    groups_claim: str = "groups"
    scopes_claim: str = "scope"


@dataclass(frozen=True, kw_only=True)
class GatewayAuth:
    """A gateway that names its users in headers; a secret or its certificate shows that a request comes from it."""

    secret: str | None = field(default=None, repr=False)
    secret_file: Path | None = None
    mtls: bool = False
    certificate_names: tuple[str, ...] = ()
    user_header: str = "X-Forwarded-User"
    groups_header: str = "X-Forwarded-Groups"


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """The files for TLS."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, kw_only=True)
class CallerAuth:
    """How callers identify themselves. Without a token or a JWT, programs of the same user may call."""

    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    """Where the token comes from. The hub reads it again while it runs."""
    tokens_file: Path | None = None
    jwt: AcceptedJwt | None = None
    gateway: GatewayAuth | None = None
    uids: tuple[int, ...] = ()
    """Further users of this machine that may call a hub without credentials."""
    hosts: tuple[str, ...] = ()
    """Host names that requests may use, besides the usual ones."""

    @property
    def can_verify(self) -> bool:
        """Whether callers must identify themselves."""
        return any((self.token, self.tokens_file, self.jwt, self.gateway))


def open_to(callers: CallerAuth, tls: TlsOptions | None) -> str:
    """Who may call without credentials, in words; empty if all need them."""
    if callers.can_verify:
        return ""
    return "every program of this user" + (" with a client certificate" if tls is not None and tls.client_ca else "")


def require_auth_beyond_loopback(host: str, *, can_verify: bool) -> None:
    """Refuse to listen beyond this machine without a token or a JWT (SEC-2)."""
    if not is_loopback(host) and not can_verify:
        raise UsageError(
            f"{host} can be reached from other machines, and callers need no token",
            hint="use --token-file FILE or --tokens-file FILE, or listen on 127.0.0.1",
        )


def inherited_socket(environ: MutableMapping[str, str]) -> socket.socket | None:
    """The listening socket that systemd passes to this process; None if there is none.

    The variables are removed, so that no child process takes the socket for its own.
    """
    meant, count = environ.get("LISTEN_PID") == str(os.getpid()), environ.get("LISTEN_FDS", "")
    if not meant:
        return None
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environ.pop(name, None)
    if count != "1":
        raise UsageError(f"systemd passes {count} sockets", hint="the socket unit must have exactly one ListenStream")
    listener = socket.socket(fileno=FIRST_INHERITED)
    listener.set_inheritable(False)
    if listener.family not in (socket.AF_INET, socket.AF_INET6) or listener.type != socket.SOCK_STREAM:
        raise UsageError("systemd passes a socket that is not TCP", hint="write ListenStream=127.0.0.1:4653")
    return listener


def notify_ready(environ: Mapping[str, str]) -> None:
    """Tell systemd that the hub listens (``Type=notify``). Does nothing without systemd."""
    _notify(environ, "READY=1")


def notify_successor(environ: Mapping[str, str], pid: int) -> None:
    """Tell systemd which process is the hub from now on. It believes that only of a process of the same unit."""
    _notify(environ, f"MAINPID={pid}")


def _notify(environ: Mapping[str, str], message: str) -> None:
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        notify.send(message.encode())


def read_token(file: Path, name: str = "the token") -> str:
    """The token in a file; ``name`` is for messages."""
    try:
        token = read_secret(file).strip()
    except NotPrivate as exc:
        raise HoldfastError(f"{name} is not private: {exc}", hint=f"run: {exc.command}") from exc
    except (OSError, UnicodeDecodeError) as exc:
        why = getattr(exc, "strerror", None) or type(exc).__name__
        raise HoldfastError(f"cannot read the token file {file}: {why}", hint="check the path") from exc
    check_token_length(name, token)
    return token


LOCAL_TOKEN = "caller.token"  # noqa: S105 - the name of a file
"""In the state folder: the token of local callers, where the system does not say which user calls."""


def local_token_file(environ: Mapping[str, str]) -> Path:
    """Where the token of local callers is."""
    return state_folder(environ) / LOCAL_TOKEN


def local_token(environ: Mapping[str, str]) -> Path:
    """The file with the token of local callers; it is made if there is none."""
    file = local_token_file(environ)
    try:
        if not file.exists():
            private_folder(file.parent)
            replace_file(file, f"{secrets.token_urlsafe(32)}\n")
    except OSError as exc:
        raise HoldfastError(
            f"cannot write the token of local callers, {file}: {exc.strerror}", hint="use --token-file FILE"
        ) from exc
    return file


def uid_of(user: str) -> int:
    """The uid of a user, by name or number."""
    if user.isascii() and user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        raise UsageError(f"there is no user `{user}`", hint="give a user name or a uid") from None


def check_token_length(name: str, token: str) -> None:
    """Refuse a token that is too short."""
    if len(token) < SHORTEST_TOKEN:
        raise UsageError(
            f"{name} has fewer than {SHORTEST_TOKEN} characters",
            hint="make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound and listens. Each error has a hint."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    except (socket.gaierror, UnicodeError) as exc:
        raise HoldfastError(
            f"the host `{host}` cannot be resolved", hint="use an address of this machine, for example --host 127.0.0.1"
        ) from exc
    # asyncio disables Nagle's algorithm only if the protocol is IPPROTO_TCP. Else an answer in two parts waits 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as exc:
        listener.close()
        _cannot_bind(host, port, exc)
    return listener


def _cannot_bind(host: str, port: int, exc: OSError) -> NoReturn:
    match exc.errno:
        case errno.EADDRINUSE:
            what = f"port {port} of {host} is in use"
            hint = "a hub may already run there. Use another port, or --port 0 for a free one"
        case errno.EACCES:
            what, hint = f"no permission to use port {port}", "use a port above 1023"
        case errno.EADDRNOTAVAIL:
            what, hint = f"{host} is not an address of this machine", "use 127.0.0.1, or 0.0.0.0 for all addresses"
        case _:
            what, hint = f"cannot listen on {host}, port {port}: {exc.strerror}", "use another --host or --port"
    raise HoldfastError(what, hint=hint) from exc
