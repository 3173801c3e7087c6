"""``holdfast setup``: from nothing to working servers in one conversation. ``holdfast uninstall`` undoes it.

It does nothing that another command does not do: it imports, installs the service, connects the clients, checks and
logs in, with the code of those commands. What it adds is the order, one question before the first change, and the end:
what works, and what to do about the rest.

The order matters. The service comes before the clients: where it cannot run, a client with the hub's URL would point at
nothing, so it gets the entry that starts or joins a hub by itself (``serve --stdio``). What the user's own mcp.json was
before is kept, so that `uninstall` can restore it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.text import Text

from holdfast.cli.import_ import as_data, destination_of, point_clients, print_diff
from holdfast.cli.output import counted, data_console, print_error, print_json, side_console, working
from holdfast.cli.readiness import Row, check_servers, print_row
from holdfast.cli.running_hub import serving_hub
from holdfast.cli.service import hub_service, install_service
from holdfast.cli.trust import load_servers
from holdfast.config import (
    CLIENTS,
    ClientPaths,
    ImportPlan,
    PointingPlan,
    load_config,
    plan_import,
    plan_pointing,
    state_folder,
)
from holdfast.core import command_line, plain
from holdfast.errors import HoldfastError
from holdfast.files import private_folder, replace_file

if TYPE_CHECKING:
    from holdfast.control import RunningHub

__all__ = ["RECORD", "app", "record_of_setup"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

RECORD = "setup.json"
"""In the state folder: what the user's mcp.json was before, for `holdfast uninstall`."""

CHECK_SECONDS = 60.0
"""How long servers may take to start. A first start of `npx` downloads its package."""


@app.command()
def setup(
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to copy to")] = None,
    service: Annotated[
        bool, typer.Option("--service/--no-service", help="Run the hub in the background from now on")
    ] = True,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long servers may take to start")
    ] = CHECK_SECONDS,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; log in to nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs; needs --yes")] = False,
) -> None:
    """Find your MCP clients, copy their servers, connect them to one hub, and check every server.

    It shows what it would change, and asks once. Then it runs the hub in the background, connects the clients, checks
    each server, and offers to log in where that is needed. `holdfast uninstall` undoes all of it.

    Exit code 0: every server works. 1: something is left to do; it says what.
    """
    around = ClientPaths(environ=os.environ, project=Path.cwd())
    destination = destination_of(config)
    plan = plan_import(CLIENTS.values(), around, destination=destination, scopes=("user",))
    _tell_plan(plan, quiet=as_json)
    if not plan.rows and not destination.exists():
        raise HoldfastError(
            "there is no server to set up: no MCP client with servers was found",
            hint=f"add one: {command_line('add', 'NAME', '--', 'COMMAND')}, or {command_line('add', 'NAME', 'URL')}",
        )
    if not yes:
        _ask(as_json=as_json)
    _remember(destination)
    plan.perform()
    why_no_service = _start_service(destination, quiet=as_json) if service else "you asked for none"
    pointed = list(point_clients(plan, stdio=bool(why_no_service)))
    if not as_json:
        _tell_clients(pointed)
    rows = _check(destination, wait, quiet=as_json)
    if not yes:
        rows = _logins(rows, destination, wait)
    if as_json:
        done = {"running": not why_no_service, "reason": why_no_service or None}
        print_json({**as_data(plan, pointed, done=True), "service": done, "checks": [asdict(row) for row in rows]})
    else:
        _tell_end(rows, plan, why_no_service)
    raise typer.Exit(0 if all(row.verdict == "ready" for row in rows) and not _left(plan) else 1)


def _tell_plan(plan: ImportPlan, *, quiet: bool) -> None:
    if quiet:
        return
    out, side = data_console(), side_console()
    out.print(Text("1. Your clients", style="bold"))
    for client, place in plan.found:
        rows = [row for row in plan.rows if (row.client, row.place) == (client, place)]
        out.print(
            Text.assemble((f"  {client.title:<16}", ""), f"{counted(len(rows), 'server')}  ", (str(place.file), "dim"))
        )
        for row in rows:
            what = {"new": "", "there": "you have it already"}.get(row.outcome, row.reason)
            out.print(Text(f"    {plain(row.entry.name)}" + (f": {plain(what)}" if what else "")), soft_wrap=True)
    if not plan.found:
        out.print("  none was found")
    for problem in plan.unreadable:
        print_error(str(problem), problem.hint)
    out.print(Text("2. What will change", style="bold"))
    new = [row.renamed or row.entry.name for row in plan.rows if row.outcome in ("new", "renamed")]
    out.print(
        f"  {plan.destination} gets {counted(len(new), 'server')}: {', '.join(map(plain, new)) or 'none'}",
        soft_wrap=True,
    )
    for pointing in plan_pointing(plan, url="(the hub)", command=("holdfast", "serve", "--stdio"), stdio=False):
        moved = ", ".join(map(plain, pointing.moved)) or "no server"
        out.print(f"  {pointing.place.file} gets the hub instead of {moved}; a backup is kept", soft_wrap=True)
    out.print("  the hub runs in the background from now on, where systemd or launchd can do that", soft_wrap=True)
    side.print(
        f"To see every line of it first: {command_line('import', 'all', '--apply', '--dry-run')}", soft_wrap=True
    )


