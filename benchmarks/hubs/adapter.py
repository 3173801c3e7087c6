"""What an adapter is: where a hub comes from, how it is set up as its documentation says, and how it names tools.

Each hub has an environment of its own under ``.tools/hubs``, made once. A hub that cannot be installed or started
raises ``HubFailed`` with the reason, which is a result like any other.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from benchmarks.hubs.client import Transport
from benchmarks.processes import ROOT, wait_until

__all__ = ["HOME", "MARK", "Adapter", "Behind", "HubFailed", "NpmAdapter", "PypiAdapter", "Running", "Setting", "Setup",
           "end_marked", "marked"]  # fmt: skip

HOME = ROOT / ".tools" / "hubs"
MARK = "HUBS_BENCHMARK_CELL"
"""Every process of a scene has this variable, with the scene's own value: so all of them can be found and ended."""

INSTALL_SECONDS = 900.0
START_SECONDS = 240.0
"""Long, since a machine that is busy is not the fault of a hub."""

STOP_SECONDS = 20.0


class HubFailed(RuntimeError):
    """A hub could not be installed or started."""


@dataclass(frozen=True)
class Behind:
    """A server behind the hub: by its address, or by the command that starts it."""

    url: str
    command: Sequence[str]
    token: str | None = None
    """A bearer token that the hub shall send, if there is one."""


@dataclass(frozen=True)
class Setting:
    """One setting that differs from the default, why, and where the project documents it."""

    what: str
    why: str
    address: str


@dataclass(frozen=True)
class Setup:
    """What a hub is started with. The folder and the port stay over restarts."""

    folder: Path
    port: int
    servers: Mapping[str, Behind]
    mark: str = "none"

    @property
    def base(self) -> str:
        """Where it shall listen."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Launch:
    """The program of a hub."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/mcp"
    """A path that answers once the hub listens."""


class Running:
    """A started hub."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, *, seconds: float) -> None:
        self._process = process
        self.log = log
        self.start_seconds = seconds
        """From the start of the program until it listened."""

    @property
    def pid(self) -> int:
        """The process whose tree is the hub."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its first process runs."""
        return self._process.poll() is None

    def stop(self) -> bool:
        """Ask it to end, as an operator does. Returns whether it did so by itself."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def reap(self) -> None:
        """End what is left of its process group, as a supervisor does before a restart."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """``kill -9`` for its main process; what it started is left to itself."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)


