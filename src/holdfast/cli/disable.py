"""``holdfast disable``: switch servers off."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.acting import act_on
from holdfast.cli.reaching import AsJson, Config, Url, found_hub
from holdfast.control.client import Control

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def disable(
    servers: Annotated[list[str], typer.Argument(metavar="SERVER", help="The servers to switch off")],
    as_json: AsJson = False,
    url: Url = None,
    config: Config = None,
) -> None:
    """Switch servers off, until `holdfast enable`: also after a restart of the hub.

    Calls under way on them end with an error, and new ones are refused.

    Exit code 0: all are switched off. 1: at least one is not, or no hub is running.
    """
    found = found_hub(url, config)
    raise typer.Exit(act_on(found, servers, Control.disable, doing="switching off", as_json=as_json))
