"""A small fleet of real servers to try Holdfast on: each fails in its own way, and can be broken and healed.

They are the scripted servers of ``holdfast.testing``, and one small file holds the condition of each.

Theory of operation. ``demo_fleet`` runs in the process that serves. It owns the servers, follows the file of
conditions, and alone writes the fleet's ``mcp.json``, which the hub reloads. `holdfast demo` runs in a second terminal
and changes the file of conditions alone (``DemoControl``), so that no file has two writers who overwrite each other.
The two HTTP servers live in the event loop of the process that serves; the hub starts the others as its children, from
their definitions.

A condition is the name of a fault and the time of its begin. What a fault means now depends on that time: a server that
warms up is healthy after a while, and one that flaps is killed in each period. Two faults are in the definition:
`calendar` has a misspelled command, and `vault` lacks its key. When they are healed the definition changes, so that the
hub tries again at once.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, cast

import anyio

from holdfast.control import running_hubs
from holdfast.core import command_line
from holdfast.errors import HoldfastError, UnknownServer, UsageError
from holdfast.files import replace_file
from holdfast.testing import Fault, HttpServer, StdioServer

__all__ = ["FAULTS", "HEALTHY", "DemoControl", "demo_fleet", "running_demo"]

HEALTHY = "healthy"

FAULTS: Mapping[str, Mapping[str, str]] = {
    "notes": {"down": "its process exits", "hanging": "it answers nothing"},
    "weather": {
        "starting": "it answers 503 for a while, as a server that warms up",
        "down": "nothing listens",
        "hanging": "it answers nothing",
    },
    "ticker": {
        "flapping": "it starts and dies again and again",
        "down": "its process exits",
        "hanging": "it answers nothing",
    },
    "vault": {"denied": "the caller has no key", "down": "nothing listens", "hanging": "it answers nothing"},
    "calendar": {"mistyped": "its command is misspelled in the mcp.json", "down": "its process exits"},
}
"""For each server the faults that it can have, and what each means; the first is its own."""

WARM_UP = 6.0
"""Seconds for which `weather` answers 503 after its start: long enough to see, short enough to wait for."""

LIFE = 10.0
"""Seconds after which a flapping server is killed."""

GLANCE = 0.1
"""Seconds between two looks at the conditions."""

_SCRIPTED = {"down": Fault.REFUSE, "hanging": Fault.HANG, "starting": Fault.BUSY, "denied": Fault.DENY}
"""The faults that a scripted server can have by itself."""

_OVER_HTTP = ("weather", "vault")

_TOOLS: Mapping[str, dict[str, str | dict[str, Any]]] = {
    "notes": {"list_notes": {"description": "Give back all notes", "text": "1. Buy rope\n2. Ask about berth 7"}},
    "weather": {
        "forecast": {
            "description": "Tell today's weather",
            "inputs": {"city": "The name of a city"},
            "text": "{city}: a light breeze, no rain before evening",
        }
    },
    "ticker": {
        "price": {
            "description": "Tell a share's price",
            "inputs": {"symbol": "The share's symbol"},
            "text": "{symbol}: 128.40",
        }
    },
    "vault": {
        "read_secret": {
            "description": "Read a secret",
            "inputs": {"name": "The secret's name"},
            "text": "the vault holds {name}, and you may read it",
        }
    },
    "calendar": {
        "today": {"description": "List today's appointments", "text": "09:00 high tide; 14:30 crew meeting"},
    },
}

_Server: TypeAlias = HttpServer | StdioServer
_Condition: TypeAlias = tuple[str, int]
"""The fault that a server has now, and how many lives of it are over."""


class DemoControl:
    """The folder of one running demo."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fleet = folder / "fleet.json"

    @property
    def config_file(self) -> Path:
        """The fleet's ``mcp.json``."""
        return self.folder / "mcp.json"

    @property
    def conditions(self) -> dict[str, str]:
        """The condition of each server now."""
        return {name: fault for name, (fault, _) in self.seen().items()}

    def seen(self) -> dict[str, _Condition]:
        """The conditions as the servers follow them."""
        return {name: _is_now(**condition) for name, condition in self._read().items()}

    def create(self) -> None:
        """Set every server to its first condition: its own fault, and `notes` has none."""
        first = {name: HEALTHY if name == "notes" else next(iter(ways)) for name, ways in FAULTS.items()}
        self._write({name: {"fault": fault, "since": time.time()} for name, fault in first.items()})

    def break_server(self, name: str, way: str | None = None) -> str:
        """Break a server; returns its fault."""
        ways = FAULTS[_known(name)]
        if way is not None and way not in ways:
            raise UsageError(f"`{name}` cannot be {way}", hint=f"it can be: {', '.join(ways)}")
        way = way or next(iter(ways))
        self._set(name, way)
        return way

    def heal(self, name: str) -> None:
        """Heal a server."""
        self._set(_known(name), HEALTHY)

    def _set(self, name: str, fault: str) -> None:
        self._write({**self._read(), name: {"fault": fault, "since": time.time()}})

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            return cast("dict[str, dict[str, Any]]", json.loads(self._fleet.read_text()))
        except OSError as exc:
            raise _nothing_runs() from exc

    def _write(self, conditions: Mapping[str, object]) -> None:
        replace_file(self._fleet, json.dumps(conditions, indent=2))


