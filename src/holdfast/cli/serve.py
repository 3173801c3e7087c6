"""``holdfast serve``: serve all servers of an mcp.json at one MCP endpoint. ``ServeConfig`` has the options."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

import holdfast.serve
from holdfast.cli.command_options import with_options_of
from holdfast.cli.output import print_note
from holdfast.cli.trust import load_trusted
from holdfast.config import Config, user_folders
from holdfast.core import command_line
from holdfast.errors import ConfigNotFound
from holdfast.serve import JoinOptions, ServeConfig, WorkerLink, join_hub, runs_in_background

__all__ = ["serve"]


@with_options_of(ServeConfig)
def serve(asked: ServeConfig) -> None:
    """Serve all servers of an mcp.json at one MCP endpoint, over HTTP or stdio.

    With --stdio the client joins the hub that you already run; without one, a hub starts in the background and serves
    all clients that join (`holdfast stop` ends it). With --own the hub is for this client alone.

    Without a configuration it serves demo servers, each with its own kind of failure.

    SIGTERM and Ctrl-C end it after the calls in flight. SIGHUP reads the mcp.json again; on a terminal it
    ends the hub, because the terminal was closed. Under systemd it listens on the socket that systemd passes.

    --workers serves with several processes that act as one hub: SIGHUP replaces them one at a time.

    --takeover replaces a running hub without a refused connection: the new hub gets the socket of the old one,
    connects its servers and accepts; then the old one finishes its calls and ends. SIGUSR2 makes a hub start
    such a successor itself, with the same options.

    Without credentials it serves programs of its own user (and of --allow-uid), which Linux tells. To listen beyond
    this machine it needs a token (--token-file, --token or $HOLDFAST_TOKEN), named tokens (--tokens-file), JWTs
    (--jwt-issuer, --jwt-audience and --jwt-keys together) or a gateway (--gateway-secret-file or --gateway-mtls).
    Files with tokens and certificates are read again when they change, and at SIGHUP.
    """
    worker = WorkerLink.find(os.environ)
    asked.check(os.environ)
    if (joins := JoinOptions.read(sys.argv[2:], os.environ)) is not None and asked.stdio and worker is None:
        raise typer.Exit(join_hub(joins))
    if code := holdfast.serve.start_serving(asked, None if asked.demo else _load(asked.config), worker):
        raise typer.Exit(code)


def _load(config: Path | None) -> Config | None:
    """The configuration to serve; None for the demo servers, if there is no file and none was named."""
    own = [folder / "mcp.json" for folder in user_folders(os.environ)]
    if config is not None and runs_in_background(os.environ) and config.absolute() in own and not config.exists():
        return Config(servers={}, source=config)  # the hub follows the file: it may be written later
    try:
        return load_trusted(config)
    except ConfigNotFound as exc:
        print_note("No mcp.json was found, so this serves demo servers. To serve your own:")
        print_note(f"  {command_line('import')}   copies them from your other MCP clients")
        print_note(f"  or put an mcp.json at one of: {', '.join(map(str, exc.searched))}")
        return None
