"""What the commands that talk to a running hub share: the search for the hub, a client of it, and names of servers."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio

import holdfast.control
from holdfast.config import find_config, state_folder
from holdfast.errors import ConfigNotFound, UnknownServer, UsageError

if TYPE_CHECKING:
    from holdfast.control import ControlClient, RunningHub, Server

__all__ = ["ask", "chosen", "found_hub", "serving_hub", "what_to_do"]

_Result = TypeVar("_Result")


def found_hub(url: str | None, config: Path | None, name: str | None = None) -> RunningHub:
    """The hub to use: the named one, the only one that runs, or the one that serves the found mcp.json."""
    if name is not None and (url is not None or config is not None):
        raise UsageError("--hub cannot be combined with --url or --config", hint="each of them chooses the hub")
    try:
        file = find_config(config, environ=os.environ, cwd=Path.cwd())
    except ConfigNotFound:
        file = None
    return holdfast.control.find_hub(url=url, config=file, name=name)


def serving_hub(url: str | None, config: Path | None) -> RunningHub | None:
    """The running hub that serves what a command is about; None if the command has to load the servers itself.

    A hub that is named by its address is meant. Else it is the hub of the file that the command would load: another
    hub has other servers. Where there is no file, the only hub of this user is meant.
    """
    if url is None and not os.environ.get("HOLDFAST_URL") and not any((state_folder(os.environ) / "hubs").glob("*")):
        return None  # no hub of this user has told its address, and the client of hubs is slow to import
    if url is not None or (config is None and os.environ.get(holdfast.control.URL_VARIABLE)):
        return found_hub(url, config)
    try:
        file = str(find_config(config, environ=os.environ, cwd=Path.cwd()).absolute())
    except ConfigNotFound:
        return found_hub(None, None) if config is None and holdfast.control.running_hubs() else None
    return next((hub for hub in holdfast.control.running_hubs() if hub.config == file), None)


def ask(found: RunningHub, do: Callable[[ControlClient], Awaitable[_Result]]) -> _Result:
    """Run ``do`` with a client of the hub, and return its result."""

    async def asked() -> _Result:
        async with holdfast.control.ControlClient(found) as control:
            return await do(control)

    return anyio.run(asked)


def chosen(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names without repeats; an error with the nearest name if one is unknown."""
    there = list(known)
    for name in names:
        if name not in there:
            raise UnknownServer.among(name, there)
    return list(dict.fromkeys(names))


def what_to_do(server: Server) -> str:
    """What a person can do about a server, and the command for it."""
    return " ".join(filter(None, (server.action, f"`{server.command}`" if server.command else "")))
