"""Find the protocol era of a server with as few requests as possible.

A probe (``server/discover``) asks for the modern era; a server that does not know it gets ``initialize``. The caller
remembers the era, so a legacy server is probed once. A refusal by a proxy or gateway (401, 403, 5xx, …) says nothing
about the era: it ends the attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

import anyio
import mcp_types as types
from mcp import ClientSession, MCPError
from mcp_types import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from holdfast.core.evidence import HttpStatus, NotMcp, NotMcpFault, RpcError, TimedOut
from holdfast.errors import ServerFailure
from holdfast.wire.requests import first_error

__all__ = ["Era", "negotiate"]

Era: TypeAlias = Literal["modern", "legacy"]

PROBE_SECONDS = 3.0
"""How long a stdio server may leave a probe unanswered before it gets ``initialize`` as well.

Old servers ignore unknown methods, and a slow one has not answered yet. So both requests stay open from then on,
and the first answer decides."""

NO_ANSWER_ABOUT_ERA = frozenset({401, 403, 407, 408, 429})


async def negotiate(session: ClientSession, *, era: Era | None, patient: bool) -> Era:
    """Agree on a version; ``patient`` is for pipes, where an answer may never come."""
    if era == "legacy":
        found = await _greet_or_none(session)
        if found is not None:
            return found
    probe = _probe_patiently if patient else _probe
    return await probe(session)


async def _greet_or_none(session: ClientSession) -> Era | None:
    """``initialize``, for a server that was legacy last time; None if it is no longer."""
    try:
        return await _greet(session)
    except ServerFailure as failure:
        seen = failure.evidence
        if isinstance(seen, RpcError) and seen.code in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND):
            return None
        raise


async def _probe(session: ClientSession) -> Era:
    try:
        return await _discover(session, LATEST_MODERN_VERSION)
    except _SpeaksNoModern:
        return await _greet(session)


async def _probe_patiently(session: ClientSession) -> Era:
    """Probe; after a while send ``initialize`` too, and take the first answer."""
    answers: dict[str, Era | Exception] = {}
    answered = anyio.Event()

    async def ask(what: str, question: Callable[[], Awaitable[Era]]) -> None:
        try:
            answers[what] = await question()
        except (ServerFailure, _SpeaksNoModern) as exc:
            answers[what] = exc
        answered.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, "probe", lambda: _discover(session, LATEST_MODERN_VERSION))
        with anyio.move_on_after(PROBE_SECONDS):
            await answered.wait()
        if not answers or isinstance(answers.get("probe"), _SpeaksNoModern):
            tasks.start_soon(ask, "greeting", lambda: _greet(session))
            while not _settled(answers):
                answered = anyio.Event()
                await answered.wait()
        tasks.cancel_scope.cancel()
    return _decided(answers)


def _settled(answers: dict[str, Era | Exception]) -> bool:
    """Whether one request succeeded, or both failed."""
    return any(isinstance(answer, str) for answer in answers.values()) or len(answers) == 2


def _decided(answers: dict[str, Era | Exception]) -> Era:
    for answer in answers.values():
        if isinstance(answer, str):
            return answer
    failures = [answers[what] for what in ("greeting", "probe") if isinstance(answers.get(what), ServerFailure)]
    telling = [f for f in failures if isinstance(f, ServerFailure) and not isinstance(f.evidence, TimedOut)]
    raise (telling or failures)[0]  # type: ignore[misc]  # both lists hold exceptions only


class _SpeaksNoModern(Exception):
    """The probe was answered, and the answer is not the modern era."""


async def _discover(session: ClientSession, version: str) -> Era:
    """Probe at ``version``; once more at another if the server names one that we support."""
    try:
        raw = await session.send_discover(version)
    except MCPError as exc:
        return await _discover_again(session, exc)
    except ServerFailure as failure:
        seen = failure.evidence
        if isinstance(seen, HttpStatus) and seen.status < 500 and seen.status not in NO_ANSWER_ABOUT_ERA:
            raise _SpeaksNoModern from failure
        raise
    return _adopt(session, raw)


async def _discover_again(session: ClientSession, refusal: MCPError) -> Era:
    if refusal.code != UNSUPPORTED_PROTOCOL_VERSION:
        raise _SpeaksNoModern from refusal
    supported = _supported(refusal.data)
    shared = [known for known in MODERN_PROTOCOL_VERSIONS if known in supported]
    if shared:
        return await _discover_at(session, shared[-1])
    if supported and not set(supported) & set(HANDSHAKE_PROTOCOL_VERSIONS):
        raise _no_version(supported) from refusal
    raise _SpeaksNoModern from refusal


async def _discover_at(session: ClientSession, version: str) -> Era:
    try:
        return _adopt(session, await session.send_discover(version))
    except MCPError as exc:
        raise _SpeaksNoModern from exc


def _adopt(session: ClientSession, raw: dict[str, Any]) -> Era:
    try:
        result = types.DiscoverResult.model_validate(raw)
    except ValidationError as exc:
        raise _SpeaksNoModern from exc
    if not set(result.supported_versions) & set(MODERN_PROTOCOL_VERSIONS):
        raise _SpeaksNoModern
    session.adopt(result)
    return "modern"


async def _greet(session: ClientSession) -> Era:
    try:
        await session.initialize()
    except MCPError as exc:
        raise ServerFailure(RpcError(method="initialize", code=exc.code, message=exc.message)) from exc
    except ValidationError as exc:
        raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=first_error(exc))) from exc
    except RuntimeError as exc:  # the SDK raises it for a version that it does not know
        raise ServerFailure(NotMcp(fault=NotMcpFault.VERSION)) from exc
    return "legacy"


def _supported(data: object) -> list[str]:
    try:
        return types.UnsupportedProtocolVersionErrorData.model_validate(data).supported
    except ValidationError:
        return []


def _no_version(supported: list[str]) -> ServerFailure:
    return ServerFailure(NotMcp(fault=NotMcpFault.VERSION, detail=", ".join(supported)[:100]))
