"""What the clients of a hub bring with them: the folder that they work in, and their variables.

Theory of operation, for folders (DX-9). A server with ``"scope": "project"`` is a definition: what runs is a copy of it
for each folder, with an id of its own (``in_folder``), and that folder as its working folder and as
``${workspaceFolder}``. A project file that its user trusts (SEC-8) gives its folder further servers. The copies are
servers of the hub like all others: they are part of its configuration while the folder has a client. So they start,
heal and are shown as all others do; each endpoint lists those of its own folder alone (``endpoint.view``).

- ``ProjectServers`` says what the configuration is for the folders that are in use.
- ``FolderClients`` knows which folders are in use. The configuration is read again when that changes. A folder that its
  last client left stays for a moment: clients are often restarted.

What must never happen: that a folder is chosen from afar, that a file counts that its user did not trust, or that a
copy is shown in another folder. The variables of a folder's first client count for its servers, while it is in use.

Theory of operation, for variables (DX-8). ``ClientVariables`` completes the environment of a hub that the clients of a
user share. A hub that a desktop program started knows neither the PATH of a shell nor its keys; a client that was
started there brings them. They fill gaps and never replace a value: a server must not change under the clients that use
it. They are in memory alone. Two clients that disagree are told.

``end_when_idle`` is for a hub in the background: the last client that leaves must not leave it behind for ever.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from holdfast.config import (
    PROJECT_FILES,
    Config,
    ServerSpec,
    TrustStore,
    read_config,
    read_file,
    servers_in,
    variables_in,
)
from holdfast.core import CommandFault, CommandUnusable, events as on
from holdfast.errors import ConfigError, UntrustedConfig
from holdfast.hub import Clock, Hub

__all__ = [
    "IDLE_SECONDS",
    "ClientVariables",
    "FolderClients",
    "FolderUse",
    "ProjectServers",
    "end_when_idle",
    "project_folder_of",
]

log = logging.getLogger("holdfast.serve")

LINGER_SECONDS: Final = 10.0
"""How long the servers of a folder stay after its last client left."""

HTTP_SECONDS: Final = 600.0
"""How long a folder stays in use after a request over HTTP named it: there is no end of a connection to see."""

MOST_FOLDERS: Final = 50

LARGEST_FILE: Final = 1 << 20


def project_folder_of(named: str, working: str, environ: Mapping[str, str]) -> str | None:
    """The folder that a client works in: the one that it names, else its working folder, unless that means nothing.

    A desktop program starts its servers in ``/`` or in the home folder: that is no project.
    """
    if named:
        folder = os.path.realpath(os.path.join(working or "/", os.path.expanduser(named)))  # noqa: PTH111, PTH118 - a text
        return folder if os.path.isdir(folder) else None  # noqa: PTH112 - a text
    if not working.startswith("/"):
        return None
    folder = os.path.realpath(working)
    home = os.path.realpath(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - a text
    is_above = folder == "/" or f"{home}/".startswith(f"{folder}/")
    return None if is_above or not os.path.isdir(folder) else folder  # noqa: PTH112 - a text


@dataclass(eq=False)
class FolderUse:
    """One folder that is in use."""

    variables: dict[str, str] = field(default_factory=dict, repr=False)
    """Those of its first client."""
    clients: int = 0
    until: float = 0.0
    """It is kept at least until then."""


class ProjectServers:
    """The configuration of a hub, with the servers of the folders that are in use."""

    def __init__(self, file: Path, environ: Mapping[str, str], clean: Callable[[Config], Config]) -> None:
        """``clean`` leaves out of a configuration what this hub must not start."""
        self._file = file
        self._environ = environ
        self._clean = clean
        self.in_use: dict[str, FolderUse] = {}
        self.matter = False
        """Whether the folder of a client makes a difference, by the configuration and the trusted files last read."""

    def of(self, config: Config) -> Config:
        """What the hub serves: a definition that runs once for each folder does not run by itself."""
        projects = [name for name, one in config.servers.items() if one.scope == "project"]
        self.matter = bool(projects or TrustStore(self._environ).files())
        copies = [one for folder, use in self.in_use.items() for one in self._of_folder(folder, use, projects)]
        if not projects and not copies:
            return config
        servers = {
            name: replace(one, enabled=one.enabled and name not in projects) for name, one in config.servers.items()
        }
        servers |= {one.id: one for one in copies}
        return replace(config, servers=servers, scoped=True)

    def _of_folder(self, folder: str, use: FolderUse, projects: list[str]) -> Iterator[ServerSpec]:
        environ = {**self._environ, **use.variables}
        try:
            own = read_file(self._file, environ=environ, workspace=Path(folder)).config.servers if projects else {}
        except ConfigError:
            own = {}  # the hub keeps what it has, and says why
        found = {name: own[name] for name in projects if name in own} | self._of_project_file(folder, environ)
        yield from (one.in_folder(folder) for one in found.values())

    def _of_project_file(self, folder: str, environ: Mapping[str, str]) -> dict[str, ServerSpec]:
        """The servers of a project's own file, if its user trusts it."""
        file = next((one for name in PROJECT_FILES if (one := Path(folder) / name).is_file()), None)
        if file is None or file.absolute() == self._file.absolute():
            return {}
        try:
            if file.stat().st_size > LARGEST_FILE:
                log.warning("%s is too large for a project file: it is not used", file)
                return {}
            config = self._clean(read_file(file, environ=environ, found=True).config)
        except UntrustedConfig as exc:
            log.warning("%s: %s (%s)", file, exc.problems[0].message, exc.hint)
            return {}
        except (ConfigError, OSError) as exc:
            log.warning("the project file %s cannot be used: %s", file, exc)
            return {}
        return {name: one for name, one in config.servers.items() if not _is_hub(one)}

    def __repr__(self) -> str:
        return f"<ProjectServers of {sorted(self.in_use)}>"


