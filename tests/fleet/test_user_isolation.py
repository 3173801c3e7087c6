"""Two users, three servers with logins, two replicas, random operations: nothing of one user ever reaches the other.

The servers have three kinds of authorization servers: ``oidc-provider``, the Python SDK's, and our own, which fails
where it should. Each step is one operation of one user at one replica: call, list, read a large result, log in, log
out, renew at both replicas at once, or an event of the world: all access tokens end, a server answers 500 for a while,
a server is reconnected, a replica is restarted. Each server tells the person of the access token in every tool,
result, log line and progress. After each step everything that can be seen is looked at:

* what the servers saw: the person of the token of each call, and the user who made it,
* all that reached the programs of a user: answers and notifications on her streams, kept results, and the status,
* what the hubs keep: the catalogs and the logins of each user,
* what operators see: log lines, metrics, the audit, and every command that Redis got.

The seed names the choice, so that a failure can be repeated: ``HOLDFAST_SEED``.
"""

from __future__ import annotations

import logging
import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest

from holdfast.access.audit_reader import AuditFilter, AuditReader
from holdfast.access.audit_writer import AuditFiles, AuditTrail
from holdfast.auth.credentials import Logins
from holdfast.auth.person_login import log_out
from holdfast.auth.token_store import GrantKey
from holdfast.config.read import config_from_mapping
from holdfast.control.server.metrics import Metrics
from holdfast.errors import ServerFailure
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub
from tests.access.test_audit import KEY
from tests.auth.people_servers import PeerPeople, PeopleServer, defined, people_servers, spec_of
from tests.fleet.test_homes import modern
from tests.fleet.test_user_logins import fleet_on, logins_of
from tests.harness.raw_session import Session
from tests.harness.served_hub import Served
from tests.harness.users import TOKENS
from tests.harness.waiting import all_blocked, asked, came_true
from tests.harness.web import serving
from tests.peers.redis import RedisPeer, has_redis

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requirement("SEC-13", "AUTH-8"),
    pytest.mark.skipif(not has_redis(), reason="redis-server is not installed"),
]

USERS = ("ada", "bob")
SERVERS = ("oidc", "sdk", "peer")
STEPS, LONG_STEPS = 20, 300
ROUNDS = int(os.environ.get("HOLDFAST_ROUNDS", "4"))
LONG_MARKS = (pytest.mark.long, pytest.mark.timeout(1800))
LARGE = {"largeResults": {"over": 1_000}}


def seeds() -> list[Any]:
    given = os.environ.get("HOLDFAST_SEED")
    first, *others = [int(given)] if given else [7_919 * (number + 1) for number in range(ROUNDS)]
    return [first, *(pytest.param(seed, marks=LONG_MARKS) for seed in others)]


class Replica:
    """One hub of the fleet, that can be started again."""

    def __init__(self, redis: RedisPeer, servers: dict[str, Any], audit: Path, tasks: anyio.abc.TaskGroup) -> None:
        self._redis = redis
        self._servers = servers
        self.audit = audit
        self._tasks = tasks
        self._end = self._ended = anyio.Event()

    async def start(self) -> None:
        self._end, self._ended = anyio.Event(), anyio.Event()
        await self._tasks.start(self._run)

    async def stop(self) -> None:
        self._end.set()
        await self._ended.wait()

    async def _run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """In a task of its own: replicas end in any order."""
        fleet = fleet_on(self._redis)
        config = config_from_mapping({"mcpServers": self._servers, "holdfast": LARGE})
        hub = Hub(config, fleet=fleet, has_local=False, user_tokens=fleet.users, chance=lambda: 0.0)
        trail = AuditTrail(AuditFiles(self.audit, KEY), KEY)
        trail.start()
        app = create_app(hub, tokens=TOKENS, audit=trail)
        self.metrics = Metrics(hub)
        try:
            async with hub, serving(app) as base:
                self.served = Served(hub, app, base)
                await came_true(lambda: fleet.member.synced)
                task_status.started()
                await self._end.wait()
        finally:
            trail.close()
            self._ended.set()


