"""One server under examination: its definition, what the checks use, and what they learned so far."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import anyio

from holdfast.auth import Logins
from holdfast.config import Definition, KeyPath, ServerSpec, Settings, SourceMap, joined
from holdfast.control import ControlClient, HubView, RunningHub, Server, find_hub, running_hubs
from holdfast.core import Redactor, mask_url
from holdfast.doctor.probe import Probe
from holdfast.doctor.report import Edit, LiveState, ask_for, shell
from holdfast.doctor.route import Route
from holdfast.doctor.starts import Starts
from holdfast.errors import HoldfastError, NoHub
from holdfast.hub import DialLimit
from holdfast.wire import INHERITED, Dialer

__all__ = ["SAME_ENVIRONMENT", "Case", "Learned", "LiveHub", "Tools", "edit_at", "hub_of"]

SLOWED = 0.1
"""The part of a dial from which on doctor's own load counts."""

ENOUGH_SECONDS = 30.0
"""A server that has this much time without such load, and half of its time, is judged."""

ASKING_SECONDS = 3.0
"""A hub on this machine answers in milliseconds."""


def hub_of(config: Path | None) -> RunningHub | None:
    """The hub that serves this file, or the one that the environment names, or None."""
    try:
        named = find_hub(config=config)
    except NoHub:
        named = None
    path = str(config.absolute()) if config is not None else None
    if named is not None and named not in running_hubs():
        return named  # the environment names its address
    return next((hub for hub in running_hubs() if path is not None and hub.config == path), None)


class LiveHub:
    """The state of a running hub at the time of the question."""

    def __init__(self, found: RunningHub) -> None:
        self.found = found
        self.view: HubView | None = None
        self.error = ""
        self.asked_at = 0.0
        """When it answered, on the event loop's clock."""
        self._servers: Mapping[str, Server] = {}
        self._asked = anyio.Event()

    async def ask(self) -> None:
        """Ask it for all servers; a failure is kept as a message."""
        try:
            with anyio.fail_after(ASKING_SECONDS):
                async with ControlClient(self.found) as hub:
                    self.view = await hub.hub()
                    self._servers = {server.id: server for server in (await hub.servers()).servers}
                    self.asked_at = anyio.current_time()
        except TimeoutError:
            self.error = f"it did not answer within {ASKING_SECONDS:g} s"
        except HoldfastError as exc:
            self.error = exc.message
        finally:
            self._asked.set()

    async def asked(self) -> None:
        """Wait until it answered, or until asking failed."""
        await self._asked.wait()

    async def server(self, name: str) -> Server | None:
        """The hub's state of this server; None if the hub does not have it or did not answer."""
        await self._asked.wait()
        return self._servers.get(name)


SAME_ENVIRONMENT = "with the environment that Holdfast gives it"
"""Said of commands from ``Case.by_hand``: a server gets less than the shell has."""

