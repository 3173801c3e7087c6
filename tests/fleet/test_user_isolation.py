"""Two users, three servers with logins, two replicas, random operations: nothing of one user ever reaches the other.

Each step is one operation of one user at one replica: call, list, log in, log out, renew, or an event of the world: all
access tokens end, a server answers 500 for a while, a server is reconnected, a replica is restarted. After each step
everything that can be seen is looked at:

* what the servers saw: the person of each access token that a request of this user carried,
* what the clients got: results, lists, and what ``holdfast_status`` says,
* what the hubs keep: the catalogs and the logins of each user, audit records, metrics and log lines.

The seed names the choice, so that a failure can be repeated: ``HOLDFAST_SEED``.
"""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from holdfast.access.audit_reader import AuditFilter, AuditReader
from holdfast.access.audit_writer import AuditFiles, AuditTrail
from holdfast.auth.credentials import Renewer
from holdfast.auth.person_login import log_out
from holdfast.config.read import config_from_mapping
from holdfast.control.server.metrics import Metrics
from holdfast.errors import ServerFailure
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub
from tests.access.test_audit import KEY
from tests.auth.logins import logged_in
from tests.fleet.test_homes import modern
from tests.fleet.test_user_logins import fleet_on, logins_of
from tests.harness.served_hub import Served
from tests.harness.users import TOKENS
from tests.harness.waiting import came_true
from tests.harness.web import serving
from tests.peers.guarded import PLANTED, Guarded, guarded
from tests.peers.redis import RedisPeer, has_redis

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requirement("SEC-13", "AUTH-8"),
    pytest.mark.skipif(not has_redis(), reason="redis-server is not installed"),
]

USERS = ("ada", "bob")
SERVERS = ("files", "mail", "notes")
STEPS, LONG_STEPS = 30, 300
ROUNDS = int(os.environ.get("HOLDFAST_ROUNDS", "4"))


def seeds() -> list[Any]:
    given = os.environ.get("HOLDFAST_SEED")
    first, *others = [int(given)] if given else [7_919 * (number + 1) for number in range(ROUNDS)]
    return [first, *(pytest.param(seed, marks=pytest.mark.long) for seed in others)]


class Replica:
    """One hub of the fleet, that can be started again."""

    def __init__(self, redis: RedisPeer, servers: dict[str, Any], audit: Path) -> None:
        self._redis = redis
        self._servers = servers
        self._folder = audit
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        fleet = fleet_on(self._redis)
        config = config_from_mapping({"mcpServers": self._servers})
        hub = Hub(config, fleet=fleet, has_local=False, user_tokens=fleet.users, chance=lambda: 0.0)
        trail = AuditTrail(AuditFiles(self._folder, KEY), KEY)
        trail.start()
        self._stack.callback(trail.close)
        app = create_app(hub, tokens=TOKENS, audit=trail)
        self.metrics = Metrics(hub)
        await self._stack.enter_async_context(hub)
        self.served = Served(hub, app, await self._stack.enter_async_context(serving(app)))
        await came_true(lambda: fleet.member.synced)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()