class Programs:
    """The programs of one user at one replica: a legacy session that hears notices, and modern requests."""

    def __init__(self, user: str, replica: Replica, http: httpx2.AsyncClient) -> None:
        self._http = http
        self._url = replica.served.all
        self._token = {"authorization": f"Bearer token-of-{user}"}
        self._session = Session(http, self._url)
        self._session.headers |= self._token
        self.got: list[str] = []
        """All that came, as it came; ``notices`` are the parts of it that no request asked for."""
        self.notices: list[str] = []

    async def hear(self, *, task_status: anyio.abc.TaskStatus[anyio.CancelScope]) -> None:
        """Begin the session, and record what comes on its own stream."""
        await self._session.begin()
        await self.legacy("logging/setLevel", level="debug")
        with anyio.CancelScope() as scope:
            async with self._session.notices() as events:
                task_status.started(scope)
                async for event in events:
                    self.notices.append(event.get("data", ""))
                    self.got.append(event.get("data", ""))

    async def legacy(self, method: str, **params: Any) -> str:
        """All that answers a request of the session."""
        async with self._session.request(method, params) as events:
            came = [event.get("data", "") async for event in events]
        self.got += came
        return "\n".join(came)

    async def modern(self, method: str, **params: Any) -> str:
        """All that answers a request without a session."""
        body, headers = modern(params.get("name", "none"))
        meta = {**body["params"]["_meta"], **params.pop("_meta", {}), "io.modelcontextprotocol/logLevel": "debug"}
        body = {**body, "method": method, "params": {**params, "_meta": meta}}
        headers = {**headers, "mcp-method": method, **self._token}
        if "uri" in params:
            headers["mcp-name"] = params["uri"]
        elif "name" not in params:
            headers.pop("mcp-name")
        answer = await self._http.post(self._url, json=body, headers=headers)
        self.got.append(answer.text)
        return answer.text

    def changes(self) -> int:
        """How often the session was told that its tools changed."""
        return sum("notifications/tools/list_changed" in one for one in self.notices)

    async def lists(self, tool: str) -> None:
        """Wait until the session has this tool."""

        async def is_there() -> bool:
            return f'{tool}"' in await self.legacy("tools/list")

        await asked(is_there)

    async def call(self, tool: str, *, legacy: bool = False, **arguments: Any) -> str:
        ask = self.legacy if legacy else self.modern
        return await ask("tools/call", name=tool, arguments=arguments, _meta={"progressToken": "its-progress"})