def _is_hub(spec: ServerSpec) -> bool:
    """Whether an entry is this program: a project's file has it so that its clients use the hub."""
    words = [spec.command, *spec.args]
    return Path(spec.command).name == "holdfast" or words[1:3] == ["-m", "holdfast"] or spec.id == "holdfast"


class FolderClients:
    """Who works where."""

    def __init__(self, servers: ProjectServers, reload: Callable[[], Awaitable[object]], clock: Clock) -> None:
        """``reload`` reads the configuration again and applies it."""
        self._servers = servers
        self._reload = reload
        self._clock = clock
        # One at a time: the second client of a new folder goes on when the servers of the folder are configured.
        self._turn = anyio.Lock()
        self._changed = anyio.Event()

    @property
    def matter(self) -> bool:
        """Whether the folder of a client makes a difference."""
        return self._servers.matter

    def of(self, named: str, working: str) -> str | None:
        """The folder of a client; None if it works in none."""
        return project_folder_of(named, working, os.environ)

    async def enter(self, folder: str, variables: Mapping[str, str]) -> bool:
        """A client works there, until ``leave``; False if there are too many folders."""
        async with self._turn:
            use = await self._used(folder, variables)
            if use is not None:
                use.clients += 1
        return use is not None

    def leave(self, folder: str) -> None:
        """A client left."""
        use = self._servers.in_use.get(folder)
        if use is not None:
            use.clients -= 1
            use.until = max(use.until, self._clock.now() + LINGER_SECONDS)
            self._changed.set()

    async def touch(self, folder: str) -> bool:
        """A request over HTTP names the folder; False if there are too many."""
        async with self._turn:
            use = await self._used(folder, {})
            if use is not None:
                use.until = max(use.until, self._clock.now() + HTTP_SECONDS)
                self._changed.set()
        return use is not None

    async def _used(self, folder: str, variables: Mapping[str, str]) -> FolderUse | None:
        in_use = self._servers.in_use
        if folder not in in_use and len(in_use) >= MOST_FOLDERS:
            return None
        if folder not in in_use:
            in_use[folder] = FolderUse(dict(variables), until=self._clock.now() + LINGER_SECONDS)
            await self._reload()
        return in_use[folder]

    async def run(self) -> None:
        """End the servers of folders that no client uses any more. Never returns."""
        in_use = self._servers.in_use
        while True:
            self._changed = anyio.Event()
            async with self._turn:
                now = self._clock.now()
                gone = [folder for folder, use in in_use.items() if not use.clients and use.until <= now]
                for folder in gone:
                    del in_use[folder]
                if gone:
                    await self._reload()
            due = min((use.until for use in in_use.values() if not use.clients), default=None)
            await self._clock.wait(self._changed, due)

    def __repr__(self) -> str:
        return f"<FolderClients { ({folder: use.clients for folder, use in self._servers.in_use.items()}) }>"