def running_demo() -> tuple[DemoControl, str]:
    """The running demo and the address of its hub; of several, the first that was started. Raises if there is none."""
    found = next((hub for hub in running_hubs() if hub.demo), None)
    if found is None:
        raise _nothing_runs()
    return DemoControl(Path(found.config).parent), f"{found.url}/mcp"


def _is_now(*, fault: str, since: float) -> _Condition:
    passed = time.time() - since
    if fault == "starting" and passed > WARM_UP:
        return HEALTHY, 0
    return fault, int(passed / LIFE) if fault == "flapping" else 0


def _nothing_runs() -> HoldfastError:
    return HoldfastError("no demo is running", hint=f"start it in another terminal: {command_line('serve', '--demo')}")


def _known(name: str) -> str:
    if name not in FAULTS:
        raise UnknownServer(f"the demo has no server `{name}`", hint=f"it has: {', '.join(FAULTS)}")
    return name


@asynccontextmanager
async def demo_fleet() -> AsyncIterator[DemoControl]:
    """The fleet, during the block; ``control.config_file`` is its configuration."""
    async with AsyncExitStack() as stack:
        control = DemoControl(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-"))))
        servers: dict[str, _Server] = {}
        for name, tools in _TOOLS.items():
            if name in _OVER_HTTP:
                web = HttpServer(tools, era="modern" if name == "weather" else "legacy")
                servers[name] = await stack.enter_async_context(web)
            else:
                servers[name] = stack.enter_context(StdioServer(tools))
        control.create()
        following = _Following(control, servers)
        await following.look()
        # No task group: it would put an error of the block, such as wrong usage, into a group of errors.
        task = asyncio.create_task(following.run(), name="the demo's conditions")
        stack.push_async_callback(asyncio.wait, [task])
        stack.callback(task.cancel)
        yield control


class _Following:
    """Lets the servers follow their conditions, and writes the ``mcp.json`` after them."""

    def __init__(self, control: DemoControl, servers: Mapping[str, _Server]) -> None:
        self._control = control
        self._servers = servers
        self._followed: dict[str, _Condition] = {}

    async def run(self) -> None:
        while True:
            await anyio.sleep(GLANCE)
            await self.look()

    async def look(self) -> None:
        for name, condition in self._control.seen().items():
            if name in _OVER_HTTP:
                self._servers[name].asked.clear()  # a test counts what arrived; here it would only grow
            if condition != self._followed.get(name):
                with suppress(OSError):  # its port is taken: it is tried again at the next look
                    await self._become(self._servers[name], condition[0])
                    self._followed[name] = condition
        # After the servers: a changed definition lets the hub dial at once, and the server must be ready for that.
        written = json.dumps(self._config(), indent=2)
        if not self._control.config_file.exists() or self._control.config_file.read_text() != written:
            replace_file(self._control.config_file, written)

    async def _become(self, server: _Server, fault: str) -> None:
        scripted = _SCRIPTED.get(fault)
        if isinstance(server, HttpServer):
            await server.heal()
            if scripted is not None:
                await server.fail(scripted)
            return
        server.heal()
        if scripted is not None:
            server.fail(scripted)
        elif fault == "flapping":
            server.kill()

    def _config(self) -> dict[str, Any]:
        definitions = {name: dict(server.definition) for name, server in self._servers.items()}
        if self._followed.get("calendar") == ("mistyped", 0):
            definitions["calendar"]["command"] = "calender-mcp"
        if self._followed.get("vault") != ("denied", 0):
            definitions["vault"]["headers"] = {"X-Demo-Key": "open-sesame"}
        return {
            "mcpServers": {name: definitions[name] for name in FAULTS},
            # A visitor does not wait for a minute: the times that are long by default are short here.
            "holdfast": {"breaker": {"cooldown": "10s"}, "reconnect": {"selfProbe": "15s"}, "refresh": "15s"},
        }
