"""``holdfast reconnect``, ``enable``, ``disable`` and ``logs``: one action on servers of a running hub each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated, Any

import typer

from holdfast.cli.command_options import AsJson, HubConfig, HubName, Url
from holdfast.cli.output import GAP, data_console, print_error, print_json, print_json_line, print_line, working
from holdfast.cli.running_hub import ask, chosen, for_each, found_hub
from holdfast.cli.status_view import STYLES, clock, mark, one_line, state_words
from holdfast.control import ControlClient, LogLine, RunningHub, Server, ServerAction
from holdfast.core import plain
from holdfast.errors import HoldfastError, NoHub

__all__ = ["disable", "enable", "logs", "reconnect"]


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
        done = await for_each(wanted, lambda name: control.act(name, action))
        return dict(zip(wanted, done, strict=True))

    with working(f"{progress} {', '.join(names)}"):
        done = ask(found, act)
    if as_json:
        print_json({"servers": [_as_data(name, outcome) for name, outcome in done.items()]})
    else:
        for name, outcome in done.items():
            _show(name, outcome)
    raise typer.Exit(1 if any(isinstance(outcome, HoldfastError) for outcome in done.values()) else 0)


def _as_data(name: str, outcome: Server | HoldfastError) -> dict[str, Any]:
    if isinstance(outcome, HoldfastError):
        return {"id": name, "ok": False, "error": outcome.message, "hint": outcome.hint or None}
    return {"id": name, "ok": True, "server": outcome.model_dump(mode="json")}


def _show(name: str, outcome: Server | HoldfastError) -> None:
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

_STYLES = {"error": "red", "critical": "red", "warning": "yellow"}


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
    print_line((f"{clock(line.at)}  {line.source:<6}  ", "dim"), (text, _STYLES.get(line.level.lower(), "")))
