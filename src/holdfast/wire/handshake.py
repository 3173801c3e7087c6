"""The handshake with a server: finds the protocol era with as few requests as possible, and agrees on a version.

A probe (``server/discover``) tells the modern era from the legacy one. What can come back:

- A result with a version that we know: the server is modern.
- A JSON-RPC error, or an HTTP status such as 400 or 404: it is legacy, and gets ``initialize``. A refusal that names
  versions is asked once more with one of them.
- A status that concerns the path and not the era (401, 403, 429, 5xx), or no answer: a failure. To take it for an old
  server would make a second request, and give its failure as the reason.
- Nothing, from a process. It ignores unknown requests, or it starts slowly. The two look alike from outside, so the
  kernel is asked whether the process has read the probe; no bound here takes a slow start for an old server.

A server that was legacy the last time is greeted at once: one request in place of two.

What must never happen: a process gets both requests together while it is not known to ignore the first. It may answer
both and change its era with the second answer. Where both were sent, ``_decisive`` says which answer counts.

Every failure is ``ServerFailure`` with evidence.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
import anyio.abc
import mcp_types as types
from mcp import MCPError
from mcp_types import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.methods import validate_server_result
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pydantic import ValidationError

from holdfast.core import HttpStatus, NotMcp, NotMcpFault, OverBound, RpcError, TimedOut, quoted_name
from holdfast.errors import ServerFailure
from holdfast.wire.dispatcher import ServerDispatcher
from holdfast.wire.in_flight import Era, until_cancelled
from holdfast.wire.raw_json import LOADED_BYTES, BadJson, RawObject
from holdfast.wire.request_form import CLIENT_INFO, Greeting, first_error, routing_headers, stamp
from holdfast.wire.rpc import Message

__all__ = ["HasRead", "negotiate"]

HasRead: TypeAlias = Callable[[], bool | None]
"""Whether a process has read all that was written to it; None where the system does not tell."""

IGNORED_SECONDS = 5.0
"""How long a probe that a process has read may stay unanswered before it counts as ignored.

Some old servers ignore unknown methods: they get ``initialize`` then. The time starts when the process has read the
probe, so a slow start is never taken for an ignored probe."""

UNREAD_SECONDS = 10.0
"""The same on a system that does not tell whether a process has read its input; counted from the probe."""

GREETING_SECONDS = 2.0
"""How long the answer to ``initialize`` may come after a late answer to the probe.

