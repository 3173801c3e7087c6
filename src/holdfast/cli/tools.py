"""``holdfast tools``, ``find`` and ``call``: list the tools of each server, find one by what it does, and call it.

Each asks the running hub that serves the mcp.json, as a client of it; without one it connects to the servers itself.
The MCP endpoint of each server (HUB-8) has the names untouched, so the commands say the same with and without a hub.
Access, approvals, breaker and audit hold as for every client. What a server's endpoint cannot tell (its state, and why
it has no tools) comes from the control API.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import anyio
import typer
from rich.text import Text

import holdfast.config
import holdfast.control
import holdfast.hub
import holdfast.serve
from holdfast.cli.command_options import AsJson, ConfigFile, Url, chosen, object_in, serving_hub, what_to_do
from holdfast.cli.output import (
    ServerProgress,
    counted,
    data_console,
    json_text,
    print_error,
    print_json,
    print_line,
    print_note,
    working,
)
from holdfast.cli.trust import load_servers
from holdfast.core import ToldByHub, classify_evidence, command_line, invocation, plain, quoted_line, typed_as
from holdfast.errors import CallFailed, HoldfastError, UnknownServer, UnknownTool, UsageError
from holdfast.types import CallResult, LoadResult, MCPServerLoadOutcome, ProgressFn, Tool

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.control import RunningHub, Server
    from holdfast.hub import Loader
    from holdfast.types import FoundTool

__all__ = ["call", "find", "parse_arguments", "tools"]

COLOURS = {"available": "green", "transient": "yellow", "permanent": "red", "denied": "magenta"}


def tools(
    servers: Annotated[list[str] | None, typer.Argument(metavar="SERVER", help="Only these servers")] = None,
    config: ConfigFile = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the tools of every server, and why a server has none.

    It asks the running hub that serves the mcp.json; without one it connects to the servers itself.
    Exit code 0: every server is available. 1: at least one is not.
    """
    hub = _hub_to_ask(url, config)
    if hub is not None:
        with working(f"asking the hub at {hub.url}"):
            result = anyio.run(_load_from_hub, hub, servers or [])
        source = hub.config or "the hub"
        now = holdfast.serve.anywhere(Path(hub.config) if hub.config else None, os.environ)
    else:
        found = load_servers(config)
        result = anyio.run(_load, found, servers or [])
        source, now = str(found.source), invocation()
    if as_json:
        print_json({"servers": [_outcome_data(outcome) for outcome in result.outcomes]})
    else:
        with typed_as(now):  # `doctor` asks for the hub's file where it would not find it
            _show(result, source)
    raise typer.Exit(0 if len(result.available) == len(result.outcomes) else 1)


async def _load(config: Config, servers: list[str]) -> LoadResult:
    enabled = (name for name, server in config.servers.items() if server.enabled)
    with working("connecting to the servers") as update:
        progress = ServerProgress(servers or enabled, "answered", update)
        return await holdfast.hub.load(
            config,
            servers=servers,
            on_outcome=lambda outcome: progress.done(outcome.server_id),
            on_starting=lambda server, start: progress.starting(server, start.words),
        )


def _outcome_data(outcome: MCPServerLoadOutcome) -> dict[str, Any]:
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
    for outcome in result.outcomes:
        _show_outcome(outcome)
    if not result.outcomes:
        print_note(f"{source} has no servers")
        return
    servers = counted(len(result.outcomes), "server")
    counts = f"{len(result.available)} of {servers} available, {counted(len(result.tools), 'tool')}"
    closer = "" if len(result.available) == len(result.outcomes) else f"; `{command_line('doctor')}` checks the others"
    print_note((counts, "bold"), closer)


def _show_outcome(outcome: MCPServerLoadOutcome) -> None:
    found = (
        f"  {counted(len(outcome.tools), 'tool')}, {outcome.elapsed_s:.2f} s" if outcome.status == "available" else ""
    )
    attempts = f"  {outcome.attempts} attempts" if outcome.attempts > 1 else ""
    status = (outcome.status, COLOURS[outcome.status])
    print_line((outcome.server_id, "bold"), "  ", status, (f"{found}{attempts}", "dim"))
    if outcome.message:
        print_line(f"  {outcome.message}")
    if outcome.hint:
        print_line(("  hint: ", "cyan"), outcome.hint)
    console, names = data_console(), [quoted_line(tool.name) for tool in outcome.tools]
    width = max(map(len, names), default=0)
    for name, tool in zip(names, outcome.tools, strict=True):
        first_line = next(iter(plain(tool.description).strip().splitlines()), "")
        line = Text.assemble(f"  {name:<{width}}", (f"  {first_line}" if first_line else "", "dim"))
        line.rstrip()
        if console.is_terminal:  # in a pipe a program needs the whole line
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)


# Find

READY_SECONDS = 20.0
"""How long servers may take to start before the search goes on without them; what they last listed is found."""

MOST_HITS = 20
"""The tool of the hub finds no more at once."""


