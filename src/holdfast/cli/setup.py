"""``holdfast setup``, ``import`` and ``uninstall``: from the servers of your MCP clients to one hub, and back.

``import`` copies the servers of clients, and connects the clients to the hub. Secrets are masked in everything that is
printed.

``setup`` goes from nothing to working servers in one conversation. It does nothing that another command does not do: it
imports, installs the service, connects the clients, checks and logs in, with the code of those commands. What it adds
is the order, one question before the first change, and the end: what works, and what to do about the rest.

The order matters. The service comes before the clients: where it cannot run, a client with the hub's URL would point at
nothing, so it gets the entry that starts or joins a hub by itself (``serve --stdio``). What the user's own mcp.json was
before is kept, so that `uninstall` can restore it.

``uninstall`` undoes what ``setup``, ``import --apply`` and ``service install`` did, and says what is left. Clients get
their servers back first: a client that points at a hub that is gone has no tools at all. Nothing that a person wrote is
deleted. What stays is named, with the command that removes it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import anyio
import typer

import holdfast.config
from holdfast.cli.command_options import AsJson, Yes, serving_hub
from holdfast.cli.logins import log_in_to
from holdfast.cli.output import (
    counted,
    keep_quiet,
    print_diff,
    print_error,
    print_json,
    print_line,
    print_note,
    working,
)
from holdfast.cli.readiness import Row, check_servers, print_row
from holdfast.cli.service import (
    end_background_hubs,
    hub_service,
    install_service,
    remove_service,
    service_is_installed,
)
from holdfast.cli.trust import load_servers
from holdfast.config import CLIENTS
from holdfast.core import Redactor, command_line, is_loopback, plain
from holdfast.errors import ConfigError, HoldfastError, UsageError
from holdfast.serve import DEFAULT_URL, local_token, local_token_file, own_command, read_token

if TYPE_CHECKING:
    from holdfast.config import ClientPaths, ImportPlan, ImportRow, KnownClient, PointingPlan, Scope, UndoPlan

__all__ = ["import_", "setup", "uninstall"]

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
    around = holdfast.config.ClientPaths(environ=os.environ, project=Path.cwd())
    chosen = _chosen(clients or [])
    if undo:
        raise typer.Exit(_undo(chosen or list(CLIENTS.values()), around, dry_run=dry_run, as_json=as_json))
    destination = holdfast.config.config_to_edit(config, os.environ)
    scopes: tuple[Scope, ...] = ("user", "project") if project else ("user",)
    plan = holdfast.config.plan_import(
        chosen or CLIENTS.values(), around, destination=destination, scopes=scopes, rename=rename
    )
    if not chosen:
        _overview(plan, apply=apply, as_json=as_json)
        return
    if plan.unreadable:
        raise ConfigError(plan.unreadable)
    if not plan.found:
        raise HoldfastError(f"no file of {chosen[0].title} was found", hint=_looked_at(plan))
    if not dry_run:
        plan.perform()
    with keep_quiet(silent=True) if as_json else nullcontext():
        pointed = list(_point(plan, url, stdio, ask=not yes, dry_run=dry_run)) if apply else []
    if as_json:
        print_json(_as_data(plan, pointed, done=not dry_run))
    else:
        _print_plan(plan, pointed, done=not dry_run, then=_after_pointing(plan.destination, url, stdio))
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
    return [holdfast.config.client_named(name) for name in dict.fromkeys(names)]


def _overview(plan: ImportPlan, *, apply: bool, as_json: bool) -> None:
    if apply:
        raise UsageError("--apply needs a client", hint=f"name one, or `all`: {_NAMES}")
    if as_json:
        print_json(_as_data(plan, [], done=False))
        return
    _print_found(plan)
    if plan.found:
        print_note(f"Nothing was changed. To copy a client's servers: {command_line('import', 'CLIENT')}")


def _point(
    plan: ImportPlan, url: str, stdio: bool, *, ask: bool, dry_run: bool
) -> Iterator[tuple[PointingPlan, Path | None]]:
    command = (*own_command(), "serve", "--stdio", "--config", str(plan.destination))
    backups = holdfast.config.Backups(os.environ)
    token = _hub_token() if url == DEFAULT_URL and not stdio else ""
    for pointing in holdfast.config.plan_pointing(plan, url=url, command=command, stdio=stdio, token=token):
        print_diff(pointing.diff(), pointing.secrets)
        if dry_run:
            yield pointing, None
        elif not ask or not sys.stdin.isatty() or typer.confirm(f"Write {pointing.place.file}?", err=True):
            yield pointing, pointing.perform(backups)


def _hub_token() -> str:
    """The token of local callers, where the hub of this user requires one: see ``serve --local-token``."""
    file = local_token_file(os.environ)
    return read_token(local_token(os.environ)) if file.exists() or sys.platform != "linux" else ""


def _undo(clients: list[KnownClient], around: ClientPaths, *, dry_run: bool, as_json: bool) -> int:
    backups = holdfast.config.Backups(os.environ)
    done = []
    for undoing in holdfast.config.plan_undoing(clients, around, backups):
        if not dry_run:
            undoing.perform(backups)
        done.append(undoing)
    if as_json:
        rows = [
            {
                "client": undoing.client.id,
                "file": str(undoing.backup.place.file),
                "restored": list(undoing.backup.moved),
                "exact": undoing.exact,
            }
            for undoing in done
        ]
        print_json({"written": bool(done) and not dry_run, "undone": rows})
    else:
        _print_undone(done, done=not dry_run)
    return 0 if done else 1


_COLOURS = {"new": "green", "there": "dim", "renamed": "green", "conflict": "yellow", "unusable": "red"}
_WORDS = {
    "new": "copied",
    "there": "already there",
    "renamed": "copied",
    "conflict": "stays with the client",
    "unusable": "stays with the client",
}


def _print_found(plan: ImportPlan) -> None:
    """Print which clients have servers, and which files could not be read."""
    for client, place in plan.found:
        names = [row.entry.name for row in plan.rows if (row.client, row.place) == (client, place)]
        print_line((f"{client.id:<12}", "bold"), f"{counted(len(names), 'server')}  ", (str(place.file), "dim"))
        if names:
            print_line((f"            {', '.join(map(plain, names))}", "dim"))
    for problem in plan.unreadable:
        print_error(str(problem), problem.hint)
    if not plan.found:
        print_note(f"No file of a client was found; {_looked_at(plan)}")


def _looked_at(plan: ImportPlan) -> str:
    """The places that were searched."""
    return "searched: " + ", ".join(map(str, plan.searched))


def _print_plan(
    plan: ImportPlan, pointed: Sequence[tuple[PointingPlan, Path | None]], *, done: bool, then: str
) -> None:
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


def _as_data(plan: ImportPlan, pointed: Sequence[tuple[PointingPlan, Path | None]], *, done: bool) -> dict[str, Any]:
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


def _print_undone(undone: Sequence[UndoPlan], *, done: bool) -> None:
    """Print which files were restored."""
    for undoing in undone:
        verb = "is" if done else "would be"
        how = "restored" if undoing.exact else "given its servers back; later changes stay"
        print_line(f"{undoing.backup.place.file} {verb} {how}")
    if not undone:
        print_note("nothing to undo: no backup was found")


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


# Set up

CHECK_SECONDS = 60.0
"""How long servers may take to start. A first start of `npx` downloads its package."""

WITHOUT_SERVICE = "each client starts or joins the hub by itself, and it ends when none needs it"


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
    around = holdfast.config.ClientPaths(environ=os.environ, project=Path.cwd())
    destination = holdfast.config.config_to_edit(config, os.environ)
    plan = holdfast.config.plan_import(CLIENTS.values(), around, destination=destination, scopes=("user",))
    with keep_quiet(silent=True) if as_json else nullcontext():
        _tell_plan(plan, service=service)
        if not plan.rows and not destination.exists():
            hint = f"add one: {command_line('add', 'NAME', '--', 'COMMAND')}, or {command_line('add', 'NAME', 'URL')}"
            raise HoldfastError("there is no server to set up: no MCP client with servers was found", hint=hint)
        if not yes:
            _ask("Do this?", as_json=as_json, hint="use --yes to do what is shown above")
        _copy(plan)
        why_no_service = _start_service(destination, wanted=service)
        pointed = _point_clients(plan, bool(why_no_service))
        rows = _check(destination, wait)
        if not yes:
            rows = _logins(rows, destination, wait)
        _tell_end(rows, plan, why_no_service)
    if as_json:
        done = {"running": not why_no_service, "reason": why_no_service or None}
        print_json({**_as_data(plan, pointed, done=True), "service": done, "checks": [asdict(row) for row in rows]})
    raise typer.Exit(0 if all(row.verdict == "ready" for row in rows) and not _left(plan) else 1)


def _tell_plan(plan: ImportPlan, *, service: bool) -> None:
    print_line(("1. Your clients", "bold"))
    _print_found(plan)
    print_line(("2. What will change", "bold"))
    new = [row.renamed or row.entry.name for row in plan.rows if row.outcome in ("new", "renamed")]
    gets = f"gets {counted(len(new), 'server')}: {', '.join(map(plain, new))}" if new else "stays as it is"
    print_line(f"  {plan.destination} {gets}")
    for pointing in holdfast.config.plan_pointing(
        plan, url="(the hub)", command=("holdfast", "serve", "--stdio"), stdio=False
    ):
        moved = ", ".join(map(plain, pointing.moved)) or "no server"
        print_line(f"  {pointing.place.file} gets the hub instead of {moved}; a backup is kept")
    in_background = "the hub runs in the background from now on, where systemd or launchd can do that"
    print_line(f"  {in_background if service else WITHOUT_SERVICE}")
    print_note(f"To see every line of it first: {command_line('import', 'all', '--apply', '--dry-run')}")


def _ask(question: str, *, as_json: bool, hint: str) -> None:
    """Ask before anything is changed; raises unless the answer is yes."""
    if as_json or not sys.stdin.isatty():
        raise HoldfastError("nothing was changed: there is no terminal to ask on", hint=hint)
    if not typer.confirm(question, default=True, err=True):
        raise typer.Abort


_OWNER = "setup"
"""The name under which backups of the user's own mcp.json are kept."""


