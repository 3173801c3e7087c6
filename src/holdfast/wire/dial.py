"""Dial a server: a live connection, or ``ServerFailure`` with the evidence. Every connection is closed again.

An ``Attempt`` brings a server up once: wait for a place, dial, list, close. The hub, one-shot loads and doctor share
it. Nothing is decided here. An attempt says what was seen and how long each step took; ``core.classify`` says what that
means, and the caller decides whether there is another attempt.

Who closes what. A dial opens a transport, serves it in a task of its own, and makes a ``Connection`` of it after the
handshake. Each of them is on one stack of closers. A step that fails closes the ones before it, shielded and bounded,
before its failure is raised.

Time. ``within`` bounds the handshake. A process has ``start_within`` for its first answer, since its launcher may have
to download it first; ``within`` begins with that answer. The deadline of all attempts does not cut a process that has
started (LOAD-13).

File descriptors: a hub that runs out of them says so, and blames no server for it (LIFE-30). A connection that needs a
descriptor of the last few is refused, so that clients of the hub can still connect.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import resource
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import anyio

from holdfast.config import UNIX, Limits, ServerSpec
from holdfast.core import (
    BadConfig,
    Evidence,
    OutOfDescriptors,
    ProcessExit,
    Redactor,
    TimedOut,
    ToldByHub,
    Unexpected,
    hub_warns,
    masked,
    quoted,
    speaks_hub,
)
from holdfast.errors import ServerFailure
from holdfast.wire.dispatcher import NO_HOOKS, DialHooks, OnNotification, Relay
from holdfast.wire.handshake import negotiate
from holdfast.wire.http.client import CONNECT_SECONDS, Authorize, HttpPeer
from holdfast.wire.http.pool import causes
from holdfast.wire.http.transport import HttpDispatcher, SseDispatcher
from holdfast.wire.in_flight import Era
from holdfast.wire.process import Child, OnStderr
from holdfast.wire.request_form import CallerIdentity, Greeting, HubPeer, SignAssertion
from holdfast.wire.session import STATUS_SECONDS, Connection, Wire, close, first_status
from holdfast.wire.stdio_transport import StdioDispatcher
from holdfast.wire.warden import Warden

__all__ = [
    "SHORTEST_DIAL",
    "Attempt",
    "Dialer",
    "HubTls",
    "Limit",
    "Starting",
    "descriptor_shortage",
    "evidence_in",
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
        lowest_free = os.dup(_ANY)  # the system gives the lowest one that is free, and so tells how many are in use
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
    if not any(isinstance(one, OSError) and one.errno in _NONE_FREE for one in causes(exc)):
        return None
    _say(limit := _limit())
    return OutOfDescriptors(limit=limit)


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


HUB_ID_BYTES = 9
"""Of the id by which the hubs behind this one know its requests again; each start makes another one."""

HubTls: TypeAlias = Callable[[], ssl.SSLContext]
"""Gives the context for connections to hubs of the same fleet. Raises ``ServerFailure`` if there is no shared key."""


class Dialer:
    """Dials servers under one set of bounds and one warden.

    ``is_hub`` if a hub dials: then a hub on the other side is one behind it, with its own channel. A
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
        hooks: DialHooks = NO_HOOKS,
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
        try:
            wire = await self._open(closers, spec, redactor, hooks, times)
            closers.push_async_callback(wire.aclose)
            wire.start()
            # The SSE transport exists only in the legacy era.
            era = "legacy" if spec.transport == "sse" else era
            greeting = await self._greet(wire, times, era, fixed=spec.era != "auto")
            said = greeting.declared
            hub: HubPeer | None = None
            if (self._is_hub or spec.hub) and speaks_hub(said):
                hub = HubPeer(proven=bool(spec.hub), own_id=self._hub_id, warns=hub_warns(said))
            return Connection(greeting, wire, closers, hub=hub, identity=identity)
        except BaseException:
            await close(closers)
            raise

    async def _greet(self, wire: Wire, times: _Times, era: Era | None, *, fixed: bool) -> Greeting:
        left = max(times.deadline - anyio.current_time(), 0.0)
        try:
            with anyio.fail_after(left) as scope:
                times.scope = scope
                has_read = wire.child.has_read if isinstance(wire, StdioDispatcher) else None
                greeting = await negotiate(wire, era=era, has_read=has_read, fixed=fixed)
        except TimeoutError:
            raise ServerFailure(wire.unanswered() or _silence(wire, left, times)) from None
        finally:
            times.scope = None  # it refers to the task, and its exception to these times
        wire.stood = True
        return greeting

    async def _open(
        self, stack: AsyncExitStack, spec: ServerSpec, redactor: Redactor, hooks: DialHooks, times: _Times
    ) -> Wire:
        """Open the transport; the stack closes it. Does not wait for an answer."""
        if spec.transport == "stdio":
            keep = self._limits.stderr_bytes
            hear = self._on_stderr
            on_line = (lambda line: hear(spec.id, line, redactor)) if hear is not None else None
            child = await Child.start(spec, warden=self._warden, redactor=redactor, keep=keep, on_line=on_line)
            if hooks.on_start is not None:
                hooks.on_start(child)
            pipes = StdioDispatcher(child, self._limits, redactor, times.first_message, server=spec.id, hooks=hooks)
            stack.push_async_callback(lambda: child.close(politely=pipes.stood))
            return pipes
        authorizer = self._authorize(spec) if self._authorize is not None else None
        # A connection may take as long as an attempt, also the second one of a listing and that of a later call.
        patience = max(CONNECT_SECONDS, times.within)
        peer = HttpPeer(
            spec,
            redactor,
            authorizer,
            tls=self._tls_for(spec),
            connect_within=patience,
        )
        stack.push_async_callback(peer.aclose)
        if spec.transport == "sse":
            return SseDispatcher(peer, self._limits, spec.id, hooks)
        posts = HttpDispatcher(peer, self._limits, spec.id, hooks)
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
    if isinstance(wire, HttpDispatcher | SseDispatcher) and wire.peer.connecting:
        return TimedOut(doing="a connection", after=round(left, 1), sent=False)
    if not isinstance(wire, StdioDispatcher):
        return TimedOut(doing="its first answer", after=round(left, 1))
    if wire.rpc.spoke:
        return TimedOut(doing="the end of the handshake", after=round(min(times.within, left), 1))
    return TimedOut(
        doing="its first answer", after=round(left, 1), setting="startTimeout", stderr=wire.child.stderr.last_line
    )


