"""The options that ``gateway render`` and ``gateway bridge`` share, and what they mean together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import side_console
from holdfast.errors import UsageError
from holdfast.gateway.model import ExtAuth, Jwt
from holdfast.gateway.versions import Release, family_of

__all__ = [
    "AdminAddress",
    "AuthBody",
    "AuthHost",
    "AuthProtocol",
    "AuthTimeout",
    "JwtAudience",
    "JwtIssuer",
    "JwtKeys",
    "OutageStatus",
    "Port",
    "SchemaPath",
    "Version",
    "ext_auth_of",
    "jwt_of",
    "release_of",
    "warn",
]

Version = Annotated[
    str, typer.Option("--gateway-version", metavar="V", help="The AgentGateway that will read it, as in 1.4.1")
]
AuthHost = Annotated[
    str | None, typer.Option("--ext-auth-host", metavar="HOST:PORT", help="The authorization service to ask")
]
AuthTimeout = Annotated[
    str, typer.Option("--ext-auth-timeout", metavar="TIME", help="How long the gateway waits for its verdict")
]
AuthProtocol = Annotated[str, typer.Option("--ext-auth-protocol", metavar="grpc|http", help="How it is asked")]
AuthBody = Annotated[
    int, typer.Option("--ext-auth-body-bytes", metavar="N", help="How much of a request's body it is shown; 0 for none")
]
OutageStatus = Annotated[
    int,
    typer.Option("--outage-status", metavar="N", help="What clients get when there is no verdict: 500 to 599, or 403"),
]
JwtIssuer = Annotated[str | None, typer.Option("--jwt-issuer", metavar="URL", help="Demand this issuer's tokens")]
JwtKeys = Annotated[str | None, typer.Option("--jwt-jwks", metavar="URL|FILE", help="Where the issuer's keys are")]
JwtAudience = Annotated[
    list[str] | None, typer.Option("--jwt-audience", metavar="NAME", help="For whom tokens must be; may be repeated")
]
Port = Annotated[int, typer.Option("--port", metavar="N", min=1, max=65535, help="Where the gateway listens")]
AdminAddress = Annotated[str, typer.Option("--admin-address", metavar="HOST:PORT", help="The gateway's admin address")]
SchemaPath = Annotated[
    Path | None,
    typer.Option("--schema", metavar="PATH", help="AgentGateway's own schema, or a folder of them, to check against"),
]


def release_of(version: str) -> Release:
    """How to render for a version; what is uncertain about it is said."""
    release = family_of(version)
    if release.warning:
        warn(release.warning)
    return release


def ext_auth_of(host: str | None, timeout: str, outage_status: int, protocol: str, body_bytes: int) -> ExtAuth | None:
    """The authorization that was asked for; that there is none is said."""
    if protocol not in ("grpc", "http"):
        raise UsageError(f"--ext-auth-protocol is grpc or http, not `{protocol}`")
    if host is None:
        warn("no --ext-auth-host: whoever reaches the gateway reaches the servers")
        return None
    return ExtAuth(
        host=host,
        timeout=timeout,
        outage_status=outage_status,
        protocol="http" if protocol == "http" else "grpc",
        body_bytes=body_bytes,
    )


def jwt_of(issuer: str | None, keys: str | None, audiences: list[str] | None) -> Jwt | None:
    """Whose tokens are demanded, if any."""
    if issuer is None and keys is None and not audiences:
        return None
    if issuer is None or keys is None:
        raise UsageError("--jwt-issuer and --jwt-jwks go together", hint="a token is checked against its issuer's keys")
    return Jwt(issuer=issuer, jwks=keys, audiences=tuple(audiences or ()))


def warn(text: str) -> None:
    """Say something that is no error on stderr."""
    side_console().print(f"warning: {text}", soft_wrap=True)
