"""Where the hub listens and who may call it: the default address, the accepted callers, the listening socket.

It imports no web framework, so that wrong options are reported at once.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from holdfast.core import is_loopback
from holdfast.errors import HoldfastError, UsageError

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "DEFAULT_URL",
    "AcceptedJwt",
    "CallerAuth",
    "GatewayAuth",
    "bind",
    "endpoint",
    "require_auth_beyond_loopback",
]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 4653
"""HOLD on a telephone keypad."""


def endpoint(host: str, port: int, path: str = "/mcp") -> str:
    """The URL of a hub that listens on this host and port."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
    return f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{port}{path}"


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
    """A gateway that names its users in headers; the secret shows that a request comes from the gateway."""

    secret: str = field(repr=False)
    user_header: str = "X-Forwarded-User"
    groups_header: str = "X-Forwarded-Groups"


@dataclass(frozen=True, kw_only=True)
class CallerAuth:
    """How callers identify themselves. Without a token or a JWT, every local program may call."""

    token: str | None = field(default=None, repr=False)
    tokens_file: Path | None = None
    jwt: AcceptedJwt | None = None
    gateway: GatewayAuth | None = None
    hosts: tuple[str, ...] = ()
    """Host names that requests may use, besides the usual ones."""

    @property
    def can_verify(self) -> bool:
        """Whether callers must identify themselves."""
        return any((self.token, self.tokens_file, self.jwt, self.gateway))


def require_auth_beyond_loopback(host: str, *, can_verify: bool) -> None:
    """Refuse to listen beyond this machine without a token or a JWT (SEC-2)."""
    if not is_loopback(host) and not can_verify:
        raise UsageError(
            f"{host} can be reached from other machines, and callers need no token",
            hint="use --token-file FILE or --tokens-file FILE, or listen on 127.0.0.1",
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
