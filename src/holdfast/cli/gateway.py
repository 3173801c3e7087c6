"""``holdfast gateway``: render AgentGateway's configuration once, or keep it in step with its targets."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.gateway_bridge import bridge
from holdfast.cli.gateway_options import (
    AdminAddress,
    AuthBody,
    AuthHost,
    AuthProtocol,
    AuthTimeout,
    JwtAudience,
    JwtIssuer,
    JwtKeys,
    OutageStatus,
    Port,
    SchemaPath,
    Version,
    ext_auth_of,
    jwt_of,
    release_of,
    warn,
)
from holdfast.config.load import load_config
from holdfast.config.targets import targets_of
from holdfast.errors import HoldfastError
from holdfast.gateway.defaults import ADMIN_ADDRESS, BODY_BYTES, EXT_AUTH_TIMEOUT, LISTEN_PORT, OUTAGE_STATUS
from holdfast.gateway.model import Gateway, check_address

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.command()(bridge)


@app.callback()
def gateway() -> None:
    """AgentGateway's configuration, with an authorization timeout that is right."""
    missing = [name for name in ("yaml", "jsonschema", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        hint = "pip install 'holdfast-mcp[gateway]'"
        raise HoldfastError(f"`holdfast gateway` needs what is not installed here: {', '.join(missing)}", hint=hint)


@app.command()
def render(
    gateway_version: Version,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
    ext_auth_host: AuthHost = None,
    ext_auth_timeout: AuthTimeout = EXT_AUTH_TIMEOUT,
    outage_status: OutageStatus = OUTAGE_STATUS,
    ext_auth_protocol: AuthProtocol = "grpc",
    ext_auth_body_bytes: AuthBody = BODY_BYTES,
    jwt_issuer: JwtIssuer = None,
    jwt_jwks: JwtKeys = None,
    jwt_audience: JwtAudience = None,
    port: Port = LISTEN_PORT,
    admin_address: AdminAddress = ADMIN_ADDRESS,
    schema: SchemaPath = None,
) -> None:
    """Print the configuration, as YAML, with a route for every server of an mcp.json that has a URL."""
    from holdfast.gateway.check import check, find_schema  # noqa: PLC0415 - what it needs may be missing: see above
    from holdfast.gateway.render import render as document_of  # noqa: PLC0415 - as above
    from holdfast.gateway.render import to_yaml  # noqa: PLC0415 - as above

    release = release_of(gateway_version)
    ext_auth = ext_auth_of(ext_auth_host, ext_auth_timeout, outage_status, ext_auth_protocol, ext_auth_body_bytes)
    targets = targets_of(load_config(config))
    for line in (*(f"no route for `{name}`: {why}" for name, why in targets.left_out.items()), *targets.notes):
        warn(line)
    wanted = Gateway(
        targets=targets.found,
        ext_auth=ext_auth,
        jwt=jwt_of(jwt_issuer, jwt_jwks, jwt_audience),
        port=port,
        admin=check_address(admin_address, option="--admin-address"),
    )
    document = document_of(wanted, release.family)
    check(document, release, find_schema(release, schema))
    sys.stdout.write(to_yaml(document))