A server that answers both was put into the legacy era by the second; one that ignores ``initialize`` is modern."""

LOOK_SECONDS = 0.1
"""The pause between two looks whether the process has read the probe: no event tells that."""

NO_LONGER_LEGACY = frozenset({UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND})
"""The refusals of ``initialize`` after which a server that was legacy the last time is probed like any other."""

NO_ANSWER_ABOUT_ERA = frozenset({401, 403, 407, 408, 429})


async def negotiate(wire: ServerDispatcher, *, era: Era | None, has_read: HasRead | None, fixed: bool) -> Greeting:
    """Agree on a version, of ``era`` alone if that is fixed.

    ``has_read`` is for a process, which may ignore a probe or start slowly.
    """
    if era == "legacy":
        try:
            return await _greet(wire)
        except ServerFailure as failure:
            seen = failure.evidence
            if fixed or not isinstance(seen, RpcError) or seen.code not in NO_LONGER_LEGACY:
                raise
    modern_alone = fixed and era == "modern"
    if has_read is not None and not modern_alone:
        return await _probe_process(wire, has_read)
    try:
        return await _discover(wire)
    except _SpeaksNoModern as exc:
        if modern_alone:
            detail = "it does not speak the modern era"
            raise ServerFailure(NotMcp(fault=NotMcpFault.VERSION, detail=detail)) from exc
        return await _greet(wire)


async def _probe_process(wire: ServerDispatcher, has_read: HasRead) -> Greeting:
    """Probe, and send ``initialize`` only after an answer, or after the process has read the probe and ignored it.

    A process that gets both at once may answer both and change its era with the second answer.
    """
    async with anyio.create_task_group() as tasks:
        probe = _HandshakeRequest(lambda: _discover(wire), tasks)
        await _answered_or_ignored(probe, has_read)
        if isinstance(probe.answer, Greeting | ServerFailure):
            tasks.cancel_scope.cancel()
        else:
            greeting = _HandshakeRequest(lambda: _greet(wire), tasks)
            await _settled(probe, greeting)
            tasks.cancel_scope.cancel()
            probe = _decisive(probe, greeting)
    return probe.result()


class _HandshakeRequest:
    """A request of the handshake that is under way, and its answer once there is one."""

    def __init__(self, ask: Callable[[], Awaitable[Greeting]], tasks: anyio.abc.TaskGroup) -> None:
        self.answer: Greeting | ServerFailure | _SpeaksNoModern | None = None
        self.answered = anyio.Event()
        tasks.start_soon(until_cancelled, self._run, ask)

    async def _run(self, ask: Callable[[], Awaitable[Greeting]]) -> None:
        try:
            self.answer = await ask()
        except (ServerFailure, _SpeaksNoModern) as exc:
            self.answer = exc.with_traceback(None)  # its frames refer to this object
        self.answered.set()

    def result(self) -> Greeting:
        """The answer, which is there; raises it if it is a failure, and does not keep it then."""
        answer, self.answer = self.answer, None
        assert answer is not None  # noqa: S101 - the waits end with an answer
        if isinstance(answer, Greeting):
            return answer
        try:
            raise answer
        finally:
            del answer


async def _answered_or_ignored(probe: _HandshakeRequest, has_read: HasRead) -> None:
    """Wait for the answer to a probe, or until the process has read it and given none for a while."""
    began, read_at = anyio.current_time(), None
    while not probe.answered.is_set():
        # Where bytes are unread, the time in which the process may ignore them has not begun.
        read, now = has_read(), anyio.current_time()
        read_at = None if read is False else read_at or now
        limit = IGNORED_SECONDS if read else UNREAD_SECONDS
        if now - (began if read is None else read_at or now) >= limit:
            return
        with anyio.move_on_after(LOOK_SECONDS):
            await probe.answered.wait()


async def _settled(probe: _HandshakeRequest, greeting: _HandshakeRequest) -> None:
    """Wait until both are answered, or ``initialize`` succeeded, or it is ignored after a late answer to the probe."""
    async with anyio.create_task_group() as tasks:

        async def modern() -> None:
            await probe.answered.wait()
            if isinstance(probe.answer, Greeting):
                await anyio.sleep(GREETING_SECONDS)
                tasks.cancel_scope.cancel()

        tasks.start_soon(modern)
        await greeting.answered.wait()
        if not isinstance(greeting.answer, Greeting):
            await probe.answered.wait()
        tasks.cancel_scope.cancel()


def _decisive(probe: _HandshakeRequest, greeting: _HandshakeRequest) -> _HandshakeRequest:
    """The question whose answer decides: a success, of ``initialize`` before the probe; else the more telling failure.

    A server that was probed late and refuses ``initialize`` is modern.
    """
    if isinstance(greeting.answer, Greeting) or not isinstance(probe.answer, Greeting | ServerFailure):
        return greeting
    if isinstance(probe.answer, Greeting):
        return probe
    told = isinstance(greeting.answer, ServerFailure) and not isinstance(greeting.answer.evidence, TimedOut)
    return greeting if told else probe


class _SpeaksNoModern(Exception):
    """The probe was answered, and the answer is not the modern era."""


async def _discover(wire: ServerDispatcher) -> Greeting:
    """Probe at the latest version; once more at another if the server names one that we support."""
    try:
        return _modern(wire, await _probed(wire, LATEST_MODERN_VERSION))
    except MCPError as exc:
        return await _discover_again(wire, exc)
    except ServerFailure as failure:
        seen = failure.evidence
        if isinstance(seen, HttpStatus) and seen.status < 500 and seen.status not in NO_ANSWER_ABOUT_ERA:
            raise _SpeaksNoModern from failure
        raise


async def _discover_again(wire: ServerDispatcher, refusal: MCPError) -> Greeting:
    if refusal.code != UNSUPPORTED_PROTOCOL_VERSION:
        raise _SpeaksNoModern from refusal
    supported = _supported(refusal.data)
    shared = [known for known in MODERN_PROTOCOL_VERSIONS if known in supported]
    if shared:
        try:
            return _modern(wire, await _probed(wire, shared[-1]))
        except MCPError as exc:
            raise _SpeaksNoModern from exc
    if supported and not set(supported) & set(HANDSHAKE_PROTOCOL_VERSIONS):
        named = ", ".join(quoted_name(one, 20) for one in supported[:5])
        raise ServerFailure(NotMcp(fault=NotMcpFault.VERSION, detail=named)) from refusal
    raise _SpeaksNoModern from refusal


async def _probed(wire: ServerDispatcher, version: str) -> Message:
    """The answer to a probe. It names its version itself, and the protocol has no way to cancel it."""
    wire.agree(version)
    headers = routing_headers(version, "server/discover", None)
    return _value(await wire.ask("server/discover", {"_meta": stamp(version, None)}, headers=headers, tell=False))


def _value(said: RawObject) -> Message:
    if said.size > LOADED_BYTES:
        raise ServerFailure(OverBound(bound="the size of its answer to the handshake", limit=LOADED_BYTES, setting=""))
    try:
        return said.value()
    except BadJson as exc:
        raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc))) from exc


def _modern(wire: ServerDispatcher, said: Message) -> Greeting:
    ttl = said.get("ttlMs")
    if isinstance(ttl, int | float) and ttl < 0:
        said["ttlMs"] = 0  # an odd hint to caches; it says nothing about the era
    try:
        result = types.DiscoverResult.model_validate(said)
    except ValidationError as exc:
        raise _SpeaksNoModern from exc
    shared = [known for known in MODERN_PROTOCOL_VERSIONS if known in result.supported_versions]
    if not shared:
        raise _SpeaksNoModern
    wire.agree(shared[-1])
    return Greeting("modern", shared[-1], result.capabilities, result.instructions or "")


async def _greet(wire: ServerDispatcher) -> Greeting:
    wire.agree(None)
    asked = {
        "protocolVersion": LATEST_HANDSHAKE_VERSION,
        "capabilities": dict(wire.incoming.capabilities),
        "clientInfo": CLIENT_INFO,
    }
    try:
        said = _value(await wire.ask("initialize", RawObject.of(asked).members, tell=False))
        validate_server_result("initialize", LATEST_HANDSHAKE_VERSION, said)
        result = types.InitializeResult.model_validate(said, by_name=False)
    except MCPError as exc:
        raise ServerFailure(RpcError(method="initialize", code=exc.code, message=exc.message)) from exc
    except ValidationError as exc:
        raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=first_error(exc))) from exc
    version = str(result.protocol_version)
    if version not in HANDSHAKE_PROTOCOL_VERSIONS:
        raise ServerFailure(NotMcp(fault=NotMcpFault.VERSION))
    wire.agree(version)
    await wire.notify("notifications/initialized")
    return Greeting("legacy", version, result.capabilities, result.instructions or "")


def _supported(data: object) -> list[str]:
    try:
        return types.UnsupportedProtocolVersionErrorData.model_validate(data).supported
    except ValidationError:
        return []
