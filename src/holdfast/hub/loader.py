"""Loads the tools of many servers once: the tools of each healthy server, and the reason for every other one.

Theory of operation. A load is for a program that has no hub, or does not want to keep one. It shares with a slot what
a connection is made of (``Attempt``, ``DialLimit`` and ``ServerCache``), and nothing of what comes after it::

    for each server, side by side:  attempt -> tools                                -> available
                                       |   -> transient, and time left -> pause -> attempt
                                       +-> else                                     -> its status, and the reason

Why not a hub for a moment: a hub has no end. It says "starting up" and goes on trying in the background. A load owes
one outcome for each server at its end, says how many attempts that took (LOAD-6), and promises no later try that it
does not make (MSG-10).

What must never happen:

* One server holds up another one. Each has a task, and ``_outcome`` raises nothing but a cancellation. A listener that
  raises ends the load with its own exception, not with a group around it.
* A load takes longer than its deadline. No pause begins that would leave no time for the dial after it. A process that
  has started is the exception: ``startTimeout`` is its deadline (LOAD-13), since its first run may be a download.
* A process outlives the call (LOAD-12). Each load and each call has a warden of its own, which ends last.
* An error quotes a secret. Evidence is masked first, and a ``CallFailed`` is raised where no exception is handled: one
  of a library would be chained to it, and may quote a header.

A tool that was loaded dials for each call, because between two calls there is nothing to keep. With ``hub`` it calls
through the connection that the hub has. The era of a server is remembered for the process (``_MEMORY``): the next dial
does not probe for it (LOAD-8), and forgets it after a permanent failure, for another server may be there by then.
"""

from __future__ import annotations

import itertools
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from holdfast.auth import Logins
from holdfast.config import (
    Config,
    LoadPolicy,
    ServerSpec,
    Settings,
    config_from_mapping,
    load_config,
    spec_from_connection,
)
from holdfast.core import Evidence, Redactor, Verdict, classify_evidence, delay, masked, near
from holdfast.errors import CallFailed, UnknownServer, UnknownTool, UsageError
from holdfast.hub.lease import ServerCache, bad_definition, is_shown
from holdfast.hub.limits import DialLimit
from holdfast.hub.slot_call import no_answer
from holdfast.types import CallResult, LoadResult, MCPServerLoadOutcome, ProgressFn, Tool
from holdfast.wire import SHORTEST_DIAL, Attempt, Connection, Dialer, Offer, Starting, Warden, evidence_in

if TYPE_CHECKING:
    from holdfast.hub.hub import Hub

__all__ = ["Loader", "OnStarting", "call_tool", "get_tools_with_resilience", "load", "report_starts"]

_MEMORY = ServerCache()

OnOutcome: TypeAlias = Callable[[MCPServerLoadOutcome], None]
OnStarting: TypeAlias = Callable[[str, Starting], None]

STARTING_SECONDS = 1.0
"""How often ``on_starting`` is called."""

Arguments: TypeAlias = Mapping[str, Any] | Callable[[Mapping[str, Any]], Mapping[str, Any]]


async def get_tools_with_resilience(
    connections: Mapping[str, Mapping[str, Any]],
    *,
    max_attempts: int = 3,
    base_backoff_s: float = 0.25,
    start_timeout: float | None = None,
    hub: Hub | None = None,
) -> LoadResult:
    """Load every server of ``connections``: ``(all_tools, failed_servers, failed_errors)``, and more.

    ``connections`` is ``{id: {"transport": "stdio" | "sse" | "streamable_http", …}}``; ``headers`` may
    be a callable that returns fresh ones for each request. ``start_timeout`` is how many seconds a process may take
    for its first answer, instead of the 120 s of ``startTimeout``. With ``hub``, an open ``Hub`` with these servers,
    the tools call through its live connections instead of dialing for each call.
    """
    if max_attempts < 1 or base_backoff_s < 0:
        raise ValueError("max_attempts must be at least 1, base_backoff_s at least 0")
    servers = {name: spec_from_connection(name, connection) for name, connection in connections.items()}
    policy = LoadPolicy(attempts=max_attempts, backoff=base_backoff_s)
    config = _with_start_timeout(Config(servers=servers, settings=Settings(load=policy)), start_timeout)
    return await Loader(config, hub=hub).load()


