"""One attempt: a place, a dial, a listing, a close, and what was seen of each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from holdfast.config.settings import Limits
from holdfast.config.spec import ServerSpec
from holdfast.core.evidence import NetworkFailure, NetworkFault, TimedOut, Unexpected
from holdfast.core.redact import Redactor
from holdfast.errors import ServerFailure
from holdfast.wire.dial import Attempt, Dialer, evidence_in
from holdfast.wire.listing import Offer
from holdfast.wire.session import Connection
from holdfast.wire.warden import Warden
from tests.peers.http_fault import closed_port
from tests.peers.mcp_http import McpPeer

pytestmark = pytest.mark.anyio


class OnePlace:
    """A limit of one."""

    def __init__(self) -> None:
        self._free = anyio.Semaphore(1)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        async with self._free:
            yield

    @property
    def taken(self) -> bool:
        return self._free.value == 0


async def tools(connection: Connection, within: float) -> tuple[Offer, ...]:
    return await connection.list_tools(within=within)


def attempt(url: str, *, deadline: float | None = None) -> Attempt[tuple[Offer, ...]]:
    spec = ServerSpec(id="one", transport="http", url=url)
    until = anyio.current_time() + 10 if deadline is None else deadline
    return Attempt(spec=spec, redactor=Redactor(), read=tools, deadline=until)


@pytest.mark.requirement("LOAD-8")
async def test_an_attempt_dials_lists_closes_and_gives_its_place_back() -> None:
    limit = OnePlace()
    async with Warden() as warden, McpPeer() as peer:
        found = await attempt(peer.url).run(Dialer(warden=warden, limits=Limits()), limit)
    assert found.evidence is None
    assert found.listing
    assert found.version
    assert found.era is not None
    assert found.handshake_seconds > 0
    assert not limit.taken


async def test_the_place_is_free_while_a_connection_that_was_listed_is_used() -> None:
    limit = OnePlace()
    async with Warden() as warden, McpPeer() as peer:
        one = attempt(peer.url)
        async with one.connected(Dialer(warden=warden, limits=Limits()), limit) as connection:
            assert not limit.taken
            assert one.listing == await connection.list_tools(within=5)


@pytest.mark.requirement("LOAD-5")
async def test_a_failed_dial_is_evidence_and_no_exception() -> None:
    with closed_port() as port:
        async with Warden() as warden:
            found = await attempt(f"http://127.0.0.1:{port}/mcp").run(
                Dialer(warden=warden, limits=Limits()), OnePlace()
            )
    assert isinstance(found.evidence, NetworkFailure)
    assert found.evidence.fault is NetworkFault.REFUSED
    assert (found.version, found.listing) == ("", None)


@pytest.mark.requirement("LOAD-9")
async def test_a_place_that_never_comes_ends_the_attempt_at_its_deadline_without_a_dial() -> None:
    limit = OnePlace()
    async with Warden() as warden, McpPeer() as peer, limit.place():
        one = attempt(peer.url, deadline=anyio.current_time() + 0.05)
        found = await one.run(Dialer(warden=warden, limits=Limits()), limit)
        assert peer.requests == []
    assert isinstance(found.evidence, TimedOut)
    assert found.evidence.doing == "its turn"


def test_evidence_is_found_inside_a_group_of_one() -> None:
    seen = NetworkFailure(fault=NetworkFault.RESET)
    assert evidence_in(ExceptionGroup("outer", [ExceptionGroup("inner", [ServerFailure(seen)])])) is seen
    assert evidence_in(ValueError("odd")) == Unexpected(type="ValueError", detail="odd")
