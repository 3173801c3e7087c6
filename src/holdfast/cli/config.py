"""``holdfast config``: show the configuration, and where each value comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.config_view import as_data, print_report
from holdfast.cli.output import print_json
from holdfast.config.provenance import report_config

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the configuration."""


@app.command()
def show(
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs")] = False,
) -> None:
    """Show the configuration, where each value comes from, and what is wrong. Secrets are masked.

    Exit code 0: every server is usable. 1: something is wrong, or there is no configuration.
    """
    report = report_config(config)
    if as_json:
        print_json(as_data(report))
    else:
        print_report(report)
    raise typer.Exit(0 if report.usable else 1)