def _copy(plan: ImportPlan) -> None:
    """Copy the servers, as an edit that `uninstall` undoes."""
    if plan.is_change:
        file = plan.destination
        edit = holdfast.config.FileEdit(
            owner=_OWNER,
            place=holdfast.config.ClientLocation(file=file, path=(), scope="user"),
            before=holdfast.config.ClientFile.read(file).text if file.exists() else "",
            after=plan.text,
            is_new=not file.exists(),
        )
        edit.perform(holdfast.config.Backups(os.environ))


def _start_service(config: Path, *, wanted: bool) -> str:
    """Start the hub in the background; returns why it does not run there, or nothing."""
    print_line(("3. The hub", "bold"))
    if not wanted:
        print_line(f"  {WITHOUT_SERVICE}")
        return "you asked for none"
    try:
        install_service(hub_service(config))
    except HoldfastError as exc:
        print_line(plain(f"  it cannot run as a service: {exc.message}"))
        print_line(f"  so {WITHOUT_SERVICE}")
        return exc.message
    return ""


def _point_clients(plan: ImportPlan, stdio: bool) -> list[tuple[PointingPlan, Path | None]]:
    print_line(("4. Your clients use the hub", "bold"))
    pointed = []
    for pointing, kept in _point(plan, DEFAULT_URL, stdio, ask=False, dry_run=False):
        pointed.append((pointing, kept))
        print_line(f"  {pointing.client.title}: restart it, so that it reads {pointing.place.file}")
    if not pointed:
        print_line("  nothing was to change")
    return pointed


