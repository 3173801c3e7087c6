"""``holdfast config``: show the configuration, and where each value comes from. Secrets are masked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli.command_options import AsJson, ConfigFile, group_of_commands
from holdfast.cli.output import data_console, print_error, print_json, print_line
from holdfast.config import report_config, visible
from holdfast.errors import Problem

__all__ = ["app"]

app = group_of_commands()


@app.callback()
def config() -> None:
    """Show the configuration."""


@app.command()
def show(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show the configuration, where each value comes from, and what is wrong. Secrets are masked.

    Exit code 0: every server is usable. 1: something is wrong, or there is no configuration.
    """
    report = report_config(config)
    if as_json:
        print_json(_with_plain_problems({**report, "servers": list(map(_with_plain_problems, report["servers"]))}))
    else:
        _print_report(report)
    raise typer.Exit(1 if report["problems"] or any(server["problems"] for server in report["servers"]) else 0)


def _with_plain_problems(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of the report as JSON data."""
    return {
        **part,
        "problems": [
            {
                "message": problem.message,
                "hint": problem.hint,
                "file": visible(str(problem.file)) if problem.file else None,
                "line": problem.line,
                "column": problem.column,
                "path": problem.path,
            }
            for problem in part["problems"]
        ],
    }


_STATES = {"usable": "", "disabled": "disabled", "bad": "not usable"}


def _print_report(report: Mapping[str, Any]) -> None:
    """Print the configuration on stdout, and fatal problems on stderr."""
    if report["file"]:
        print_line(f"Configuration: {report['file']}")
    else:
        print_line("No configuration was found. These places were searched:")
        for path in report["searched"]:
            print_line(f"  {path}")
    for server in report["servers"]:
        _print_part(server["id"], _STATES[server["status"]], server["values"], server["ignored"])
        for problem in server["problems"]:
            _print_problem(problem)
    if report["settings"]:
        _print_part("Settings", "holdfast", report["settings"], report["ignored"])
    for problem in report["problems"]:
        print_error(visible(str(problem)), visible(problem.hint))
    if bad := [server["id"] for server in report["servers"] if server["status"] == "bad"]:
        print_error(visible(f"not usable: {', '.join(bad)}"))


def _print_part(
    name: str, note: str, values: Iterable[Mapping[str, Any]], ignored: Iterable[Mapping[str, str]]
) -> None:
    print_line()
    print_line((visible(name), "bold"), "  " if note else "", note)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", max_width=30)
    table.add_column(overflow="fold", ratio=1)
    table.add_column(overflow="fold", max_width=30, style="dim")
    for value in values:
        table.add_row(Text(visible(value["key"])), Text(_in_words(value)), Text(visible(_origin(**value["from"]))))
    if table.row_count:
        data_console().print(Padding(table, (0, 0, 0, 2)))
    for key in ignored:
        print_line(f"  ignored: {key['key']} " + visible(f"({key['why']}), {key['place']}"))


def _print_problem(problem: Problem) -> None:
    print_line(visible(f"  {problem}"))
    if problem.hint:
        print_line(visible(f"    hint: {problem.hint}"))


def _origin(kind: str, place: str, variables: list[str]) -> str:
    match kind:
        case "default":
            return "default"
        case "inferred":
            return f"inferred from {place}"
        case "env":
            return f"env {', '.join(variables)} ({place})"
        case _:
            return place


def _in_words(value: Mapping[str, Any]) -> str:
    shown = value["value"]
    if value["note"]:
        return f"{shown} ({value['note']})"
    if isinstance(shown, list):
        return " ".join(map(_word, shown)) if shown else "none"
    if isinstance(shown, bool):
        return "true" if shown else "false"
    return str(shown) if shown != "" else '""'


def _word(word: str) -> str:
    return word if word and not any(c.isspace() or c in "\"'" for c in word) else json.dumps(word, ensure_ascii=False)