async def load(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    servers: Sequence[str] = (),
    on_outcome: OnOutcome | None = None,
    on_starting: OnStarting | None = None,
    start_timeout: float | None = None,
    hub: Hub | None = None,
) -> LoadResult:
    """Load the servers of a configuration: a file, a mapping of the same form, or one found in the usual places.

    ``servers`` selects some of them. ``on_outcome`` is called with each outcome as soon as it is known, and
    ``on_starting`` once a second with each process that has not answered yet. ``start_timeout`` is how many seconds a
    process may take for that, instead of its ``startTimeout``. With ``hub``, an open ``Hub`` with these servers, the
    tools call through its live connections instead of dialing for each call.
    """
    found = _with_start_timeout(read(config), start_timeout)
    return await Loader(found, hub=hub).load(servers, on_outcome=on_outcome, on_starting=on_starting)


async def call_tool(
    config: Config | Mapping[str, Any] | str | Path | None,
    server: str,
    tool: str,
    args: Mapping[str, Any],
    *,
    on_progress: ProgressFn | None = None,
) -> CallResult:
    """Dial one server and call one of its tools. Raises ``CallFailed`` unless the server returned a result."""
    return await Loader(read(config)).call(server, tool, args, on_progress=on_progress)


def _with_start_timeout(config: Config, seconds: float | None) -> Config:
    if seconds is None:
        return config
    servers = {name: replace(server, start_timeout=seconds) for name, server in config.servers.items()}
    return replace(config, servers=servers)


def read(config: Config | Mapping[str, Any] | str | Path | None) -> Config:
    """Read a configuration from any of its forms."""
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return config_from_mapping(config)
    return load_config(Path(config) if config is not None else None)


