"""``holdfast demo``: show the demo servers from a second terminal, break them and repair them.

Everything that it shows comes through the hub, as for any client. Only `break` and `heal` bypass the hub.
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

import holdfast.config
import holdfast.hub
from holdfast.cli.command_options import found_hub, group_of_commands
from holdfast.cli.output import print_line, print_note, working
from holdfast.cli.servers import show_status
from holdfast.core import command_line, plain
from holdfast.demo_servers import FAULTS, DemoControl, running_demo
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.hub import Loader
    from holdfast.types import CallResult

__all__ = ["app"]

app = group_of_commands(needs_one=False)

HUB = "hub"
RESULT = "   "
"""What the lines of a result begin with: notes are numbered, as the steps of the tour are."""

PAUSE = 0.5
PATIENCE = 30.0
"""Seconds that the tour waits for a server to recover. The hub needs less; a busy machine may need more."""

_FAULTS = "\n\n".join(f"{name}: {', '.join(ways)}" for name, ways in FAULTS.items())


@app.callback(invoke_without_command=True)
def demo(context: typer.Context) -> None:
    """Show the demo servers that `holdfast serve` runs in another terminal, and break and repair them."""
    if context.invoked_subcommand is None:
        control, url = running_demo()
        for name, condition in control.conditions.items():
            print_line((f"{name:<10}", "bold"), condition)
        print_line("\nWhat the hub says of them:")
        show_status(found_hub(url, None))
        tries = [command_line("demo", "tour"), command_line("call", "notes", "list_notes", "--url", url)]
        tries.append(f"{command_line('demo', 'break', 'notes')}; {command_line('demo', 'heal', 'vault')}")
        print_note("\nTry: " + "\n     ".join(tries))


@app.command(name="break", epilog=_FAULTS)
def break_(
    server: Annotated[str, typer.Argument(metavar="SERVER", help=f"One of {', '.join(FAULTS)}")],
    how: Annotated[str | None, typer.Option("--how", metavar="WAY", help="The kind of failure; see below")] = None,
) -> None:
    """Break a server."""
    control, _ = running_demo()
    way = control.break_server(server, how)
    print_line(f"{server} is {way} now: {FAULTS[server][way]}")


@app.command()
def heal(server: Annotated[str, typer.Argument(metavar="SERVER", help=f"One of {', '.join(FAULTS)}")]) -> None:
    """Repair a server. The hub notices by itself."""
    control, _ = running_demo()
    control.heal(server)
    print_line(f"{server} is healthy now; the hub notices by itself")


@app.command()
def tour() -> None:
    """Break a server and repair it, and show at each step what a client sees."""
    control, url = running_demo()
    anyio.run(_tour, control, url)


# Through the hub, as any client


def _loader(url: str) -> Loader:
    return holdfast.hub.Loader(holdfast.config.config_from_mapping({"mcpServers": {HUB: {"type": "http", "url": url}}}))


async def _tools(url: str) -> list[str]:
    result = await _loader(url).load()
    for outcome in result.outcomes:
        if outcome.message:
            raise HoldfastError(f"the hub does not answer: {outcome.error}", hint=outcome.hint)
    return [tool.name for tool in result.tools]


# The tour


async def _tour(control: DemoControl, url: str) -> None:
    def say(text: str) -> None:
        print_line((text, "bold"))

    say("1. A client calls the tool `list_notes` of `notes`.")
    control.heal("notes")
    await _until(url, lambda result: not result.is_error)
    say("\n2. `notes` stops, and cannot start again.")
    control.break_server("notes", "down")
    await anyio.sleep(PAUSE)  # a call that is under way would tell how the process ended, and not how the server is
    await _until(url, lambda result: result.is_error)
    say("\n3. Its tools are still listed: a server that is down keeps its tools in the list.")
    print_line(indent(", ".join(await _tools(url)), RESULT))
    say("\n4. `notes` is repaired. The hub reconnects by itself.")
    control.heal("notes")
    await _until(url, lambda result: not result.is_error)


async def _until(url: str, wanted: Callable[[CallResult], bool]) -> None:
    """Call until the answer matches, and show it."""
    with anyio.move_on_after(PATIENCE):
        with working("calling list_notes"):
            while not wanted(result := await _loader(url).call(HUB, "notes__list_notes", {})):  # noqa: ASYNC110 - only a call shows it
                await anyio.sleep(PAUSE)
        print_line((indent(plain(result.text), RESULT), "red" if result.is_error else "green"))
        return
    raise HoldfastError(
        f"`notes` did not change within {PATIENCE:g} s", hint="the terminal of the hub shows the reason"
    )