def _probe_ended_it(seen: Evidence, era: Era | None) -> bool:
    """Some old servers exit when a request comes before ``initialize``: they are dialed again without a probe."""
    return era is None and isinstance(seen, ProcessExit) and seen.heard and not seen.stood


T = TypeVar("T")


class Limit(Protocol):
    """Limits how many attempts begin at once."""

    def place(self) -> AbstractAsyncContextManager[None]:
        """Wait for a place and hold it."""


class Starting(NamedTuple):
    """A process that is alive and has not answered yet."""

    seconds: float
    line: str
    """The last line of its stderr, masked; empty if there is none."""

    @property
    def words(self) -> str:
        """``starting for 12 s; stderr: "fetching …"``: the process's own text is quoted and labelled."""
        said = quoted(self.line, origin="stderr")
        return f"starting for {self.seconds:.0f} s" + (f"; {said}" if said else "")


@dataclass(kw_only=True)
class Attempt(Generic[T]):
    """One attempt: what it goes by, and what it showed as far as it came."""

    spec: ServerSpec
    redactor: Redactor
    read: Callable[[Connection, float], Awaitable[T]]
    """Lists what the caller wants, within so many seconds."""
    deadline: float = math.inf
    """When all of it has ended, the wait for a place too; a time of the event loop."""
    within: float = math.inf
    """Seconds from the moment that the attempt has its place."""
    total: float = math.inf
    """The seconds that led to ``deadline``, for the reason of an attempt that it cut short."""
    start_within: float | None = None
    """Seconds in which a process may start, instead of its server's ``startTimeout``."""
    listing_within: float | None = None
    """Seconds for the listing alone; None where it must end with the rest, for a process where it gets ``within``."""
    era: Era | None = None
    """The era that the server spoke last time, then the one that it speaks now."""

    began: float = 0.0
    """When it got its place; a time of the event loop."""
    child: Child | None = field(default=None, repr=False)
    """The process that starts, or has started."""
    version: str = ""
    """The protocol version that both sides speak; empty where the handshake failed."""
    handshake_seconds: float = 0.0
    listing: T | None = None
    listing_seconds: float = 0.0
    noise: str = ""
    """What a command printed on stdout that is not the protocol, masked."""
    evidence: Evidence | None = None
    """What went wrong, masked: in the handshake if there is no version, else in the listing or the close."""
    error: Exception | None = field(default=None, repr=False)
    """The exception behind the evidence. It may quote secrets, so it is for debugging alone."""

    async def run(self, dialer: Dialer, limit: Limit, *, relay: Relay | None = None) -> Self:
        """Wait for a place, dial, list and close. Raises nothing but a cancellation."""
        try:
            async with self.connected(dialer, limit, relay=relay) as connection:
                await self._ask_hub(connection)
        except Exception as exc:  # noqa: BLE001 - a fault of a library is what this attempt showed, and fails no other
            self.evidence = masked(self._whole(evidence_in(exc)), self.redactor)
            self.error = exc
        return self

    async def _ask_hub(self, connection: Connection) -> None:
        """A hub on the other side answers, also while its server is down: the outcome is what it says of the server."""
        if connection.hub is None:
            return
        record = await first_status(connection, within=STATUS_SECONDS)
        if record is not None and (failure := record.health.failure) is not None:
            told = ToldByHub(
                status=failure.status, reason=failure.error, hint=record.hint, retry_in=record.health.next_try
            )
            raise ServerFailure(told)

    @property
    def starting(self) -> Starting | None:
        """How the start of its process goes; None where no process starts, or it has answered."""
        if self.child is None or self.version or self.child.process.returncode is not None:
            return None
        return Starting(seconds=anyio.current_time() - self.began, line=self.child.stderr.last_line)

    def _whole(self, seen: Evidence) -> Evidence:
        """An attempt that the deadline of all attempts cut short says how long that was, not what was left of it."""
        cut = self.deadline < self.began + self.within and not self._is_process
        if isinstance(seen, TimedOut) and cut and math.isfinite(self.total):
            return replace(seen, after=self.total, setting="holdfast.load.totalTimeout")
        return seen

    @property
    def _is_process(self) -> bool:
        return self.spec.transport == "stdio"

    @asynccontextmanager
    async def connected(
        self,
        dialer: Dialer,
        limit: Limit,
        *,
        on_connected: Callable[[Connection], None] | None = None,
        on_notice: OnNotification | None = None,
        relay: Relay | None = None,
    ) -> AsyncIterator[Connection]:
        """A connection whose listing is complete; it is closed when the block ends.

        The place is given back after the handshake. Raises what went wrong, which ``evidence_in`` reads.
        """
        async with AsyncExitStack() as place:
            await _take(place, limit, self.deadline)
            self.began = anyio.current_time()
            hooks = DialHooks(on_notice=on_notice, relay=relay, on_start=self._started)
            async with dialer.connect(
                self.spec,
                within=self._left(self.began),
                start_within=self.spec.start_timeout if self.start_within is None else self.start_within,
                redactor=self.redactor,
                era=self.era,
                hooks=hooks,
            ) as connection:
                # Others may dial now, while this one is listed.
                await place.aclose()
                if on_connected is not None:
                    on_connected(connection)
                await self._list(connection)
                yield connection

    def _started(self, child: Child) -> None:
        self.child = child

    def _left(self, now: float) -> float:
        """Seconds for the next step. The deadline of all attempts does not cut a process that started (LOAD-13)."""
        if self._is_process:
            return self.within
        return max(min(self.deadline, self.began + self.within) - now, 0.0)

    async def _list(self, connection: Connection) -> None:
        stands = anyio.current_time()
        self.handshake_seconds = stands - self.began
        self.era, self.version = connection.era, connection.protocol_version or connection.era
        left = self._left(stands) if self.listing_within is None else self.listing_within
        self.listing = await self.read(connection, left)
        self.listing_seconds = anyio.current_time() - stands
        self.noise = connection.wire.noise.text if isinstance(connection.wire, StdioDispatcher) else ""


SHORTEST_DIAL = 0.02
"""Seconds. With less time left no server answers: a dial would only blame it for the wait."""


async def _take(place: AsyncExitStack, limit: Limit, deadline: float) -> None:
    began = anyio.current_time()
    with anyio.move_on_at(deadline):
        await place.enter_async_context(limit.place())
        if anyio.current_time() < deadline - SHORTEST_DIAL:
            return
    after = max(round(deadline - began, 1), 0.0)
    raise ServerFailure(TimedOut(doing="its turn", after=after, setting="holdfast.load.concurrency"))


def evidence_in(exc: Exception) -> Evidence:
    """What an exception shows; one that a task group wrapped is looked for inside."""
    if (shortage := descriptor_shortage(exc)) is not None:
        return shortage
    while isinstance(exc, ExceptionGroup):  # where several tasks failed, the first failure ended the others
        exc = exc.exceptions[0]
    if isinstance(exc, ServerFailure):
        return exc.evidence
    return Unexpected(type=type(exc).__name__, detail=str(exc))
