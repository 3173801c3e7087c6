"""Behind a real Envoy: what a hub says, asks and passes on while authorization denies or is down.

The hub's clock is the test's own; each exchange is real. What is counted is counted at the authorization service,
which Envoy asks once for each request, and at the server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest

from holdfast.core.lifecycle.table import State
from holdfast.errors import CallDenied, CallFailed, ServerDenied
from holdfast.gateway.model import OUTAGE_STATUS
from holdfast.hub.hub import Hub
from holdfast.testing import FakeClock
from tests.hub.test_life_evidence import call, pass_time
from tests.peers.authz import AuthzService
from tests.peers.envoy import envoy_gateway
from tests.peers.mcp_http import McpPeer

pytestmark = pytest.mark.anyio

NO_WORK = "Tools from this server will not work"


class Scene:
    """A server behind the proxy, and a hub with a clock that the test moves."""

    def __init__(
        self, hub: Hub, clock: FakeClock, authz: AuthzService, peer: McpPeer, tasks: anyio.abc.TaskGroup
    ) -> None:
        self.hub, self.clock, self.authz, self.peer = hub, clock, authz, peer
        self._tasks = tasks
        self.errors: list[type[Exception] | None] = []

    @property
    def asked(self) -> int:
        """The requests that reached the proxy."""
        return len(self.authz.requests)

    @property
    def status(self) -> str:
        return self.hub.server_health("a").status

    async def pass_time(self, seconds: float, *, calls: bool = True) -> None:
        """Let the time go by, with two calls in each second."""
        for _ in range(round(seconds * 2)):
            if calls:
                await self._tasks.start(self._call)
            await pass_time(self.hub, self.clock, 0.5)

    async def _call(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """One call; it is under way at most, if it waits for the server: the clock does not move meanwhile."""
        waits = self.hub.server_health("a").state is State.RECONNECTING
        if waits:
            task_status.started()
        self.errors.append(await call(self.hub))
        if not waits:
            task_status.started()

    def words(self) -> str:
        return "\n".join(self.hub.warnings().for_user)


@asynccontextmanager
async def scene(folder: Path, *, status_on_error: int | None = None, down: bool = False) -> AsyncIterator[Scene]:
    authz, clock = AuthzService(), FakeClock()
    async with (
        McpPeer() as peer,
        authz,
        envoy_gateway(
            {"/mcp/a": peer.port},
            authz_port=authz.port,
            folder=folder,
            timeout_ms=10_000,  # a busy machine is no outage
            status_on_error=status_on_error,
        ) as gateway,
    ):
        if down:
            authz.deny(status=500)
        hub = Hub.from_config({"mcpServers": {"a": {"url": gateway.url("/mcp/a")}}}, clock=clock)
        async with hub, anyio.create_task_group() as tasks:
            await hub.ready(10)
            found = Scene(hub, clock, authz, peer, tasks)
            if not down:
                await found.pass_time(2)
                assert set(found.errors) == {None}
                found.errors.clear()
            yield found
            tasks.cancel_scope.cancel()


@pytest.mark.requirement("LIFE-23", "LIFE-24", "MSG-9")
async def test_a_policy_that_denies_in_mid_life_is_told_after_one_call_and_hardly_asked(tmp_path: Path) -> None:
    async with scene(tmp_path) as seen:
        asked, served = seen.asked, len(seen.peer.requests)
        seen.authz.deny("no grant for you")
        await seen.pass_time(1.5)
        assert seen.status == "denied"
        assert "no grant for you" in seen.words()
        await seen.pass_time(58.5)
        assert seen.asked - asked <= 8
        assert len(seen.peer.requests) == served, "fail-closed stays closed"
        assert seen.errors[0] is CallDenied
        assert set(seen.errors) == {CallDenied, ServerDenied}
        assert (seen.hub.server_health("a").state, seen.status) == (State.DENIED, "denied")
        seen.authz.allow()
        await seen.pass_time(61)
        assert seen.status == "available"
        assert await call(seen.hub) is None


@pytest.mark.requirement("LIFE-23", "LIFE-24", "MSG-9")
async def test_an_outage_that_looks_like_a_denial_is_asked_again_soon_and_ends_with_the_outage(tmp_path: Path) -> None:
    """Envoy's own default: 403 without a word when its authorization service fails."""
    async with scene(tmp_path) as seen:
        asked = seen.asked
        seen.authz.deny(status=500)
        await seen.pass_time(1.5)
        assert seen.status == "denied"
        assert "may be an outage of the authorization check: it is asked again" in seen.words()
        seen.authz.allow()
        await seen.pass_time(5)
        assert seen.status == "available", "a short one ends within the listings that confirm it"
        assert seen.asked - asked <= 16

        asked = seen.asked
        seen.authz.deny(status=500)
        await seen.pass_time(60)
        assert seen.asked - asked <= 10
        assert seen.status == "denied"
        seen.authz.allow()
        await seen.pass_time(61)
        assert seen.status == "available", "a call asks a denial again once per cooldown"


@pytest.mark.requirement("LIFE-24", "LOAD-4")
async def test_a_blip_of_authorization_at_the_start_costs_no_server(tmp_path: Path) -> None:
    async with scene(tmp_path, down=True) as seen:
        assert seen.status == "denied"
        assert "may be an outage" in seen.words()
        await seen.pass_time(4, calls=False)
        assert 2 <= seen.asked <= 3
        seen.authz.allow()
        await seen.pass_time(6.5, calls=False)
        assert seen.status == "available"


@pytest.mark.requirement("LIFE-22", "LIFE-25", "MSG-8", "MSG-9")
@pytest.mark.parametrize(("seconds", "told"), [(20, "was lost (it"), (60, "has not been ready for 60 s (it")])
async def test_an_outage_with_a_status_of_its_own_is_lost_and_back_soon_under_load(
    tmp_path: Path, seconds: int, told: str
) -> None:
    async with scene(tmp_path, status_on_error=OUTAGE_STATUS) as seen:
        asked, served = seen.asked, len(seen.peer.requests)
        seen.authz.deny(status=500)
        await seen.pass_time(1)
        assert seen.status == "transient"
        await seen.pass_time(seconds - 1)
        assert seen.status == "transient"
        assert seen.asked - asked <= 5 + seconds / 2
        assert len(seen.peer.requests) == served
        assert seen.errors[0] is CallFailed
        words = seen.words()
        assert f"{told} answered HTTP 503)" in words
        assert NO_WORK not in words
        seen.authz.allow()
        await seen.pass_time(2)
        assert seen.status == "available"
        assert await call(seen.hub) is None
