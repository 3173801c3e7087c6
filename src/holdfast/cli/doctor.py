"""``holdfast doctor``: why a server does not work, and how to fix it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.output import data_console, print_json, working
from holdfast.config import ConfigReading
from holdfast.core import plain
from holdfast.doctor import (
    CODES,
    Code,
    Edit,
    Finding,
    Health,
    Report,
    ServerReport,
    Severity,
    check_names,
    code_named,
    read_or_report,
)
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.wire import Starting

__all__ = ["app", "print_code", "print_report"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

EXPLAIN = "explain"

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="SERVER", help="Only these servers; or: explain CODE", show_default=False),
]


@app.command()
def doctor(
    names: Names = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="S",
            help="Seconds for each server [default: holdfast.load.attemptTimeout, and startTimeout for a command]",
            min=0.1,
            max=3600,
            show_default=False,
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Apply the safe repairs, and show what was changed")] = False,
    list_checks: Annotated[bool, typer.Option("--list-checks", help="List the checks without running them")] = False,
) -> None:
    """Check all servers at the same time, and show how to fix each problem.

    `holdfast doctor explain HF-REFUSED` explains a code.
    The whole run takes as long as the slowest server.

    Exit code 0: nothing failed, or nothing is configured. 1: something failed. 2: wrong usage.
    """
    if list_checks:
        _list_checks()
        return
    if names and names[0] == EXPLAIN:
        _explain(names[1:])
        return
    read = read_or_report(config)
    if isinstance(read, ConfigReading):
        check_names(names or [], read)
        report = anyio.run(_examine, read, names or [], timeout, fix)
    else:
        report = read
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        print_report(report)
    raise typer.Exit(0 if report.ok else 1)


async def _examine(reading: ConfigReading, names: list[str], seconds: float | None, fix: bool) -> Report:
    from holdfast.doctor import Doctor  # noqa: PLC0415 - slow to import; a bad config must not wait for it

    waiting = [d.server.id for d in reading.definitions if (d.server.id in names if names else d.server.enabled)]
    total = len(waiting)

    starts: dict[str, str] = {}

    def on_server(report: ServerReport) -> None:
        if report.id in waiting:
            waiting.remove(report.id)
            starts.pop(report.id, None)
            moving.update(_progress(waiting, total, starts))

    def on_starting(server: str, start: Starting) -> None:
        starts[server] = start.words
        moving.update(_progress(waiting, total, starts))

    with working(_progress(waiting, total, starts)) as moving:
        examination = Doctor(reading, timeout=seconds, fix=fix)
        return await examination.examine(names, on_server=on_server, on_starting=on_starting)


def _progress(waiting: list[str], total: int, starts: Mapping[str, str]) -> str:
    if not waiting:
        return f"{total} of {total} servers checked"
    names = ", ".join(waiting[:3]) + (f" and {len(waiting) - 3} more" if len(waiting) > 3 else "")
    oldest = next((f"; {name}: {starts[name]}" for name in waiting if name in starts), "")
    return f"{total - len(waiting)} of {total} servers checked; waiting for {names}{oldest}"


def _explain(codes: list[str]) -> None:
    if not codes:
        raise UsageError(
            "no code given", hint=f"for example `holdfast doctor explain HF-REFUSED`; codes: {', '.join(CODES)}"
        )
    for code in [code_named(code) for code in codes]:
        print_code(code)


def _list_checks() -> None:
    from holdfast.doctor import CHECKS, GLOBAL_CHECKS  # noqa: PLC0415 - as above

    console = data_console()
    console.print("For each server:")
    for check in CHECKS:
        after = f" (after {', '.join(check.needs)})" if check.needs else ""
        console.print(f"  {check.id:<11}{check.looks_at}{after}", soft_wrap=True)
        _list_codes(console, check.finds)
    console.print("Once for each run:")
    for whole in GLOBAL_CHECKS:
        console.print(f"  {whole.id:<11}{whole.looks_at}", soft_wrap=True)
        _list_codes(console, whole.finds)


def _list_codes(console: Console, codes: tuple[str, ...]) -> None:
    console.print(Padding(Text(" ".join(codes), style="dim"), (0, 0, 0, 13)))


WIDEST = 100
"""Longer lines are hard to read, even on a wide terminal."""

_ORDER: tuple[Health, ...] = ("healthy", "disabled", "warned", "failed")
_LABELS: dict[Health, tuple[str, str]] = {
    "healthy": ("ok", "green"),
    "disabled": ("off", "dim"),
    "warned": ("warning", "yellow"),
    "failed": ("FAILED", "bold red"),
}
_COLOURS: dict[Severity, str] = {"error": "red", "warning": "yellow", "note": "cyan"}
_LABEL_WIDTH = 9


def print_report(report: Report) -> None:
    """Print the whole report on stdout."""
    page = _Page(data_console())
    page.heading(report)
    width = max((len(server.id) for server in report.servers), default=0)
    ranked = sorted(report.servers, key=lambda server: _ORDER.index(server.health))
    for server in (one for one in ranked if one.health in ("healthy", "disabled")):
        page.line_of(server, width)
    for result in report.checks:
        page.findings(result.findings)
    for server in (one for one in ranked if one.health in ("warned", "failed")):
        page.block_of(server)
    page.repairs(report)
    page.summary(report)


def print_code(code: Code) -> None:
    """Print the explanation of a code."""
    page = _Page(data_console())
    page.say(Text.assemble((code.id, "bold"), (f"  {code.severity}", _COLOURS[code.severity])))
    page.wrapped(f"{code.means}.", indent=2)
    page.wrapped(f"Cause: {code.cause}", indent=2, hang=7)
    page.wrapped(f"Cure:  {code.cure}", indent=2, hang=7)


class _Page:
    """Prints the parts of a report line by line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = min(console.width, WIDEST)

    # Parts of the report

    def heading(self, report: Report) -> None:
        if report.file is None:
            self.say("No configuration was found, so there is nothing to check. These places were searched:")
            for path in report.searched:
                self.say(f"  {path}")
            for path in report.served:
                self.say(f"A running hub serves another file. To check that one: `holdfast doctor --config {path}`")
            self.say("`holdfast import` lists the servers of your other MCP clients.")
            return
        self.say(f"Configuration: {report.file}")
        if report.hub is not None:
            self.say(f"Running hub:   {report.hub.url}, pid {report.hub.pid}, version {report.hub.version}")
        self.say("")

    def line_of(self, server: ServerReport, width: int) -> None:
        """One line for a server that works, and its notes below it."""
        label, colour = _LABELS[server.health]
        lead = f"{label:<{_LABEL_WIDTH}}{server.id:<{width}}  "
        self.wrapped(lead + _in_short(server), indent=0, hang=len(lead), lead=(len(label), colour))
        self.findings(server.findings)

    def block_of(self, server: ServerReport) -> None:
        """All details of a server that needs attention."""
        label, colour = _LABELS[server.health]
        self.say("")
        line = Text.assemble((f"{label:<{_LABEL_WIDTH}}", colour), (server.id, "bold"), (f"  {server.target}", "dim"))
        line.rstrip()
        line.truncate(self._width, overflow="ellipsis")
        self.say(line)
        if server.health == "warned":
            self.wrapped(_in_short(server), indent=2)
        self.findings(server.findings)
        if server.hub is not None:
            self.wrapped(f"hub: {_hub_words(server)}", indent=2)

    def findings(self, findings: Iterable[Finding]) -> None:
        for found in findings:
            self._finding(found)

    def repairs(self, report: Report) -> None:
        for repaired in report.repairs:
            self.say("")
            done = "done" if repaired.done else "not done"
            self.wrapped(f"--fix, {done}: {repaired.words} ({repaired.code})", indent=0)

    def summary(self, report: Report) -> None:
        if report.file is None:
            return
        if report.servers or not report.ok:
            self.say("")
        if not report.servers:
            self.say("the configuration has no servers" if report.ok else "no server was checked: fix this first")
            return
        well = report.count("healthy") + report.count("warned")
        total = len(report.servers) - report.count("disabled")
        failed = [server.id for server in report.servers if server.health == "failed"]
        words = f"{well} of {total} servers work"
        if failed:
            words += f"; failed: {', '.join(failed)}"
        self.wrapped(words, indent=0, style="bold")
        if failed:
            self.say(f"For more about a code: `holdfast doctor explain {_first_code(report)}`")

    # A finding

    def _finding(self, found: Finding) -> None:
        lead = f"{found.code}  "
        self.wrapped(lead + found.words, indent=2, hang=2, lead=(len(lead), _COLOURS[found.severity]))
        for line in found.detail.splitlines():
            self.say(Text(f"    | {line}", style="dim"))
        self.wrapped(f"fix: {found.remedy.text}", indent=4, hang=5)
        for edit in found.remedy.edits:
            self.say(Text(f"      in {edit.place} write: {_fragment(edit)}", style="cyan"))
        for command in found.remedy.commands:
            self.say(Text(f"      $ {command}", style="cyan"))

    # Lines

    def say(self, line: str | Text) -> None:
        """Print a line without wrapping, so that it can be copied."""
        text = Text(line) if isinstance(line, str) else line
        text.plain = plain(text.plain)
        self._console.print(text, soft_wrap=True)

    def wrapped(
        self, words: str, *, indent: int, hang: int = 0, style: str = "", lead: tuple[int, str] | None = None
    ) -> None:
        """Print text, wrapped to the width of the terminal."""
        lines = textwrap.wrap(
            words,
            width=self._width,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hang),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for number, line in enumerate(lines or [""]):
            text = Text(line, style=style)
            if lead is not None and number == 0:
                text.stylize(lead[1], indent, indent + lead[0])
            self.say(text)


