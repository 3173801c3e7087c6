"""``holdfast import``: copy the servers of other MCP clients, and connect the clients to the hub."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.address import DEFAULT_URL
from holdfast.cli.import_view import (
    as_data,
    looked_at,
    print_diff,
    print_overview,
    print_plan,
    print_undone,
    undone_as_data,
)
from holdfast.cli.output import own_command, print_json
from holdfast.config.clients.backup import Backups
from holdfast.config.clients.known import CLIENTS, Around, Client, Scope, client_named
from holdfast.config.clients.moving import Plan, Pointing, plan_import, plan_pointing, plan_undoing
from holdfast.config.find import user_folders
from holdfast.errors import ConfigError, HoldfastError, UsageError

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

_NAMES = ", ".join(CLIENTS)


@app.command(name="import")
def import_(
    clients: Annotated[list[str] | None, typer.Argument(metavar="CLIENT", help=f"{_NAMES}, or all")] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Also connect the client to the hub; a backup is kept")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Restore the file of the client as it was before --apply")
    ] = False,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to copy to")] = None,
    project: Annotated[
        bool, typer.Option("--project", help="Also read the files of the client in this folder")
    ] = False,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="The URL of the hub")] = DEFAULT_URL,
    stdio: Annotated[bool, typer.Option("--stdio", help="Let the client start the hub itself")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes, and change nothing")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs")] = False,
) -> None:
    """Copy the servers of other MCP clients into Holdfast's own mcp.json.

    Without a CLIENT it lists the clients that have servers, and changes nothing.
    With --apply the hub replaces the copied servers in the file of the client.
    Exit code 0: done. 1: a server could not be copied, or there was nothing to do.
    """
    if apply and undo:
        raise UsageError("--apply and --undo exclude each other", hint="use one of them")
    around = Around(environ=os.environ, project=Path.cwd())
    chosen = _chosen(clients or [])
    if undo:
        raise typer.Exit(_undo(chosen or list(CLIENTS.values()), around, dry_run=dry_run, as_json=as_json))
    destination = _destination(config)
    scopes: tuple[Scope, ...] = ("user", "project") if project else ("user",)
    plan = plan_import(chosen or CLIENTS.values(), around, destination=destination, scopes=scopes)
    if not chosen:
        _overview(plan, apply=apply, as_json=as_json)
        return
    if plan.unreadable:
        raise ConfigError(plan.unreadable)
    if not plan.found:
        raise HoldfastError(f"no file of {chosen[0].title} was found", hint=looked_at(plan))
    if not dry_run:
        plan.perform()
    pointed = list(_point(plan, url, stdio, ask=not yes, dry_run=dry_run, quiet=as_json)) if apply else []
    if as_json:
        print_json(as_data(plan, pointed, done=not dry_run))
    else:
        print_plan(plan, pointed, done=not dry_run)
    raise typer.Exit(0 if (plan.rows or pointed) and all(row.is_ours for row in plan.rows) else 1)


def _chosen(names: list[str]) -> list[Client]:
    if "all" in names:
        return list(CLIENTS.values())
    return [client_named(name) for name in dict.fromkeys(names)]


def _destination(config: Path | None) -> Path:
    """The file to copy to: the named one, else the user's own. A file of the project is never changed."""
    named = config or (Path(os.environ["HOLDFAST_CONFIG"]) if os.environ.get("HOLDFAST_CONFIG") else None)
    return (named or next(user_folders(os.environ)) / "mcp.json").absolute()


def _overview(plan: Plan, *, apply: bool, as_json: bool) -> None:
    if apply:
        raise UsageError("--apply needs a client", hint=f"name one, or `all`: {_NAMES}")
    if as_json:
        print_json(as_data(plan, [], done=False))
    else:
        print_overview(plan)


def _point(
    plan: Plan, url: str, stdio: bool, *, ask: bool, dry_run: bool, quiet: bool
) -> Iterator[tuple[Pointing, Path | None]]:
    command = (*own_command(), "serve", "--stdio", "--config", str(plan.destination))
    backups = Backups(os.environ)
    for pointing in plan_pointing(plan, url=url, command=command, stdio=stdio):
        if not quiet:
            print_diff(pointing)
        if dry_run:
            yield pointing, None
        elif not ask or not sys.stdin.isatty() or typer.confirm(f"Write {pointing.place.file}?", err=True):
            yield pointing, pointing.perform(backups)


def _undo(clients: list[Client], around: Around, *, dry_run: bool, as_json: bool) -> int:
    backups = Backups(os.environ)
    done = []
    for undoing in plan_undoing(clients, around, backups):
        if not dry_run:
            undoing.perform(backups)
        done.append(undoing)
    if as_json:
        print_json(undone_as_data(done, done=not dry_run))
    else:
        print_undone(done, done=not dry_run)
    return 0 if done else 1