def _check(config: Path, wait: float) -> list[Row]:
    """Check every server, each with a line as soon as it has an outcome."""
    print_line(("5. Your servers", "bold"))
    shown: set[str] = set()

    def tell(rows: Sequence[Row]) -> None:
        for row in rows:
            if row.verdict != "not_ready" and row.require not in shown:
                shown.add(row.require)
                print_row(row)

    hub = serving_hub(None, config)
    servers = load_servers(config) if hub is None else None
    with working("connecting to the servers"):
        rows, _ = anyio.run(check_servers, hub, servers, (), wait, tell, False)
    for row in rows:
        if row.require not in shown:
            print_row(row)
    return rows


def _logins(rows: list[Row], config: Path, wait: float) -> list[Row]:
    """Offer a login for each server that asks for one; then check those again."""
    wanted = [row.server for row in rows if row.verdict == "denied" and row.login]
    if not wanted:
        return rows
    print_line(("6. Logins", "bold"))
    done = []
    for server in wanted:
        if typer.confirm(f"Log in to {server} now?", default=True, err=True):
            try:
                log_in_to(holdfast.config.load_config(config), server)
                done.append(server)
            except HoldfastError as exc:
                print_error(exc.message, exc.hint)
    with keep_quiet(silent=True):  # the end says what came of them
        return _check(config, wait) if done else rows


