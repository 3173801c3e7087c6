"""How the commands reach a running hub, and how they name its servers.

Which hub is meant is ``control/find.py``'s to say; here are the options, and the way there and back.
"""

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
    str | None, typer.Option("--url", metavar="URL", help="The hub's address, if it is not found by itself")
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Of several hubs, the one that serves this file")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs")]

NAMED = 10
"""How many servers an error names; a fleet may have hundreds."""

_Result = TypeVar("_Result")


def found_hub(url: str | None, config: Path | None) -> Found:
    """The hub that is meant: the one named, the only one here, or the one that serves the file found from here."""
    try:
        file = find_config(config, environ=os.environ, cwd=Path.cwd())
    except ConfigNotFound:
        file = None
    return find_hub(url=url, config=file)


def ask(found: Found, do: Callable[[Control], Awaitable[_Result]]) -> _Result:
    """Have something done with a hub, and wait for it."""

    async def asked() -> _Result:
        async with Control(found) as control:
            return await do(control)

    return anyio.run(asked)


def chosen(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names, each once; an error with the nearest where one is not known."""
    there = list(known)
    for name in names:
        if name not in there:
            raise UnknownServer(f"the hub has no server named `{name}`", hint=near(name, there, "it has no servers"))
    return list(dict.fromkeys(names))


def near(name: str, known: Sequence[str], otherwise: str) -> str:
    """A hint for whoever named something that is not there."""
    if not known:
        return otherwise
    by_lower = {one.lower(): one for one in known}
    if nearest := get_close_matches(name.lower(), by_lower, n=1):
        return f"did you mean `{by_lower[nearest[0]]}`?"
    more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return f"there is: {', '.join(known[:NAMED])}{more}"
