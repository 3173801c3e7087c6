"""The control of the demo: one small file holds the condition of each server, and the servers follow it.

`holdfast demo` changes the file from a second terminal. One of the servers is broken by its definition; its
definition is repaired in the fleet's `mcp.json`, which the hub reloads.

``demo_fleet`` starts the demo's HTTP servers and writes the fleet's ``mcp.json``; the hub starts the other servers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.abc

from holdfast.control import running_hubs
from holdfast.core import command_line
from holdfast.demo import demo_server as program
from holdfast.errors import HoldfastError, UnknownServer, UsageError
from holdfast.files import replace_file

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

_AT_FIRST = {name: HEALTHY if name == "notes" else next(iter(ways)) for name, ways in FAULTS.items()}
_OVER_HTTP = ("weather", "vault")


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
        fleet = self._read()
        warm_up = program.WARM_UP / fleet["pace"]
        return {name: _is_now(condition, warm_up) for name, condition in fleet["conditions"].items()}

    def create(self, *, pace: float = 1.0) -> None:
        """Set every server to its first condition. ``pace`` divides all times of the demo."""
        now = time.time()
        conditions = {name: {"is": way, "since": now} for name, way in _AT_FIRST.items()}
        _write(self._fleet, {"conditions": conditions, "ports": {}, "pace": pace})

    def put_on_ports(self, ports: Mapping[str, int]) -> None:
        """Store the ports of the HTTP servers, and write the ``mcp.json``."""
        fleet = self._read()
        fleet["ports"] = dict(ports)
        self._save(fleet)

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

    def command(self, how: str, name: str) -> list[str]:
        """The command that starts a server."""
        return [sys.executable, "-I", "-S", program.__file__, how, name, str(self._fleet)]

    def _set(self, name: str, way: str) -> None:
        fleet = self._read()
        fleet["conditions"][name] = {"is": way, "since": time.time()}
        self._save(fleet)

    def _save(self, fleet: dict[str, Any]) -> None:
        _write(self._fleet, fleet)
        config = self._config(fleet)
        if not self.config_file.exists() or json.loads(self.config_file.read_text()) != config:
            _write(self.config_file, config)

    def _config(self, fleet: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "mcpServers": {name: self._definition(name, fleet) for name in FAULTS},
            # A visitor does not wait for a minute: the times that are long by default are short here.
            "holdfast": {"breaker": {"cooldown": "10s"}, "reconnect": {"selfProbe": "15s"}, "refresh": "15s"},
        }

    def _definition(self, name: str, fleet: Mapping[str, Any]) -> dict[str, Any]:
        condition = fleet["conditions"][name]["is"]
        if name in _OVER_HTTP:
            with_key = (
                {"headers": {program.KEY_HEADER: program.KEY}} if name == "vault" and condition != "denied" else {}
            )
            return {"type": "http", "url": f"http://127.0.0.1:{fleet['ports'][name]}/mcp", **with_key}
        command, *args = self.command("stdio", name)
        return {"command": "calender-mcp" if condition == "mistyped" else command, "args": args}

    def _read(self) -> dict[str, Any]:
        try:
            return cast("dict[str, Any]", json.loads(self._fleet.read_text()))
        except OSError as exc:
            raise _nothing_runs() from exc


def running_demo() -> tuple[DemoControl, str]:
    """The running demo and the address of its hub; of several, the first that was started. Raises if there is none."""
    found = next((hub for hub in running_hubs() if hub.demo), None)
    if found is None:
        raise _nothing_runs()
    return DemoControl(Path(found.config).parent), f"{found.url}/mcp"


def _is_now(condition: Mapping[str, Any], warm_up: float) -> str:
    """A server that was starting may be healthy now."""
    over = condition["is"] == "starting" and time.time() > condition["since"] + warm_up
    return HEALTHY if over else str(condition["is"])


def _nothing_runs() -> HoldfastError:
    return HoldfastError("no demo is running", hint=f"start it in another terminal: {command_line('serve', '--demo')}")


def _known(name: str) -> str:
    if name not in FAULTS:
        raise UnknownServer(f"the demo has no server `{name}`", hint=f"it has: {', '.join(FAULTS)}")
    return name


def _write(file: Path, value: object) -> None:
    replace_file(file, json.dumps(value, indent=2))


START_SECONDS = 20.0
"""A server of the demo starts in a tenth of a second; a machine under load may take longer."""

END_SECONDS = 3.0
"""A server ends when its stdin ends. A stopped process (Ctrl-Z) does not, and is killed after this time."""


@asynccontextmanager
async def demo_fleet(*, pace: float = 1.0) -> AsyncIterator[DemoControl]:
    """The fleet, during the block; ``control.config_file`` is its configuration."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-"))
        control = DemoControl(Path(folder))
        control.create(pace=pace)
        ports = {name: await stack.enter_async_context(_web(control, name)) for name in _OVER_HTTP}
        control.put_on_ports(ports)
        yield control


@asynccontextmanager
async def _web(control: DemoControl, name: str) -> AsyncIterator[int]:
    """One HTTP server in a process of its own; gives its port."""
    async with await _start(control.command("http", name)) as process:
        try:
            yield await _port(name, process)
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)


async def _start(command: list[str]) -> anyio.abc.Process:
    # They need no secret, and every program of this user can read their variables.
    environment = {name: value for name, value in os.environ.items() if name.startswith(_NEEDED)}
    return await anyio.open_process(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        env=environment,
    )


_NEEDED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_",
    "TMPDIR",
    "PYTHON",
    "LD_",
    "DYLD_",
    "COVERAGE_",
    "COV_CORE_",
    "HOLDFAST_TEST_",
)
"""How the names of the variables begin that a server of the demo gets."""


async def _port(name: str, process: anyio.abc.Process) -> int:
    assert process.stdout is not None  # noqa: S101 - it was requested
    with anyio.move_on_after(START_SECONDS):
        said = b""
        async for part in process.stdout:
            said += part
            if said.endswith(b"\n"):
                return int(said)
    raise HoldfastError(f"the demo's server `{name}` did not start", hint="is 127.0.0.1 usable on this machine?")


async def _end(process: anyio.abc.Process) -> None:
    assert process.stdin is not None  # noqa: S101 - it was requested
    await process.stdin.aclose()
    with anyio.move_on_after(END_SECONDS):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
