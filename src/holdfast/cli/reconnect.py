"""``holdfast reconnect``: reconnect servers now."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.running_hub import AsJson, Config, HubName, Url, act_on, found_hub

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def reconnect(
    servers: Annotated[list[str], typer.Argument(metavar="SERVER", help="The servers to reconnect")],
    as_json: AsJson = False,
    url: Url = None,
    config: Config = None,
    hub: HubName = None,
) -> None:
    """Reconnect servers now. Their breakers close, and their reconnect attempts start at zero.

    The command waits until each server is connected or has failed. A disabled
    server is not connected: use `holdfast enable`.

    Exit code 0: all are connected. 1: at least one is not, or no hub is running.
    """
    found = found_hub(url, config, hub)
    raise typer.Exit(act_on(found, servers, "reconnect", progress="reconnecting", as_json=as_json))
