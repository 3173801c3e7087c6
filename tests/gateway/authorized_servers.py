"""Thirty MCP servers behind a real Envoy whose authorization service is cold and slow, and who is let in.

The first question about a user and a route takes 75 to 150 ms and two of them are worked on at a time;
a repeated request is answered at once. A question that the proxy no longer waits for is still worked on,
as it is by a service that looks things up.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from holdfast.config.fields import parse_duration
from holdfast.config.settings import LoadPolicy, Settings
from holdfast.config.spec import Config, ServerSpec
from holdfast.gateway.model import EXT_AUTH_TIMEOUT, OUTAGE_STATUS
from holdfast.hub.lease import ServerCache
from holdfast.hub.loader import Loader
from holdfast.types import LoadResult
from tests.peers.authz import AuthzService, Decision, GrpcAuthzService
from tests.peers.envoy import EnvoyGateway, envoy_gateway
from tests.peers.http_fault import Exchange
from tests.peers.mcp_http import McpPeer

__all__ = ["ALICE", "DENIAL", "MALLORY", "PROTOCOLS", "ROUTES", "Protocol", "Scene", "load", "scene"]

Protocol: TypeAlias = Literal["http", "grpc"]

PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")
ROUTES = 30
WORKERS = 2
COLD = (0.075, 0.150)
ALICE, MALLORY = "Bearer alice", "Bearer mallory"
DENIAL = "mallory has no grant"

_ROUTE = re.compile(rb"/mcp/s\d+")


class LookUps:
    """What the service knows, and the queue of what it does not know yet."""

    def __init__(self) -> None:
        self._workers = asyncio.Semaphore(WORKERS)
        self._chance = random.Random(7)
        self._known: dict[tuple[bytes, bytes], asyncio.Task[Decision]] = {}

    async def decide(self, question: bytes) -> Decision:
        """The verdict on a request, given as the bytes that were asked."""
        found = _ROUTE.search(question)
        key = (b"mallory" if b"mallory" in question else b"alice", found.group() if found else b"")
        if key not in self._known:
            self._known[key] = asyncio.ensure_future(self._look_up(key[0]))
        return await asyncio.shield(self._known[key])

    async def forget(self) -> None:
        """Be cold again."""
        tasks = list(self._known.values())
        self._known.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_up(self, user: bytes) -> Decision:
        async with self._workers:
            await asyncio.sleep(self._chance.uniform(*COLD))
        return Decision(403, DENIAL) if user == b"mallory" else Decision()


class SlowAuthz(AuthzService):
    """Asked over HTTP."""

    def __init__(self) -> None:
        super().__init__()
        self.look_ups = LookUps()

    async def _answer(self, exchange: Exchange) -> None:
        request = exchange.request
        question = f"{request.path} {request.headers.get('authorization', '')}".encode()
        decision = await exchange.unless_gone(self.look_ups.decide(question))
        if decision is not None:
            await exchange.respond(decision.status, decision.body.encode(), content_type="text/plain")


class SlowGrpcAuthz(GrpcAuthzService):
    """Asked over gRPC."""

    def __init__(self) -> None:
        super().__init__()
        self.look_ups = LookUps()

    def _check(self, writer: asyncio.StreamWriter, stream: int) -> Awaitable[None]:  # type: ignore[override]  # not a coroutine function: the question has to be read at once
        question = self.requests[-1].body
        return self._answer_check(writer, stream, self.look_ups.decide(question))

    async def _answer_check(self, writer: asyncio.StreamWriter, stream: int, verdict: Awaitable[Decision]) -> None:
        decision = await verdict
        self._decide = lambda: _given(decision)
        await super()._check(writer, stream)


async def _given(decision: Decision) -> Decision:
    return decision


@dataclass(frozen=True)
class Scene:
    """The servers, and two proxies in front of them: one as it comes, one as it is shipped."""

    peers: Sequence[McpPeer]
    look_ups: LookUps
    as_it_comes: EnvoyGateway
    shipped: EnvoyGateway

    def urls(self, proxy: EnvoyGateway) -> list[str]:
        """The address of every server behind a proxy."""
        return [proxy.url(f"/mcp/s{number}") for number in range(len(self.peers))]

    @property
    def upstream_requests(self) -> int:
        """How many requests reached a server at all."""
        return sum(len(peer.requests) for peer in self.peers)


@asynccontextmanager
async def scene(folder: Path, protocol: Protocol, *, routes: int = ROUTES) -> AsyncIterator[Scene]:
    """Set it all up; the shipped proxy waits for as long as Holdfast renders, and tells an outage by its status."""
    authz = SlowGrpcAuthz() if protocol == "grpc" else SlowAuthz()
    peers = [McpPeer(era="modern" if number % 2 else "legacy") for number in range(routes)]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(authz)
        stack.push_async_callback(authz.look_ups.forget)
        for peer in peers:
            await stack.enter_async_context(peer)
        upstreams = {f"/mcp/s{number}": peer.port for number, peer in enumerate(peers)}
        timeout_ms = round(parse_duration(EXT_AUTH_TIMEOUT) * 1000)
        proxies = []
        for name, waits, status in (("as-it-comes", None, None), ("shipped", timeout_ms, OUTAGE_STATUS)):
            (folder / name).mkdir()
            proxy = envoy_gateway(
                upstreams,
                authz_port=authz.port,
                folder=folder / name,
                protocol=protocol,
                timeout_ms=waits,
                status_on_error=status,
            )
            proxies.append(await stack.enter_async_context(proxy))
        yield Scene(peers, authz.look_ups, *proxies)


async def load(urls: Sequence[str], user: str, *, attempts: int) -> LoadResult:
    """Load servers as one user, as a user who never did so before."""
    servers = {
        f"s{number}": ServerSpec(id=f"s{number}", transport="http", url=url, headers={"Authorization": user})
        for number, url in enumerate(urls)
    }
    settings = Settings(load=LoadPolicy(attempts=attempts))
    return await Loader(Config(servers=servers, settings=settings), memory=ServerCache()).load()