def _in_short(server: ServerReport) -> str:
    if server.health == "disabled":
        return "disabled in its definition"
    seen = {result.check: result for result in server.checks}
    words = []
    if server.tools is not None:
        words.append(f"{server.tools} tool{'' if server.tools == 1 else 's'}")
    if "handshake" in seen:
        words.append(seen["handshake"].seen.partition(" after ")[0].removeprefix("speaks "))
    words.append(f"{server.elapsed_ms / 1000:.2f} s")
    if server.hub is not None:
        words.append(f"hub: {_hub_words(server)}")
    return ", ".join(words)


def _hub_words(server: ServerReport) -> str:
    live = server.hub
    if live is None:
        return ""
    retry = f", next try in {live.retry_in:.0f} s" if live.retry_in is not None else ""
    return f"{live.state.replace('_', ' ')}, breaker {live.breaker.replace('_', ' ')}{retry}"


def _fragment(edit: Edit) -> str:
    """The edit as JSON text: ``"headers": {"Authorization": "…"}``."""
    keys = edit.keys
    text = edit.value
    for key in reversed(keys[1:]):
        text = f"{{{json.dumps(key)}: {text}}}"
    return f"{json.dumps(keys[0])}: {text}"


def _first_code(report: Report) -> str:
    found = (one for server in report.servers for one in server.findings if one.severity == "error")
    return next(found).code
