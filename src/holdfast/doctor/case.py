"""One server under examination: its definition, what the checks use, and what they learned so far.

A check (``Check``, ``GlobalCheck``) has an id, a description, the checks it needs, the codes it finds, the check
itself.

``Route`` is the way to a server: the host and port that the hub connects to, through a proxy or not.

A server that is slow because doctor starts sixty others beside it is not a slow server. So starts are limited
(``places_here``), and a command that ran out of time beside many others is not judged (``Case.was_crowded``).

``probe`` is one dial of a server, as the hub dials: handshake, listing, close, and the result of each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import anyio.abc

from holdfast.auth import Logins, TokenStore
from holdfast.config import ConfigReading, Definition, Document, KeyPath, ServerSpec, Settings, joined
from holdfast.control import URL_VARIABLE, ControlClient, HubView, RunningHub, Server, find_hub, running_hubs
from holdfast.core import Redactor, command_line, is_loopback, mask_url, visible_json
from holdfast.doctor.report import Edit, Finding, LiveState, ask_for, open_at, shell
from holdfast.errors import HoldfastError, NoHub
from holdfast.hub import DialLimit
from holdfast.wire import INHERITED, Attempt, Connection, Dialer, Offers

__all__ = [
    "HOLD_SECONDS",
    "SAME_ENVIRONMENT",
    "Case",
    "Check",
    "GlobalCheck",
    "GlobalContext",
    "Learned",
    "LiveHub",
    "Observation",
    "Probe",
    "Route",
    "Tools",
    "edit_at",
    "found",
    "hub_of",
    "open_definition",
    "places_here",
    "probe",
    "route_to",
]

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Route:
    """The host and port of the first connection."""

    host: str
    port: int
    tls: bool
    """Whether the server uses TLS."""
    proxy: str = ""
    """The proxy's URL, masked; empty without a proxy."""
    variable: str = ""
    """The environment variable that names it."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def route_to(url: str) -> Route:
    """The route to the server at ``url``, which names a host: the configuration lets no other one pass."""
    parts = urlsplit(url)
    direct = Route(host=parts.hostname or "", port=parts.port or _PORTS[parts.scheme], tls=parts.scheme == "https")
    proxies = getproxies()
    kind = next((kind for kind in (parts.scheme, "all") if proxies.get(kind)), "")
    if not kind or is_loopback(direct.host) or proxy_bypass(direct.host):
        return direct
    written = proxies[kind] if "://" in proxies[kind] else f"http://{proxies[kind]}"
    try:
        proxy = urlsplit(written)
        port = proxy.port or _PORTS[proxy.scheme]
    except (KeyError, ValueError):
        return direct  # the hub cannot use such a proxy: the handshake says why
    if not proxy.hostname:
        return direct
    names = (f"{kind}_proxy", f"{kind}_proxy".upper())
    variable = next((name for name in names if os.environ.get(name)), names[1])
    return Route(host=proxy.hostname, port=port, tls=direct.tls, proxy=mask_url(written), variable=variable)


HOLD_SECONDS = 15.0
"""How long a process that does not answer keeps others from starting."""


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def places_here() -> int:
    """How many processes start at a time here. Half of a start is a wait, for a disk or a registry."""
    return max(2 * cores(), 4)


Probe: TypeAlias = "Attempt[Offers]"


def probe(spec: ServerSpec, redactor: Redactor, deadline: float) -> Probe:
    """An attempt that dials, lists and closes when it is run; then only a cancellation is raised."""

    async def everything(connection: Connection, within: float) -> Offers:
        return await connection.list_everything(within=within)

    left = max(deadline - anyio.current_time(), 0.0)
    return Attempt(
        spec=spec,
        redactor=redactor,
        read=everything,
        deadline=deadline,
        within=left,
        start_within=min(left, spec.start_timeout),
    )


ENOUGH_SECONDS = 30.0
"""A command that ran for so long without an answer is judged, also beside others."""

ASKING_SECONDS = 3.0
"""A hub on this machine answers in milliseconds."""


def hub_of(config: Path | None) -> RunningHub | None:
    """The hub that the environment names, else the one that serves this file, or None."""
    if os.environ.get(URL_VARIABLE):
        # Without its token that hub cannot be asked. The servers can be examined all the same.
        with suppress(NoHub):
            return find_hub()
    path = str(config.absolute()) if config is not None else None
    return next((hub for hub in running_hubs() if path is not None and hub.config == path), None)


class LiveHub:
    """The state of a running hub at the time of the last question."""

    def __init__(self, found: RunningHub) -> None:
        self.found = found
        self.view: HubView | None = None
        self.error = ""
        self._servers: Mapping[str, Server] = {}
        self.asked = anyio.Event()
        """Set when it answered, or asking failed."""

    async def ask(self) -> None:
        """Ask it for all servers; a failure is kept as a message. The answer takes the place of an earlier one."""
        view: HubView | None = None
        servers: Mapping[str, Server] = {}
        self.error = ""
        try:
            with anyio.fail_after(ASKING_SECONDS):
                async with ControlClient(self.found) as hub:
                    view = await hub.hub()
                    servers = {server.id: server for server in (await hub.servers()).servers}
        except TimeoutError:
            self.error = f"it did not answer within {ASKING_SECONDS:g} s"
        except HoldfastError as exc:
            self.error = exc.message
        finally:
            self.view, self._servers = view, servers
            self.asked.set()

    async def ask_again(self) -> None:
        """Ask a hub that answered what it says now. One that did not answer is not waited for twice."""
        await self.asked.wait()
        if self.view is not None:
            await self.ask()

    async def server(self, name: str) -> Server | None:
        """The hub's state of this server; None if the hub does not have it or did not answer."""
        await self.asked.wait()
        return self._servers.get(name)