def _left(plan: ImportPlan) -> list[str]:
    return [f"{row.entry.name}: {row.reason}" for row in plan.rows if not row.is_ours]


def _tell_end(rows: Sequence[Row], plan: ImportPlan, why_no_service: str) -> None:
    ready = [row for row in rows if row.verdict == "ready"]
    print_line((f"\n{len(ready)} of {counted(len(rows), 'server')} work.", "bold"))
    for row in rows:
        if row.verdict != "ready":
            print_line(f"  {plain(row.require)}: {plain(row.hint or row.reason)}")
    for text in _left(plan):
        print_line(f"  {plain(text)}")
    needs = sorted({name for row in plan.rows for name in row.entry.needs})
    if needs:
        where = "in service.env beside your mcp.json" if not why_no_service else "where the hub starts"
        print_line(f"  set these variables {where}: {', '.join(needs)}")
    look = command_line("check" if why_no_service else "status")  # without a service no hub runs yet
    print_note(f"To look at them: {look}. To undo all this: {command_line('uninstall')}")


# Undo it


def uninstall(
    yes: Yes = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs; needs --yes")] = False,
) -> None:
    """Give your clients their servers back, and stop the hub in the background. Says what it leaves.

    Exit code 0: nothing of Holdfast runs or is used any more. 1: something could not be undone; it says what.
    """
    if not yes:
        _ask("Give your clients their servers back, and stop the hub?", as_json=as_json, hint="use --yes")
    done, problems = _undo_all()
    left = _what_stays()
    if as_json:
        print_json({"done": done, "problems": problems, "left": left})
    else:
        for line in done or ["there was nothing to undo"]:
            print_line(line)
        for problem in problems:
            print_error(problem)
        if left:
            print_note("This stays, because it may be yours:")
            for what, path in left.items():
                print_note(f"  {path}  {what}")
            print_note("The command itself is removed by the program that installed it: pipx uninstall holdfast-mcp")
    raise typer.Exit(1 if problems else 0)


def _undo_all() -> tuple[list[str], list[str]]:
    """What was done, and what could not be."""
    done: list[str] = []
    problems: list[str] = []
    around = holdfast.config.ClientPaths(environ=os.environ, project=Path.cwd())
    backups = holdfast.config.Backups(os.environ)
    for client in CLIENTS.values():
        try:
            # One edit at a time: the one before it can be planned when this one is undone.
            while undoing := next(iter(holdfast.config.plan_undoing([client], around, backups)), None):
                undoing.perform(backups)
                how = "as it was" if undoing.exact else "with its servers back; later changes stay"
                done.append(f"{undoing.backup.place.file} is {how}")
        except HoldfastError as exc:
            problems.append(f"{client.title}: {exc.message}")
    for title, file in holdfast.config.still_pointed(around):
        problems.append(f"{title} still uses the hub, and no backup is there: remove `holdfast` from {file}")
    parts: tuple[Callable[[], list[str]], ...] = (
        lambda: [f"removed {file}" for file in remove_service()],
        lambda: [f"the hub with process id {pid} has ended" for pid in end_background_hubs()],
        _restore_config,
    )
    for undo in parts:
        try:
            done += undo()
        except HoldfastError as exc:
            problems.append(exc.message)
    return done, problems


def _restore_config() -> list[str]:
    """The user's mcp.json as it was before the setup, unless another hand changed it since; the last setup first."""
    backups = holdfast.config.Backups(os.environ)
    done: dict[Path, str] = {}
    for backup in backups.of(_OWNER):
        file = backup.place.file
        if file.exists() and backup.is_untouched(holdfast.config.ClientFile.read(file).text):
            backups.restore(backup, backup.before)
            done[file] = f"{file} is as it was"
            if not backup.before:
                file.unlink()
                done[file] = f"removed {file}, which `setup` made"
    return list(done.values())


def _what_stays() -> dict[str, str]:
    """What stays, and where."""
    folder = next(holdfast.config.user_folders(os.environ))
    found = {
        "your servers": folder / "mcp.json",
        "variables and secrets": folder / "secrets",
        "state: catalogs, approvals, logs, logins without a keyring": holdfast.config.state_folder(os.environ),
    }
    left = {}
    for what, path in found.items():
        with suppress(OSError):
            if path.exists() and (path.is_file() or any(path.iterdir())):
                left[what] = str(path)
    return left
