"""``holdfast list``: the servers of an mcp.json. No server is contacted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast.cli.output import Cell, data_console, page_of, print_json, side_console
from holdfast.cli.trust import load_trusted
from holdfast.config import ServerSpec
from holdfast.core import Redactor, command_line, mask_url, plain

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command(name="list")
def list_(
    config: Annotated[
        Path | None, typer.Option("--config", "--file", metavar="FILE", help="The mcp.json to use")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs")] = False,
) -> None:
    """List the servers of an mcp.json. `holdfast status` shows those of a running hub.

    Exit code 0: every definition is usable. 1: at least one is not.
    """
    found = load_trusted(config)
    rows = [_row(server) for server in found.servers.values()]
    if as_json:
        print_json({"file": str(found.source), "servers": rows})
    else:
        console = data_console()
        page = page_of(console)
        for line in page.table([_cells(row) for row in rows]) if rows else []:
            console.print(line, soft_wrap=True)
        side = side_console()
        count = f"{len(rows)} {'server' if len(rows) == 1 else 'servers'} in {found.source}"
        side.print(Text(count if rows else f"{count}; to add one: {command_line('add')}"), soft_wrap=True)
    raise typer.Exit(1 if any(row["state"] == "not usable" for row in rows) else 0)


def _row(server: ServerSpec) -> dict[str, Any]:
    if server.problems:
        return {
            "id": server.id,
            "transport": None,
            "target": None,
            "state": "not usable",
            "problem": server.problems[0].message,
        }
    redactor = Redactor(server.secrets)
    target = mask_url(server.url) if server.url else " ".join([server.command, *server.args])
    return {
        "id": server.id,
        "transport": server.transport,
        "target": redactor.mask(target),
        "state": "enabled" if server.enabled else "disabled",
        "problem": None,
    }


def _cells(row: dict[str, Any]) -> list[Cell]:
    styles = {"enabled": "", "disabled": "dim", "not usable": "red"}
    return [
        Cell(text=plain(row["id"]), style="bold"),
        Cell(text=row["transport"] or "-"),
        Cell(text=row["state"], style=styles[row["state"]]),
        Cell(text=plain(row["target"] or row["problem"] or "")),
    ]