def find(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the tool should do, in plain words")],
    server: Annotated[str | None, typer.Option("--server", metavar="SERVER", help="Only tools of this server")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_HITS, metavar="N", help="At most so many")] = 5,
    config: ConfigFile = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Find tools by what they do, the best first, and see whether each can be called now.

    It asks the running hub that serves the mcp.json; without one it connects to the servers itself.
    Exit code 0: at least one was found. 1: none was.
    """
    hub = _hub_to_ask(url, config)
    if hub is not None:
        with working(f"asking the hub at {hub.url}"):
            found = anyio.run(partial(_find_at_hub, hub, query, server=server, limit=limit))
    else:
        found = anyio.run(_find, load_servers(config), query, server, limit)
    if as_json:
        print_json({"tools": found})
    else:
        _show_found(found)
    raise typer.Exit(0 if found else 1)


async def _find(config: Config, query: str, server: str | None, limit: int) -> list[dict[str, Any]]:
    with working("connecting to the servers"):
        async with holdfast.hub.Hub.from_config(config) as hub:
            await hub.ready(timeout=READY_SECONDS)
            return [_found_data(one) for one in await hub.find_tools(query, server=server, limit=limit)]


def _found_data(found: FoundTool) -> dict[str, Any]:
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


def _show_found(found: list[dict[str, Any]]) -> None:
    for one in found:
        print_line((plain(one["signature"]), "bold"))
        if one["summary"]:
            print_line(f"  {plain(one['summary'])}")
        if not one["available"]:
            print_line((f"  {plain(one['reason'] or '')}", "yellow"))
    if not found:
        print_note(f"no tool was found; `{command_line('tools')}` lists them all")


# Call


def call(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Its name in the configuration")],
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool, by its name at the server")],
    pairs: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Its arguments")] = None,
    args: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="Its arguments, as one JSON object")
    ] = None,
    config: ConfigFile = None,
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON")] = False,
) -> None:
    """Call one tool of one server, and show its result.

    The call goes through the running hub that serves the mcp.json; without one it connects to the server itself.
    A value is converted to the type in the tool's schema: a=1 is a number if the tool expects one.
    Exit code 0: a result. 1: the tool reported an error, or the call failed.
    """
    parse_arguments(pairs or [], args, {})
    hub = _hub_to_ask(url, config)
    found = load_servers(config) if hub is None else None
    try:
        result = anyio.run(_call, hub, found, server, tool, pairs or [], args)
    except UnknownServer as unknown:
        its_server, _, its_tool = server.partition("__")
        if not its_tool:
            raise
        # The name that `find` and models see has both in one word.
        hint = f"write the server and its tool as two words: `{command_line('call', its_server, its_tool)} …`"
        raise UnknownServer(unknown.message, hint=hint) from None
    if as_json:
        print_json(_result_data(result))
    else:
        _show_result(result)
    if result.is_error:
        print_error(f"the tool `{tool}` reported an error")
    raise typer.Exit(1 if result.is_error else 0)


async def _call(
    hub: RunningHub | None, config: Config | None, server: str, tool: str, pairs: list[str], args: str | None
) -> CallResult:
    def arguments(schema: Mapping[str, Any]) -> Mapping[str, Any]:
        return parse_arguments(pairs, args, schema)

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        share = f"{progress:g} of {total:g}" if total else f"{progress:g}"
        update(f"{server}: {tool}: {share} {plain(message or '')}")

    with working(f"calling {tool} at {server}") as update:
        if hub is not None:
            return await _call_at_hub(hub, server, tool, arguments, on_progress=on_progress)
        assert config is not None  # noqa: S101 - a hub or a configuration
        return await holdfast.hub.Loader(config).call(server, tool, arguments, on_progress=on_progress)


def _result_data(result: CallResult) -> dict[str, Any]:
    whole: dict[str, Any] = {"content": list(result.content), "isError": result.is_error}
    if result.structured is not None:
        whole["structuredContent"] = result.structured
    return whole


def _show_result(result: CallResult) -> None:
    console = data_console()
    for block in result.content:
        text = _block(block)
        print_line(plain(text) if console.is_terminal else text)
    if result.structured is not None and not result.content:
        print_line(json_text(result.structured, indent=2))


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
    arguments = object_in(as_json, "--args", example='{"path": "."}') if as_json is not None else {}
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"`{pair}` is not key=value", hint="put quotes around a value with spaces")
        arguments[key] = _value(key, text, _types(known.get(key)))
    return arguments


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
    if not types or _JSON_TYPES[type(value)] & types:
        return value
    if "string" in types:
        return text
    raise UsageError(f"`{key}` takes {' or '.join(sorted(types))}, not `{text}`")


_JSON_TYPES: Mapping[type, set[str]] = {
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    str: {"string"},
    list: {"array"},
    dict: {"object"},
    type(None): {"null"},
}


# The servers of a running hub

HUB = "hub"

LONGEST_CALL = "24h"
"""The hub has limits for calls. This side waits for its answer."""

_STATE = {"state": "", "reason": None, "retryIn": None}
"""What the hub leaves out of a hit that can be called."""


def _hub_to_ask(url: str | None, config: Path | None) -> RunningHub | None:
    """The running hub, if this command can be a client of it: it has no certificate to show to one that wants it."""
    hub = serving_hub(url, config)
    return None if hub is None or hub.wants_certificate else hub


async def _load_from_hub(hub: RunningHub, names: Sequence[str]) -> LoadResult:
    """The tools of the hub's servers, or of the named ones, and why a server has none."""
    known = await _servers(hub)
    wanted = chosen(names, known) or [name for name, server in known.items() if server.status != "disabled"]
    listed = await _loader(hub, wanted).load()
    return LoadResult(_outcome_at_hub(known[one.server_id], one) for one in listed.outcomes)