SAME_ENVIRONMENT = "with the environment that Holdfast gives it"
"""Said of commands from ``Case.by_hand``: a server gets less than the shell has."""

Resolve: TypeAlias = Callable[[str, int], Awaitable[tuple[str, ...]]]
"""The addresses of a host; raises ``socket.gaierror``."""


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What the checks use, shared by all servers."""

    dialer: Dialer
    dials: DialLimit
    starts: DialLimit
    """The limit of processes that start at a time."""
    commands: int
    """How many commands are examined beside each other."""
    settings: Settings
    resolve: Resolve
    logins: Logins
    hub: LiveHub | None = None
    """The running hub that serves this configuration."""
    probes: dict[str, Probe] = field(default_factory=dict)
    """The dials of the servers by their ids, also while they are under way: who is still starting is told from them."""


@dataclass(kw_only=True)
class Learned:
    """What earlier checks found out and later ones use."""

    route: Route | None = None
    addresses: tuple[str, ...] = ()
    program: str = ""
    probe: Probe | None = None
    """The dial of this server, also while it is under way."""
    failed: bool = False
    """Whether a check failed."""
    login_ended: str = ""
    """Why its login is no longer valid."""
    renewed: str = ""
    """The message about an expired login that was renewed."""
    live: LiveState | None = None


@dataclass(kw_only=True)
class Case:
    """One server."""

    definition: Definition
    document: Document
    tools: Tools
    deadline: float
    """When the examination of this server ends, on the event loop's clock."""
    redactor: Redactor = field(default_factory=Redactor)
    learned: Learned = field(default_factory=Learned)

    @property
    def server(self) -> ServerSpec:
        """The server; ``problems`` says why its definition cannot be used."""
        return self.definition.server

    @property
    def id(self) -> str:
        """The server's name."""
        return self.server.id

    @property
    def spec(self) -> ServerSpec:
        """The server, for checks that run only with a valid definition."""
        assert not self.server.problems  # noqa: S101 - such checks need `definition`
        return self.server

    @property
    def transport(self) -> str:
        """Empty where the definition cannot be read."""
        if self.server.problems:
            return ""
        return "hub" if self.server.hub else self.server.transport

    @property
    def target(self) -> str:
        """Its command or URL, masked."""
        if self.server.problems:
            return ""
        if self.server.transport == "stdio":
            return self.redactor.mask(" ".join((self.server.command, *self.server.args)))
        return self.redactor.mask(mask_url(self.server.url))

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(self.deadline - anyio.current_time(), 0.0)

    @property
    def was_crowded(self) -> bool:
        """Whether doctor's own load may be why this server did not answer in time."""
        began = self.learned.probe.began if self.learned.probe is not None else 0.0
        ran = anyio.current_time() - began if began else 0.0
        return self.transport == "stdio" and self.tools.commands > cores() and ran < ENOUGH_SECONDS

    def edit(self, key: str | KeyPath, value: object, *, certain: bool = True) -> Edit:
        """The edit that writes ``value`` at ``key`` of this server's definition."""
        keys = tuple(key.split(".")) if isinstance(key, str) else key
        return edit_at(self.document, (*self.definition.path, *keys), keys, value, certain=certain)

    def url_edit(self, url: str, *, transport: str = "", certain: bool = True) -> tuple[Edit, ...]:
        """The edits that write another address, masked, and another transport if it changes."""
        key = next((key for key in ("url", "serverUrl", "httpUrl") if key in self.definition.given), "url")
        edits = [self.edit(key, mask_url(url), certain=certain)]
        if transport and transport != self.spec.transport:
            written = next(
                (key for key in ("type", "transport", "transportType") if key in self.definition.given), "type"
            )
            edits.append(self.edit(written, transport, certain=certain))
        return tuple(edits)

    def setting(self, key: str, value: object) -> Edit:
        """The edit that writes ``value`` at ``key`` of Holdfast's own settings. A person decides about limits."""
        keys = ("holdfast", *key.split("."))
        return edit_at(self.document, keys, keys, value, certain=False)

    def settings(self, group: str, values: Mapping[str, object]) -> tuple[Edit, ...]:
        """The edits that write several settings of one group."""
        there = ("holdfast", group)
        if self.document.nearest(there) != there or not self.document.members(there):
            return (self.setting(group, dict(values)),)
        return tuple(self.setting(f"{group}.{key}", value) for key, value in values.items())

    def by_hand(self, *more: str, then: str = "") -> tuple[str, ...]:
        """Commands that run the server in a shell with the environment that Holdfast gives it, and no other.

        A value that is written in the definition may be a secret, so it is asked for and not printed. Those of HOME and
        its like are none, and asking for them would change the shell.
        """
        spec = self.spec
        asked: list[str] = []
        environment = [f'{name}="${name}"' for name in INHERITED if name in os.environ and name not in spec.env]
        for name, value in spec.env.items():
            sources = self.definition.expansion.sources((*self.definition.path, "env", name))
            source = next((one for one in sources if os.environ.get(one) == value), "")
            if name in INHERITED and value not in spec.secrets:
                environment.append(f"{name}={shell(value)}")
                continue
            variable = source or re.sub(r"\W", "_", name)
            asked += [] if source else [ask_for(variable)]
            environment.append(f'{shell(name)}="${variable}"')
        folder = f"cd {shell(str(spec.cwd))} && " if spec.cwd is not None else ""
        command = " ".join(["env -i", *environment, shell(spec.command, *spec.args, *more)])
        return (*asked, f"{folder}{command}{then}")

    @property
    def again(self) -> str:
        """The command that checks this server again, alone."""
        return command_line("doctor", server=self.id)

    @property
    def host(self) -> str:
        """The host in its URL."""
        return urlsplit(self.spec.url).hostname or ""

    def url_with(self, **parts: str) -> str:
        """Its URL with other parts, such as another ``scheme``."""
        return urlsplit(self.spec.url)._replace(**parts).geturl()


