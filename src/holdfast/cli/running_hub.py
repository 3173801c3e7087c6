"""What the commands that talk to a running hub share: options, the search for the hub, and actions on servers."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import anyio
import typer
from rich.text import Text

from holdfast.cli.output import GAP, data_console, print_error, print_json, working
from holdfast.config import find_config, state_folder
from holdfast.errors import ConfigNotFound, HoldfastError, UnknownServer, UsageError

if TYPE_CHECKING:
    from holdfast.control import ControlClient, RunningHub, Server, ServerAction

__all__ = ["AsJson", "Config", "HubName", "Url", "act_on", "ask", "chosen", "found_hub", "near", "serving_hub"]

Url: TypeAlias = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The address of the hub [default: found automatically]")
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Use the hub that serves this mcp.json")
]
HubName: TypeAlias = Annotated[
    str | None,
    typer.Option("--hub", metavar="HUB", help="Which hub of this machine: its process id, port, file or folder"),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs")]

NAMED = 10
"""How many servers an error names. A fleet may have hundreds."""

_Result = TypeVar("_Result")


def found_hub(url: str | None, config: Path | None, name: str | None = None) -> RunningHub:
    """The hub to use: the named one, the only one that runs, or the one that serves the found mcp.json."""
    from holdfast.control import find_hub  # noqa: PLC0415 - slow to import; wrong usage must not wait for it

    if name is not None and (url is not None or config is not None):
        raise UsageError("--hub cannot be combined with --url or --config", hint="each of them chooses the hub")
    try:
        file = find_config(config, environ=os.environ, cwd=Path.cwd())
    except ConfigNotFound:
        file = None
    return find_hub(url=url, config=file, name=name)


def serving_hub(url: str | None, config: Path | None) -> RunningHub | None:
    """The running hub that serves what a command is about; None if the command has to load the servers itself.

    A hub that is named by its address is meant. Else it is the hub of the file that the command would load: another
    hub has other servers. Where there is no file, the only hub of this user is meant.
    """
    if url is None and not os.environ.get("HOLDFAST_URL") and not any((state_folder(os.environ) / "hubs").glob("*")):
        return None  # no hub of this user has told its address, and the client of hubs is slow to import
    from holdfast.control import URL_VARIABLE, running_hubs  # noqa: PLC0415 - as above

    if url is not None or (config is None and os.environ.get(URL_VARIABLE)):
        return found_hub(url, config)
    try:
        file = str(find_config(config, environ=os.environ, cwd=Path.cwd()).absolute())
    except ConfigNotFound:
        return found_hub(None, None) if config is None and running_hubs() else None
    return next((hub for hub in running_hubs() if hub.config == file), None)


def ask(found: RunningHub, do: Callable[[ControlClient], Awaitable[_Result]]) -> _Result:
    """Run ``do`` with a client of the hub, and return its result."""
    from holdfast.control import ControlClient  # noqa: PLC0415 - as above

    async def asked() -> _Result:
        async with ControlClient(found) as control:
            return await do(control)

    return anyio.run(asked)


def chosen(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names without repeats; an error with the nearest name if one is unknown."""
    there = list(known)
    for name in names:
        if name not in there:
            raise UnknownServer(
                f"the hub has no server named `{name}`", hint=near(name, there, "the hub has no servers")
            )
    return list(dict.fromkeys(names))


def near(name: str, known: Sequence[str], otherwise: str) -> str:
    """A hint for an unknown name: the nearest known one, or some that exist."""
    if not known:
        return otherwise
    by_lower = {one.lower(): one for one in known}
    if nearest := get_close_matches(name.lower(), by_lower, n=1):
        return f"did you mean `{by_lower[nearest[0]]}`?"
    more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return f"known: {', '.join(known[:NAMED])}{more}"


@dataclass(frozen=True)
class _Done:
    name: str
    server: Server | None = None
    error: HoldfastError | None = None


def act_on(found: RunningHub, names: Sequence[str], action: ServerAction, *, progress: str, as_json: bool) -> int:
    """Run the action. Returns the exit code: 0 if it succeeded for every server, else 1."""

    async def act_on_all(control: ControlClient) -> list[_Done]:
        wanted = chosen(names, (server.id for server in (await control.servers()).servers))
        return await _at_once(control, wanted, action)

    with working(f"{progress} {', '.join(names)}"):
        done = ask(found, act_on_all)
    if as_json:
        print_json({"servers": [_as_data(one) for one in done]})
    else:
        for one in done:
            _show(one)
    return 1 if any(one.error for one in done) else 0


async def _at_once(control: ControlClient, names: Sequence[str], action: ServerAction) -> list[_Done]:
    done: dict[str, _Done] = {}

    async def one(name: str) -> None:
        try:
            done[name] = _Done(name, server=await control.act(name, action))
        except HoldfastError as exc:  # the other servers go on
            done[name] = _Done(name, error=exc)

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(one, name)
    return [done[name] for name in names]


def _as_data(done: _Done) -> dict[str, Any]:
    if done.server is not None:
        return {"id": done.name, "ok": True, "server": done.server.model_dump(mode="json")}
    assert done.error is not None  # noqa: S101 - either a server or an error
    return {"id": done.name, "ok": False, "error": done.error.message, "hint": done.error.hint or None}


def _show(done: _Done) -> None:
    from holdfast.cli.status_view import (  # noqa: PLC0415 - only the commands that act on servers need it
        STYLES,
        mark,
        one_line,
        state_words,
    )

    if done.error is not None:
        print_error(f"{one_line(done.name)}: {one_line(done.error.message)}", one_line(done.error.hint))
        return
    assert done.server is not None  # noqa: S101 - either a server or an error
    console, server = data_console(), done.server
    sign = mark(server.status, ascii_only=console.options.ascii_only)
    title = Text.assemble(
        (one_line(server.id), "bold"),
        GAP,
        (f"{sign} {state_words(server)}", STYLES[server.status]),
        GAP,
    )
    title.append(one_line(server.summary))
    if server.scope:
        title.append(f"{GAP}on {one_line(server.scope)}", style="yellow" if "only" in server.scope else "")
    console.print(title, soft_wrap=True)
