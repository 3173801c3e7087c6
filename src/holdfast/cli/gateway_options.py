"""The options that ``gateway render`` and ``gateway bridge`` share, and what they mean together."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.output import side_console
from holdfast.errors import UsageError
from holdfast.gateway.defaults import ADMIN_ADDRESS, BODY_BYTES, EXT_AUTH_TIMEOUT, LISTEN_PORT, OUTAGE_STATUS
from holdfast.gateway.model import ExtAuth, Jwt, check_address
from holdfast.gateway.versions import Release, family_of

__all__ = ["GatewayOptions", "warn", "with_gateway_options"]


@dataclass(frozen=True, kw_only=True)
class GatewayOptions:
    """The shared options. Each field is one option of the command line."""

    gateway_version: Annotated[
        str, typer.Option("--gateway-version", metavar="V", help="The version of AgentGateway, for example 1.4.1")
    ]
    ext_auth_host: Annotated[
        str | None,
        typer.Option("--ext-auth-host", metavar="HOST:PORT", help="Address of the authorization service"),
    ] = None
    ext_auth_timeout: Annotated[
        str,
        typer.Option("--ext-auth-timeout", metavar="TIME", help="How long the gateway waits for the authorization"),
    ] = EXT_AUTH_TIMEOUT
    outage_status: Annotated[
        int,
        typer.Option(
            "--outage-status",
            metavar="N",
            help="The HTTP status for clients when the authorization service does not answer: 500 to 599, or 403",
        ),
    ] = OUTAGE_STATUS
    ext_auth_protocol: Annotated[
        str,
        typer.Option("--ext-auth-protocol", metavar="grpc|http", help="The protocol of the authorization service"),
    ] = "grpc"
    ext_auth_body_bytes: Annotated[
        int,
        typer.Option(
            "--ext-auth-body-bytes",
            metavar="N",
            help="How many bytes of a request's body the authorization service gets; 0 for none",
        ),
    ] = BODY_BYTES
    jwt_issuer: Annotated[
        str | None, typer.Option("--jwt-issuer", metavar="URL", help="Require a token of this issuer")
    ] = None
    jwt_jwks: Annotated[
        str | None, typer.Option("--jwt-jwks", metavar="URL|FILE", help="Where the keys of the issuer are")
    ] = None
    jwt_audience: Annotated[
        list[str] | None,
        typer.Option("--jwt-audience", metavar="NAME", help="The audience that tokens must have; may be repeated"),
    ] = None
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=1, max=65535, help="The port that the gateway listens on")
    ] = LISTEN_PORT
    admin_address: Annotated[
        str, typer.Option("--admin-address", metavar="HOST:PORT", help="The admin address of the gateway")
    ] = ADMIN_ADDRESS
    schema: Annotated[
        Path | None,
        typer.Option("--schema", metavar="PATH", help="Check against AgentGateway's own schema: a file, or a folder"),
    ] = None

    @property
    def admin(self) -> str:
        """The admin address, checked."""
        return check_address(self.admin_address, option="--admin-address")

    def release(self) -> Release:
        """How to render for this version. Warns where the version is uncertain."""
        release = family_of(self.gateway_version)
        if release.warning:
            warn(release.warning)
        return release

    def ext_auth(self) -> ExtAuth | None:
        """The authorization service. Warns where there is none."""
        if self.ext_auth_protocol not in ("grpc", "http"):
            raise UsageError(f"--ext-auth-protocol is grpc or http, not `{self.ext_auth_protocol}`")
        if self.ext_auth_host is None:
            warn("there is no --ext-auth-host: everyone who can reach the gateway can reach the servers")
            return None
        return ExtAuth(
            host=self.ext_auth_host,
            timeout=self.ext_auth_timeout,
            outage_status=self.outage_status,
            protocol="http" if self.ext_auth_protocol == "http" else "grpc",
            body_bytes=self.ext_auth_body_bytes,
        )

    def jwt(self) -> Jwt | None:
        """The tokens that the gateway requires, if any."""
        if self.jwt_issuer is None and self.jwt_jwks is None and not self.jwt_audience:
            return None
        if self.jwt_issuer is None or self.jwt_jwks is None:
            raise UsageError(
                "--jwt-issuer and --jwt-jwks belong together", hint="a token is checked with the keys of its issuer"
            )
        return Jwt(issuer=self.jwt_issuer, jwks=self.jwt_jwks, audiences=tuple(self.jwt_audience or ()))


def with_gateway_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the shared options; it receives them as its first argument, a ``GatewayOptions``."""
    shared = inspect.signature(GatewayOptions, eval_str=True).parameters
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    def run(**given: Any) -> None:
        command(GatewayOptions(**{name: given.pop(name) for name in shared}), **given)

    options = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in (*(one for one in own if one.default is one.empty), *shared.values())
    ]
    options += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own if one.default is not one.empty]
    # typer reads the options from the signature and the annotations.
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run


def warn(text: str) -> None:
    """Print a warning on stderr."""
    side_console().print(f"warning: {text}", soft_wrap=True)
