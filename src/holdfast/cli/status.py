"""``holdfast status``: the state of the servers of a running hub, once or live."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import anyio
import typer
from rich.text import Text

from holdfast.cli.browser import open_privately
from holdfast.cli.command_options import AsJson, HubConfig, HubName, Url
from holdfast.cli.output import GAP, data_console, page_of, print_json, print_line, print_note
from holdfast.cli.running_hub import ask, chosen, for_each, found_hub
from holdfast.cli.status_view import (
    card,
    folded,
    heading,
    is_well,
    matches,
    needs_attention,
    one_line,
    span,
    table,
    tally,
    worst_last,
)
from holdfast.cli.status_watch import watch_hub
from holdfast.control import ControlClient, HubView, RunningHub, Server, Servers, SeveralHubs, running_hubs
from holdfast.errors import HoldfastError, UsageError

__all__ = ["status"]


_Look: TypeAlias = "tuple[HubView, Servers]"


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

    With --watch on a terminal, the arrow keys select a server and enter shows its
    details; r reconnects it, d disables it, e enables it, / finds, q quits.
    If several hubs run and none is chosen, it lists them.
    Without a terminal it prints one line for each change, or with --json one object for
    each event.

    Exit code 0: every server shown is available, idle or disabled. 1: at least
    one is not, or no hub is running. 2: wrong usage.
    """
    if open_page and (watch or as_json or servers or words):
        raise UsageError("--open cannot be combined with other options", hint="the page shows all servers")
    try:
        found = found_hub(url, config, hub)
    except SeveralHubs:
        if hub is not None or servers or words or watch or open_page:
            raise
        raise typer.Exit(_list_hubs(as_json=as_json)) from None
    if open_page:
        _open(found)
    elif watch:
        raise typer.Exit(watch_hub(found, servers or [], words, as_json=as_json))
    else:
        raise typer.Exit(_show_once(found, servers or [], words, as_json=as_json, every=every))


def _show_once(found: RunningHub, names: Sequence[str], words: str, *, as_json: bool, every: bool) -> int:
    hub, fleet = ask(found, _look)
    wanted = set(chosen(names, (server.id for server in fleet.servers)))
    servers = [one for one in fleet.servers if (not wanted or one.id in wanted) and matches(one, words)]
    if as_json:
        shown = [server.model_dump(mode="json") for server in servers]
        print_json({"hub": hub.model_dump(mode="json"), "servers": shown})
    else:
        _show(hub, servers, fleet.now, in_full=bool(wanted), every=every)
    return 0 if all(map(is_well, servers)) else 1


async def _look(control: ControlClient) -> _Look:
    return await control.hub(), await control.servers()


def _show(hub: HubView, servers: Sequence[Server], now: float, *, in_full: bool, every: bool) -> None:
    console = data_console()
    page, ordered = page_of(console), worst_last(servers)
    lines = heading(hub, now, page)
    if in_full:
        for server in ordered:
            lines += [Text(), *card(server, now, page)]
    elif servers:
        lines += [Text(), *table(ordered if every else folded(ordered), now, page), *needs_attention(ordered, page)]
    for line in lines:
        print_line(line)
    print_note((f"\n{tally(servers)}", "bold"))


def _list_hubs(*, as_json: bool) -> int:
    """The hubs of this machine, one line each; the exit code is 0 if every server of all of them is well."""
    found = running_hubs()
    looks = list(zip(found, anyio.run(_look_at_all, found), strict=True))
    well = [not isinstance(look, HoldfastError) and all(map(is_well, look[1].servers)) for _, look in looks]
    if as_json:
        print_json({"hubs": [_hub_data(hub, look) for hub, look in looks]})
    else:
        for (hub, look), is_good in zip(looks, well, strict=True):
            facts = [str(hub.pid).rjust(7), hub.url, hub.config or "demo servers", hub.version]
            said = one_line(look.message) if isinstance(look, HoldfastError) else tally(look[1].servers)
            style = "green" if is_good else "yellow"
            print_line((one_line(GAP.join(facts)) + GAP, "bold"), (said, f"bold {style}"))
        print_note(("\nseveral hubs are running here: choose one with --hub", "bold"))
    return 0 if all(well) else 1


async def _look_at_all(hubs: Sequence[RunningHub]) -> list[_Look | HoldfastError]:
    async def look_at(hub: RunningHub) -> _Look:
        async with ControlClient(hub) as control:
            return await _look(control)

    return await for_each(hubs, look_at)


def _hub_data(hub: RunningHub, look: _Look | HoldfastError) -> dict[str, Any]:
    known = {"pid": hub.pid, "url": hub.url, "config": hub.config, "started": hub.started, "version": hub.version}
    if isinstance(look, HoldfastError):
        return {**known, "error": look.message, "statuses": {}}
    return {**known, "error": None, "statuses": dict(Counter(server.status for server in look[1].servers))}


def _open(found: RunningHub) -> None:
    code = ask(found, ControlClient.code)
    address = f"{found.url}/#code={code.code}"
    print_note(f"opening the status page of {found.url} in your browser")
    if open_privately(address):
        return
    if sys.stdout.isatty():
        print_line(address)
        print_note(f"no browser came: open this address within {span(code.expires_in)}; it works once")
    else:  # the address signs its reader in, so it must not go into a file
        raise HoldfastError("no browser came", hint="run this on a terminal: there it shows the address to open")
