"""``holdfast disable``: disable servers."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.running_hub import AsJson, Config, HubName, Url, act_on, found_hub

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def disable(
    servers: Annotated[list[str], typer.Argument(metavar="SERVER", help="The servers to disable")],
    as_json: AsJson = False,
    url: Url = None,
    config: Config = None,
    hub: HubName = None,
) -> None:
    """Disable servers. They stay disabled after a restart of the hub, until `holdfast enable`.

    Their calls in flight end with an error, and new calls are refused.

    Exit code 0: all are disabled. 1: at least one is not, or no hub is running.
    """
    found = found_hub(url, config, hub)
    raise typer.Exit(act_on(found, servers, "disable", progress="disabling", as_json=as_json))
