"""``holdfast approve``: approve what servers changed of what a model reads, and decide about calls that wait."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

import holdfast.control
import holdfast.hub
from holdfast.cli.command_options import AsJson, HubConfig, HubName, Url, Yes, ask, chosen, found_hub
from holdfast.cli.output import (
    DIFF_STYLES,
    counted,
    data_console,
    print_error,
    print_json,
    print_line,
    print_note,
)
from holdfast.cli.status_view import one_line
from holdfast.core import ApprovalKind, command_line, near, plain, span
from holdfast.errors import HoldfastError, HubRefused, UnknownTool, UsageError
from holdfast.files import replace_file

if TYPE_CHECKING:
    from holdfast.control import Approval, ControlClient, RunningHub

__all__ = ["approve"]


def approve(
    server: Annotated[
        str | None, typer.Argument(metavar="SERVER", help="Approve the changed tools of this server")
    ] = None,
    tool: Annotated[str | None, typer.Argument(metavar="NAME", help="Approve only this tool or prompt")] = None,
    kind: Annotated[
        Literal["tool", "prompt", "instructions"] | None,
        typer.Option("--kind", help="What NAME is; the instructions of a server have no name"),
    ] = None,
    yes: Yes = False,
    mark: Annotated[
        str | None,
        typer.Option("--mark", metavar="MARK", help="Approve only if the change is still the one that was shown"),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write what is approved to a lock, for `serve --approvals-lock`"),
    ] = None,
    calls: Annotated[bool, typer.Option("--calls", help="Show the calls that wait for a person")] = False,
    call: Annotated[
        str | None, typer.Option("--call", metavar="ID", help="Approve this call, or refuse it with --refuse")
    ] = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="Refuse the call")] = False,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why it is refused: the caller reads it")
    ] = "",
    as_json: AsJson = False,
    url: Url = None,
    config: HubConfig = None,
    hub: HubName = None,
) -> None:
    """Show what changed since it was first seen, or is new. With a SERVER, approve the changes.

    Tools, prompts and the server's instructions are watched. Each change is shown
    before it is approved, and on a terminal you are asked. What changes again in the
    meantime is not approved. What is held can be used once its change is approved.

    A rule of the policy may let calls wait for a person (`ask`). --calls shows them,
    --call approves one of them, once, and --refuse refuses it.

    --export writes a lock of what is approved and disabled: a hub that is started with
    it uses nothing else.

    Exit code 0: shown, written, approved, or refused as asked. 1: not done, or no hub is
    running.
    """
    if mark is not None and tool is None and kind != "instructions":
        raise UsageError("--mark needs one change", hint="name the SERVER and the NAME, or --kind instructions")
    if export is not None and (server is not None or mark is not None or as_json):
        raise UsageError("--export is used alone", hint="it writes what is approved of every server")
    if (calls or call is not None) and (
        server is not None or export is not None or mark is not None or kind is not None
    ):
        raise UsageError("--calls and --call are used without a SERVER", hint="they are about calls, and not changes")
    if (refuse or reason) and call is None:
        raise UsageError("--refuse and --reason need a call", hint="name it with --call ID")
    found = found_hub(url, config, hub)
    if calls:
        show_calls(found, as_json=as_json)
        return
    if call is not None:
        decide_call(found, call, approve=not refuse, reason=reason, as_json=as_json)
        return
    if export is not None:
        _export(found, export)
        return
    changes = _wanted(found, server, tool, mark, kind)
    if as_json and server is None:
        print_json({"approvals": [change.model_dump(mode="json") for change in changes]})
        return
    if not as_json:
        _show(changes, server, offered=server is None)
    if server is not None and changes:
        asks = not (yes or as_json) and mark is None and sys.stdin.isatty()
        agreed = not asks or typer.confirm(f"approve {counted(len(changes), 'change')}?", err=True)
        raise typer.Exit(_approve(found, changes, as_json=as_json) if agreed else 1)
    if as_json:
        _print_done([], [])


def show_calls(found: RunningHub, *, as_json: bool) -> None:
    """Print the calls that wait for a person."""
    waiting = ask(found, holdfast.control.ControlClient.calls)
    if as_json:
        print_json({"calls": [one.model_dump(mode="json") for one in waiting.calls]})
        return
    for one in waiting.calls:
        title = Text.assemble((f"{one_line(one.server)}  {one_line(one.tool)}", "bold"), f"  {one_line(one.id)}")
        print_line(title)
        of = f" of {one_line(one.program)}" if one.program else ""
        who = "its caller" if one.approver == "caller" else "an operator"
        left = span(max(0.0, one.expires - waiting.now))
        print_line(f"  {one_line(one.principal)}{of} calls it; {who} decides within {left}")
        for line in plain(one.arguments).splitlines():
            print_line((f"  {line}", "dim"))
        for command in (
            command_line("approve", "--call", one.id),
            command_line("approve", "--call", one.id, "--refuse"),
        ):
            print_line("  $ ", (plain(command), "bold cyan"))
    print_note(f"{counted(len(waiting.calls), 'call')} waiting" if waiting.calls else "no calls wait")


def decide_call(found: RunningHub, call: str, *, approve: bool, reason: str, as_json: bool) -> None:
    """Approve or refuse one call."""
    done = ask(found, lambda control: control.decide(call, approve=approve, reason=reason))
    if as_json:
        print_json({"call": done.model_dump(mode="json"), "approved": approve})
        return
    what = "approved" if approve else "refused"
    about = f"{one_line(done.server)}  {one_line(done.tool)}  called by {one_line(done.principal)}"
    print_line(f"{what}: {about}")


def _export(found: RunningHub, file: Path) -> None:
    """Write the lock; what waits for approval is not in it."""
    approved = ask(found, holdfast.control.ControlClient.approved)
    try:
        replace_file(file, holdfast.hub.ApprovalsLock(approved.servers, frozenset(approved.disabled)).text())
    except OSError as exc:
        raise HoldfastError(f"cannot write {file}: {exc.strerror}", hint="check the folder") from exc
    tools = sum(len(texts) for texts in approved.servers.values())
    print_note(f"wrote {file}: {counted(tools, 'approved text')} of {counted(len(approved.servers), 'server')}")


def _wanted(
    found: RunningHub, server: str | None, tool: str | None, mark: str | None, kind: ApprovalKind | None
) -> list[Approval]:
    """The changes that the arguments select."""

    async def look(control: ControlClient) -> list[Approval]:
        if server is not None:
            chosen([server], (one.id for one in (await control.servers()).servers))
        return [one for one in (await control.approvals()).approvals if server in (None, one.server)]

    changes = [change for change in ask(found, look) if kind in (None, change.kind)]
    if tool is None and mark is None:
        return changes
    tool = tool or ""
    one = next((change for change in changes if change.tool == tool), None)
    if one is None:
        hint = near(tool, [change.tool for change in changes], f"no change of `{server}` waits for approval")
        raise UnknownTool(
            f"the {kind or 'tool'} `{tool}` of `{server}` has no change that waits for approval", hint=hint
        )
    return [one.model_copy(update={"mark": mark}) if mark is not None else one]


def _show(changes: Sequence[Approval], server: str | None, *, offered: bool) -> None:
    console = data_console()
    for change in changes:
        _show_change(console, change, offered=offered)
    if not changes:
        print_note(f"no changes wait for approval{f' at {server}' if server else ''}")
    elif offered:
        held = sum(change.held for change in changes)
        print_note((f"{counted(len(changes), 'change')}, {held} held until approved", "bold"))


def _show_change(console: Console, change: Approval, *, offered: bool) -> None:
    what = "new" if change.new else "changed"
    how = (f"{what}, held" if change.new else "held", "yellow") if change.held else (f"{what}, not held", "dim")
    title = Text.assemble((f"{one_line(change.server)}  {one_line(_name(change))}", "bold"), "  ", how)
    console.print(title, soft_wrap=True)
    for line in change.changes:
        shown = plain(line).replace("\n", " ")
        console.print(Text(f"  {shown}", style=DIFF_STYLES.get(line[:1], "")), soft_wrap=True)
    if offered:
        which = ["--kind", "instructions"] if change.kind == "instructions" else [change.tool]
        which += ["--kind", "prompt"] if change.kind == "prompt" else []
        command = command_line("approve", change.server, *which, "--mark", change.mark)
        console.print(Text.assemble("  $ ", (plain(command), "bold cyan"), "\n"), soft_wrap=True)


def _name(change: Approval) -> str:
    return change.tool if change.kind == "tool" else f"{change.kind} {change.tool}".strip()


def _approve(found: RunningHub, changes: Sequence[Approval], *, as_json: bool) -> int:
    done: list[Approval] = []
    refused: list[tuple[Approval, HubRefused]] = []

    async def each(control: ControlClient) -> None:
        for change in changes:
            try:
                await control.approve(
                    change.server, tool=change.tool or None, mark=change.mark or None, kind=change.kind
                )
                done.append(change)
            except HubRefused as exc:  # the other changes are approved all the same
                refused.append((change, exc))

    ask(found, each)
    if as_json:
        _print_done(done, refused)
        return 1 if refused else 0
    for change in done:
        print_line(f"approved: {one_line(change.server)}  {one_line(_name(change))}")
    for _, exc in refused:
        print_error(one_line(exc.message), one_line(exc.hint))
    return 1 if refused else 0


def _print_done(done: Sequence[Approval], refused: Sequence[tuple[Approval, HubRefused]]) -> None:
    approved = [{"server": change.server, "tool": change.tool, "kind": change.kind} for change in done]
    failed = [
        {
            "server": change.server,
            "tool": change.tool,
            "kind": change.kind,
            "error": exc.message,
            "hint": exc.hint or None,
        }
        for change, exc in refused
    ]
    print_json({"approved": approved, "refused": failed})