def _ask(*, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise HoldfastError(
            "nothing was changed: there is no terminal to ask on", hint="use --yes to do what is shown above"
        )
    if not typer.confirm("Do this?", default=True, err=True):
        raise typer.Abort


def record_of_setup() -> Path:
    """Where it is kept what the user's mcp.json was."""
    return state_folder(os.environ) / RECORD


def _remember(config: Path) -> None:
    """Keep what the file was before the first setup."""
    file = record_of_setup()
    if file.exists():
        return
    private_folder(file.parent)
    before = config.read_text(encoding="utf-8") if config.exists() else None
    replace_file(file, json.dumps({"version": 1, "config": str(config), "before": before, "after": ""}))


def _remember_written(config: Path) -> None:
    """Keep what was written: `uninstall` restores the file only if no other hand changed it."""
    file = record_of_setup()
    kept = json.loads(file.read_text(encoding="utf-8"))
    if kept["config"] == str(config) and config.exists():
        kept["after"] = hashlib.sha256(config.read_bytes()).hexdigest()
        replace_file(file, json.dumps(kept))


def _start_service(config: Path, *, quiet: bool) -> str:
    """Start the hub in the background; returns why it cannot, or nothing."""
    _remember_written(config)
    out = data_console()
    if not quiet:
        out.print(Text("3. The hub", style="bold"))
    try:
        install_service(hub_service(config), quiet=quiet)
    except HoldfastError as exc:
        if not quiet:
            why = f"  it cannot run as a service: {exc.message}"
            out.print(Text(plain(why)), soft_wrap=True)
            out.print(
                "  so each client starts or joins the hub by itself, and it ends when none needs it", soft_wrap=True
            )
        return exc.message
    return ""


def _tell_clients(pointed: Sequence[tuple[PointingPlan, Path | None]]) -> None:
    out = data_console()
    out.print(Text("4. Your clients use the hub", style="bold"))
    for pointing, _ in pointed:
        print_diff(pointing)
        out.print(f"  {pointing.client.title}: restart it, so that it reads {pointing.place.file}", soft_wrap=True)
    if not pointed:
        out.print("  nothing was to change")


def _check(config: Path, wait: float, *, quiet: bool) -> list[Row]:
    """Check every server, each with a line as soon as it has an outcome."""
    if not quiet:
        data_console().print(Text("5. Your servers", style="bold"))
    shown: set[str] = set()

    def tell(rows: Sequence[Row]) -> None:
        for row in rows:
            if row.verdict != "not_ready" and row.require not in shown and not quiet:
                shown.add(row.require)
                print_row(row)

    hub: RunningHub | None = serving_hub(None, config)
    servers = load_servers(config) if hub is None else None
    with working("connecting to the servers"):
        result = anyio.run(check_servers, hub, servers, (), wait, tell, False)
    for row in result.rows:
        if row.require not in shown and not quiet:
            print_row(row)
    return list(result.rows)


def _logins(rows: list[Row], config: Path, wait: float) -> list[Row]:
    """Offer a login for each server that asks for one; then check those again."""
    from holdfast.cli.login import log_in_to  # noqa: PLC0415 - slow to import, and rarely needed

    wanted = [row.server for row in rows if row.verdict == "denied" and "login" in row.hint]
    if not wanted:
        return rows
    data_console().print(Text("6. Logins", style="bold"))
    done = []
    for server in wanted:
        if typer.confirm(f"Log in to {server} now?", default=True, err=True):
            try:
                log_in_to(load_config(config), server)
                done.append(server)
            except HoldfastError as exc:
                print_error(exc.message, exc.hint)
    return _check(config, wait, quiet=True) if done else rows


def _left(plan: ImportPlan) -> list[str]:
    return [f"{row.entry.name}: {row.reason}" for row in plan.rows if not row.is_ours]


def _tell_end(rows: Sequence[Row], plan: ImportPlan, why_no_service: str) -> None:
    out, side = data_console(), side_console()
    ready = [row for row in rows if row.verdict == "ready"]
    out.print(Text(f"\n{len(ready)} of {counted(len(rows), 'server')} work.", style="bold"))
    for row in rows:
        if row.verdict != "ready":
            out.print(Text(f"  {plain(row.require)}: {plain(row.hint or row.reason)}"), soft_wrap=True)
    for text in _left(plan):
        out.print(Text(f"  {plain(text)}"), soft_wrap=True)
    needs = sorted({name for row in plan.rows for name in row.entry.needs})
    if needs:
        where = "in service.env beside your mcp.json" if not why_no_service else "where the hub starts"
        out.print(f"  set these variables {where}: {', '.join(needs)}", soft_wrap=True)
    side.print(
        f"To look at them: {command_line('status')}. To undo all this: {command_line('uninstall')}", soft_wrap=True
    )
