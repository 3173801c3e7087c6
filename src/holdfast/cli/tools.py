"""``holdfast tools``: list the tools of each server, or the reason why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli.hub_client import load_from_hub, speaks_mcp
from holdfast.cli.output import counted, data_console, print_json, side_console, working
from holdfast.cli.running_hub import AsJson, Url, serving_hub
from holdfast.cli.trust import load_servers
from holdfast.config import Config
from holdfast.core import command_line, plain
from holdfast.types import LoadResult, MCPServerLoadOutcome, Tool

if TYPE_CHECKING:
    from holdfast.wire import Starting

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

COLOURS = {"available": "green", "transient": "yellow", "permanent": "red", "denied": "magenta"}


@app.command()
def tools(
    servers: Annotated[list[str] | None, typer.Argument(metavar="SERVER", help="Only these servers")] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the tools of every server, and why a server has none.

    It asks the running hub that serves the mcp.json; without one it connects to the servers itself.
    Exit code 0: every server is available. 1: at least one is not.
    """
    hub = serving_hub(url, config)
    if hub is not None and speaks_mcp(hub):
        with working(f"asking the hub at {hub.url}"):
            result = anyio.run(load_from_hub, hub, servers or [])
        source = hub.config or "the hub"
    else:
        found = load_servers(config)
        result = anyio.run(_load, found, servers or [])
        source = str(found.source)
    if as_json:
        print_json({"servers": [_as_json(outcome) for outcome in result.outcomes]})
    else:
        _show(result, source)
    raise typer.Exit(0 if len(result.available) == len(result.outcomes) else 1)


async def _load(config: Config, servers: list[str]) -> LoadResult:
    from holdfast.hub import load  # noqa: PLC0415 - slow to import; a bad config must not wait for it

    enabled = (name for name, server in config.servers.items() if server.enabled)
    waiting = list(dict.fromkeys(servers or enabled))
    total = len(waiting)

    starts: dict[str, str] = {}

    def on_outcome(outcome: MCPServerLoadOutcome) -> None:
        waiting.remove(outcome.server_id)
        starts.pop(outcome.server_id, None)
        moving.update(_progress(waiting, total, starts))

    def on_starting(server: str, start: Starting) -> None:
        starts[server] = start.words
        moving.update(_progress(waiting, total, starts))

    with working(_progress(waiting, total, starts)) as moving:
        return await load(config, servers=servers, on_outcome=on_outcome, on_starting=on_starting)


def _progress(waiting: list[str], total: int, starts: Mapping[str, str]) -> str:
    names = ", ".join(waiting[:3]) + (f" and {len(waiting) - 3} more" if len(waiting) > 3 else "")
    oldest = next((f"; {name}: {starts[name]}" for name in waiting if name in starts), "")
    return f"{total - len(waiting)} of {counted(total, 'server')} answered; waiting for {names}{oldest}"


def _as_json(outcome: MCPServerLoadOutcome) -> dict[str, Any]:
    return {
        "id": outcome.server_id,
        "status": outcome.status,
        "attempts": outcome.attempts,
        "error": outcome.error,
        "hint": outcome.hint or None,
        "tools": [_tool_as_json(tool) for tool in outcome.tools],
        "elapsed_ms": round(outcome.elapsed_s * 1000, 1),
    }


def _tool_as_json(tool: Tool) -> dict[str, Any]:
    described = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": dict(tool.input_schema),
        "outputSchema": dict(tool.output_schema) if tool.output_schema is not None else None,
        "annotations": dict(tool.annotations) or None,
    }
    return {key: value for key, value in described.items() if value is not None}


def _show(result: LoadResult, source: str) -> None:
    console = data_console()
    for outcome in result.outcomes:
        _show_outcome(console, outcome)
    side = side_console()
    if not result.outcomes:
        side.print(f"{source} has no servers")
        return
    servers = counted(len(result.outcomes), "server")
    counts = f"{len(result.available)} of {servers} available, {counted(len(result.tools), 'tool')}"
    closer = "" if len(result.available) == len(result.outcomes) else f"; `{command_line('doctor')}` checks the others"
    side.print(Text(counts, style="bold").append(closer, style="not bold"), soft_wrap=True)


def _show_outcome(console: Console, outcome: MCPServerLoadOutcome) -> None:
    heading = Text.assemble((outcome.server_id, "bold"), "  ", (outcome.status, COLOURS[outcome.status]))
    if outcome.status == "available":
        heading.append(f"  {counted(len(outcome.tools), 'tool')}, {outcome.elapsed_s:.2f} s", style="dim")
    if outcome.attempts > 1:
        heading.append(f"  {outcome.attempts} attempts", style="dim")
    console.print(heading)
    if outcome.message:
        console.print(Text(f"  {outcome.message}"), soft_wrap=True)
    if outcome.hint:
        console.print(Text.assemble(("  hint: ", "cyan"), outcome.hint), soft_wrap=True)
    if outcome.tools:
        _show_tools(console, outcome.tools)


def _show_tools(console: Console, tools: list[Tool]) -> None:
    """One line for each tool, cut at the width of a terminal; uncut in a pipe."""
    names = [plain(tool.name) for tool in tools]
    width = max(map(len, names))
    for name, tool in zip(names, tools, strict=True):
        first_line = next(iter(plain(tool.description).strip().splitlines()), "")
        line = Text.assemble(f"  {name:<{width}}", (f"  {first_line}" if first_line else "", "dim"))
        line.rstrip()
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)
