"""``holdfast call``: call one tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.text import Text

from holdfast.cli.arguments import parse_arguments
from holdfast.cli.output import data_console, print_error, print_json, working
from holdfast.config.load import load_config
from holdfast.config.spec import Config
from holdfast.core.redact import plain

if TYPE_CHECKING:
    from holdfast.types import CallResult

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def call(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Its name in the configuration")],
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool, by its name at the server")],
    pairs: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Its arguments")] = None,
    args: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="Its arguments, as one JSON object")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON")] = False,
) -> None:
    """Call one tool of one server, and show its result.

    A value is converted to the type in the tool's schema: a=1 is a number if the tool expects one.
    Exit code 0: a result. 1: the tool reported an error, or the call failed.
    """
    parse_arguments(pairs or [], args, {})
    result = anyio.run(_call, load_config(config), server, tool, pairs or [], args)
    if as_json:
        print_json(_as_json(result))
    else:
        _show(result)
    if result.is_error:
        print_error(f"the tool `{tool}` reported an error")
    raise typer.Exit(1 if result.is_error else 0)


async def _call(config: Config, server: str, tool: str, pairs: list[str], args: str | None) -> CallResult:
    from holdfast.hub.loader import Loader  # noqa: PLC0415 - slow to import; a bad config must not wait for it

    def arguments(schema: Mapping[str, Any]) -> Mapping[str, Any]:
        return parse_arguments(pairs, args, schema)

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        share = f"{progress:g} of {total:g}" if total else f"{progress:g}"
        moving.update(f"{server}: {tool}: {share} {plain(message or '')}")

    with working(f"calling {tool} at {server}") as moving:
        return await Loader(config).call(server, tool, arguments, on_progress=on_progress)


def _as_json(result: CallResult) -> dict[str, Any]:
    whole: dict[str, Any] = {"content": list(result.content), "isError": result.is_error}
    if result.structured is not None:
        whole["structuredContent"] = result.structured
    return whole


def _show(result: CallResult) -> None:
    console = data_console()
    for block in result.content:
        text = _block(block)
        console.print(Text(plain(text) if console.is_terminal else text), soft_wrap=True)
    if result.structured is not None and not result.content:
        console.print(json.dumps(result.structured, indent=2, ensure_ascii=False), soft_wrap=True)


def _block(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "image" | "audio" as kind:
            return f"[{kind} {block.get('mimeType', '')}, {len(str(block.get('data', ''))) * 3 // 4} bytes]"
        case "resource_link":
            return f"[resource {block.get('uri', '')}]"
        case "resource":
            resource = block.get("resource") or {}
            return str(resource.get("text") or f"[resource {resource.get('uri', '')}]")
        case kind:
            return f"[{kind}]"