class Loader:
    """Loads from one configuration. Tests can supply chance and sleep."""

    def __init__(  # noqa: PLR0913 - what tests supply, and what its dials need
        self,
        config: Config,
        *,
        memory: ServerCache = _MEMORY,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        logins: Logins | None = None,
        hub: Hub | None = None,
        tls: ssl.SSLContext | None = None,
        is_hub: bool = False,
    ) -> None:
        """``tls`` takes the place of the usual context, for servers with a certificate that only the caller knows.

        ``is_hub``: calls are made as by a hub, so that a server behind another hub fails with what that one says of it.
        """
        self._config = config
        self._tls = tls
        self._is_hub = is_hub
        self._hub = hub
        self._memory = memory
        self._chance = chance
        self._sleep = sleep
        self._logins = logins or Logins()
        self._attempts: dict[str, Attempt[tuple[Offer, ...]]] = {}

    async def load(
        self,
        servers: Sequence[str] = (),
        *,
        on_outcome: OnOutcome | None = None,
        on_starting: OnStarting | None = None,
    ) -> LoadResult:
        """Load all enabled servers, or the named ones; each of them gets an outcome.

        If ``on_outcome`` raises, the load ends and the caller gets that exception.
        """
        chosen = self._chosen(servers)
        outcomes: dict[str, MCPServerLoadOutcome] = {}
        broken: list[Exception] = []  # what ``on_outcome`` raised
        settings = self._config.settings

        async with Warden() as warden, anyio.create_task_group() as tasks:
            dialer = Dialer(warden=warden, limits=settings.limits, authorize=self._logins.authorize, tls=self._tls)
            dial_limit = DialLimit(settings.load.concurrency, tasks)

            async def load_one(server: ServerSpec) -> None:
                outcome = outcomes[server.id] = await self._outcome(server, dialer, dial_limit)
                try:
                    if on_outcome is not None:
                        on_outcome(outcome)
                except Exception as exc:  # noqa: BLE001 - a task group would wrap it; it is raised below
                    broken.append(exc)
                    tasks.cancel_scope.cancel()

            async with anyio.create_task_group() as loads:
                if on_starting is not None:
                    tasks.start_soon(report_starts, self._attempts, on_starting)
                for server in chosen:
                    loads.start_soon(load_one, server, name=f"load {server.id}")
            # The timers of the dial limit, and the reports of starts: no server is loaded any more.
            tasks.cancel_scope.cancel()
        if broken:
            raise broken[0]
        return LoadResult(outcomes[server.id] for server in chosen)

    async def call(
        self, server: str, tool: str, args: Arguments, *, on_progress: ProgressFn | None = None
    ) -> CallResult:
        """Dial one server and call one tool; ``args`` may be a function of the tool's input schema."""
        (spec,) = self._chosen([server])
        if spec.problems:
            raise _call_failed(server, classify_evidence(bad_definition(spec)), bad_definition(spec))
        return await self._call(spec, tool, args, on_progress)

    def _chosen(self, names: Sequence[str]) -> list[ServerSpec]:
        known = self._config.servers
        if missing := [name for name in names if name not in known]:
            raise UnknownServer.among(missing[0], known)
        if names:
            return [known[name] for name in dict.fromkeys(names)]
        return [server for server in known.values() if server.enabled]

    async def _outcome(self, server: ServerSpec, dialer: Dialer, dial_limit: DialLimit) -> MCPServerLoadOutcome:
        began = anyio.current_time()
        if server.problems:
            return _failed(server.id, classify_evidence(bad_definition(server)), attempts=1, elapsed=0.0)
        redactor = Redactor(server.secrets)
        deadline = began + self._config.settings.load.total_timeout
        for attempt in itertools.count(1):
            found = await self._attempt(server, dialer, dial_limit, redactor, deadline)
            elapsed = anyio.current_time() - began
            if not isinstance(found, Verdict):
                return self._available(server, found, attempts=attempt, elapsed=elapsed)
            pause = self._pause(attempt, found)
            # A pause that ends too late for one more dial would only delay the same answer.
            if pause is None or anyio.current_time() + pause >= deadline - SHORTEST_DIAL:
                return _failed(server.id, found, attempts=attempt, elapsed=elapsed)
            await self._sleep(pause)
        raise AssertionError("the loop ends by returning")

    def _pause(self, attempt: int, verdict: Verdict) -> float | None:
        """Seconds until the next attempt; None if it cannot help or the attempts are used up."""
        policy = self._config.settings.load
        if verdict.status != "transient" or attempt >= policy.attempts:
            return None
        return delay(attempt, base=policy.backoff, chance=self._chance(), retry_after=verdict.retry_after)

    async def _attempt(
        self, spec: ServerSpec, dialer: Dialer, dial_limit: DialLimit, redactor: Redactor, deadline: float
    ) -> tuple[Offer, ...] | Verdict:
        """Dial, list, close: the tools, or the verdict on what was seen."""
        known, policy = self._memory.of(spec), self._config.settings.load
        found = self._attempts[spec.id] = Attempt(
            spec=spec,
            redactor=redactor,
            read=lambda connection, within: connection.list_tools(within=within),
            deadline=deadline,
            within=policy.attempt_timeout,
            total=policy.total_timeout,
            era=known.era,
        )
        await found.run(dialer, dial_limit)
        # Set by the handshake, so also where the listing failed after it: the era is known then.
        if found.version:
            known.era, known.connected = found.era, True
        if found.evidence is None:
            return found.listing or ()
        verdict = classify_evidence(found.evidence, connected_before=known.connected)
        if verdict.status == "permanent":
            known.era = None  # the server may speak another era now: the next load probes again
        return verdict

    def _available(
        self, spec: ServerSpec, offers: Iterable[Offer], *, attempts: int, elapsed: float
    ) -> MCPServerLoadOutcome:
        async def call(
            name: str, args: Mapping[str, Any], on_progress: ProgressFn | None, within: float | None
        ) -> CallResult:
            if self._hub is not None:
                params, send = {"name": name, "arguments": dict(args)}, self._hub.registry.request
                return CallResult.from_raw(
                    await send(spec.id, "tools/call", params, on_progress=on_progress, within=within)
                )
            with anyio.move_on_after(within):
                return await self._call(spec, name, args, on_progress)
            raise no_answer(spec.id, "tools/call", within or 0.0)

        tools = [Tool(spec.id, name, raw, call) for name, raw in offers if is_shown(name, spec.tools)]
        return MCPServerLoadOutcome(
            server_id=spec.id, status="available", tools=tools, attempts=attempts, elapsed_s=elapsed
        )

    async def _call(self, spec: ServerSpec, tool: str, args: Arguments, on_progress: ProgressFn | None) -> CallResult:
        """Dial, call, close."""
        settings, known = self._config.settings, self._memory.of(spec)
        redactor = Redactor(spec.secrets)
        try:
            async with Warden() as warden:
                dialer = Dialer(
                    warden=warden,
                    limits=settings.limits,
                    authorize=self._logins.authorize,
                    tls=self._tls,
                    is_hub=self._is_hub,
                )
                async with dialer.connect(
                    spec,
                    within=settings.load.attempt_timeout,
                    start_within=spec.start_timeout,
                    redactor=redactor,
                    era=known.era,
                ) as connection:
                    known.era, known.connected = connection.era, True
                    if callable(args):
                        args = args(await self._input_schema(spec, connection, tool))
                    policy = settings.call.of(spec)
                    return await connection.call_tool(
                        tool,
                        args,
                        idle=policy.timeout,
                        within=policy.hard_timeout,
                        on_progress=on_progress,
                    )
        except (UnknownTool, UsageError):
            raise
        except Exception as exc:  # noqa: BLE001 - every fault becomes a failed call
            seen = masked(evidence_in(exc), redactor)
            verdict = classify_evidence(seen, connected_before=known.connected)
        # Raised outside the handler, and so without a chain: the exception of a library may quote secrets.
        raise _call_failed(spec.id, verdict, seen)

    async def _input_schema(self, spec: ServerSpec, connection: Connection, tool: str) -> Mapping[str, Any]:
        listed = dict(await connection.list_tools(within=self._config.settings.load.attempt_timeout))
        if tool in listed:
            return listed[tool].get("inputSchema") or {}
        hint = near(tool, list(listed), "it lists no tools")
        raise UnknownTool(f"the server `{spec.id}` has no tool `{tool}`", hint=hint)


async def report_starts(attempts: Mapping[str, Attempt[Any]], on_starting: OnStarting) -> None:
    """Tell ``on_starting`` once a second of each attempt whose process has not answered yet, until cancelled."""
    while True:
        await anyio.sleep(STARTING_SECONDS)
        for server, attempt in attempts.items():
            if (starting := attempt.starting) is not None:
                on_starting(server, starting)


def _failed(server_id: str, verdict: Verdict, *, attempts: int, elapsed: float) -> MCPServerLoadOutcome:
    return MCPServerLoadOutcome(
        server_id=server_id,
        status=verdict.status,
        error=f"{verdict.reason}; it is tried again at the next load"
        if verdict.status == "transient"
        else verdict.reason,
        unconfirmed=verdict.unconfirmed,
        hint=verdict.hint,
        attempts=attempts,
        elapsed_s=elapsed,
    )


def _call_failed(server_id: str, verdict: Verdict, evidence: Evidence) -> CallFailed:
    return CallFailed(evidence, f"the call to `{server_id}` failed: {verdict.reason}", hint=verdict.hint)