class Adapter(ABC):
    """One hub."""

    name: ClassVar[str]
    version: ClassVar[str]
    kind: ClassVar[Literal["hub", "bridge", "proxy"]]
    """A bridge takes one server, or gives each an address of its own; a proxy knows nothing of MCP."""
    documentation: ClassVar[tuple[str, ...]]
    """The pages that the adapter was checked against."""
    settings: ClassVar[tuple[Setting, ...]] = ()
    behind: ClassVar[Literal["http", "stdio"]] = "http"
    transport: ClassVar[Transport] = "http"
    registers: ClassVar[bool] = False
    """Whether it keeps its servers in a database, to which each is added while it is well."""
    missing: ClassVar[Mapping[str, str]] = {}
    """Scenes that do not apply, with the reason."""

    @property
    def home(self) -> Path:
        """Its environment."""
        return HOME / f"{type(self).__module__.rpartition('.')[2]}-{self.version}"

    @abstractmethod
    def install(self) -> None:
        """Make its environment, unless it is there."""

    @abstractmethod
    def launch(self, setup: Setup) -> Launch:
        """Write its configuration and say how it is started."""

    def prepared(self, setup: Setup) -> None:  # noqa: B027 - most hubs have nothing to do here
        """What has to be done once it listens, such as the registration of servers."""

    def url(self, setup: Setup, server: str) -> str:
        """The endpoint that has the tools of this server."""
        del server
        return f"{setup.base}/mcp"

    def headers(self, setup: Setup) -> Mapping[str, str]:
        """What a client must send."""
        del setup
        return {}

    def tool(self, setup: Setup, server: str, tool: str) -> str:
        """The name of a tool of a server, as this hub lists it."""
        del setup, server
        return tool

    def wrap(self, server: str, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments, as this hub wants them."""
        del server, tool
        return arguments

    def failed(self, text: str) -> str | None:
        """The reason, where a result that is no error says that the call failed."""
        del text
        return None

    def listing(self, server: str) -> tuple[str, Mapping[str, Any]] | None:
        """The tool call that lists a server's tools, in a hub whose own list is fixed."""
        del server
        return None

    def start(self, setup: Setup) -> Running:
        """Start it and wait until it listens."""
        self.install()
        setup.folder.mkdir(parents=True, exist_ok=True)
        launch = self.launch(setup)
        log = setup.folder / "hub.log"
        home = {"HOME": str(setup.folder), "XDG_STATE_HOME": str(setup.folder), "XDG_CACHE_HOME": str(setup.folder)}
        began = time.monotonic()
        with log.open("ab") as file:
            process = subprocess.Popen(
                launch.command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=setup.folder, process_group=0,
                env={**_environment(), **home, **launch.env, MARK: setup.mark},
            )  # fmt: skip
        try:
            wait_until(f"{setup.base}{launch.ready}", process, seconds=START_SECONDS)
            running = Running(process, log, seconds=time.monotonic() - began)
            self.prepared(setup)
        except (RuntimeError, OSError) as exc:
            process.kill()
            process.wait(STOP_SECONDS)
            said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise HubFailed(
                "; ".join([str(exc).partition("\n")[0][:200], *(line[:200] for line in said[-1:])])
            ) from exc
        return running

    @contextmanager
    def started(self, setup: Setup) -> Iterator[Running]:
        """The hub until the end of the block; nothing of it stays."""
        running = self.start(setup)
        try:
            yield running
            running.stop()
        finally:
            end_marked(setup.mark)
            running.reap()


class PypiAdapter(Adapter):
    """A hub from the Python package index."""

    packages: ClassVar[tuple[str, ...]]
    python: ClassVar[tuple[str, ...]] = ()
    """The Python versions that it runs on, the best first; none: the Python of the benchmark."""

    def install(self) -> None:
        """A virtual environment with the pinned version."""
        if (self.home / ".ready").exists():
            return
        uv = str(Path(sys.executable).parent / "uv")
        _run([uv, "venv", "--quiet", "--allow-existing", "--python", self._python(), str(self.home)])
        _run(
            [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", self.program("python"), *self.packages]
        )
        (self.home / ".ready").touch()

    def program(self, name: str) -> str:
        """A program of its environment."""
        return str(self.home / "bin" / name)

    def _python(self) -> str:
        if not self.python:
            return sys.executable
        for version in self.python:
            found = [*Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), shutil.which(f"python{version}")]
            for candidate in found:
                if candidate is not None:
                    return str(candidate)
        return self.python[0]  # uv fetches one, where the network has it


class NpmAdapter(Adapter):
    """A hub from npm."""

    package: ClassVar[str]

    def install(self) -> None:
        """A folder with the pinned version."""
        if (self.home / ".ready").exists():
            return
        npm = str(Path(sys.executable).parent / "npm")
        what = f"{self.package}@{self.version}"
        _run([npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(self.home), what])
        (self.home / ".ready").touch()

    def script(self) -> str:
        """Its main program."""
        return str(self.home / "node_modules" / self.package)


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as exc:
        said = (exc.stderr or exc.stdout).strip().splitlines()
        raise HubFailed(f"it could not be installed: {' '.join(said[-1:])[:300]}") from exc
    except (OSError, subprocess.SubprocessError) as exc:
        raise HubFailed(f"it could not be installed: {exc!s:.300}") from exc


def _environment() -> dict[str, str]:
    """The environment without what would lead a hub to another address or another Python."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
    return {name: value for name, value in os.environ.items() if name not in dropped and "proxy" not in name.lower()}


def marked(mark: str) -> list[int]:
    """The processes of a scene, also those that left their group or lost their parent."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def end_marked(mark: str) -> int:
    """End all processes of a scene. Returns how many there were."""
    ended = set()
    for _ in range(20):
        if not (pids := marked(mark)):
            break
        for pid in pids:
            ended.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return len(ended)


def config_file(setup: Setup, name: str, config: object) -> str:
    """Write a configuration as JSON, which is YAML too."""
    file = setup.folder / name
    file.write_text(json.dumps(config, indent=1))
    file.chmod(0o600)
    return str(file)
