"""The options that several commands have, each spelled once, and the running hub that some of them choose.

A command that talks to a running hub finds it here (``found_hub``, ``serving_hub``), and asks it as a client of its
control API (``ask``). Options can also be the fields of a dataclass (``with_options_of``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

import holdfast.config
import holdfast.control
from holdfast.errors import ConfigNotFound, UnknownServer, UsageError

if TYPE_CHECKING:
    from holdfast.control import ControlClient, RunningHub, Server

__all__ = [
    "AsJson",
    "ConfigFile",
    "HubConfig",
    "HubName",
    "Url",
    "Yes",
    "ask",
    "chosen",
    "found_hub",
    "group_of_commands",
    "object_in",
    "seconds_in",
    "serving_hub",
    "what_to_do",
    "with_options_of",
]

ConfigFile: TypeAlias = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")]
HubConfig: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Use the hub that serves this mcp.json")
]
HubName: TypeAlias = Annotated[
    str | None,
    typer.Option("--hub", metavar="HUB", help="Which hub of this machine: its process id, port, file or folder"),
]
Url: TypeAlias = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The address of the hub [default: found automatically]")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")]


def group_of_commands(*, needs_one: bool = True) -> typer.Typer:
    """A command with subcommands. If it ``needs_one``, it prints its help without one."""
    return typer.Typer(pretty_exceptions_enable=False, add_completion=False, no_args_is_help=needs_one)


def seconds_in(text: str, option: str) -> float:
    """The value of an option that is a duration, such as ``500ms`` or ``2m``."""
    try:
        return holdfast.config.parse_duration(text)
    except holdfast.config.InvalidValue as exc:
        raise UsageError(f"{option} {exc.message}", hint=exc.hint) from None


def object_in(text: str, option: str, *, example: str) -> dict[str, Any]:
    """The value of an option that is a JSON object."""
    hint = f"write an object, as in {option} '{example}'"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{option} is not JSON: {exc}", hint=hint) from exc
    if not isinstance(value, dict):
        raise UsageError(f"{option} is JSON, but not an object", hint=hint)
    return value


def with_options_of(fields: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of a dataclass as options; its first argument is an object of that dataclass."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        shared = signature(fields, eval_str=True).parameters
        _, *own = signature(command, eval_str=True).parameters.values()

        def run(**given: Any) -> None:
            command(fields(**{name: given.pop(name) for name in shared}), **given)

        required = [one for one in own if one.default is one.empty]
        ordered = (*required, *shared.values(), *(one for one in own if one not in required))
        options = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in ordered]
        # typer reads the options from the signature and the annotations, and shows them in this order.
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {option.name: option.annotation for option in options}
        run.__signature__ = Signature(options)  # type: ignore[attr-defined]  # inspect reads it, mypy does not know it
        return run

    return decorate


# The running hub

_Result = TypeVar("_Result")


def found_hub(url: str | None, config: Path | None, name: str | None = None) -> RunningHub:
    """The hub to use: the named one, the only one that runs, or the one that serves the found mcp.json."""
    if name is not None and (url is not None or config is not None):
        raise UsageError("--hub cannot be combined with --url or --config", hint="each of them chooses the hub")
    try:
        file = holdfast.config.find_config(config, environ=os.environ, cwd=Path.cwd())
    except ConfigNotFound:
        file = None
    return holdfast.control.find_hub(url=url, config=file, name=name)


def serving_hub(url: str | None, config: Path | None) -> RunningHub | None:
    """The running hub that serves what a command is about; None if the command has to load the servers itself.

    A hub that is named by its address is meant. Else it is the hub of the file that the command would load: another
    hub has other servers. Where there is no file, the only hub of this user is meant.
    """
    if url is not None or (config is None and os.environ.get(holdfast.control.URL_VARIABLE)):
        return found_hub(url, config)
    try:
        file = str(holdfast.config.find_config(config, environ=os.environ, cwd=Path.cwd()).absolute())
    except ConfigNotFound:
        return found_hub(None, None) if config is None and holdfast.control.running_hubs() else None
    return next((hub for hub in holdfast.control.running_hubs() if hub.config == file), None)


def ask(found: RunningHub, do: Callable[[ControlClient], Awaitable[_Result]]) -> _Result:
    """Run ``do`` with a client of the hub, and return its result."""
    import anyio  # noqa: PLC0415 - slow to import, and of the commands that ask a hub alone

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
