"""Dial a server: a live connection, or ``ServerFailure`` with the evidence. Every connection is closed again.

File descriptors: a hub that runs out of them says so, and blames no server for it (LIFE-30).

A connection that needs a descriptor of the last few is refused, so that clients of the hub can still connect.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import anyio
import mcp_types as types
from mcp import ClientSession
from mcp.client.session import IncomingMessage

from holdfast._version import __version__
from holdfast.config import UNIX, Limits, ServerSpec
from holdfast.core import BadConfig, Evidence, OutOfDescriptors, ProcessExit, Redactor, TimedOut, hub_warns, speaks_hub
from holdfast.errors import ServerFailure
from holdfast.wire.caller_identity import CallerIdentity, SignAssertion
from holdfast.wire.handshake import negotiate
from holdfast.wire.http.client import CONNECT_SECONDS, Authorize, HttpPeer
from holdfast.wire.http.transport import HttpDispatcher, SseDispatcher
from holdfast.wire.hub_peer import HubPeer
from holdfast.wire.in_flight import Era
from holdfast.wire.process import Child, OnStderr
from holdfast.wire.relay import Relay, RelayDispatcher
from holdfast.wire.session import CLOSE_SECONDS, Connection, Wire, close_session, declared
from holdfast.wire.stdio_transport import StdioDispatcher
from holdfast.wire.warden import Warden

__all__ = [
    "DialHooks",
    "Dialer",
    "HubTls",
    "OnNotification",
    "descriptor_shortage",
    "raise_descriptor_limit",
    "require_descriptors",
]

log = logging.getLogger("holdfast.hub")

ENOUGH = 65_536
"""The limit to ask for. Some programs close every possible descriptor when they start, so more costs time."""

MOST_RESERVED = 64
"""How many descriptors are kept for clients, the state file and the log; an eighth of a small limit."""

SAY_AGAIN_SECONDS = 60.0


def raise_descriptor_limit() -> None:
    """Raise the soft limit of this process, as far as the system allows; call it once, at start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as exc:
        log.warning("the limit of %d file descriptors could not be raised: %s", soft, exc)
    else:
        log.debug("the limit of file descriptors was raised from %d to %d", soft, wanted)


