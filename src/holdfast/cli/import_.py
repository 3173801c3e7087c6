"""``holdfast import``: other clients' servers become ours, and the clients are pointed at the hub."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import import_view as view
from holdfast.cli.address import DEFAULT_URL, own_command
from holdfast.cli.output import print_json
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
    apply: Annotated[bool, typer.Option("--apply", help="Also point the client at the hub; a backup is kept")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Put the client's file back as it was before --apply")] = False,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Where to copy to")] = None,
    project: Annotated[bool, typer.Option("--project", help="Also the client's files in this folder")] = False,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="Where the hub listens")] = DEFAULT_URL,
    stdio: Annotated[bool, typer.Option("--stdio", help="Have the client start the hub itself")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask on a terminal before --apply")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs")] = False,
) -> None:
    """Copy the servers of other MCP clients into Holdfast's own mcp.json.

    Without a CLIENT it shows which clients have servers, and changes nothing.
    With --apply the client keeps one entry, the hub, in place of those that were copied.
    Exit code 0: done. 1: something could not be taken over, or there was nothing to do.
    """
    if apply and undo:
        raise UsageError("--apply and --undo contradict each other", hint="give one of them")
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
        raise HoldfastError(f"{chosen[0].title} has no file here", hint=view.looked_at(plan))
    if not dry_run:
        plan.perform()
    pointed = list(_point(plan, url, stdio, ask=not yes, dry_run=dry_run, quiet=as_json)) if apply else []
    if as_json:
        print_json(view.as_data(plan, pointed, done=not dry_run))
    else:
        view.print_plan(plan, pointed, done=not dry_run)
    raise typer.Exit(0 if (plan.rows or pointed) and all(row.is_ours for row in plan.rows) else 1)


def _chosen(names: list[str]) -> list[Client]:
    if "all" in names:
        return list(CLIENTS.values())
    return [client_named(name) for name in dict.fromkeys(names)]


def _destination(config: Path | None) -> Path:
    """Our file: the one that is named, else the user's own. What a project happens to have is left alone."""
    named = config or (Path(os.environ["HOLDFAST_CONFIG"]) if os.environ.get("HOLDFAST_CONFIG") else None)
    return (named or next(user_folders(os.environ)) / "mcp.json").absolute()


def _overview(plan: Plan, *, apply: bool, as_json: bool) -> None:
    if apply:
        raise UsageError("which client is to be pointed at the hub?", hint=f"name one, or `all`: {_NAMES}")
    if as_json:
        print_json(view.as_data(plan, [], done=False))
    else:
        view.print_overview(plan)


def _point(
    plan: Plan, url: str, stdio: bool, *, ask: bool, dry_run: bool, quiet: bool
) -> Iterator[tuple[Pointing, Path | None]]:
    command = (*own_command(), "serve", "--stdio", "--config", str(plan.destination))
    backups = Backups(os.environ)
    for pointing in plan_pointing(plan, url=url, command=command, stdio=stdio):
        if not quiet:
            view.print_diff(pointing)
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
        print_json(view.undone_as_data(done, done=not dry_run))
    else:
        view.print_undone(done, done=not dry_run)
    return 0 if done else 1
