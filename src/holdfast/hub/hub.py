"""The hub: many agents share one set of connections that heals itself.

``Hub`` is what programs use, in three parts: what readers see (here), what callers ask (``HubCalls``), and what
operators do (``Operations``). The slots, the catalog and the tasks behind it are in registry.py. The catalog is an
immutable snapshot: a reader takes one reference and keeps it. A call finds the live connection when it is made.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

from holdfast.access import LOCAL
from holdfast.auth import IdTokens, Logins, SubjectTokens, UserTokenStore
from holdfast.config import ApprovalMode, Config
from holdfast.core import (
    HUB_NAME,
    ApprovalKind,
    Catalog,
    Health,
    Kind,
    NameKey,
    State,
    Unknown,
    counted,
    events as on,
    is_repeatable,
    nearest,
)
from holdfast.errors import CallForbidden, HubClosed, LoadFailed, ServerDisabled, UnknownTool
from holdfast.hub.approvals import Approvals, ApprovalsLock, shown
from holdfast.hub.hub_clock import Clock, RealClock
from holdfast.hub.journal import HubRecord, OnWarning, Sink, Warnings, WarningSink, warnings_of
from holdfast.hub.kept_results import READ_RESULT, KeptResults, has_output_schema, read_result_tool
from holdfast.hub.loader import read
from holdfast.hub.registry import Replicas, SlotRegistry, access_item, suggested, use_login
from holdfast.hub.slot import Slot
from holdfast.hub.slot_call import read_result
from holdfast.hub.state_store import default_state_file
from holdfast.hub.tool_index import ToolIndex, found_tool
from holdfast.types import CallResult, FoundTool, ProgressFn, Tool, check_timeout
from holdfast.wire import Fields, HubTls, SignAssertion, dumps, load_members

__all__ = ["Hub"]


class _CalledTool(NamedTuple):
    """Where the calls of a tool go."""

    key: NameKey
    own_name: bytes
    """Its name at the server, as JSON."""
    repeatable: bool
    """Whether it is declared read-only or idempotent."""
    has_output_schema: bool
    """Whether its result must stay whole."""


class HubCalls:
    """The part of ``Hub`` for callers: tools, prompts, resources and completions, by their names in the catalog."""

    def __init__(self, registry: SlotRegistry) -> None:
        self.registry = registry
        """The inside of the hub, for Holdfast's own packages. It may change with any version."""
        self._called: dict[str, _CalledTool] = {}
        self._called_in: Catalog | None = None
        """The catalog that ``_called`` was looked up in."""
        self.tool_index = ToolIndex()
        """The search over the catalog's tools, for Holdfast's own packages."""
        self.kept_results = KeptResults(lambda: registry.config.settings.large_results, registry.clock.now)
        """The results that were too large to go out whole, for Holdfast's own packages."""

    def tools(self) -> tuple[Tool, ...]:
        """Handles on all listed tools; each finds the live connection when it is called.

        With ``largeResults`` in the configuration, the hub's own tool ``read_result`` is among them. Raises
        ``HubNotOpen`` or ``HubClosed``.
        """
        self.registry.require_use()
        listed = [entry for entry in self.registry.catalog.tools if self._may_list(entry.key)]
        tools = [Tool(entry.server, entry.name, shown(entry), self._call) for entry in listed]
        own = [read_result_tool()] if self.kept_results.is_on else []
        return (*tools, *(Tool(HUB_NAME, one["name"], one, self._call) for one in own))

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: ProgressFn | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - part of the public interface
    ) -> CallResult:
        """Call a tool by its name in the catalog; ``read_result`` is the hub's own, where results are kept.

        ``timeout`` is for this call, in seconds, its waits included; the server's own limits hold beside it.

        Raises ``UnknownTool`` if no server has it, and ``NotAnswered`` if there is no result: ``ServerUnavailable`` or
        ``ToolHeld`` if it was not sent, ``CallFailed`` if it did not complete. A tool that fails is a result.
        """
        check_timeout(timeout)
        if name == READ_RESULT and self.kept_results.is_on:
            return await self._read_on(arguments or {})
        tool = self._called.get(name) if self._called_in is self.registry.catalog else None
        if tool is None or self.registry.is_closing:
            tool = self._tool(name)
        if arguments is not None and not isinstance(arguments, Mapping):
            raise TypeError(f"the arguments of `{name}` must be a mapping, not {type(arguments).__name__}")
        params: Fields = {"name": tool.own_name, "arguments": dumps(arguments or {})}
        judged = not self.registry.policy.is_open
        if judged:
            self._check(tool.key, arguments)
        slot = self.registry.slot(tool.key.server)
        result = await slot.call(
            "tools/call",
            params,
            repeatable=tool.repeatable,
            on_progress=on_progress,
            within=timeout,
            check=partial(self._check, tool.key, arguments),
            exact=judged,
        )
        if self.registry.config.settings.large_results.over and not tool.has_output_schema:
            result = await self.kept_results.shortened(result, name, principal=LOCAL.name)
        return CallResult.from_raw(await read_result(tool.key.server, result))

    async def read_result(self, handle: str, *, offset: int = 0, query: str | None = None) -> CallResult:
        """Read on in a large result that was kept: from a character on, or around the places where a text occurs."""
        return await self._read_on({"handle": handle, "offset": offset, "query": query})

    async def find_tools(self, query: str, *, limit: int = 5, server: str | None = None) -> tuple[FoundTool, ...]:
        """Find tools by what they do, in plain words; the best first, at most ``limit``, of one server if it is named.

        Each hit says whether it can be called now. A tool of a server that is disabled or denies access, or one that
        is held until its change is approved, is not found.

        Raises ``UnknownServer`` if the named server is not configured.
        """
        self.registry.require_use()
        if server is not None:
            self.registry.slot(server)
        held, slots, denied = self.registry.approvals.is_held, self.registry.slots, denying(self.registry)
        found = await self.tool_index.search(
            self.registry.catalog,
            query,
            limit=limit,
            allowed=lambda entry: (
                server in (None, entry.server)
                and entry.server not in denied
                and not held(entry.server, entry.original)
                and self._may_list(entry.key)
            ),
        )
        return tuple(found_tool(one, one.name, slots[one.server].health()) for one in found if one.server in slots)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - part of the public interface
    ) -> Mapping[str, Any]:
        """Get a prompt by its name in the catalog. Raises ``UnknownTool`` or ``NotAnswered``, as ``call_tool`` does."""
        check_timeout(timeout)
        key = self._owner(name, Kind.PROMPT)
        params = {"name": key.original, "arguments": dict(arguments or {})}
        judged = not self.registry.policy.is_open
        if judged:
            self._check(key, arguments)
        return await self.registry.request(
            key.server, "prompts/get", params, repeatable=True, within=timeout, exact=judged
        )

    async def read_resource(
        self,
        uri: str,
        *,
        server: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - part of the public interface
    ) -> Mapping[str, Any]:
        """Read a resource by its URI in the catalog, or any URI of a server that is named.

        Raises ``UnknownTool``, ``UnknownServer`` or ``NotAnswered``, as ``call_tool`` does.
        """
        check_timeout(timeout)
        self.registry.require_use()
        key = self._owner(uri, Kind.RESOURCE) if server is None else NameKey(Kind.RESOURCE, server, uri)
        if not self._may_list(key):
            raise _unknown(Unknown(uri, ()), Kind.RESOURCE)
        params = {"uri": key.original}
        return await self.registry.request(key.server, "resources/read", params, repeatable=True, within=timeout)

    async def complete(self, ref: Mapping[str, Any], argument: Mapping[str, str]) -> Mapping[str, Any]:
        """Ask for completions of a prompt's or a template's argument; ``ref`` uses the catalog's names.

        Raises ``UnknownTool`` or ``NotAnswered``, as ``call_tool`` does.
        """
        by_uri = ref.get("type") == "ref/resource"
        by, other = ("uri", "name") if by_uri else ("name", "uri")
        key = self._owner(str(ref[by]), Kind.TEMPLATE if by_uri else Kind.PROMPT)
        # The key of the other type is not judged, so its server must not read it.
        named = {**{part: value for part, value in ref.items() if part != other}, by: key.original}
        params = {"ref": named, "argument": dict(argument)}
        result = await self.registry.request(key.server, "completion/complete", params, repeatable=True)
        if not by_uri or self.registry.policy.grants(LOCAL).is_unlimited:
            return result
        given = result.get("completion")
        values = given.get("values") if isinstance(given, Mapping) else None
        said = values if isinstance(values, list) else []
        return {**result, "completion": {"values": await suggested(self.registry, LOCAL, key, params, said)}}

    def _tool(self, name: str) -> _CalledTool:
        """Look a tool up; a listed one once for each version of the catalog."""
        catalog = self.registry.catalog
        if self._called_in is not catalog:
            self._called, self._called_in = {}, catalog
        key = self._owner(name, Kind.TOOL)
        tool = _CalledTool(key, dumps(key.original), is_repeatable(catalog, name), has_output_schema(catalog, key))
        if catalog.entry(name) is not None:
            self._called[name] = tool
        return tool

    def _owner(self, name: str, kind: Kind) -> NameKey:
        self.registry.require_use()
        found = self.registry.find(name, kind)
        if isinstance(found, NameKey) and self._may_list(found):
            return found
        if isinstance(found, NameKey) or not self.registry.policy.is_open:
            listed = (entry.name for entry in self.registry.catalog.of(kind) if self._may_list(entry.key))
            found = Unknown(name, nearest(name, listed))
        raise _unknown(found, kind)

    def _may_list(self, key: NameKey) -> bool:
        """Whether an item is there for a program, which is ``local``."""
        policy = self.registry.policy
        return policy.is_open or policy.may_list(LOCAL, access_item(self.registry, key))

    def _check(self, key: NameKey, arguments: Mapping[str, Any] | None) -> None:
        """Raise if the access rules refuse this call to ``local``."""
        decision = self.registry.policy.decide(LOCAL, access_item(self.registry, key), arguments)
        if decision.effect != "allow":
            raise CallForbidden(
                f"'{LOCAL.name}' was denied `{key.original}` of MCP server '{key.server}': {decision.reason}",
                rule=decision.rule,
                hint=f"`holdfast.access.{decision.rule}` of the configuration decides it",
            )

    async def _read_on(self, asked: Mapping[str, Any]) -> CallResult:
        self.registry.require_use()
        return CallResult.from_raw(await load_members(await self.kept_results.read(asked, LOCAL.name)))

    async def _call(
        self, name: str, args: Mapping[str, Any], on_progress: ProgressFn | None, within: float | None
    ) -> CallResult:
        return await self.call_tool(name, args, on_progress=on_progress, timeout=within)


