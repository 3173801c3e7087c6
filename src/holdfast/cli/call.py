"""``holdfast call``: call one tool. ``key=value`` pairs become its arguments, by the types in the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.text import Text

from holdfast.cli.hub_client import call_at_hub, speaks_mcp
from holdfast.cli.output import data_console, json_text, print_error, print_json, working
from holdfast.cli.running_hub import Url, serving_hub
from holdfast.cli.trust import load_servers
from holdfast.config import Config
from holdfast.core import plain
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.control import RunningHub
    from holdfast.types import CallResult

__all__ = ["parse_arguments"]

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
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON")] = False,
) -> None:
    """Call one tool of one server, and show its result.

    The call goes through the running hub that serves the mcp.json; without one it connects to the server itself.
    A value is converted to the type in the tool's schema: a=1 is a number if the tool expects one.
    Exit code 0: a result. 1: the tool reported an error, or the call failed.
    """
    parse_arguments(pairs or [], args, {})
    hub = serving_hub(url, config)
    if hub is not None and not speaks_mcp(hub):
        hub = None
    found = load_servers(config) if hub is None else None
    result = anyio.run(_call, hub, found, server, tool, pairs or [], args)
    if as_json:
        print_json(_as_json(result))
    else:
        _show(result)
    if result.is_error:
        print_error(f"the tool `{tool}` reported an error")
    raise typer.Exit(1 if result.is_error else 0)


async def _call(
    hub: RunningHub | None, config: Config | None, server: str, tool: str, pairs: list[str], args: str | None
) -> CallResult:
    from holdfast.hub import Loader  # noqa: PLC0415 - slow to import; a bad config must not wait for it

    def arguments(schema: Mapping[str, Any]) -> Mapping[str, Any]:
        return parse_arguments(pairs, args, schema)

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        share = f"{progress:g} of {total:g}" if total else f"{progress:g}"
        moving.update(f"{server}: {tool}: {share} {plain(message or '')}")

    with working(f"calling {tool} at {server}") as moving:
        if hub is not None:
            return await call_at_hub(hub, server, tool, arguments, on_progress=on_progress)
        assert config is not None  # noqa: S101 - a hub or a configuration
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
        console.print(Text(json_text(result.structured, indent=2)), soft_wrap=True)


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


def parse_arguments(pairs: Sequence[str], as_json: str | None, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``--args``, overridden by the ``key=value`` pairs."""
    arguments = _object(as_json) if as_json is not None else {}
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"`{pair}` is not key=value", hint="put quotes around a value with spaces")
        arguments[key] = _value(key, text, _types(known.get(key)))
    return arguments


def _object(text: str) -> dict[str, Any]:
    hint = 'write an object, as in --args \'{"path": "."}\''
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"--args is not JSON: {exc}", hint=hint) from exc
    if not isinstance(value, dict):
        raise UsageError("--args is JSON, but not an object", hint=hint)
    return value


def _types(schema: object) -> set[str]:
    """The JSON types that a property may have; empty if its schema names none or is malformed."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    types = {named} if isinstance(named, str) else {name for name in _list(named) if isinstance(name, str)}
    for branch in (*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))):
        types |= _types(branch)
    return types


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _value(key: str, text: str, types: set[str]) -> Any:
    """``text`` parsed as JSON if the type fits, else as a string."""
    if types == {"string"}:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if not types or _type_of(value) & types:
        return value
    if "string" in types:
        return text
    raise UsageError(f"`{key}` takes {' or '.join(sorted(types))}, not `{text}`")


def _type_of(value: object) -> set[str]:
    match value:
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case dict():
            return {"object"}
        case _:
            return {"null"}