class World:
    """The servers, the replicas and the clients; ``wrong`` is what must not be."""

    def __init__(
        self, seed: int, servers: dict[str, PeopleServer], replicas: list[Replica], http: httpx2.AsyncClient,
        tasks: anyio.abc.TaskGroup,
    ) -> None:  # fmt: skip
        self._chance = random.Random(seed)
        self._servers = servers
        self.replicas = replicas
        self._http = http
        self._tasks = tasks
        self._programs: dict[tuple[str, Replica], tuple[Programs, anyio.CancelScope]] = {}
        self.story: list[str] = []
        self.wrong: list[str] = []
        self.got = dict.fromkeys(USERS, "")
        self.redis = bytearray()
        """Every command that Redis got."""
        self.log: Callable[[], str] = str
        self._secrets = {f"token-of-{user}" for user in USERS}
        self._looked = {"log": 0, "redis": 0}
        self._whose: dict[str, str] = {}
        """By the name of a login, the user who logged in."""
        self.calls = dict.fromkeys(USERS, 0)
        self._operations: list[Callable[[str, str, Replica], Awaitable[object]]] = [
            *[self.call] * 6, *[self.list] * 3, *[self.log_in] * 3, self.log_out, *[self.renew] * 2, self.large,
            self.end_tokens, self.fail, self.reconnect, self.restart, self.status,
        ]  # fmt: skip

    async def attach(self, replica: Replica) -> None:
        """Start the programs of all users at a replica."""
        for user in USERS:
            made = Programs(user, replica, self._http)
            self._programs[user, replica] = made, await self._tasks.start(made.hear)

    def detach(self, replica: Replica) -> None:
        """End the programs of all users at a replica."""
        for user in USERS:
            self._collect(user)
            self._programs.pop((user, replica))[1].cancel()

    async def begin(self) -> None:
        """Every user logs in, calls each server in both eras, and does once what chance may leave out."""
        for user in USERS:
            for server in SERVERS:
                await self.log_in(user, server, self.replicas[0])
        for replica, legacy in zip(self.replicas, (True, False), strict=True):
            for user in USERS:
                store = logins_of(replica.served).of(user)
                await came_true(lambda store=store: len(store.grants()) == len(SERVERS))  # type: ignore[misc]
                for server in SERVERS:
                    await self.call(user, server, replica, legacy=legacy)
        for user in USERS:
            for operation in (self.list, self.status, self.large, self.renew):
                await operation(user, SERVERS[0], self.replicas[0])
        await self.look()
        assert "  kept " in "".join(self.story), "a large result is kept"

    async def step(self) -> None:
        user, server = self._chance.choice(USERS), self._chance.choice(SERVERS)
        replica, operation = self._chance.choice(self.replicas), self._chance.choice(self._operations)
        self.story.append(f"{operation.__name__} {user} {server} r{self.replicas.index(replica)}")
        await operation(user, server, replica)
        await self.look()

    def programs(self, user: str, replica: Replica) -> Programs:
        return self._programs[user, replica][0]

    # What users do.

    async def call(
        self, user: str, server: str, replica: Replica, *, legacy: bool | None = None, **arguments: Any
    ) -> str:
        self.calls[user] += 1
        legacy = self._chance.random() < 0.5 if legacy is None else legacy
        return await self.programs(user, replica).call(f"{server}__read", legacy=legacy, who=user, **arguments)

    async def list(self, user: str, server: str, replica: Replica) -> None:
        said = await self.programs(user, replica).modern("tools/list")
        self._check('"cacheScope":"private"' in said.replace(" ", ""), "a list may be kept for others")

    async def status(self, user: str, server: str, replica: Replica) -> None:
        await self.programs(user, replica).call("holdfast_status")

    async def large(self, user: str, server: str, replica: Replica) -> None:
        said = await self.call(user, server, replica, times=100)
        for handle in re.findall(r"results/([\w.]+)", said):
            self.story.append(f"  kept {handle}")
            for who in (_other(user), user):
                for at in self.replicas:
                    read = await self.programs(who, at).call("read_result", handle=handle)
                    read += await self.programs(who, at).modern("resources/read", uri=f"holdfast://results/{handle}")
                    if (who, at) == (user, replica):
                        self._check(f"done for {user}" in read, f"{user} cannot read what was kept for her")
                    else:
                        self._check(not _names(_other(who), read), f"{who} reads a kept result of {_other(who)}")

    async def log_in(self, user: str, server: str, replica: Replica) -> None:
        grant = await self._servers[server].log_in(user, logins_of(replica.served).of(user))
        self._whose[grant.login] = user

    async def log_out(self, user: str, server: str, replica: Replica) -> None:
        await log_out(spec_of(self._servers[server]), store=logins_of(replica.served).of(user))

    async def renew(self, user: str, server: str, replica: Replica) -> None:
        """Both replicas do it at once."""
        for grant in logins_of(replica.served).of(user).grants():
            if self._servers[server].url in grant.servers and grant.refreshable:
                async with anyio.create_task_group() as tasks:
                    for one in self.replicas:
                        tasks.start_soon(self._renew, user, one, grant.key, grant.access_token)

    async def _renew(self, user: str, replica: Replica, key: GrantKey, token: str) -> None:
        try:
            await Logins(logins_of(replica.served).of(user)).renew(key, instead_of=token)
        except ServerFailure as exc:
            self.story.append(f"  not renewed: {exc}")

    # What happens to them.

    async def end_tokens(self, user: str, server: str, replica: Replica) -> None:
        """All users notice it at once, at both replicas."""
        await self._servers[server].end_tokens()
        async with anyio.create_task_group() as tasks:
            for one in USERS:
                for at in self.replicas:
                    tasks.start_soon(self.call, one, server, at)

    async def fail(self, user: str, server: str, replica: Replica) -> None:
        failing = self._servers["peer"]
        assert isinstance(failing, PeerPeople)
        await failing.peer.behave(mcp_status=500)
        await self.call(user, "peer", replica)
        await failing.peer.behave(mcp_status=0)

    async def reconnect(self, user: str, server: str, replica: Replica) -> None:
        with anyio.move_on_after(5):
            await replica.served.hub.reconnect(server)

    async def restart(self, user: str, server: str, replica: Replica) -> None:
        self.detach(replica)
        await replica.stop()
        await replica.start()
        await self.attach(replica)

    # What must hold after each step.

    async def look(self) -> None:
        for name, server in self._servers.items():
            calls, reuses = await server.seen()
            wrong = {(person, who) for person, who in calls if person != who}
            self._check(not wrong, f"{name} was called with the token of another: {wrong}")
            self._check(not reuses, f"a refresh token of {name} was used twice")
        for replica in self.replicas:
            self._look_at(replica)
            shown = (await replica.metrics.text()).decode()
            self._check(not any(_names(one, shown) for one in USERS), "a metric names a user")
            self._check_for_operators("the metrics", shown)
            audit = b"".join(file.read_bytes() for file in replica.audit.rglob("*") if file.is_file())
            self._check_for_operators("the audit", audit.decode(errors="replace"))
        for user in USERS:
            self._collect(user)
        for place, text in (("log", self.log()), ("redis", self.redis.decode(errors="replace"))):
            self._check_for_operators(place, text[self._looked[place] :])
            # What comes next may be the rest of what is there now.
            self._looked[place] = max(len(text) - 200, 0)

    def _look_at(self, replica: Replica) -> None:
        for user in USERS:
            tools = {entry.name for entry in replica.served.hub.registry.users.catalogs.of(user).tools}
            wrong = {name for name in tools if name.endswith(f"of_{_other(user)}")}
            self._check(not wrong, f"the catalog of {user} has {wrong}")
            for grant in logins_of(replica.served).of(user).known:
                self._check(self._whose[grant.login] == user, f"{user} has a login of the other")
                self._secrets |= {one for one in (grant.access_token, grant.refresh_token) if one}

    def _collect(self, user: str) -> None:
        """Look at what reached the programs of a user since the last look."""
        for (one, _), (programs, _) in self._programs.items():
            if one == user:
                came = "\n".join(programs.got)
                programs.got.clear()
                self.got[user] += came
                self._check(not _names(_other(user), came), f"{user} got something of the other: {came}")
                self._check(not self._secrets_in(came), f"{user} got a token: {came}")

    def _check_for_operators(self, place: str, text: str) -> None:
        self._check(not self._secrets_in(text), f"{place} has a token")
        self._check(" for ada" not in text and " for bob" not in text, f"{place} has a result or a notification")

    def _secrets_in(self, text: str) -> bool:
        return any(secret in text for secret in self._secrets)

    def _check(self, holds: bool, words: str) -> None:
        if not holds:
            self.wrong.append(words)


