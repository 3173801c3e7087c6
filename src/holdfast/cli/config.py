"""``holdfast config``: what configuration there is, and where each value in it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.callback()
def config() -> None:
    """Look at the configuration."""


@app.command()
def show(
    config: Annotated[
        Path | None, typer.Option("--config", help="The file to read, instead of searching for one.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show what was found, where each value came from, and what is wrong; secrets are masked."""
    # Reading a configuration takes a while to import, and --help should not wait for it.
    from holdfast.cli.config_view import print_json, print_report  # noqa: PLC0415
    from holdfast.config.provenance import report_config  # noqa: PLC0415

    report = report_config(config)
    (print_json if as_json else print_report)(report)
    raise typer.Exit(0 if report.usable else 1)