def require_descriptors() -> None:
    """Raise ``ServerFailure`` if only the reserved descriptors are free."""
    limit = _limit()
    try:
        lowest_free = os.dup(_ANY)
    except OSError as exc:
        if exc.errno not in _NONE_FREE:
            return
        lowest_free = limit
    else:
        os.close(lowest_free)
    if lowest_free >= limit - min(MOST_RESERVED, limit // 8):
        _say(limit)
        raise ServerFailure(OutOfDescriptors(limit=limit))


def descriptor_shortage(exc: BaseException) -> OutOfDescriptors | None:
    """The evidence of an exception, or of what caused it, if the process had no free descriptor."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [exc]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, OSError) and one.errno in _NONE_FREE:
            _say(limit := _limit())
            return OutOfDescriptors(limit=limit)
        inner = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        pending += [one.__cause__, one.__context__, getattr(one, "os_error", None), *inner]
    return None


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def _say(limit: int) -> None:
    """Log it, once in a while: every dial of a large fleet meets the same limit."""
    global _said_at  # noqa: PLW0603 - there is one process, and one limit
    now = time.monotonic()
    if _said_at is None or now - _said_at > SAY_AGAIN_SECONDS:
        _said_at = now
        log.error("the hub has no free file descriptors (limit %d): it makes no new connections until some are", limit)


_said_at: float | None = None
_NONE_FREE = (errno.EMFILE, errno.ENFILE)
_ANY = 0


OnNotification: TypeAlias = Callable[[str], None]
"""Called with the method of each notification that belongs to no request; must not wait."""


@dataclass(frozen=True, kw_only=True)
class DialHooks:
    """What a dial reports to its caller."""

    on_notice: OnNotification | None = None
    relay: Relay | None = None
    """Gets the server's own requests."""
    on_start: Callable[[Child], None] | None = None
    """Called with each process that the dial starts."""


_NO_HOOKS = DialHooks()


HUB_ID_BYTES = 9
"""Of the id by which the hubs behind this one know its requests again; each start makes another one."""

HubTls: TypeAlias = Callable[[], ssl.SSLContext]
"""Gives the context for connections to hubs of the same fleet. Raises ``ServerFailure`` if there is no shared key."""


class Dialer:
    """Dials servers under one set of bounds and one warden.

    ``is_hub`` if a hub dials: then a hub on the other side is one behind it, with its own channel (``hub_peer``). A
    program that calls a hub as its client is none. ``hub_tls`` are the certificates for other hubs of the same fleet.
    ``tls`` takes the place of the usual context, for servers with a certificate that only the caller knows.
    ``sign`` makes the assertions for servers that are told who calls in a form that they can verify.
    """

    def __init__(  # noqa: PLR0913 - what a dial may use
        self,
        *,
        warden: Warden,
        limits: Limits,
        authorize: Authorize | None = None,
        on_stderr: OnStderr | None = None,
        is_hub: bool = False,
        hub_tls: HubTls | None = None,
        tls: ssl.SSLContext | None = None,
        sign: SignAssertion | None = None,
    ) -> None:
        self._tls = tls
        self._is_hub = is_hub
        self._hub_id = secrets.token_urlsafe(HUB_ID_BYTES)
        self._hub_tls = hub_tls
        self._sign = sign
        self._warden = warden
        self._limits = limits
        self._authorize = authorize
        self._on_stderr = on_stderr

    def with_logins(self, authorize: Authorize) -> Dialer:
        """The same dialer, with the logins of one user."""
        other = copy(self)
        other._authorize = authorize  # noqa: SLF001 - of the same class
        return other

    def adopt(self, limits: Limits) -> None:
        """Use other bounds for new connections."""
        self._limits = limits

    @asynccontextmanager
    async def connect(
        self,
        spec: ServerSpec,
        *,
        within: float,
        start_within: float | None = None,
        redactor: Redactor,
        era: Era | None = None,
        hooks: DialHooks = _NO_HOOKS,
    ) -> AsyncIterator[Connection]:
        """A connection after its handshake, within so many seconds.

        With ``start_within``, a process may take so long for its first answer; ``within`` begins with that answer.
        """
        require_descriptors()
        if spec.era != "auto":
            era = spec.era
        first = start_within if start_within is not None and spec.transport == "stdio" else within
        times = _Times(deadline=anyio.current_time() + first, within=within)
        try:
            connection = await self._dial(spec, times, redactor, era, hooks)
        except ServerFailure as failure:
            if not _probe_ended_it(failure.evidence, era):
                raise
            connection = await self._dial(spec, times, redactor, "legacy", hooks)
        try:
            yield connection
        finally:
            await connection.aclose()

    async def _dial(
        self,
        spec: ServerSpec,
        times: _Times,
        redactor: Redactor,
        era: Era | None,
        hooks: DialHooks,
    ) -> Connection:
        identity = self._identity_for(spec)
        closers = AsyncExitStack()
        # Emptied at the end: the session refers to the function that reads it, and the hooks to the session's owner.
        readers: list[OnNotification] = [hooks.on_notice] if hooks.on_notice is not None else []
        closers.callback(readers.clear)

        async def noticed(message: IncomingMessage) -> None:
            if readers and not isinstance(message, Exception) and not _of_one_resource(message):
                readers[0](message.method)

        try:
            wire = await self._open(closers, spec, redactor, hooks, times)
            me = types.Implementation(name="holdfast", version=__version__)
            relayed = RelayDispatcher(wire, wire.in_flight, spec.id, hooks.relay)
            session = ClientSession(dispatcher=relayed, client_info=me, message_handler=noticed)
            await session.__aenter__()
        except BaseException:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await closers.aclose()
            raise
        try:
            # The SSE transport exists only in the legacy era.
            era = "legacy" if spec.transport == "sse" else era
            era = await self._greet(session, wire, times, era, fixed=spec.era != "auto")
            said = declared(session)
            hub: HubPeer | None = None
            if (self._is_hub or spec.hub) and speaks_hub(said):
                hub = HubPeer(proven=bool(spec.hub), own_id=self._hub_id, warns=hub_warns(said))
            connection = Connection(session, wire, relayed, self._limits, closers, era=era, hub=hub, identity=identity)
        except BaseException:
            await close_session(session, closers)
            raise
        readers[:] = [partial(_told, connection, hooks.on_notice)]
        return connection

    async def _greet(self, session: ClientSession, wire: Wire, times: _Times, era: Era | None, *, fixed: bool) -> Era:
        left = max(times.deadline - anyio.current_time(), 0.0)
        try:
            with anyio.fail_after(left) as scope:
                times.scope = scope
                has_read = wire.has_read if isinstance(wire, StdioDispatcher) else None
                era = await negotiate(session, era=era, has_read=has_read, fixed=fixed)
        except TimeoutError:
            raise ServerFailure(wire.unanswered() or _silence(wire, left, times)) from None
        finally:
            times.scope = None  # it refers to the task, and its exception to these times
        wire.stood = True
        return era

    async def _open(
        self, stack: AsyncExitStack, spec: ServerSpec, redactor: Redactor, hooks: DialHooks, times: _Times
    ) -> Wire:
        """Open the transport; the stack closes it. Does not wait for an answer."""
        if spec.transport == "stdio":
            keep = self._limits.stderr_bytes
            lines = partial(_pass_on, self._on_stderr, spec.id, redactor)
            child = await Child.start(spec, warden=self._warden, redactor=redactor, keep=keep, on_line=lines)
            if hooks.on_start is not None:
                hooks.on_start(child)
            pipes = StdioDispatcher(child, self._limits, redactor, times.first_message)
            stack.push_async_callback(lambda: child.close(politely=pipes.stood))
            return pipes
        authorizer = self._authorize(spec) if self._authorize is not None else None
        # A connection may take as long as an attempt, also the second one of a listing and that of a later call.
        patience = max(CONNECT_SECONDS, times.within)
        peer = HttpPeer(
            spec,
            self._limits,
            redactor,
            authorizer,
            tls=self._tls_for(spec),
            connect_within=patience,
        )
        stack.push_async_callback(peer.aclose)
        if spec.transport == "sse":
            return SseDispatcher(peer)
        posts = HttpDispatcher(peer)
        stack.push_async_callback(posts.end_session)
        return posts

    def _identity_for(self, spec: ServerSpec) -> CallerIdentity | None:
        """What the server is told about callers. A program that is no hub calls in its own name."""
        if not self._is_hub:
            return None
        if spec.identity == "signed" and self._sign is None:
            raise ServerFailure(BadConfig(problems=(_NO_KEY_SET,), hint=_NO_KEY_SET_HINT))
        return CallerIdentity.of(spec, self._sign)

    def _tls_for(self, spec: ServerSpec) -> ssl.SSLContext | None:
        """The context for a hub of the same fleet, or the caller's own; None for the usual one."""
        if not spec.hub or spec.hub.startswith(UNIX):
            return self._tls
        if self._hub_tls is None:
            raise ServerFailure(BadConfig(problems=(_NO_KEY,), hint=_NO_KEY_HINT))
        return self._hub_tls()


_NO_KEY_SET = "`identity: signed` needs a hub over HTTP: only that one publishes the keys of its assertions"
_NO_KEY_SET_HINT = "run `holdfast serve` without --own, or write `identity: header`"
_NO_KEY = "a hub at another address needs the key that both hubs share"
_NO_KEY_HINT = "give both the same --session-key-file, or the same HOLDFAST_SESSION_KEY"


@dataclass
class _Times:
    """The limits of a handshake: when the first answer must be there, and the seconds for the rest after it."""

    deadline: float
    within: float
    scope: anyio.CancelScope | None = None
    """The wait for the handshake, once it has begun."""

    def first_message(self) -> None:
        """The first answer came: the rest has its own time."""
        if self.scope is not None:
            self.scope.deadline = min(self.scope.deadline, anyio.current_time() + self.within)


def _silence(wire: Wire, left: float, times: _Times) -> TimedOut:
    """A handshake that took too long, with the key that gives it more time."""
    if isinstance(wire, HttpDispatcher | SseDispatcher) and wire.connecting:
        return TimedOut(doing="a connection", after=round(left, 1), sent=False)
    if not isinstance(wire, StdioDispatcher):
        return TimedOut(doing="its first answer", after=round(left, 1))
    if wire.spoke:
        return TimedOut(doing="the end of the handshake", after=round(min(times.within, left), 1))
    return TimedOut(doing="its first answer", after=round(left, 1), setting="startTimeout", stderr=wire.last_line)


def _told(connection: Connection, pass_on: OnNotification | None, method: str) -> None:
    """A notification came that belongs to no request."""
    if method == "notifications/subscriptions/acknowledged":
        connection.acknowledged()
    elif pass_on is not None:
        pass_on(method)


def _pass_on(on_stderr: OnStderr | None, server: str, redactor: Redactor, line: bytes) -> None:
    if on_stderr is not None:
        on_stderr(server, line, redactor)


def _of_one_resource(message: types.ServerNotification) -> bool:
    """Whether a stream was opened for one resource, and not for the lists."""
    if not isinstance(message, types.SubscriptionsAcknowledgedNotification):
        return False
    return bool(message.params.notifications.resource_subscriptions)


def _probe_ended_it(seen: Evidence, era: Era | None) -> bool:
    """Some old servers exit when a request comes before ``initialize``: they are dialed again without a probe."""
    return era is None and isinstance(seen, ProcessExit) and seen.heard and not seen.stood