def _names(user: str, text: str) -> bool:
    """Whether a text has the name of a user, and not by chance in a random id."""
    return re.search(rf"(?<![A-Za-z0-9]){user}(?![A-Za-z0-9])", text) is not None


def _other(user: str) -> str:
    return USERS[1 - USERS.index(user)]


@asynccontextmanager
async def world(seed: int, folder: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(RedisPeer(folder / "redis"))
        found = await stack.enter_async_context(people_servers())
        servers: dict[str, PeopleServer] = dict(zip(SERVERS, found, strict=True))
        http = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=60))
        configured = {name: defined(server) for name, server in servers.items()}
        tasks = await stack.enter_async_context(anyio.create_task_group())
        replicas = [Replica(redis, configured, folder / f"audit{number}", tasks) for number in range(2)]
        for one in replicas:
            await one.start()
            stack.push_async_callback(one.stop)
        made = World(seed, servers, replicas, http, tasks)
        watching = await tasks.start(_watch, redis, made.redis)
        for one in replicas:
            await made.attach(one)
        try:
            yield made
        finally:
            watching.cancel()
            for one in replicas:
                made.detach(one)


async def _watch(redis: RedisPeer, seen: bytearray, *, task_status: anyio.abc.TaskStatus[anyio.CancelScope]) -> None:
    """Record every command that Redis gets."""
    with anyio.CancelScope() as scope:
        async with await anyio.connect_tcp("127.0.0.1", redis.port) as stream:
            await stream.send(b"MONITOR\r\n")
            seen += await stream.receive()
            task_status.started(scope)
            while True:
                seen += await stream.receive()


@pytest.mark.parametrize("seed", seeds())
async def test_nothing_of_one_user_reaches_the_other(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")
    steps = LONG_STEPS if request.node.get_closest_marker("long") else STEPS
    with anyio.fail_after(20 * steps + 60):
        async with world(seed, tmp_path) as made:
            made.log = lambda: caplog.text
            await made.begin()
            for _ in range(steps):
                assert not made.wrong, "\n".join([f"HOLDFAST_SEED={seed}", *made.story, *made.wrong])
                await made.step()
            assert not made.wrong, "\n".join([f"HOLDFAST_SEED={seed}", *made.story, *made.wrong])
    for user in USERS:
        for what in ("read done", "a log line", "progress"):
            assert f"{what} for {user}" in made.got[user], "what must not reach the other reaches her"
        records = [
            record
            for replica in made.replicas
            for record in AuditReader(replica.audit, AuditFilter(principal=user)).read()
            if record.server in SERVERS
        ]
        assert len(records) == made.calls[user], "each call is audited once, as that of its user"


async def test_a_list_that_changes_for_one_user_is_announced_to_her_programs_alone(tmp_path: Path) -> None:
    with anyio.fail_after(90):
        async with world(0, tmp_path) as made:
            here, _ = made.replicas
            for user in USERS:
                await made.log_in(user, "oidc", here)
                await made.call(user, "oidc", here, legacy=True)
                await made.programs(user, here).lists(f"of_{user}")
            await all_blocked()
            before = [made.programs(user, here).changes() for user in USERS]
            # If hers came to him too, his own would be his second one.
            for user in USERS:
                await made.call(user, "oidc", here, legacy=True, change=True)
                await made.programs(user, here).lists(f"new0_of_{user}")
                await all_blocked()
            assert [made.programs(user, here).changes() for user in USERS] == [one + 1 for one in before]
            await made.look()
    assert not made.wrong
