"""``holdfast stop``: end the hub that runs in the background. A client that needs it again starts another one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import data_console, working
from holdfast.control import RunningHub, is_named, running_hubs
from holdfast.core import command_line
from holdfast.errors import HoldfastError, NoHub

__all__ = ["app", "end_background_hubs"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

END_SECONDS = 40.0
"""Longer than the hub's own limits for calls in flight and for closing its servers."""

LOOK_SECONDS = 0.05


@app.command()
def stop(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Only the hub that serves this mcp.json")
    ] = None,
    hub: Annotated[
        str | None, typer.Option("--hub", metavar="HUB", help="The hub with this process id, port, file or folder")
    ] = None,
) -> None:
    """End the hub that your clients share, after its calls in flight.

    It means the hubs that clients started in the background; --hub also ends one that you started yourself. Clients
    that are open stay as they are: the next request of one of them starts a hub again.
    Exit code 0: it ended. 1: no hub runs, or it did not end in time.
    """
    found = _meant(config, hub)
    if not found:
        hint = f"`{command_line('status')}` shows the hubs that run here"
        raise NoHub("no hub runs in the background", hint=hint)
    for one in found:
        with working(f"waiting until the hub with process id {one.pid} has ended"):
            _end(one)
        data_console().print(f"the hub with process id {one.pid} has ended")


def end_background_hubs() -> list[int]:
    """End every hub that clients started in the background; returns their process ids."""
    found = _meant(None, None)
    for one in found:
        _end(one)
    return [one.pid for one in found]


def _meant(config: Path | None, name: str | None) -> list[RunningHub]:
    hubs = running_hubs()
    if name is not None:
        return [one for one in hubs if is_named(one, name)]
    return [one for one in hubs if one.background and (config is None or one.config == str(config.absolute()))]


def _end(hub: RunningHub) -> None:
    until = time.monotonic() + END_SECONDS
    try:
        os.kill(hub.pid, signal.SIGTERM)
        while time.monotonic() < until:
            os.kill(hub.pid, 0)
            time.sleep(LOOK_SECONDS)
    except ProcessLookupError:
        return
    raise HoldfastError(f"the hub with process id {hub.pid} has not ended", hint=f"end it by force: kill -9 {hub.pid}")