def open_definition(case: Case) -> tuple[str, ...]:
    """The command that opens the file at this server's definition."""
    return open_at(case.document.problem(case.definition.path, "", at_key=True))


def edit_at(document: Document, path: KeyPath, keys: KeyPath, value: object, *, certain: bool) -> Edit:
    """The edit that writes ``value`` at ``path``, with the position and the exact text for a person who pastes it."""
    there = document.nearest(path)
    count = document.members(there)
    written: object = value
    if there != path:
        for step in reversed(path[len(there) + 1 :]):
            written = {step: written}
    insert = there != path and count is not None
    if there != path and count is None:  # a value that is not an object is in the way: it is replaced
        written = {path[len(there)]: written}
    text = visible_json(written)
    comma = "," if count else ""
    return Edit(
        action="insert" if insert else "replace",
        place=document.label(there),
        key=joined(path),
        keys=keys,
        path=path,
        value=visible_json(value),
        paste=f"{visible_json(str(path[len(there)]))}: {text}{comma}" if insert else text,
        certain=certain,
    )


class Observation(NamedTuple):
    """What a check saw, in short, and its findings."""

    words: str = ""
    findings: tuple[Finding, ...] = ()


def found(*findings: Finding) -> Observation:
    """The observation of a check with findings."""
    return Observation("; ".join(one.words for one in findings), findings)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check of one server."""

    id: str
    looks_at: str
    finds: tuple[str, ...]
    """The codes of its findings."""
    look: Callable[[Case], Awaitable[Observation]]
    """Runs the check. An exception becomes a finding."""
    needs: tuple[str, ...] = ()
    """Checks that must have passed. Otherwise this one is skipped."""
    transports: tuple[str, ...] = ("stdio", "http", "sse", "hub", "")
    only_if: Callable[[Case], bool] = lambda _: True
    compares: bool = False
    """Whether it compares what the other checks saw with a state that changes meanwhile: it runs when all servers are
    examined."""

    def applies(self, case: Case) -> bool:
        """Whether the check applies to this server."""
        return case.transport in self.transports and self.only_if(case)


@dataclass(frozen=True, kw_only=True)
class GlobalContext:
    """What checks use that concern no single server."""

    reading: ConfigReading
    store: TokenStore
    state_file: Path | None


@dataclass(frozen=True, kw_only=True)
class GlobalCheck:
    """A check that concerns no single server."""

    id: str
    looks_at: str
    finds: tuple[str, ...]
    look: Callable[[GlobalContext], Awaitable[Observation]]