# The variables of clients.


class ClientVariables:
    """The variables that the configuration names, from the hub's own environment and from its clients."""

    def __init__(
        self,
        hub: Hub,
        file: Path,
        *,
        reload: Callable[[], Awaitable[object]],
        findings: MutableMapping[str, str],
        found: Callable[[str], None],
        environ: MutableMapping[str, str],
    ) -> None:
        """``reload`` reads the configuration again. ``findings`` are shown with the servers; ``found`` tells of one."""
        self._hub = hub
        self._file = file
        self._reload = reload
        self._findings = findings
        self._found = found
        self._environ = environ
        self._given_by: dict[str, str] = {}
        """The client that brought a variable."""

    async def wanted(self, folder: str) -> set[str]:
        """The names that a client is asked for: those of the hub's file, and of the project file where it works."""
        files = [self._file, *(Path(folder) / name for name in PROJECT_FILES if folder)]
        used = [await anyio.to_thread.run_sync(_variables_of, file, file != self._file) for file in files]
        return {"PATH", *(name for one in used for names in one.values() for name in names)}

    async def offer(self, client: str, variables: Mapping[str, str]) -> None:
        """What a client has of them: it fills gaps, and replaces nothing."""
        used = await anyio.to_thread.run_sync(_variables_of, self._file)
        known = {name for names in used.values() for name in names}
        fresh = False
        for name, value in variables.items():
            if name == "PATH" or name not in known or "\0" in value:
                continue
            if name not in self._environ:
                self._environ[name] = value
                self._given_by[name] = client
                fresh = True
            elif self._environ[name] != value:
                self._report(name, client, [server for server, names in used.items() if name in names])
        if self._extend_path(str(variables.get("PATH", ""))):
            self._look_for_commands()
        if fresh:
            await self._reload()

    def _extend_path(self, offered: str) -> bool:
        """Add the folders that are missing, at the end: what a name means now, it means afterwards too."""
        own = [one for one in self._environ.get("PATH", "").split(os.pathsep) if one]
        more = [one for one in offered.split(os.pathsep) if one.startswith("/") and "\0" not in one]
        added = [one for one in dict.fromkeys(more) if one not in own]
        if added:
            self._environ["PATH"] = os.pathsep.join([*own, *added])
        return bool(added)

    def _look_for_commands(self) -> None:
        """Try the servers again whose command was not found."""
        for slot in self._hub.registry.slots.values():
            failed = slot.leases.failed_dial
            seen = failed.evidence if failed is not None and slot.lease is None else None
            if isinstance(seen, CommandUnusable) and seen.fault is CommandFault.NOT_FOUND:
                slot.handle(on.ReconnectRequested())

    def _report(self, name: str, client: str, servers: list[str]) -> None:
        first = self._given_by.get(name, "the hub itself")
        text = (
            f"`{name}` has another value in {client} than in {first}, which came first and is used. "
            "To use two values, give each client a configuration of its own"
        )
        for server in servers:
            if self._findings.get(server) != text:
                log.warning("%s: %s", server, text)
            self._findings[server] = text
            self._found(server)

    def __repr__(self) -> str:
        return f"<ClientVariables of {self._file}, from clients: {sorted(self._given_by)}>"


def _variables_of(file: Path, is_of_project: bool = False) -> dict[str, tuple[str, ...]]:
    """By server, the variables that its definition uses; none if the file cannot be used."""
    try:
        # What lies in the folder of a client may be a pipe: only a ``found`` file is opened without a wait.
        return {name: variables_in(raw) for name, raw in servers_in(read_config(file, found=is_of_project))}
    except ConfigError:
        return {}


IDLE_SECONDS: Final = 600.0
"""How long a hub in the background stays without a client, a request or a call."""

LOOK_SECONDS: Final = 5.0
"""How often it looks."""


async def end_when_idle(clock: Clock, uses: Callable[[], object], busy: Callable[[], bool]) -> None:
    """Return when nothing has used the hub for long.

    ``uses`` is something that changes with each use; ``busy`` says whether something goes on now.
    """
    seen, since = uses(), clock.now()
    while clock.now() - since < IDLE_SECONDS:
        await clock.wait(anyio.Event(), clock.now() + LOOK_SECONDS)
        if busy() or uses() != seen:
            seen, since = uses(), clock.now()
