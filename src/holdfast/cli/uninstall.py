"""``holdfast uninstall``: undo what `setup`, `import --apply` and `service install` did, and say what is left.

Clients get their servers back first: a client that points at a hub that is gone has no tools at all. Nothing that a
person wrote is deleted. What stays is named, with the command that removes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import data_console, print_error, print_json, side_console
from holdfast.cli.service import remove_service
from holdfast.cli.setup import record_of_setup
from holdfast.config import CLIENTS, Backups, ClientPaths, plan_undoing, state_folder, still_pointed, user_folders
from holdfast.errors import HoldfastError

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def uninstall(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs; needs --yes")] = False,
) -> None:
    """Give your clients their servers back, and stop the hub in the background. Says what it leaves.

    Exit code 0: nothing of Holdfast runs or is used any more. 1: something could not be undone; it says what.
    """
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise HoldfastError("nothing was changed: there is no terminal to ask on", hint="use --yes")
        if not typer.confirm("Give your clients their servers back, and stop the hub?", default=True, err=True):
            raise typer.Abort
    done, problems = _undo()
    left = _left()
    if as_json:
        print_json({"done": done, "problems": problems, "left": left})
    else:
        out, side = data_console(), side_console()
        for line in done or ["there was nothing to undo"]:
            out.print(line, soft_wrap=True)
        for problem in problems:
            print_error(problem)
        if left:
            side.print("This stays, because it may be yours:")
            for what, path in left.items():
                side.print(f"  {path}  {what}", soft_wrap=True)
            side.print("The command itself is removed by the program that installed it: pipx uninstall holdfast-mcp")
    raise typer.Exit(1 if problems else 0)


def _undo() -> tuple[list[str], list[str]]:
    """What was done, and what could not be."""
    done: list[str] = []
    problems: list[str] = []
    around, backups = ClientPaths(environ=os.environ, project=Path.cwd()), Backups(os.environ)
    for client in CLIENTS.values():
        try:
            while undoings := list(plan_undoing([client], around, backups)):  # one edit of each file at a time
                undoings[0].perform(backups)
                how = "as it was" if undoings[0].exact else "with its servers back; later changes stay"
                done.append(f"{undoings[0].backup.place.file} is {how}")
        except HoldfastError as exc:
            problems.append(f"{client.title}: {exc.message}")
    for title, file in still_pointed(around):
        problems.append(f"{title} still uses the hub, and no backup is there: remove `holdfast` from {file}")
    try:
        done += [f"removed {file}" for file in remove_service()]
    except HoldfastError as exc:
        problems.append(exc.message)
    done += _stop_hubs(problems)
    done += _restore_config()
    return done, problems


def _stop_hubs(problems: list[str]) -> list[str]:
    """End the hubs that clients started in the background."""
    from holdfast.cli.stop import end_background_hubs  # noqa: PLC0415 - slow to import

    try:
        return [f"the hub with process id {pid} has ended" for pid in end_background_hubs()]
    except HoldfastError as exc:
        problems.append(exc.message)
        return []


def _restore_config() -> list[str]:
    """The user's mcp.json as it was before the setup, unless it changed since."""
    record = record_of_setup()
    try:
        kept = json.loads(record.read_text(encoding="utf-8"))
        config = Path(kept["config"])
        unchanged = hashlib.sha256(config.read_bytes()).hexdigest() == kept["after"]
    except (OSError, ValueError, KeyError):
        return []
    record.unlink()
    if not unchanged:
        return []
    if kept["before"] is None:
        config.unlink()
        return [f"removed {config}, which `setup` made"]
    config.write_text(kept["before"], encoding="utf-8")
    return [f"{config} is as it was"]


def _left() -> dict[str, str]:
    """What stays, and where."""
    folder = next(user_folders(os.environ))
    found = {
        "your servers": folder / "mcp.json",
        "variables and secrets": folder / "secrets",
        "state: catalogs, approvals, logs, logins without a keyring": state_folder(os.environ),
    }
    left = {}
    for what, path in found.items():
        with suppress(OSError):
            if path.exists() and (path.is_file() or any(path.iterdir())):
                left[what] = str(path)
    return left
