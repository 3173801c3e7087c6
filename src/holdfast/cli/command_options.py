"""The options that several commands have, each spelled once, and options that are the fields of a dataclass."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

import holdfast.config
from holdfast.errors import UsageError

__all__ = [
    "AsJson",
    "ConfigFile",
    "HubConfig",
    "HubName",
    "Url",
    "Yes",
    "group_of_commands",
    "seconds_in",
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