def _unknown(found: Unknown, kind: Kind) -> UnknownTool:
    noun = kind.value.removesuffix("s")
    hint = f"did you mean {' or '.join(found.nearest)}?" if found.nearest else ""
    return UnknownTool(f"no server has a {noun} named `{found.name}`", hint=hint)


def denying(registry: SlotRegistry) -> frozenset[str]:
    """The servers that deny access now: what may not be called is not found."""
    return frozenset(name for name, slot in registry.slots.items() if slot.health().status == "denied")


class Operations:
    """The part of ``Hub`` for operators: commands for its servers."""

    registry: SlotRegistry

    async def reconnect(self, name: str) -> Health:
        """Make a new connection now; of a server that is per user, those of all users.

        A user who is denied access is no failure of the server.

        Raises ``UnknownServer``, ``ServerDisabled``, ``HubClosed``, or ``LoadFailed`` with the reason.
        """
        slot, users = self._slot(name), self.registry.users
        _require_served(slot)
        own = [one for _, one in users.of_server(name)]
        # Where no caller is `local`, the shared slot of a per-user server is not used.
        common = [slot] if self.registry.has_local or name not in users.servers else []
        dialed = [*common, *own]
        # All begin before one of them is waited for: the slowest decides how long it takes, not their sum.
        for one in dialed:
            one.handle(on.ReconnectRequested())
        for one, generation in [(one, one.machine.dialing) for one in dialed]:
            while generation is not None and one.machine.dialing == generation:
                await one.changed()
            _require_served(slot)  # still
            failure = one.leases.failed_dial
            if failure is None or failure.event.generation != generation:
                continue  # it succeeded, or its failure is that of an earlier dial
            if not (one in own and failure.event.status == "denied"):
                reason = failure.event.reason
                raise LoadFailed(failure.evidence, f"MCP server '{slot.id}' could not be connected: {reason}")
        return slot.health()

    async def toggle(self, name: str, enabled: bool) -> Health:
        """Enable or disable a server. Idempotent; enabling resets its health.

        Enabling takes no time. Disabling waits until the server is disabled.

        Raises ``UnknownServer``, or ``HubClosed`` if the server is no longer served.
        """
        slot = self._slot(name)
        self.registry.writer.changed(at_once=True)
        if self.registry.fleet is not None:
            self.registry.fleet.decisions.note_switch(name, not enabled)
        slot.handle(on.EnableRequested() if enabled else on.DisableRequested())
        # Bounded by the machine: a close that hangs counts as done after `close_patience`.
        while not enabled and slot.state is State.DISABLING:
            await slot.changed()
        if slot.machine.life.stopped:
            raise _refusal(slot)
        return slot.health()

    def logged_in(self, name: str) -> Health:
        """Try a server again now that was denied or parked, because it has new credentials.

        Raises ``UnknownServer``.
        """
        slot = self._slot(name)
        use_login(self.registry, name)
        return slot.health()

    def approve(
        self, server: str, tool: str | None = None, *, mark: str | None = None, kind: ApprovalKind = "tool"
    ) -> tuple[str, ...]:
        """Approve the pending changes of a server, one or all: what was held can be used again.

        ``kind`` says what is named: a tool, a prompt, or the instructions, which have no name. With the ``mark`` of the
        change that was reviewed, a newer change is not approved.

        Raises ``UnknownServer``, ``UnknownTool``, or ``ToolHeld`` if it cannot be approved here.
        """
        self._slot(server)
        approved = self.registry.approvals.approve(server, tool, mark=mark, kind=kind)
        self.registry.publisher.publish_again(server)
        self.registry.writer.changed(at_once=True)
        return approved

    async def apply(self, config: Config) -> None:
        """Use a new configuration; only the connections of servers whose definition changed are touched.

        Raises ``HubNotOpen`` or ``HubClosed``.
        """
        self.registry.require_use()
        await self.registry.apply(config)

    def _slot(self, name: str) -> Slot:
        self.registry.require_use()
        return self.registry.slot(name)


