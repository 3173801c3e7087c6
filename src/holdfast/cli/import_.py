"""``holdfast import``: copy the servers of other MCP clients, and connect the clients to the hub.

Secrets are masked in everything that is printed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from holdfast.cli.command_options import AsJson, Yes
from holdfast.cli.output import (
    counted,
    print_diff,
    print_error,
    print_json,
    print_line,
    print_note,
)
from holdfast.cli.service import hub_service, install_service, service_is_installed
from holdfast.config import (
    CLIENTS,
    Backups,
    ClientPaths,
    ImportPlan,
    ImportRow,
    KnownClient,
    PointingPlan,
    Scope,
    UndoPlan,
    client_named,
    config_to_edit,
    plan_import,
    plan_pointing,
    plan_undoing,
)
from holdfast.core import Redactor, command_line, is_loopback, plain
from holdfast.errors import ConfigError, HoldfastError, UsageError
from holdfast.serve import DEFAULT_URL, local_token, local_token_file, own_command, read_token

__all__ = ["as_data", "import_", "point_clients"]

_NAMES = ", ".join(CLIENTS)


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
    rename: Annotated[
        bool, typer.Option("--rename", help="Copy a server whose name is taken under another name: NAME-CLIENT")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes, and change nothing")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Copy the servers of other MCP clients into Holdfast's own mcp.json.

    Without a CLIENT it lists the clients that have servers, and changes nothing.
    With --apply the hub replaces the copied servers in the file of the client.
    Exit code 0: done. 1: a server could not be copied, or there was nothing to do.
    """
    if apply and undo:
        raise UsageError("--apply and --undo exclude each other", hint="use one of them")
    around = ClientPaths(environ=os.environ, project=Path.cwd())
    chosen = _chosen(clients or [])
    if undo:
        raise typer.Exit(_undo(chosen or list(CLIENTS.values()), around, dry_run=dry_run, as_json=as_json))
    destination = config_to_edit(config, os.environ)
    scopes: tuple[Scope, ...] = ("user", "project") if project else ("user",)
    plan = plan_import(chosen or CLIENTS.values(), around, destination=destination, scopes=scopes, rename=rename)
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
        print_plan(plan, pointed, done=not dry_run, then=_after_pointing(plan.destination, url, stdio))
    if any(kept for _, kept in pointed) and not (stdio or as_json):
        _offer_service(plan.destination, url, ask=not yes)
    raise typer.Exit(0 if (plan.rows or pointed) and all(row.is_ours for row in plan.rows) else 1)


def _offer_service(config: Path, url: str, *, ask: bool) -> None:
    """Offer to run the hub in the background: the client needs it from now on."""
    if url != DEFAULT_URL or service_is_installed():
        return
    command = command_line("service", "install", "--config", str(config))
    if not (ask and sys.stdin.isatty()):
        print_note(f"To keep it running in the background: {command}")
    elif typer.confirm("Run the hub in the background, also after a restart of your session?", err=True):
        install_service(hub_service(config))


def _chosen(names: list[str]) -> list[KnownClient]:
    if "all" in names:
        return list(CLIENTS.values())
    return [client_named(name) for name in dict.fromkeys(names)]


def _overview(plan: ImportPlan, *, apply: bool, as_json: bool) -> None:
    if apply:
        raise UsageError("--apply needs a client", hint=f"name one, or `all`: {_NAMES}")
    if as_json:
        print_json(as_data(plan, [], done=False))
    else:
        print_overview(plan)


def _point(
    plan: ImportPlan, url: str, stdio: bool, *, ask: bool, dry_run: bool, quiet: bool
) -> Iterator[tuple[PointingPlan, Path | None]]:
    command = (*own_command(), "serve", "--stdio", "--config", str(plan.destination))
    backups = Backups(os.environ)
    token = _hub_token() if url == DEFAULT_URL and not stdio else ""
    for pointing in plan_pointing(plan, url=url, command=command, stdio=stdio, token=token):
        if not quiet:
            print_diff(pointing.diff(), pointing.secrets)
        if dry_run:
            yield pointing, None
        elif not ask or not sys.stdin.isatty() or typer.confirm(f"Write {pointing.place.file}?", err=True):
            yield pointing, pointing.perform(backups)


def point_clients(plan: ImportPlan, *, stdio: bool) -> Iterator[tuple[PointingPlan, Path | None]]:
    """Connect every client of the plan to the hub at the usual address, without a question."""
    return _point(plan, DEFAULT_URL, stdio, ask=False, dry_run=False, quiet=True)


def _hub_token() -> str:
    """The token of local callers, where the hub of this user requires one: see ``serve --local-token``."""
    file = local_token_file(os.environ)
    return read_token(local_token(os.environ)) if file.exists() or sys.platform != "linux" else ""


def _undo(clients: list[KnownClient], around: ClientPaths, *, dry_run: bool, as_json: bool) -> int:
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


_COLOURS = {"new": "green", "there": "dim", "renamed": "green", "conflict": "yellow", "unusable": "red"}
_WORDS = {
    "new": "copied",
    "there": "already there",
    "renamed": "copied",
    "conflict": "stays with the client",
    "unusable": "stays with the client",
}


def print_overview(plan: ImportPlan) -> None:
    """Print which clients have servers."""
    for client, place in plan.found:
        names = [row.entry.name for row in plan.rows if (row.client, row.place) == (client, place)]
        print_line((f"{client.id:<12}", "bold"), f"{counted(len(names), 'server')}  ", (str(place.file), "dim"))
        if names:
            print_line((f"            {', '.join(map(plain, names))}", "dim"))
    for problem in plan.unreadable:
        print_error(str(problem), problem.hint)
    if plan.found:
        copy = command_line("import", "CLIENT")
        print_note(f"Nothing was changed. To copy a client's servers: {copy}")
    else:
        print_note(f"No file of a client was found; {looked_at(plan)}")


