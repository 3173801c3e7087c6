"""``holdfast remove``: remove servers from an mcp.json."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from holdfast.cli.config_edit import File, file_to_edit, plan_edit, undo_last_edit
from holdfast.cli.output import data_console, print_json, side_console
from holdfast.core import command_line, plain
from holdfast.errors import UsageError

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def remove(
    names: Annotated[list[str] | None, typer.Argument(metavar="SERVER", help="The servers to remove")] = None,
    file: File = None,
    undo: Annotated[bool, typer.Option("--undo", help="Undo the last `add` or `remove`")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the names, and change nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs")] = False,
) -> None:
    """Remove servers from your mcp.json. A running hub closes them by itself.

    Comments and formatting of the rest of the file stay. `holdfast disable` keeps a server in the file.

    Exit code 0: removed. 1: the file has no such server.
    """
    chosen = file_to_edit(file)
    if undo:
        restored = undo_last_edit(chosen)
        if as_json:
            print_json({"file": str(chosen), "undone": list(restored)})
        else:
            data_console().print(f"undone in {chosen}: {', '.join(restored)}", soft_wrap=True)
        return
    if not names:
        raise UsageError("name the servers to remove", hint=f"`{command_line('list')}` shows them")
    edit = plan_edit(chosen, remove=list(dict.fromkeys(names)))
    if not dry_run:
        edit.perform()
    if as_json:
        print_json({"file": str(chosen), "written": not dry_run, "removed": list(edit.names)})
        return
    verb = "would remove" if dry_run else "removed"
    data_console().print(Text(plain(f"{verb} {', '.join(edit.names)} from {chosen}")), soft_wrap=True)
    if not dry_run:
        side = side_console()
        side.print(f"To undo this: {command_line('remove', '--undo', '--file', str(chosen))}", soft_wrap=True)