def _require_served(slot: Slot) -> None:
    if slot.machine.life.stopped or slot.state in (State.DISABLED, State.DISABLING):
        raise _refusal(slot)


def _refusal(slot: Slot) -> ServerDisabled | HubClosed:
    state = slot.state
    if state in (State.DISABLED, State.DISABLING):
        return ServerDisabled(f"MCP server '{slot.id}' is {state.value}", server_id=slot.id, state=state.value)
    return HubClosed(f"MCP server '{slot.id}' is no longer served", server_id=slot.id, state=state.value)


class Hub(Operations, HubCalls):
    """Many MCP servers behind one set of connections. Use it as ``async with Hub.from_config("mcp.json") as hub``.

    Before it is entered, it can be listened to and closed. Everything else raises ``HubNotOpen``. After ``close`` its
    ``config`` and ``approvals`` can still be read and ``events`` ends at once. Everything else raises ``HubClosed``.
    """

    def __init__(  # noqa: PLR0913 - a hub is whole when it is made
        self,
        config: Config,
        *,
        state_file: Path | None = None,
        on_warning: OnWarning | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        logins: Logins | None = None,
        approvals: ApprovalMode | ApprovalsLock = "warn",
        fleet: Replicas | None = None,
        hub_tls: HubTls | None = None,
        sign: SignAssertion | None = None,
        is_local: bool = False,
        has_local: bool = True,
        user_tokens: UserTokenStore | None = None,
        subjects: SubjectTokens | None = None,
        id_tokens: IdTokens | None = None,
    ) -> None:
        """``approvals`` is for servers where the configuration does not say it; a lock overrides what it says.

        ``hub_tls`` gives the certificates for servers that another hub of the same key has. ``sign`` makes the
        assertions about callers for servers with ``identity: signed``. ``is_local`` says that
        only this machine can reach the hub: then it tells its clients why a server fails (``holdfast_doctor``).
        ``has_local`` says whether there are callers without an identity: for them a per-user server is started at
        once. ``user_tokens`` are the logins of all other users; ``subjects`` and ``id_tokens`` what the hub may
        exchange for tokens of theirs.
        """
        if not isinstance(config, Config):
            raise TypeError(f"Hub takes a Config, not {type(config).__name__}: use Hub.from_config(…) for a file")
        registry = SlotRegistry(
            config,
            state_file=state_file,
            clock=clock or RealClock(),
            chance=chance,
            logins=logins or Logins(),
            approvals=approvals,
            fleet=fleet,
            hub_tls=hub_tls,
            sign=sign,
            has_local=has_local,
            user_tokens=user_tokens,
            subjects=subjects,
            id_tokens=id_tokens,
        )
        super().__init__(registry)
        self.is_local = is_local
        if on_warning is not None:
            # The servers of a hub that closes are reported too.
            registry.journal.add_sink(WarningSink(on_warning, lambda name: registry.slot(name).health()), calls=None)

    @classmethod
    def from_config(
        cls,
        source: Config | Mapping[str, Any] | str | Path | None = None,
        *,
        state_file: Path | None = None,
        on_warning: OnWarning | None = None,
        clock: Clock | None = None,
    ) -> Hub:
        """A hub for an ``mcp.json``, a mapping of the same form, or the file found in the usual places.

        The last good catalog of a file survives a restart: in ``state_file``, or in the user's state folder. The
        catalog of a mapping survives only in a ``state_file``. ``clock`` is for tests (``holdfast.testing.FakeClock``).

        Raises ``ConfigError``: also ``ConfigNotFound``, and ``UntrustedConfig`` for a project's own file.
        """
        config = read(source)
        if state_file is None and config.source is not None:
            state_file = default_state_file(config.source)
        return cls(config, state_file=state_file, on_warning=on_warning, clock=clock)

    async def __aenter__(self) -> Self:
        """Start, and return at once: servers come up in the background."""
        await self.registry.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.registry.leave()
        await self.tool_index.close()
        self.kept_results.close()

    async def close(self) -> None:
        """End every connection. Idempotent, bounded, safe while servers are being dialed; nothing revives."""
        await self.registry.close()

    # What readers see.

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.registry.config

    @property
    def catalog(self) -> Catalog:
        """Everything that the servers offer: an immutable snapshot with a version."""
        self.registry.require_use()
        return self.registry.catalog

    @property
    def approvals(self) -> Approvals:
        """The tools that changed since they were first seen."""
        return self.registry.approvals

    async def ready(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - part of the public interface
        """Wait until every server has an outcome, which may be a failure; False if the time ran out."""
        self.registry.require_use()
        clock = self.registry.clock
        until = clock.now() + timeout if timeout is not None else None
        for slot in list(self.registry.slots.values()):
            # One after the other under one deadline: the sum of the waits is the longest of them.
            if not slot.has_outcome.is_set() and not await clock.wait(slot.has_outcome, until):
                return False
        return True

    @property
    def servers(self) -> Mapping[str, Health]:
        """Every configured server and its health: none is ever missing."""
        self.registry.require_use()
        return MappingProxyType({name: slot.health() for name, slot in self.registry.slots.items()})

    def server_health(self, name: str) -> Health:
        """The health of one server: state, reason, generation, failures, attempts, breaker, next try.

        Raises ``UnknownServer``.
        """
        return self._slot(name).health()

    def warnings(self) -> Warnings:
        """The servers that are unavailable, in words for people and for the model."""
        return warnings_of(self.servers.values())

    def events(self) -> AsyncIterator[HubRecord]:
        """Every transition, trip, retry and publication from now on, until the hub is closed."""
        return self.registry.journal.records()

    def listen(self, sink: Sink) -> Callable[[], None]:
        """Call ``sink`` with every record at once, those of calls too; it must not wait. The result ends it."""
        if self.registry.context is not None:
            self.registry.require_use()
        return self.registry.journal.add_sink(sink, calls=sink)

    def __repr__(self) -> str:
        registry = self.registry
        state = "" if registry.context is not None else ", not open"
        return f"<Hub of {counted(len(registry.config.servers), 'server')}, catalog {registry.catalog.version}{state}>"
