"""The options that several commands have, each spelled once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

__all__ = ["AsJson", "ConfigFile", "HubConfig", "HubName", "Url", "Yes", "group_of_commands"]

ConfigFile: TypeAlias = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")]
HubConfig: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Use the hub that serves this mcp.json")
]
HubName: TypeAlias = Annotated[
    str | None,
    typer.Option("--hub", metavar="HUB", help="Which hub of this machine: its process id, port, file or folder"),
]
Url: TypeAlias = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The address of the hub [default: found automatically]")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")]


def group_of_commands(*, needs_one: bool = True) -> typer.Typer:
    """A command with subcommands. If it ``needs_one``, it prints its help without one."""
    return typer.Typer(pretty_exceptions_enable=False, add_completion=False, no_args_is_help=needs_one)