def looked_at(plan: ImportPlan) -> str:
    """The places that were searched."""
    return "searched: " + ", ".join(map(str, plan.searched))


def print_plan(plan: ImportPlan, pointed: Sequence[tuple[PointingPlan, Path | None]], *, done: bool, then: str) -> None:
    """Print the result for each server, and the next step; ``then`` is that of a client that uses the hub now."""
    for row in plan.rows:
        _print_row(row, done=done)
    if not plan.rows:
        print_line(f"no servers in {', '.join(str(place.file) for _, place in plan.found)}")
    for pointing, kept in pointed:
        verb = "uses the hub now" if kept else "would use the hub"
        print_line(f"{pointing.client.title} {verb}: {pointing.place.file}")
        if kept:
            back = f"`{command_line('import', pointing.client.id, '--undo')}` restores it"
            print_line((f"  backup: {kept}; {back}", "dim"))
        if pointing.client.tool_search:
            print_line((f"  {pointing.client.tool_search}", "dim"))
    _print_next(plan, done=done, then=then if pointed else "")


def as_data(plan: ImportPlan, pointed: Sequence[tuple[PointingPlan, Path | None]], *, done: bool) -> dict[str, Any]:
    """The result as JSON data."""
    return {
        "config": str(plan.destination),
        "written": done and plan.is_change,
        "servers": [_row_data(row) for row in plan.rows],
        "pointed": [
            {
                "client": pointing.client.id,
                "file": str(pointing.place.file),
                "moved": list(pointing.moved),
                "backup": str(kept) if kept else None,
            }
            for pointing, kept in pointed
        ],
        "problems": [{"message": str(problem), "hint": problem.hint} for problem in plan.unreadable],
    }


def print_undone(undone: Sequence[UndoPlan], *, done: bool) -> None:
    """Print which files were restored."""
    for undoing in undone:
        verb = "is" if done else "would be"
        how = "restored" if undoing.exact else "given its servers back; later changes stay"
        print_line(f"{undoing.backup.place.file} {verb} {how}")
    if not undone:
        print_note("nothing to undo: no backup was found")


def undone_as_data(undone: Sequence[UndoPlan], *, done: bool) -> dict[str, Any]:
    """The result as JSON data."""
    rows = [
        {
            "client": undoing.client.id,
            "file": str(undoing.backup.place.file),
            "restored": list(undoing.backup.moved),
            "exact": undoing.exact,
        }
        for undoing in undone
    ]
    return {"written": done and bool(undone), "undone": rows}


def _print_row(row: ImportRow, *, done: bool) -> None:
    word = _WORDS[row.outcome] if done or row.outcome not in ("new", "renamed") else "would be copied"
    name = f" as {plain(row.renamed)}" if row.renamed else ""
    where = f"  from {row.client.title}" if row.is_ours else f"  in {row.client.title}"
    print_line((plain(row.entry.name), "bold"), "  ", (f"{word}{name}", _COLOURS[row.outcome]), (where, "dim"))
    for note in _notes(row):
        print_line(f"  {note}")


def _notes(row: ImportRow) -> list[str]:
    mask = Redactor(row.entry.secrets).mask
    notes = [mask(row.reason)] if row.reason else []
    if row.outcome == "unusable":
        notes += [f"hint: {mask(problem.hint)}" for problem in row.entry.problems[:1] if problem.hint]
    if row.is_ours and row.entry.needs:
        notes.append(f"set these variables where the hub runs: {', '.join(row.entry.needs)}")
    if row.is_ours and row.entry.dropped:
        notes.append(f"not copied, because Holdfast does not use it: {', '.join(map(plain, row.entry.dropped))}")
    return notes


def _after_pointing(config: Path, url: str, stdio: bool) -> str:
    """What starts the hub that a client uses now: a command that serves that URL, if it is one of this machine."""
    if stdio:
        return "The client starts the hub itself."
    parts = urlsplit(url)
    if not is_loopback(parts.hostname or ""):
        return f"The client needs the hub at {url}; it is started there."
    host = () if parts.hostname in ("127.0.0.1", "localhost") else ("--host", str(parts.hostname))
    port = () if url == DEFAULT_URL else ("--port", str(parts.port or (443 if parts.scheme == "https" else 80)))
    tls = ("--tls-cert", "FILE", "--tls-key", "FILE") if parts.scheme == "https" else ()
    return f"Start the hub: {command_line('serve', '--config', str(config), *host, *port, *tls)}"


def _print_next(plan: ImportPlan, *, done: bool, then: str) -> None:
    if not any(row.is_ours for row in plan.rows):
        return
    if not done:
        print_note("Dry run: nothing was changed.")
    elif then:
        print_note(then)
    else:
        print_note(f"The servers are in {plan.destination}. With --apply the client uses the hub instead.")


def _row_data(row: ImportRow) -> dict[str, Any]:
    mask = Redactor(row.entry.secrets).mask
    return {
        "name": row.entry.name,
        "client": row.client.id,
        "file": str(row.place.file),
        "outcome": row.outcome,
        "renamed": row.renamed or None,
        "reason": mask(row.reason) or None,
        "needs": list(row.entry.needs),
        "dropped": list(row.entry.dropped),
    }