Resolve: TypeAlias = Callable[[str, int], Awaitable[tuple[str, ...]]]
"""The addresses of a host; raises ``socket.gaierror``."""


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What the checks use, shared by all servers."""

    dialer: Dialer
    turnstile: DialLimit
    starts: Starts
    settings: Settings
    resolve: Resolve
    logins: Logins
    hub: LiveHub | None = None
    """The running hub that serves this configuration."""


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
    dial_seconds: float = 0.0
    loaded_seconds: float = 0.0
    """The part of its dial in which it waited for its turn, or doctor loaded the machine."""
    login_ended: str = ""
    """Why its login is no longer valid."""
    renewed: str = ""
    """The message about an expired login that was renewed."""
    live: LiveState | None = None

    def dialed(self, began: float, *, loaded: float) -> None:
        """A dial that began then has ended; doctor loaded the machine for so many seconds meanwhile."""
        self.dial_seconds = anyio.current_time() - began
        placed = self.probe.began if self.probe is not None else 0.0
        waited = max(placed - began, 0.0) if placed else self.dial_seconds
        self.loaded_seconds = min(loaded + waited, self.dial_seconds)

    def probing(self, attempt: Probe) -> None:
        """A dial has begun."""
        self.probe = attempt


@dataclass(kw_only=True)
class Case:
    """One server."""

    definition: Definition
    source_map: SourceMap
    tools: Tools
    deadline: float
    """When the examination of this server ends, on the event loop's clock."""
    seconds: float = math.inf
    """How long it may take."""
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
        learned = self.learned
        given = min(self.seconds, self.spec.start_timeout) if self.transport == "stdio" else self.seconds
        enough = min(given, max(given / 2, ENOUGH_SECONDS))
        slowed = learned.loaded_seconds > learned.dial_seconds * SLOWED
        return slowed and learned.dial_seconds - learned.loaded_seconds < enough

    @property
    def beyond_proxy(self) -> bool:
        """Whether requests go through a proxy."""
        return self.learned.route is not None and bool(self.learned.route.proxy)

    def edit(self, key: str | KeyPath, value: object, *, certain: bool = True) -> Edit:
        """The edit that writes ``value`` at ``key`` of this server's definition."""
        keys = tuple(key.split(".")) if isinstance(key, str) else key
        return edit_at(self.source_map, (*self.definition.path, *keys), keys, value, certain=certain)

    def url_edit(self, url: str, *, transport: str = "", certain: bool = True) -> tuple[Edit, ...]:
        """The edits that write another address, masked, and another transport if it changes."""
        key = next((key for key in ("url", "serverUrl", "httpUrl") if key in self.definition.given), "url")
        edits = [self.edit(key, mask_url(url), certain=certain)]
        if transport and transport != self.spec.transport:
            written = next((key for key in ("type", "transport", "transportType") if key in self.given), "type")
            edits.append(self.edit(written, transport, certain=certain))
        return tuple(edits)

    def setting(self, key: str, value: object) -> Edit:
        """The edit that writes ``value`` at ``key`` of Holdfast's own settings. A person decides about limits."""
        keys = ("holdfast", *key.split("."))
        return edit_at(self.source_map, keys, keys, value, certain=False)

    def settings(self, group: str, values: Mapping[str, object]) -> tuple[Edit, ...]:
        """The edits that write several settings of one group, in an order in which they can be pasted."""
        there = ("holdfast", group)
        if self.source_map.nearest(there) != there or not self.source_map.members(there):
            return (self.setting(group, dict(values)),)
        edits = [self.setting(f"{group}.{key}", value) for key, value in values.items()]
        # The last place first: an edit moves what comes after it.
        return tuple(sorted(edits, key=lambda edit: _line_and_column(edit.place), reverse=True))

    @property
    def given(self) -> Mapping[str, object]:
        """The definition as written, with variables expanded."""
        return self.definition.given

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
    def host(self) -> str:
        """The host in its URL."""
        return urlsplit(self.spec.url).hostname or ""


def _line_and_column(place: str) -> tuple[int, ...]:
    return tuple(int(part) for part in place.split(":")[-2:] if part.isdigit())


def edit_at(source_map: SourceMap, path: KeyPath, keys: KeyPath, value: object, *, certain: bool) -> Edit:
    """The edit that writes ``value`` at ``path``, with the position and the exact text for a person who pastes it."""
    there = source_map.nearest(path)
    count = source_map.members(there)
    written: object = value
    if there != path:
        for step in reversed(path[len(there) + 1 :]):
            written = {step: written}
    insert = there != path and count is not None
    if there != path and count is None:  # a value that is not an object is in the way: it is replaced
        written = {path[len(there)]: written}
    text = json.dumps(written, ensure_ascii=False)
    comma = "," if count else ""
    return Edit(
        action="insert" if insert else "replace",
        place=source_map.label(there),
        key=joined(path),
        keys=keys,
        path=path,
        value=json.dumps(value, ensure_ascii=False),
        paste=f"{json.dumps(str(path[len(there)]), ensure_ascii=False)}: {text}{comma}" if insert else text,
        certain=certain,
    )
