"""Prints the result of an import, as text or as JSON. Secrets are masked here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from holdfast.cli.output import data_console, print_error, side_console, typed_command
from holdfast.config.clients.moving import Plan, Pointing, Row, Undoing
from holdfast.core.redact import Redactor, plain

__all__ = ["as_data", "looked_at", "print_diff", "print_overview", "print_plan", "print_undone", "undone_as_data"]

JSON_VERSION = 1
LONGEST_LINE = 160
"""A file without line breaks is one long line. Longer lines of a diff are cut."""

_COLOURS = {"new": "green", "there": "dim", "conflict": "yellow", "unusable": "red"}
_WORDS = {
    "new": "copied",
    "there": "already there",
    "conflict": "stays with the client",
    "unusable": "stays with the client",
}
_DIFF = {"+": "green", "-": "red", "@": "cyan"}


def print_overview(plan: Plan) -> None:
    """Print which clients have servers."""
    out = data_console()
    for client, place in plan.found:
        names = [row.entry.name for row in plan.rows if (row.client, row.place) == (client, place)]
        out.print(Text.assemble((f"{client.id:<12}", "bold"), f"{_counted(len(names))}  ", (str(place.file), "dim")))
        if names:
            out.print(Text(f"            {', '.join(map(plain, names))}", style="dim"), soft_wrap=True)
    for problem in plan.unreadable:
        print_error(str(problem), problem.hint)
    side = side_console()
    if plan.found:
        side.print("Nothing was changed. To copy a client's servers: holdfast import CLIENT", soft_wrap=True)
    else:
        side.print(f"No file of a client was found; {looked_at(plan)}", soft_wrap=True)


def looked_at(plan: Plan) -> str:
    """The places that were searched."""
    return "searched: " + ", ".join(map(str, plan.searched))


def print_plan(plan: Plan, pointed: Sequence[tuple[Pointing, Path | None]], *, done: bool) -> None:
    """Print the result for each server, and the next step."""
    out = data_console()
    for row in plan.rows:
        _print_row(row, done=done)
    if not plan.rows:
        out.print(f"no servers in {', '.join(str(place.file) for _, place in plan.found)}")
    for pointing, kept in pointed:
        verb = "uses the hub now" if kept else "would use the hub"
        out.print(Text(f"{pointing.client.title} {verb}: {pointing.place.file}"), soft_wrap=True)
        if kept:
            back = f"`holdfast import {pointing.client.id} --undo` restores it"
            out.print(Text(f"  backup: {kept}; {back}", style="dim"), soft_wrap=True)
    _print_next(plan, done=done, applied=bool(pointed))


def print_diff(pointing: Pointing) -> None:
    """Print the change of a client's file, with secrets masked."""
    console = side_console()
    redactor = Redactor(pointing.secrets)
    for line in pointing.diff():
        shown = redactor.mask(line)
        cut = shown if len(shown) <= LONGEST_LINE else f"{shown[:LONGEST_LINE]}…"
        console.print(Text(cut, style=_DIFF.get(line[:1], "")), soft_wrap=True)


def as_data(plan: Plan, pointed: Sequence[tuple[Pointing, Path | None]], *, done: bool) -> dict[str, Any]:
    """The result as JSON data."""
    return {
        "version": JSON_VERSION,
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


def print_undone(undone: Sequence[Undoing], *, done: bool) -> None:
    """Print which files were restored."""
    out = data_console()
    for undoing in undone:
        verb = "is" if done else "would be"
        how = "restored" if undoing.exact else "given its servers back; later changes stay"
        out.print(Text(f"{undoing.backup.place.file} {verb} {how}"), soft_wrap=True)
    if not undone:
        side_console().print("nothing to undo: no backup was found")


def undone_as_data(undone: Sequence[Undoing], *, done: bool) -> dict[str, Any]:
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
    return {"version": JSON_VERSION, "written": done and bool(undone), "undone": rows}


def _print_row(row: Row, *, done: bool) -> None:
    out = data_console()
    word = _WORDS[row.outcome] if done or row.outcome != "new" else "would be copied"
    out.print(Text.assemble((plain(row.entry.name), "bold"), "  ", (word, _COLOURS[row.outcome])))
    for note in _notes(row):
        out.print(Text(f"  {note}"), soft_wrap=True)


def _notes(row: Row) -> list[str]:
    mask = Redactor(row.entry.secrets).mask
    notes = [mask(row.reason)] if row.reason else []
    if row.outcome == "unusable":
        notes += [f"hint: {mask(problem.hint)}" for problem in row.entry.problems[:1] if problem.hint]
    if row.is_ours and row.entry.needs:
        notes.append(f"set these variables where the hub runs: {', '.join(row.entry.needs)}")
    if row.is_ours and row.entry.dropped:
        notes.append(f"not copied, because Holdfast does not use it: {', '.join(map(plain, row.entry.dropped))}")
    return notes


def _print_next(plan: Plan, *, done: bool, applied: bool) -> None:
    side = side_console()
    if not any(row.is_ours for row in plan.rows):
        return
    if not done:
        side.print("Dry run: nothing was changed.")
    elif applied:
        side.print(f"Start the hub: {typed_command()} serve --config {plan.destination}", soft_wrap=True)
    else:
        side.print(
            f"The servers are in {plan.destination}. With --apply the client uses the hub instead.",
            soft_wrap=True,
        )


def _row_data(row: Row) -> dict[str, Any]:
    mask = Redactor(row.entry.secrets).mask
    return {
        "name": row.entry.name,
        "client": row.client.id,
        "file": str(row.place.file),
        "outcome": row.outcome,
        "reason": mask(row.reason) or None,
        "needs": list(row.entry.needs),
        "dropped": list(row.entry.dropped),
    }


def _counted(number: int) -> str:
    return f"{number} server" if number == 1 else f"{number} servers"
