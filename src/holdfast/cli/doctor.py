"""``holdfast doctor``: why a server does not work, and how to fix it."""

from __future__ import annotations

import os
import shlex
import ssl
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.text import Text

import holdfast.config
import holdfast.doctor
import holdfast.front
import holdfast.serve
from holdfast.cli.command_options import AsJson, ConfigFile
from holdfast.cli.output import (
    ServerProgress,
    data_console,
    print_diff,
    print_json,
    print_line,
    print_note,
    working,
)
from holdfast.cli.trust import with_trust
from holdfast.core import command_line, plain
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.config import ConfigReading
    from holdfast.doctor import Code, EditPlan, Finding, Health, Repaired, Report, ServerReport, Severity, SharedCause
    from holdfast.wire import HubTls

__all__ = ["doctor", "print_report"]

EXPLAIN = "explain"

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="SERVER", help="Only these servers; or: explain CODE", show_default=False),
]


def doctor(
    names: Names = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
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
    fix: Annotated[
        bool, typer.Option("--fix", help="Make the repairs and the edits that are proposed; a backup is kept")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix, do not ask on a terminal")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Restore the mcp.json as it was before the last --fix")] = False,
    session_key_file: Annotated[
        Path | None,
        typer.Option(
            "--session-key-file",
            metavar="FILE",
            help="The session keys of your hubs, for servers behind another hub [default: HOLDFAST_SESSION_KEY]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check all servers at the same time, and show how to fix each problem.

    `holdfast doctor explain HF-REFUSED` explains a code.
    The whole run takes as long as the slowest server.
    --fix shows each edit as a diff before it is written, and asks on a terminal.

    Exit code 0: nothing failed, or nothing is configured. 1: something failed. 2: wrong usage, such as the name of
    a server that is not configured.
    """
    if names and names[0] == EXPLAIN:
        _explain(names[1:])
        return
    if undo:
        _undo(config)
        return
    hub_tls = _hub_tls(session_key_file)
    report = _report(config, names or [], timeout, hub_tls, fix=fix)
    if fix and (repairs := _write_edits(report, ask=not yes)):
        if any(one.done for one in repairs):
            repairs = [*report.repairs, *repairs]
            report = _report(config, names or [], timeout, hub_tls, fix=False)
        report = report.model_copy(update={"repairs": (*report.repairs, *repairs)})
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        print_report(report)
    raise typer.Exit(0 if report.ok else 1)


def _hub_tls(file: Path | None) -> HubTls | None:
    """What proves to another hub that this is one of its fleet, if its session key is known here; doctor makes none."""
    if file is None and not os.environ.get("HOLDFAST_SESSION_KEY"):
        file = holdfast.config.state_folder(os.environ) / "session.key"
        if not file.exists():
            return None

    def context() -> ssl.SSLContext:
        from holdfast.identity import FleetIdentity  # noqa: PLC0415 - slow to import, and for hubs behind this one

        keys = holdfast.front.SessionKeys.find(file=file)
        return FleetIdentity(lambda: keys.ring, "doctor").client()

    return context


def _report(
    config: Path | None, names: list[str], seconds: float | None, hub_tls: HubTls | None, *, fix: bool
) -> Report:
    read = with_trust(lambda: holdfast.doctor.read_or_report(config))
    if not isinstance(read, holdfast.config.ConfigReading):
        if names and read.file is None:
            raise UsageError(
                f"no server named `{names[0]}` is configured: no configuration was found", hint=_where(read)
            )
        return read
    holdfast.doctor.check_names(names, read)
    read = _without_itself(read)
    return anyio.run(partial(_examine, hub_tls=hub_tls), read, names, seconds, fix)


def _without_itself(read: ConfigReading) -> ConfigReading:
    """The same without the entry that is the hub itself: doctor names it, and does not start it."""
    config = holdfast.serve.without_itself(holdfast.serve.ServeConfig(), read.config)
    definitions = tuple(replace(one, server=config.servers[one.server.id]) for one in read.definitions)
    return replace(read, config=config, definitions=definitions)


def _where(report: Report) -> str:
    """Where a configuration was looked for, and those that running hubs serve."""
    served = [f"name the file that a running hub serves: --config {shlex.quote(path)}" for path in report.served]
    return "; ".join([*served, f"searched: {', '.join(report.searched)}; --config names another file"])


def _write_edits(report: Report, *, ask: bool) -> list[Repaired]:
    """Write the edits of the report; on a terminal after a question, one for those that have an alternative."""
    interactive = ask and sys.stdin.isatty()
    done: list[Repaired] = []
    for certain in (True, False):
        plan, left = holdfast.doctor.plan_edits(report, certain=certain)
        done += left
        if plan is None:
            continue
        if certain or interactive:
            _show_diff(plan)
        if (certain and not interactive) or (interactive and typer.confirm(f"Write {plan.place.file}?", err=True)):
            kept = plan.perform(holdfast.config.Backups(os.environ))
            print_note(f"backup: {kept}; `{command_line('doctor', '--undo')}` restores it")
            done += [one.repaired(done=True) for one in plan.edits]
        else:
            why = "not written" if interactive else "needs your decision: run this on a terminal, or edit the file"
            done += [one.repaired(done=False, why=why) for one in plan.edits]
        if any(one.done for one in done):
            break  # positions and findings may have changed: the next run proposes the rest
    return done


def _show_diff(plan: EditPlan) -> None:
    """Each edit exactly as it is written, then the diff, in which texts that look like secrets are masked."""
    for one in plan.edits:
        verb = "becomes the key" if one.edit.action == "rename" else "becomes"
        print_note(plain(f"{one.edit.key} {verb} {one.edit.value}"))
    print_diff(plan.diff(), plan.secrets)


def _undo(config: Path | None) -> None:
    file = holdfast.config.find_config(config, environ=os.environ, cwd=Path.cwd())
    holdfast.doctor.undo_edits(file)
    print_line(f"{file} is as it was before the last `doctor --fix`")


async def _examine(
    reading: ConfigReading, names: list[str], seconds: float | None, fix: bool, *, hub_tls: HubTls | None
) -> Report:
    servers = [one.server for one in reading.definitions]
    examined = [one.id for one in servers if (one.id in names if names else one.enabled)]
    with working("checking the servers") as update:
        progress = ServerProgress(examined, "checked", update)
        examination = holdfast.doctor.Doctor(reading, timeout=seconds, fix=fix, hub_tls=hub_tls)
        return await examination.examine(
            names,
            on_examined=progress.done,
            on_starting=lambda server, start: progress.starting(server, start.words),
        )


def _explain(codes: list[str]) -> None:
    if not codes:
        example = command_line("doctor", "explain", "HF-REFUSED")
        raise UsageError("no code given", hint=f"for example `{example}`; codes: {', '.join(holdfast.doctor.CODES)}")
    for code in [holdfast.doctor.code_named(code) for code in codes]:
        print_code(code)


WIDEST = 100
"""Longer lines are hard to read, even on a wide terminal."""

_ORDER: tuple[Health, ...] = ("healthy", "disabled", "warned", "failed")
_LABELS: dict[Health | Severity, tuple[str, str]] = {
    "healthy": ("ok", "green"),
    "disabled": ("off", "dim"),
    "note": ("note", "green"),
    "warned": ("warning", "yellow"),
    "warning": ("warning", "yellow"),
    "failed": ("FAILED", "bold red"),
    "error": ("FAILED", "bold red"),
}
_ACTIONS = {"replace": "replace the value by", "insert": "insert after the {", "rename": "replace the key by"}
MOST_ALIKE = 3
"""How many edits or commands are shown of those that differ only by the server."""

_COLOURS: dict[Severity, str] = {"error": "red", "warning": "yellow", "note": "cyan"}


def print_report(report: Report) -> None:
    """Print the whole report on stdout."""
    own = holdfast.doctor.own_findings(report.servers)
    _print_heading(report)
    width = max((len(server.id) for server in report.servers), default=0)
    ranked = sorted(report.servers, key=lambda server: _ORDER.index(server.health))
    for server in (one for one in ranked if one.health in ("healthy", "disabled")):
        _print_wrapped(Text.assemble(_label(server.health), f"{server.id:<{width}}  "), _in_short(server))
        _print_findings(own[server.id])
    _print_file_findings(report)
    for server in (one for one in ranked if one.health in ("warned", "failed")):
        _print_server(server, own[server.id])
    for cause in reversed(report.causes):
        _print_cause(cause)
    for repaired in report.repairs:
        _print()
        done = "done" if repaired.done else "not done"
        _print_wrapped("", f"--fix, {done}: {repaired.words} ({repaired.code})")
    _print_summary(report)


def print_code(code: Code) -> None:
    """Print the explanation of a code."""
    _print(Text.assemble((code.id, "bold"), (f"  {code.severity}", _COLOURS[code.severity])))
    _print_wrapped("  ", f"{code.means}.")
    _print_wrapped("  Cause: ", code.cause)
    _print_wrapped("  Cure:  ", code.cure)


# Parts of the report


def _print_heading(report: Report) -> None:
    if report.file is None:
        _print("No configuration was found, so there is nothing to check. These places were searched:")
        for path in report.searched:
            _print(f"  {path}")
        for path in report.served:
            command = command_line("doctor", "--config", path)
            _print(f"A running hub serves another file. To check that one: `{command}`")
        _print(f"`{command_line('import')}` lists the servers of your other MCP clients.")
        return
    _print(f"Configuration: {report.file}")
    if report.hub is not None:
        _print(f"Running hub:   {report.hub.url}, pid {report.hub.pid}, version {report.hub.version}")
    _print()


def _label(of: Health | Severity) -> tuple[str, str]:
    word, colour = _LABELS[of]
    return f"{word:<9}", colour


def _print_server(server: ServerReport, own: tuple[Finding, ...]) -> None:
    """All details of a server that needs attention, but for those that it shares with others."""
    if not own and server.health == "failed":
        return
    _print()
    line = Text.assemble(_label(server.health), (server.id, "bold"), (f"  {server.target}", "dim"))
    line.rstrip()
    line.truncate(_width(), overflow="ellipsis")
    _print(line)
    if server.health == "warned":
        _print_wrapped("  ", _in_short(server))
    _print_findings(own)
    if server.hub is not None:
        _print_wrapped("  ", f"hub: {_hub_words(server)}")


def _print_cause(cause: SharedCause) -> None:
    """A cause that several servers share, once."""
    _print()
    words = f"{len(cause.servers)} servers with the same finding: {', '.join(cause.servers)}"
    _print_wrapped(Text.assemble(_label(cause.severity)), words)
    _print_finding(cause, most=MOST_ALIKE)


def _print_file_findings(report: Report) -> None:
    """The findings that concern no single server, under a heading of their own."""
    found = [one for result in report.checks for one in result.findings]
    if found and report.servers:
        severe = any(one.severity == "error" for one in found)
        _print()
        heading = ("files", "bold"), ("  no single server", "dim")
        _print(Text.assemble(_label("failed" if severe else "warned"), *heading))
    _print_findings(found)


def _print_findings(findings: Iterable[Finding]) -> None:
    for found in findings:
        _print_finding(found)


def _print_summary(report: Report) -> None:
    if report.file is None:
        return
    if report.servers or not report.ok:
        _print()
    if not report.servers:
        _print("the configuration has no servers" if report.ok else "no server was checked: fix this first")
        return
    unjudged = [one.id for one in report.servers if any(found.code == "HF-CROWDED" for found in one.findings)]
    well = report.count("healthy") + report.count("warned") - len(unjudged)
    total = len(report.servers) - report.count("disabled")
    failed = [server.id for server in report.servers if server.health == "failed"]
    words = f"{well} of {total} servers work" if total != 1 else "it works" if well else "it does not work"
    if failed:
        words += f"; failed: {', '.join(failed)}"
    if unjudged:
        words += f"; not judged: {', '.join(unjudged)}"
    _print_wrapped("", words, style="bold")
    if failed:
        first = next(one for server in report.servers for one in server.findings if one.severity == "error")
        _print(f"For more about a code: `{command_line('doctor', 'explain', first.code)}`")


def _print_finding(found: Finding | SharedCause, *, most: int | None = None) -> None:
    """A finding and its remedy; at most so many of the edits and commands that are alike."""
    _print_wrapped(Text.assemble("  ", (f"{found.code}  ", _COLOURS[found.severity])), found.words, hang=4)
    for line in found.detail.splitlines():
        _print(Text(f"    | {line}", style="dim"))
    _print_wrapped("    fix: ", found.remedy.text)
    edits = [one for one in found.remedy.edits if one.paste]
    for edit in edits[:most]:
        _print(f"      in {edit.place}, {_ACTIONS[edit.action]}:")
        _print(Text(edit.paste, style="cyan"))
    if most is not None and len(edits) > most:
        _print(f"      and at {len(edits) - most} more places; `{command_line('doctor', '--fix')}` writes all of them")
    for command in found.remedy.commands[:most]:
        _print(Text(f"      $ {command}", style="cyan"))
    if most is not None and len(found.remedy.commands) > most:
        _print("      and the same for the others")


# Lines


def _width() -> int:
    return min(data_console().width, WIDEST)


def _print(line: str | Text = "") -> None:
    """Print a line without wrapping, so that it can be copied."""
    text = Text(line) if isinstance(line, str) else line
    text.plain = plain(text.plain)
    print_line(text)


def _print_wrapped(lead: str | Text, words: str, *, hang: int | None = None, style: str = "") -> None:
    """Print text behind a lead, wrapped to the terminal; more lines begin below the text, or at column ``hang``."""
    head = Text(lead) if isinstance(lead, str) else lead
    room = " " * head.cell_len
    below = room if hang is None else " " * hang
    lines = textwrap.wrap(
        words,
        width=_width(),
        initial_indent=room,
        subsequent_indent=below,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for number, line in enumerate(lines or [room]):
        _print(Text(line, style=style) if number else Text.assemble(head, (line[len(room) :], style)))


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
    breaker = live.breaker.replace("_", " ")
    if live.breaker == "open" and live.breaker_retry_in is not None:
        breaker += f" {live.breaker_retry_in:.0f} s"
    retry = f", next try in {live.retry_in:.0f} s" if live.retry_in is not None else ""
    return f"{live.state.replace('_', ' ')}, breaker {breaker}{retry}"
