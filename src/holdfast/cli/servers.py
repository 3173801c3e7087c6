"""``holdfast status``, ``reconnect``, ``enable``, ``disable`` and ``logs``: the servers of a running hub.

What each prints is in ``status_view``; ``status --watch`` is in ``status_watch``. What has models is named by
its package, here and in the other commands: models are slow to import, and help needs none of them (PERF-5).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

import holdfast.control
from holdfast.cli.command_options import AsJson, HubConfig, HubName, Url, ask, chosen, found_hub
from holdfast.cli.output import (
    GAP,
    data_console,
    page_of,
    print_error,
    print_json,
    print_json_line,
    print_line,
    print_note,
    working,
)
from holdfast.cli.status_view import (
    STYLES,
    clock,
    heading,
    is_well,
    mark,
    matches,
    one_line,
    overview,
    span,
    state_words,
    tally,
    worst_last,
)
from holdfast.core import plain
from holdfast.errors import HoldfastError, NoHub, UsageError

if TYPE_CHECKING:
    from holdfast.control import ControlClient, HubView, LogLine, RunningHub, Server, ServerAction, Servers

__all__ = ["disable", "enable", "logs", "reconnect", "show_status", "status"]


def status(
    servers: Annotated[
        list[str] | None, typer.Argument(metavar="SERVER", help="Only these servers, with all details")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep running, and show changes live")] = False,
    as_json: AsJson = False,
    words: Annotated[
        str, typer.Option("--filter", metavar="WORDS", help="Only servers with these words in name, state or reason")
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="One row for each server, also where causes are equal")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the status page of the hub in a browser")] = False,
    url: Url = None,
    config: HubConfig = None,
    hub: HubName = None,
) -> None:
    """Show the state of every server of a running hub, the worst last, and what to do about it.

    With --watch on a terminal, the worst is on top; the space bar shows the next page,
    q quits. Without a terminal it prints one line for each change, or with --json one
    object for each event.

    Exit code 0: every server shown is available, idle or disabled. 1: at least
    one is not, or no hub is running. 2: wrong usage.
    """
    if open_page and (watch or as_json or servers or words):
        raise UsageError("--open cannot be combined with other options", hint="the page shows all servers")
    found = found_hub(url, config, hub)
    if open_page:
        _open(found)
    elif watch:
        from holdfast.cli.status_watch import watch_hub  # noqa: PLC0415 - of this option alone

        raise typer.Exit(watch_hub(found, servers or [], words, as_json=as_json))
    else:
        raise typer.Exit(show_status(found, servers or [], words, as_json=as_json, every=every))


def show_status(
    found: RunningHub, names: Sequence[str] = (), words: str = "", *, as_json: bool = False, every: bool = False
) -> int:
    """Print the state of each server of a hub; returns the exit code."""
    hub, fleet = ask(found, _look)
    wanted = set(chosen(names, (server.id for server in fleet.servers)))
    servers = [one for one in fleet.servers if (not wanted or one.id in wanted) and matches(one, words)]
    if as_json:
        shown = [server.model_dump(mode="json") for server in servers]
        print_json({"hub": hub.model_dump(mode="json"), "servers": shown})
    else:
        _show(hub, servers, fleet.now, in_full=bool(wanted), every=every)
    return 0 if all(map(is_well, servers)) else 1


async def _look(control: ControlClient) -> tuple[HubView, Servers]:
    return await control.hub(), await control.servers()


def _show(hub: HubView, servers: Sequence[Server], now: float, *, in_full: bool, every: bool) -> None:
    page = page_of(data_console())
    for line in (*heading(hub, now, page), *overview(worst_last(servers), now, page, in_full=in_full, every=every)):
        print_line(line)
    print_note((f"\n{tally(servers)}", "bold"))


def _open(found: RunningHub) -> None:
    from holdfast.cli.logins import open_privately  # noqa: PLC0415 - of this option alone

    code = ask(found, holdfast.control.ControlClient.code)
    address = f"{found.url}/#code={code.code}"
    print_note(f"opening the status page of {found.url} in your browser")
    if open_privately(address):
        return
    if sys.stdout.isatty():
        print_line(address)
        print_note(f"no browser came: open this address within {span(code.expires_in)}; it works once")
    else:  # the address signs its reader in, so it must not go into a file
        raise HoldfastError("no browser came", hint="run this on a terminal: there it shows the address to open")


# Reconnect, enable, disable


def reconnect(
    servers: Annotated[list[str], typer.Argument(metavar="SERVER", help="The servers to reconnect")],
    as_json: AsJson = False,
    url: Url = None,
    config: HubConfig = None,
    hub: HubName = None,
) -> None:
    """Reconnect servers now. Their breakers close, and their reconnect attempts start at zero.

    The command waits until each server is connected or has failed. A disabled
    server is not connected: use `holdfast enable`.

    Exit code 0: all are connected. 1: at least one is not, or no hub is running.
    """
    _act_on(found_hub(url, config, hub), servers, "reconnect", progress="reconnecting", as_json=as_json)


def enable(
    servers: Annotated[list[str], typer.Argument(metavar="SERVER", help="The servers to enable")],
    as_json: AsJson = False,
    url: Url = None,
    config: HubConfig = None,
    hub: HubName = None,
) -> None:
    """Enable servers. The hub connects to them in the background.

    Exit code 0: all are enabled. 1: at least one is not, or no hub is running.
    """
    _act_on(found_hub(url, config, hub), servers, "enable", progress="enabling", as_json=as_json)


def disable(
    servers: Annotated[list[str], typer.Argument(metavar="SERVER", help="The servers to disable")],
    as_json: AsJson = False,
    url: Url = None,
    config: HubConfig = None,
    hub: HubName = None,
) -> None:
    """Disable servers. They stay disabled after a restart of the hub, until `holdfast enable`.

    Their calls in flight end with an error, and new calls are refused.

    Exit code 0: all are disabled. 1: at least one is not, or no hub is running.
    """
    _act_on(found_hub(url, config, hub), servers, "disable", progress="disabling", as_json=as_json)


def _act_on(found: RunningHub, names: Sequence[str], action: ServerAction, *, progress: str, as_json: bool) -> None:
    """Run the action for all servers at once, and show what came of each."""

    async def act(control: ControlClient) -> dict[str, Server | HoldfastError]:
        wanted = chosen(names, (server.id for server in (await control.servers()).servers))
        done: dict[str, Server | HoldfastError] = {}

        async def one(name: str) -> None:
            try:
                done[name] = await control.act(name, action)
            except HoldfastError as exc:  # one that fails does not end the others
                done[name] = exc

        async with anyio.create_task_group() as tasks:
            for name in wanted:
                tasks.start_soon(one, name)
        return {name: done[name] for name in wanted}

    with working(f"{progress} {', '.join(names)}"):
        done = ask(found, act)
    if as_json:
        print_json({"servers": [_as_data(name, outcome) for name, outcome in done.items()]})
    else:
        for name, outcome in done.items():
            _show_outcome(name, outcome)
    raise typer.Exit(1 if any(isinstance(outcome, HoldfastError) for outcome in done.values()) else 0)


def _as_data(name: str, outcome: Server | HoldfastError) -> dict[str, Any]:
    if isinstance(outcome, HoldfastError):
        return {"id": name, "ok": False, "error": outcome.message, "hint": outcome.hint or None}
    return {"id": name, "ok": True, "server": outcome.model_dump(mode="json")}


def _show_outcome(name: str, outcome: Server | HoldfastError) -> None:
    if isinstance(outcome, HoldfastError):
        print_error(f"{one_line(name)}: {one_line(outcome.message)}", one_line(outcome.hint))
        return
    sign = mark(outcome.status, ascii_only=data_console().options.ascii_only)
    scope = f"{GAP}on {one_line(outcome.scope)}" if outcome.scope else ""
    print_line(
        (one_line(outcome.id), "bold"),
        GAP,
        (f"{sign} {state_words(outcome)}", STYLES[outcome.status]),
        f"{GAP}{one_line(outcome.summary)}",
        (scope, "yellow" if "only" in outcome.scope else ""),
    )


# Logs

_LOG_STYLES = {"error": "red", "critical": "red", "warning": "yellow"}


def logs(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="The server")],
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, max=1_000, help="How many lines")] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new lines, and show them")] = False,
    as_json: AsJson = False,
    url: Url = None,
    config: HubConfig = None,
    hub: HubName = None,
) -> None:
    """Show the last lines of a server's stderr, and what the hub logged about the server.

    With --json each line is a JSON object. Exit code 0: the lines were shown. 1: there
    is no such server, no hub is running, or the hub ended during --follow.
    """

    async def show_lines(control: ControlClient) -> None:
        name = chosen([server], (one.id for one in (await control.servers()).servers))[0]
        if not follow:
            for line in (await control.logs(name, lines=lines)).lines:
                _show_line(line, as_json=as_json)
            return
        async with aclosing(control.follow(name, lines=lines)) as coming:
            async for line in coming:
                _show_line(line, as_json=as_json)
        raise NoHub(f"no more lines of `{name}`: the hub ended, or the server was removed from the configuration")

    ask(found_hub(url, config, hub), show_lines)


def _show_line(line: LogLine, *, as_json: bool) -> None:
    if as_json:
        print_json_line(line.model_dump(mode="json"))
        return
    text = plain(line.text).rstrip("\n")
    print_line((f"{clock(line.at)}  {line.source:<6}  ", "dim"), (text, _LOG_STYLES.get(line.level.lower(), "")))
