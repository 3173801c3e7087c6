"""``holdfast logs``: the stderr of a server, and what the hub logged about it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli.output import data_console, print_json_line
from holdfast.cli.running_hub import AsJson, Config, HubName, Url, ask, chosen, found_hub
from holdfast.cli.status_view import clock
from holdfast.control import ControlClient, LogLine
from holdfast.core import plain
from holdfast.errors import NoHub

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

_STYLES = {"error": "red", "critical": "red", "warning": "yellow"}


@app.command()
def logs(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="The server")],
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, max=1_000, help="How many lines")] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new lines, and show them")] = False,
    as_json: AsJson = False,
    url: Url = None,
    config: Config = None,
    hub: HubName = None,
) -> None:
    """Show the last lines of a server's stderr, and what the hub logged about the server.

    With --json each line is a JSON object. Exit code 0: the lines were shown. 1: there
    is no such server, no hub is running, or the hub ended during --follow.
    """
    show = _as_json if as_json else _for_people(data_console())

    async def show_lines(control: ControlClient) -> None:
        name = chosen([server], (one.id for one in (await control.servers()).servers))[0]
        if not follow:
            for line in (await control.logs(name, lines=lines)).lines:
                show(line)
            return
        async with aclosing(control.follow(name, lines=lines)) as coming:
            async for line in coming:
                show(line)
        raise NoHub(f"no more lines of `{name}`: the hub ended, or the server was removed from the configuration")

    ask(found_hub(url, config, hub), show_lines)


def _as_json(line: LogLine) -> None:
    print_json_line(line.model_dump(mode="json"))


def _for_people(console: Console) -> Callable[[LogLine], None]:
    def show(line: LogLine) -> None:
        head = (f"{clock(line.at)}  {line.source:<6}  ", "dim")
        body = (plain(line.text).rstrip("\n"), _STYLES.get(line.level.lower(), ""))
        console.print(Text.assemble(head, body), soft_wrap=True)

    return show
