"""What every framework is put through: a run across an outage, results of every kind, and a cancelled call.

A program gives ``play`` its framework's own agent loop. The model is scripted: it asks for the tools below and notes
what it was offered and what it read. All of that is printed as JSON for the test to compare.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast import Hub
from holdfast.testing import Fault, HttpServer

WAIT_SECONDS = 30.0
RICH = {"command": sys.executable, "args": [str(Path(__file__).with_name("rich_server.py"))]}


class Script:
    """A scripted model's turns: what it was offered, what it read, and what it asks for next."""

    def __init__(self, steps: list[Any]) -> None:
        self._steps = iter(steps)
        self.offered: list[list[str]] = []
        self.read: list[Any] = []
        self.told: list[str] = []

    async def turn(self, *, offered: list[str], read: Any, told: str = "") -> tuple[str, dict[str, Any]] | str:
        """One model call: a tool's name and arguments, or the final text."""
        self.offered.append(sorted(offered))
        self.read.append(read)
        self.told.append(told)
        step = next(self._steps, "done")
        return await step() if callable(step) else step


async def play(
    run: Callable[[Hub, Script], Awaitable[object]], find: Callable[[Hub, Script], Awaitable[object]] | None = None
) -> None:
    """Put a framework's agent loop through everything, and print what its model saw; ``find`` runs in find mode."""
    seen = {
        "outage": await _outage(run),
        "kinds": await _kinds(run),
        "cancelled": await _cancelled(run),
    }
    if find is not None:
        seen["find"] = await _found(find)
    sys.stdout.write(json.dumps(seen, default=str) + "\n")


async def _found(run: Callable[[Hub, Script], Awaitable[object]]) -> dict[str, Any]:
    steps = [("find_tools", {"query": "weather forecast"}), ("call_tool", {"name": "weather__forecast"})]
    script = Script(steps)
    async with HttpServer({"forecast": "sunny"}) as weather, _hub({"weather": weather.definition}) as hub:
        await run(hub, script)
    return {"offered": script.offered, "read": script.read}


@asynccontextmanager
async def _hub(definitions: dict[str, Any]) -> Any:
    async with Hub.from_config({"mcpServers": definitions}) as hub:
        await hub.ready(timeout=WAIT_SECONDS)
        yield hub


async def _until(hub: Hub, true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        records = hub.events()
        while not true():
            await anext(records)


async def _outage(run: Callable[[Hub, Script], Awaitable[object]]) -> dict[str, Any]:
    async with HttpServer({"forecast": "sunny"}) as weather, _hub({"weather": weather.definition}) as hub:
        ask: tuple[str, dict[str, Any]] = ("weather__forecast", {})

        async def after_it_went_down() -> Any:
            await weather.fail(Fault.REFUSE)
            await _until(hub, lambda: hub.server_health("weather").state.value != "connected")
            return ask

        async def after_it_came_back() -> Any:
            await weather.set_tools({"forecast": "rainy", "alerts": "none"})
            await weather.heal()
            await _until(hub, lambda: hub.server_health("weather").state.value == "connected")
            await _until(hub, lambda: len(hub.catalog.tools) == 2)
            return ask

        script = Script([ask, after_it_went_down, after_it_came_back, ("weather__alerts", {}), "done"])
        await run(hub, script)
        return {
            "offered": script.offered,
            "read": script.read,
            "told": script.told,
            "calls_at_the_server": weather.asked.count("tools/call"),
        }


async def _kinds(run: Callable[[Hub, Script], Awaitable[object]]) -> dict[str, Any]:
    async with _hub({"rich": RICH}) as hub:
        steps = [("rich__picture", {}), ("rich__sound", {}), ("rich__reading", {"city": "Bern"}), ("rich__broken", {})]
        script = Script([*steps, ("rich__counting", {}), "done"])
        await run(hub, script)
        return {"read": script.read[1:]}


async def _cancelled(run: Callable[[Hub, Script], Awaitable[object]]) -> dict[str, Any]:
    reached = asyncio.Event()

    async def slow(arguments: Any) -> str:
        reached.set()
        await asyncio.Event().wait()
        return "never"

    async with HttpServer({"slow": slow}) as server, _hub({"slow": server.definition}) as hub:
        running = asyncio.ensure_future(run(hub, Script([("slow__slow", {})])))
        async with asyncio.timeout(WAIT_SECONDS):
            await reached.wait()
            running.cancel()
            await asyncio.wait([running])
            await server.arrived("notifications/cancelled")
        return {"run_was_cancelled": running.cancelled(), "server_was_told": True}
