"""``holdfast enable``: enable servers."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.running_hub import AsJson, Config, HubName, Url, act_on, found_hub

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def enable(
    servers: Annotated[list[str], typer.Argument(metavar="SERVER", help="The servers to enable")],
    as_json: AsJson = False,
    url: Url = None,
    config: Config = None,
    hub: HubName = None,
) -> None:
    """Enable servers. The hub connects to them in the background.

    Exit code 0: all are enabled. 1: at least one is not, or no hub is running.
    """
    found = found_hub(url, config, hub)
    raise typer.Exit(act_on(found, servers, "enable", progress="enabling", as_json=as_json))