def _outcome_at_hub(server: Server, listed: MCPServerLoadOutcome) -> MCPServerLoadOutcome:
    """What the hub knows of a server, as a load tells it."""
    if listed.status == "denied":  # the endpoint of a hub lists also for a server that denies access
        raise _refused()
    if server.status in ("available", "idle") or listed.status != "available":
        return listed
    status = server.status if server.status in ("transient", "permanent", "denied") else "permanent"
    return MCPServerLoadOutcome(
        server_id=server.id,
        status=status,
        error=server.reason or server.summary,
        hint=what_to_do(server),
        attempts=max(server.attempts, 1),
        elapsed_s=listed.elapsed_s,
    )


async def _call_at_hub(
    hub: RunningHub,
    server: str,
    tool: str,
    args: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    *,
    on_progress: ProgressFn | None = None,
) -> CallResult:
    """Call a tool of one of the hub's servers; a call that the hub did not make raises its reason."""
    known = await _servers(hub)
    (name,) = chosen([server], known)
    try:
        with _as_a_caller():
            return await _loader(hub, [name]).call(name, tool, args, on_progress=on_progress)
    except UnknownTool:
        if known[name].status in ("available", "idle"):
            raise
        raise HoldfastError(
            f"the call to `{name}` failed: {known[name].reason or known[name].summary}", hint=what_to_do(known[name])
        ) from None
    except CallFailed as exc:
        if not isinstance(exc.evidence, ToldByHub):
            raise
        # What a hub says over MCP is quoted. Its control API says the same in its own words.
        now = (await _servers(hub)).get(name, known[name])
        raise HoldfastError(
            f"the call to `{name}` failed: {now.reason or exc.evidence.reason}", hint=what_to_do(now)
        ) from None


async def _find_at_hub(hub: RunningHub, query: str, *, server: str | None, limit: int) -> list[dict[str, Any]]:
    """What the hub's own search finds, as it tells it."""
    known = await _servers(hub)
    if server is not None:
        chosen([server], known)
    only = {"server": server} if server is not None else {}
    arguments = {"query": query, "limit": limit, **only}
    address = f"{hub.url}/mcp?tools=find"
    with _as_a_caller():
        result = await _client(hub, {HUB: address}).call(HUB, "find_tools", arguments)
    if result.is_error:
        raise HoldfastError(f"the hub could not search: {result.text}")
    found = (result.structured or {}).get("tools", [])
    return [
        {**_STATE, **({"state": known[one["server"]].state} if one["server"] in known else {}), **one} for one in found
    ]


async def _servers(hub: RunningHub) -> dict[str, Server]:
    async with holdfast.control.ControlClient(hub) as control:
        return {server.id: server for server in (await control.servers()).servers}


@contextmanager
def _as_a_caller() -> Iterator[None]:
    """Say what to do where the hub does not let this command in."""
    try:
        yield
    except CallFailed as exc:
        told = isinstance(exc.evidence, ToldByHub)  # then a server denies, and not the hub
        if not told and classify_evidence(exc.evidence).status == "denied":
            raise _refused() from None
        raise


def _refused() -> HoldfastError:
    """The hub does not take this command as a caller."""
    return HoldfastError(
        "the hub wants a token of its callers, and this command has none that it knows",
        hint=f"set {holdfast.serve.TOKEN_VARIABLE} to a token that the hub was started with",
    )


def _loader(hub: RunningHub, names: Sequence[str]) -> Loader:
    return _client(hub, {name: f"{hub.url}/servers/{quote(name, safe='')}/mcp?tools=all" for name in names})


def _client(hub: RunningHub, addresses: Mapping[str, str]) -> Loader:
    """A client of endpoints of the hub, with the token of callers where this user's hub wants one."""
    token, file = os.environ.get(holdfast.serve.TOKEN_VARIABLE, ""), holdfast.serve.local_token_file(os.environ)
    if not token and file.exists():
        token = holdfast.serve.read_token(file)
    headers = {"headers": {"Authorization": f"Bearer {token}"}} if token else {"oauth": False}
    servers = {name: {"type": "http", "url": url, **headers} for name, url in addresses.items()}
    limits = {"call": {"timeout": LONGEST_CALL, "hardTimeout": LONGEST_CALL}}
    config = holdfast.config.config_from_mapping({"mcpServers": servers, "holdfast": limits})
    return holdfast.hub.Loader(config, tls=holdfast.control.trust_in(hub.certificate), is_hub=True)
