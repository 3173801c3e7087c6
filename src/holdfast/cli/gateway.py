"""``holdfast gateway``: render the configuration of AgentGateway once, or keep it up to date."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.gateway_bridge import bridge
from holdfast.cli.gateway_options import GatewayOptions, warn, with_gateway_options
from holdfast.config.load import load_config
from holdfast.config.targets import targets_of
from holdfast.errors import HoldfastError
from holdfast.gateway.model import Gateway

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.command()(bridge)


@app.callback()
def gateway() -> None:
    """Render the configuration of AgentGateway, with an authorization timeout that fits."""
    missing = [name for name in ("yaml", "jsonschema", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        hint = "install the extra `gateway`: pip install 'holdfast-mcp[gateway]'"
        raise HoldfastError(f"`holdfast gateway` needs missing packages: {', '.join(missing)}", hint=hint)


@app.command()
@with_gateway_options
def render(
    options: GatewayOptions,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
) -> None:
    """Print the configuration as YAML, with a route for each server of an mcp.json that has a URL."""
    from holdfast.gateway.check import check, find_schema  # noqa: PLC0415 - what it needs may be missing: see above
    from holdfast.gateway.render import render as document_of  # noqa: PLC0415 - as above
    from holdfast.gateway.render import to_yaml  # noqa: PLC0415 - as above

    release = options.release()
    ext_auth = options.ext_auth()
    targets = targets_of(load_config(config))
    for line in (*(f"no route for `{name}`: {why}" for name, why in targets.left_out.items()), *targets.notes):
        warn(line)
    wanted = Gateway(
        targets=targets.found, ext_auth=ext_auth, jwt=options.jwt(), port=options.port, admin=options.admin
    )
    document = document_of(wanted, release.family)
    check(document, release, find_schema(release, options.schema))
    sys.stdout.write(to_yaml(document))