class World:
    """The servers, the replicas and the clients; ``wrong`` is what must not be."""

    def __init__(self, seed: int, peers: dict[str, Guarded], replicas: list[Replica], http: httpx2.AsyncClient) -> None:
        self._chance = random.Random(seed)
        self._peers = peers
        self.replicas = replicas
        self._http = http
        self._seen = dict.fromkeys(peers, 0)
        self.story: list[str] = []
        self.wrong: list[str] = []
        self.answers = 0
        self._whose: dict[str, str] = {}
        """By the name of a login, the user who logged in."""
        self.calls = dict.fromkeys(USERS, 0)
        self._operations: list[Callable[[str, str, Replica], Awaitable[None]]] = [
            *[self.call] * 6, *[self.list] * 3, *[self.log_in] * 3, self.log_out, *[self.renew] * 2,
            self.end_tokens, self.fail, self.reconnect, self.restart, self.status,
        ]  # fmt: skip

    async def step(self) -> None:
        user, server = self._chance.choice(USERS), self._chance.choice(SERVERS)
        replica, operation = self._chance.choice(self.replicas), self._chance.choice(self._operations)
        self.story.append(f"{operation.__name__} {user} {server} r{self.replicas.index(replica)}")
        await operation(user, server, replica)
        await self.look(user)

    # What users do.

    async def call(self, user: str, server: str, replica: Replica) -> None:
        self.calls[user] += 1
        said = await self._ask(user, replica, "tools/call", name=f"{server}__read", arguments={})
        text = json.dumps(said)
        self.answers += f"done for {user}" in text
        self._check(f"done for {_other(user)}" not in text, f"{user} got the answer of the other: {text}")

    async def list(self, user: str, server: str, replica: Replica) -> None:
        said = json.dumps(await self._ask(user, replica, "tools/list"))
        self._check(f"of_{_other(user)}" not in said, f"{user} was listed a tool of the other")

    async def status(self, user: str, server: str, replica: Replica) -> None:
        said = json.dumps(await self._ask(user, replica, "tools/call", name="holdfast_status", arguments={}))
        self._check(_other(user) not in said, f"the status of {user} names the other: {said}")

    async def log_in(self, user: str, server: str, replica: Replica) -> None:
        peer = self._peers[server]
        await peer.behave(person=user)
        grant, _ = await logged_in(peer.spec(sharing="per-user"), logins_of(replica.served).of(user))
        self._whose[grant.login] = user

    async def log_out(self, user: str, server: str, replica: Replica) -> None:
        await log_out(self._peers[server].spec(sharing="per-user"), store=logins_of(replica.served).of(user))

    async def renew(self, user: str, server: str, replica: Replica) -> None:
        store = logins_of(replica.served).of(user)
        for grant in store.grants():
            if self._peers[server].url in grant.servers and grant.refreshable:
                try:
                    await Renewer(store).renew(grant.key, instead_of=grant.access_token)
                except ServerFailure as exc:
                    self.story.append(f"  not renewed: {exc}")

    # What happens to them.

    async def end_tokens(self, user: str, server: str, replica: Replica) -> None:
        await self._peers[server].behave(end_tokens=True)

    async def fail(self, user: str, server: str, replica: Replica) -> None:
        await self._peers[server].behave(mcp_status=500)
        await self.call(user, server, replica)
        await self._peers[server].behave(mcp_status=0)

    async def reconnect(self, user: str, server: str, replica: Replica) -> None:
        with anyio.move_on_after(5):
            await replica.served.hub.reconnect(server)

    async def restart(self, user: str, server: str, replica: Replica) -> None:
        await replica.restart()

    # What must hold after each step.

    async def look(self, user: str) -> None:
        for name, peer in self._peers.items():
            seen = await peer.seen("mcp", method="tools/call")
            people = {one["person"] for one in seen[self._seen[name] :]} - {""}
            self._seen[name] = len(seen)
            self._check(people <= {user}, f"a call of {user} reached {name} with a token of {people}")
            self._check(not await peer.seen("reuse"), f"a refresh token of {name} was used twice")
        for replica in self.replicas:
            hub = replica.served.hub
            for one in USERS:
                tools = {entry.name for entry in hub.registry.users.catalogs.of(one).tools}
                wrong = {name for name in tools if name.endswith(f"of_{_other(one)}")}
                self._check(not wrong, f"the catalog of {one} has {wrong}")
                for grant in logins_of(replica.served).of(one).known:
                    self._check(self._whose[grant.login] == one, f"{one} has a login of the other")
            shown = (await replica.metrics.text()).decode()
            self._check(PLANTED not in shown, "a metric has a token")
            self._check(not any(one in shown for one in USERS), "a metric names a user")

    def _check(self, holds: bool, words: str) -> None:
        if not holds:
            self.wrong.append(words)

    async def _ask(self, user: str, replica: Replica, method: str, **params: Any) -> Any:
        body, headers = modern(params.get("name", "none"))
        meta = body["params"]["_meta"]
        body = {**body, "method": method, "params": {**params, "_meta": meta}}
        headers = {**headers, "mcp-method": method, "authorization": f"Bearer token-of-{user}"}
        if "name" not in params:
            headers.pop("mcp-name")
        answer = await self._http.post(replica.served.all, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.headers["content-type"] == "application/json" else answer.text


def _other(user: str) -> str:
    return USERS[1 - USERS.index(user)]


@asynccontextmanager
async def world(seed: int, folder: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(RedisPeer(folder / "redis"))
        peers = {name: await stack.enter_async_context(guarded()) for name in SERVERS}
        servers = {name: peer.defined(sharing="per-user") for name, peer in peers.items()}
        http = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=60))
        replicas = [Replica(redis, servers, folder / f"audit{number}") for number in range(2)]
        for one in replicas:
            stack.push_async_callback(one.stop)
            await one.start()
        made = World(seed, peers, replicas, http)
        for user in USERS:
            for name in SERVERS[:2]:
                await made.log_in(user, name, replicas[0])
        yield made


@pytest.mark.parametrize("seed", seeds())
async def test_nothing_of_one_user_reaches_the_other(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    caplog.set_level(logging.INFO)
    steps = LONG_STEPS if request.node.get_closest_marker("long") else STEPS
    with anyio.fail_after(20 * steps):
        async with world(seed, tmp_path) as made:
            for _ in range(steps):
                await made.step()
                assert not made.wrong, "\n".join([f"HOLDFAST_SEED={seed}", *made.story, *made.wrong])
    assert made.answers, "no call succeeded: nothing was shown"
    assert PLANTED not in caplog.text, "a log line has a token"
    assert not any(f"token-of-{user}" in caplog.text for user in USERS)
    for user in USERS:
        records = [
            record
            for number in range(2)
            for record in AuditReader(tmp_path / f"audit{number}", AuditFilter(principal=user)).read()
            if record.server in SERVERS
        ]
        assert len(records) == made.calls[user], "each call is audited once, as that of its user"
        assert PLANTED not in repr(records)
