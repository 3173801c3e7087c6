"""Servers of people, before three kinds of authorization servers: each knows who calls, and notes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

import httpx2

from holdfast.auth.token_store import Grant, GrantStore
from holdfast.config.read import config_from_mapping
from holdfast.config.spec import ServerSpec
from tests.auth.logins import logged_in
from tests.auth.real_servers import people_on_node, people_on_python
from tests.peers.guarded import Guarded, guarded

__all__ = ["PeerPeople", "PeopleServer", "RealPeople", "Seen", "defined", "people_servers", "spec_of"]


class Seen(NamedTuple):
    """What a server saw so far."""

    calls: list[tuple[str, str]]
    """For each call of a tool: the person of its access token, and the user that it was made for."""
    reuses: int
    """How often a refresh token came again after it was used."""


class PeopleServer(Protocol):
    """An MCP server that knows the people of its authorization server."""

    @property
    def url(self) -> str: ...

    async def log_in(self, user: str, store: GrantStore) -> Grant:
        """This user logs in."""

    async def end_tokens(self) -> None:
        """The access tokens that it gave are no longer good."""

    async def seen(self) -> Seen: ...


def spec_of(server: PeopleServer) -> ServerSpec:
    """The server as a definition of a hub, per user."""
    return config_from_mapping({"mcpServers": {"it": defined(server)}}).servers["it"]


def defined(server: PeopleServer) -> dict[str, Any]:
    return {"type": "http", "url": server.url, "sharing": "per-user"}


class RealPeople:
    """The MCP server before ``oidc-provider``, or the one before the SDK's authorization server."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self.url = url
        self._http = http

    async def log_in(self, user: str, store: GrantStore) -> Grant:
        """By the page where its name is typed, or by what is said before."""
        await self._control(person=user)
        return (await logged_in(spec_of(self), store, name=user))[0]

    async def end_tokens(self) -> None:
        await self._control(end=True)

    async def seen(self) -> Seen:
        saw = await self._control()
        return Seen([(one["person"], one["who"]) for one in saw["calls"]], saw["reuses"])

    async def _control(self, **wish: Any) -> Any:
        answer = await self._http.post(self.url.replace("/mcp", "/control"), json=wish)
        return answer.raise_for_status().json()


class PeerPeople:
    """Our own pair, which fails where a test asks for it."""

    def __init__(self, peer: Guarded) -> None:
        self.peer = peer
        self.url = peer.url

    async def log_in(self, user: str, store: GrantStore) -> Grant:
        await self.peer.behave(person=user)
        return (await logged_in(spec_of(self), store))[0]

    async def end_tokens(self) -> None:
        await self.peer.behave(end_tokens=True)

    async def seen(self) -> Seen:
        calls = await self.peer.seen("mcp", method="tools/call")
        return Seen([(one["person"], one["who"]) for one in calls if one["person"]], len(await self.peer.seen("reuse")))


@asynccontextmanager
async def people_servers() -> AsyncIterator[tuple[RealPeople, RealPeople, PeerPeople]]:
    """One before ``oidc-provider``, one before the SDK's authorization server, and one before our own."""
    with people_on_node() as node, people_on_python() as python:
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as http, guarded() as peer:
            yield RealPeople(node, http), RealPeople(python, http), PeerPeople(peer)
