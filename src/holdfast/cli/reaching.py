"""Options and helpers for commands that talk to a running hub."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import anyio
import typer

from holdfast.config.find import find_config
from holdfast.control.client import Control
from holdfast.control.find import Found, find_hub
from holdfast.errors import ConfigNotFound, UnknownServer

__all__ = ["AsJson", "Config", "Url", "ask", "chosen", "found_hub", "near"]

Url: TypeAlias = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The address of the hub [default: found automatically]")
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Use the hub that serves this mcp.json")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs")]

NAMED = 10
"""How many servers an error names. A fleet may have hundreds."""

_Result = TypeVar("_Result")


def found_hub(url: str | None, config: Path | None) -> Found:
    """The hub to use: the named one, the only one that runs, or the one that serves the found mcp.json."""
    try:
        file = find_config(config, environ=os.environ, cwd=Path.cwd())
    except ConfigNotFound:
        file = None
    return find_hub(url=url, config=file)


def ask(found: Found, do: Callable[[Control], Awaitable[_Result]]) -> _Result:
    """Run ``do`` with a client of the hub, and return its result."""

    async def asked() -> _Result:
        async with Control(found) as control:
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
