"""``holdfast audit``: who did what, from the files that a hub wrote, and ``audit verify``, which checks them.

No hub needs to run. The folder and the key are those of the mcp.json, or of the options.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

import holdfast.access
from holdfast.cli.command_options import AsJson, group_of_commands
from holdfast.cli.output import counted, print_json, print_json_line, print_line, print_note
from holdfast.cli.trust import load_trusted
from holdfast.config import AuditSettings, InvalidValue, parse_duration
from holdfast.core import cut, plain
from holdfast.errors import ConfigNotFound, UsageError

if TYPE_CHECKING:
    from holdfast.access import AuditRecord, Verified

__all__ = ["app", "audit_folder", "moment_of"]

app = group_of_commands(needs_one=False)

POLL_SECONDS = 0.3
"""How often ``--follow`` looks for new records."""

_STYLES = {"completed": "green", "done": "green", "applied": "green", "refused": "yellow", "denied": "yellow"}

_Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json whose audit is meant")]


@app.callback(invoke_without_command=True)
def audit(
    context: typer.Context,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Only what this principal did")] = "",
    server: Annotated[str, typer.Option("--server", metavar="ID", help="Only what concerns this server")] = "",
    tool: Annotated[str, typer.Option("--tool", metavar="NAME", help="Only this tool, by its original name")] = "",
    outcome: Annotated[
        str, typer.Option("--outcome", metavar="WORD", help="Only this outcome, such as `refused` or `failed`")
    ] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Only since then: `2h`, `7d`, or 2026-11-18T09:00")
    ] = "24h",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records, and show them")] = False,
    as_json: AsJson = False,
    path: Annotated[Path | None, typer.Option("--path", metavar="FOLDER", help="The folder of the files")] = None,
    config: _Config = None,
) -> None:
    """Show who did what: calls, refusals, logins, approvals, switches and changes of the configuration.

    With --json each record is a JSON object on one line.
    Exit code 0: the records were shown. 2: there is no audit.
    """
    if context.invoked_subcommand is not None:
        return
    wanted = holdfast.access.AuditFilter(
        principal=user, server=server, tool=tool, outcome=outcome, since=moment_of(since)
    )
    reader = holdfast.access.AuditReader(audit_folder(path, config), wanted)
    while True:
        for record in reader.read():
            _show(record, as_json=as_json)
        if not follow:
            return
        time.sleep(POLL_SECONDS)


@app.command()
def verify(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="The folder of an audit, or one of its files")
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", metavar="FILE", help="A text with checkpoints, such as the log of the machine"),
    ] = None,
    key_file: Annotated[Path | None, typer.Option("--key-file", metavar="FILE", help="The key of the audit")] = None,
    as_json: AsJson = False,
    config: _Config = None,
) -> None:
    """Check that no record was changed, removed or moved, and that no file is missing.

    It says too what it cannot know: the end of a file that was not closed is proven only by a checkpoint.
    Exit code 0: nothing was found. 1: something was changed or is missing. 2: there is nothing to check.
    """
    folder, own_key = _places(config)
    given = _text(checkpoints) if checkpoints is not None else ""
    shown = path if path is not None else folder
    found = holdfast.access.verify(
        shown, holdfast.access.read_key(key_file or own_key, make=False), holdfast.access.checkpoints_in(given)
    )
    if as_json:
        print_json(
            {
                "path": str(shown),
                "intact": not found.count,
                "files": found.files,
                "records": found.records,
                "problems": found.problems,
                "warnings": found.warnings,
                "unproven": found.unproven,
            }
        )
    else:
        _report(shown, found)
    raise typer.Exit(1 if found.count else 0)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        raise UsageError(f"the checkpoints cannot be read: {exc}") from exc


def audit_folder(path: Path | None, config: Path | None) -> Path:
    """The folder of the audit that is meant; raises ``UsageError`` if there is none."""
    folder = path if path is not None else _places(config)[0]
    if not folder.is_dir():
        raise UsageError(f"there is no audit in {folder}", hint="`audit.path` in the mcp.json turns it on")
    return folder


def _places(config: Path | None) -> tuple[Path, Path]:
    """The folder and the key of the mcp.json; those of the state folder where there is none."""
    try:
        found = load_trusted(config)
    except ConfigNotFound:
        return holdfast.access.audit_places(AuditSettings(), None, os.environ)
    return holdfast.access.audit_places(found.settings.audit, found.source, os.environ)


def moment_of(text: str) -> datetime:
    """The time that ``--since`` means."""
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except InvalidValue:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--since {text} is no time", hint="write `2h`, `7d`, or 2026-11-18T09:00") from None
    return moment if moment.tzinfo is not None else moment.astimezone()


def _show(record: AuditRecord, *, as_json: bool) -> None:
    if as_json:
        print_json_line(_values(record))
        return
    about = "/".join(filter(None, (record.server, record.tool)))
    what = about or record.method if record.event == "call" else " ".join(filter(None, (record.method, about)))
    where = f"  {record.source}" if record.source else ""
    took = f"  {record.ms:.0f} ms" if record.ms else ""
    why = f"  {record.reason}" if record.reason else ""
    lost = f"  {counted(record.count, 'record')}" if record.count else ""
    line = Text.assemble(
        (f"{record.time.astimezone():%Y-%m-%d %H:%M:%S}  ", "dim"),
        f"{record.event:<9}  {_one(record.principal or '-'):<16}  {_one(what)}  ",
        (record.outcome, _STYLES.get(record.outcome, "red")),
        (_one(f"{took}{where}{why}{lost}"), "dim"),
    )
    print_line(line)


def _values(record: AuditRecord) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415 - as above

    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(record))
    return values


def _one(text: str) -> str:
    """A text of others on one line: nothing in it moves the cursor."""
    return " ".join(plain(cut(text, 500)).split("\n"))


def _report(path: Path, found: Verified) -> None:
    for words in found.problems:
        print_line(("changed  ", "red"), plain(words))
    if (more := found.count - len(found.problems)) > 0:
        print_line(f"and {counted(more, 'more problem')}")
    for words in found.warnings:
        print_line(("warning  ", "yellow"), plain(words))
    for words in found.unproven:
        print_line(("unproven  ", "yellow"), plain(words))
    if found.unproven:
        print_note("What was cut off after that is found with --checkpoints, or when the hub closes the file.")
    verdict = f"{counted(found.count, 'problem')}" if found.count else "nothing was changed"
    style = "red" if found.count else "green"
    counts = f"{counted(found.records, 'record')} in {counted(found.files, 'file')} of {path}: "
    print_line(counts, (verdict, style))
