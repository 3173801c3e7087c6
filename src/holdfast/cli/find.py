"""``holdfast find``: find a tool by what it does, and see whether it can be called now."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.text import Text

from holdfast.cli.hub_client import find_at_hub, speaks_mcp
from holdfast.cli.output import data_console, print_json, side_console, working
from holdfast.cli.running_hub import AsJson, Url, serving_hub
from holdfast.cli.trust import load_servers
from holdfast.config import Config
from holdfast.core import command_line, plain

if TYPE_CHECKING:
    from holdfast.types import FoundTool

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

READY_SECONDS = 20.0
"""How long servers may take to start before the search goes on without them; what they last listed is found."""

MOST_HITS = 50


@app.command()
def find(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the tool should do, in plain words")],
    server: Annotated[str | None, typer.Option("--server", metavar="SERVER", help="Only tools of this server")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_HITS, metavar="N", help="At most so many")] = 5,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Find tools by what they do, the best first, and see whether each can be called now.

    It asks the running hub that serves the mcp.json; without one it connects to the servers itself.
    Exit code 0: at least one was found. 1: none was.
    """
    hub = serving_hub(url, config)
    if hub is not None and speaks_mcp(hub):
        with working(f"asking the hub at {hub.url}"):
            found = anyio.run(partial(find_at_hub, hub, query, server=server, limit=limit))
    else:
        found = anyio.run(_find, load_servers(config), query, server, limit)
    if as_json:
        print_json({"tools": found})
    else:
        _show(found)
    raise typer.Exit(0 if found else 1)


async def _find(config: Config, query: str, server: str | None, limit: int) -> list[dict[str, Any]]:
    from holdfast.hub import Hub  # noqa: PLC0415 - slow to import; a bad config must not wait for it

    with working("connecting to the servers"):
        async with Hub.from_config(config) as hub:
            await hub.ready(timeout=READY_SECONDS)
            return [_as_data(one) for one in await hub.find_tools(query, server=server, limit=limit)]


def _as_data(found: FoundTool) -> dict[str, Any]:
    return {
        "name": found.name,
        "server": found.server_id,
        "signature": found.signature,
        "summary": found.summary,
        "available": found.available,
        "state": found.state,
        "reason": found.reason or None,
        "retryIn": found.retry_in,
    }


def _show(found: list[dict[str, Any]]) -> None:
    console = data_console()
    for one in found:
        console.print(Text(plain(one["signature"]), style="bold"), soft_wrap=True)
        if one["summary"]:
            console.print(Text(f"  {plain(one['summary'])}"), soft_wrap=True)
        if not one["available"]:
            console.print(Text(f"  {plain(one['reason'] or '')}", style="yellow"), soft_wrap=True)
    if not found:
        side_console().print(f"no tool was found; `{command_line('tools')}` lists them all", soft_wrap=True)
