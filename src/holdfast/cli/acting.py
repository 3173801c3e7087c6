"""Run one action of a running hub on several servers at once, and print the result of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio
from rich.text import Text

from holdfast.cli.output import data_console, print_error, print_json, working
from holdfast.cli.page import GAP
from holdfast.cli.reaching import ask, chosen
from holdfast.cli.status_words import STYLES, mark, one_line
from holdfast.control.client import Control
from holdfast.control.find import Found
from holdfast.control.models import Server
from holdfast.errors import HoldfastError

__all__ = ["Act", "act_on"]

JSON_VERSION = 1

Act: TypeAlias = Callable[[Control, str], Awaitable[Server]]


@dataclass(frozen=True)
class _Done:
    name: str
    server: Server | None = None
    error: HoldfastError | None = None


def act_on(found: Found, names: Sequence[str], act: Act, *, progress: str, as_json: bool) -> int:
    """Run the action. Returns the exit code: 0 if it succeeded for every server, else 1."""

    async def act_on_all(control: Control) -> list[_Done]:
        wanted = chosen(names, (server.id for server in (await control.servers()).servers))
        return await _at_once(control, wanted, act)

    with working(f"{progress} {', '.join(names)}"):
        done = ask(found, act_on_all)
    if as_json:
        print_json({"version": JSON_VERSION, "servers": [_as_data(one) for one in done]})
    else:
        for one in done:
            _show(one)
    return 1 if any(one.error for one in done) else 0


async def _at_once(control: Control, names: Sequence[str], act: Act) -> list[_Done]:
    done: dict[str, _Done] = {}

    async def one(name: str) -> None:
        try:
            done[name] = _Done(name, server=await act(control, name))
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
    if done.error is not None:
        print_error(f"{one_line(done.name)}: {one_line(done.error.message)}", one_line(done.error.hint))
        return
    assert done.server is not None  # noqa: S101 - either a server or an error
    console, server = data_console(), done.server
    sign = mark(server.status, ascii_only=console.options.ascii_only)
    title = Text.assemble(
        (one_line(server.id), "bold"),
        GAP,
        (f"{sign} {server.status}", STYLES[server.status]),
        GAP,
    )
    console.print(title.append(one_line(server.summary)), soft_wrap=True)
