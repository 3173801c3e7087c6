"""``holdfast config``: show the configuration, and where each value comes from. Secrets are masked here."""

from __future__ import annotations

import json
from collections.abc import Iterable

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli.command_options import AsJson, ConfigFile, group_of_commands
from holdfast.cli.output import data_console, print_error, print_json
from holdfast.config import ConfigReport, IgnoredKey, Origin, ServerProvenance, Value, report_config
from holdfast.core import MASK, Redactor, mask_url, plain
from holdfast.errors import Problem

__all__ = ["app", "as_data", "print_report"]

app = group_of_commands()


@app.callback()
def config() -> None:
    """Show the configuration."""


@app.command()
def show(
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the configuration, where each value comes from, and what is wrong. Secrets are masked.

    Exit code 0: every server is usable. 1: something is wrong, or there is no configuration.
    """
    report = report_config(config)
    if as_json:
        print_json(as_data(report))
    else:
        print_report(report)
    raise typer.Exit(0 if report.usable else 1)


def print_report(report: ConfigReport) -> None:
    """Print the report as text: the configuration on stdout, fatal problems on stderr."""
    out = data_console()
    _print_file(out, report)
    for server in report.servers:
        _print_server(out, server)
    if report.settings:
        _print_heading(out, "Settings", "holdfast")
        _print_values(out, report.settings, Redactor())
        _print_ignored(out, report.ignored)
    for problem in report.problems:
        print_error(_safe(str(problem)), _safe(problem.hint))
    bad = [server.id for server in report.servers if server.status == "bad"]
    if bad:
        print_error(_safe(f"not usable: {', '.join(bad)}"))


def as_data(report: ConfigReport) -> dict[str, object]:
    """The report as JSON data."""
    return {
        "file": _safe(str(report.file)) if report.file else None,
        "searched": [_safe(str(path)) for path in report.searched],
        "servers": [_server_json(server) for server in report.servers],
        "settings": [_value_json(value, Redactor()) for value in report.settings],
        "ignored": [_ignored_json(key) for key in report.ignored],
        "problems": [_problem_json(problem) for problem in report.problems],
    }


# As text


def _print_file(out: Console, report: ConfigReport) -> None:
    if report.file:
        out.print(_line("Configuration: ", str(report.file)), soft_wrap=True)
        return
    out.print("No configuration was found. These places were searched:")
    for path in report.searched:
        out.print(_line("  ", str(path)), soft_wrap=True)


def _print_server(out: Console, server: ServerProvenance) -> None:
    states = {"usable": "", "disabled": "disabled", "bad": "not usable"}
    _print_heading(out, server.id, states[server.status])
    _print_values(out, server.values, Redactor(server.secrets))
    _print_ignored(out, server.ignored)
    for problem in server.problems:
        _print_problem(out, problem)


def _print_heading(out: Console, name: str, note: str) -> None:
    out.print()
    out.print(Text.assemble((_safe(name), "bold"), "  " if note else "", note), soft_wrap=True)


def _print_values(out: Console, values: Iterable[Value], redactor: Redactor) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", max_width=30)
    table.add_column(overflow="fold", ratio=1)
    table.add_column(overflow="fold", max_width=30, style="dim")
    for value in values:
        table.add_row(Text(_safe(value.key)), Text(_in_words(value, redactor)), Text(_safe(str(value.origin))))
    if table.row_count:
        out.print(Padding(table, (0, 0, 0, 2)))


def _print_ignored(out: Console, ignored: Iterable[IgnoredKey]) -> None:
    for key in ignored:
        out.print(_line(f"  ignored: {key.key} ", f"({key.why}), {key.place}"), soft_wrap=True)


def _print_problem(out: Console, problem: Problem) -> None:
    out.print(_line("  ", str(problem)), soft_wrap=True)
    if problem.hint:
        out.print(_line("    hint: ", problem.hint), soft_wrap=True)


def _line(lead: str, text: str) -> Text:
    return Text(lead + _safe(text))


def _in_words(value: Value, redactor: Redactor) -> str:
    shown = _masked(value, redactor)
    if value.note:
        return f"{shown} ({_safe(value.note)})"
    if isinstance(shown, list):
        return " ".join(map(_word, shown)) if shown else "none"
    if isinstance(shown, bool):
        return "true" if shown else "false"
    return str(shown) if shown != "" else '""'


def _word(word: str) -> str:
    return word if word and not any(c.isspace() or c in "\"'" for c in word) else json.dumps(word, ensure_ascii=False)


# As JSON


def _server_json(server: ServerProvenance) -> dict[str, object]:
    redactor = Redactor(server.secrets)
    return {
        "id": server.id,
        "status": server.status,
        "values": [_value_json(value, redactor) for value in server.values],
        "ignored": [_ignored_json(key) for key in server.ignored],
        "problems": [_problem_json(problem) for problem in server.problems],
    }


def _value_json(value: Value, redactor: Redactor) -> dict[str, object]:
    shown, origin = _masked(value, redactor), _origin_json(value.origin)
    return {"key": value.key, "value": shown, "from": origin, "note": _safe(value.note)}


def _origin_json(origin: Origin) -> dict[str, object]:
    return {"kind": origin.kind, "place": origin.place, "variables": list(origin.variables)}


def _ignored_json(key: IgnoredKey) -> dict[str, str]:
    return {"key": key.key, "why": key.why, "place": key.place}


def _problem_json(problem: Problem) -> dict[str, object]:
    return {
        "message": problem.message,
        "hint": problem.hint,
        "file": _safe(str(problem.file)) if problem.file else None,
        "line": problem.line,
        "column": problem.column,
        "path": problem.path,
    }


# Masking


def _masked(value: Value, redactor: Redactor) -> str | bool | int | list[str]:
    if value.hidden:
        return MASK
    match value.value:
        case bool() | int():
            return value.value
        case str() as text:
            return _safe(redactor.mask(mask_url(text) if value.key == "url" else text))
        case words:
            return [_safe(redactor.mask(word)) for word in words]


def _safe(text: str) -> str:
    """Text that is safe for a terminal: no control characters, no lone surrogates."""
    return plain(text).encode("utf-8", "replace").decode("utf-8")
