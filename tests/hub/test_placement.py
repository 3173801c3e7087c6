"""A stdio server that lives on one replica: one process, and every replica uses it as if it were its own."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from holdfast import Hub
from holdfast.config import ServerSpec
from holdfast.core import Evidence, FleetReply, Listing, State, classify_evidence
from holdfast.core.fleet import member, placement
from holdfast.endpoint import Broker
from holdfast.errors import ConnectionClosed, HoldfastError, ServerFailure, ServerUnavailable
from holdfast.hub import CallEnded, Fleet, LocalStore, PeerAddress, Peers, serve_broker
from holdfast.hub.fleet.forwarding import _failure_in, _failure_value
from holdfast.hub.fleet.listings import packed
from holdfast.hub.fleet.messages import StoreUnavailable
from holdfast.testing import Fault, StdioServer
from holdfast.wire import Caller, Relay
from tests.core.test_classify import EVERY_EVIDENCE
from tests.harness.open_hubs import PATIENCE, fleet_of, reaches, records, running
from tests.harness.waiting import asked, came_true

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-6")]

KEY = b"k" * 32
EVERYTHING = {"command": sys.executable, "args": ["-m", "tests.peers.peer_server", "legacy"]}


class Replicas:
    """Hubs that share the broker of one machine."""

    def __init__(self, folder: Path, tasks: anyio.abc.TaskGroup, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._tasks = tasks
        self._stack = stack
        self.hubs: list[Hub] = []

    async def start(self, servers: Mapping[str, object], **settings: Any) -> Hub:
        """One more hub."""
        hub = await self._stack.enter_async_context(replica(self._folder, len(self.hubs), servers, **settings))
        self.hubs.append(hub)
        return hub


@asynccontextmanager
async def replica(folder: Path, number: int, servers: Mapping[str, object], **settings: Any) -> AsyncIterator[Hub]:
    peers = Peers(lambda: [KEY], "test", advertise=PeerAddress(path=f"{folder}/p{number}"))
    fleet = Fleet(LocalStore(folder / "broker"), replica=f"r{number}", peers=peers)
    fleet.default_placement = "one"
    broker: list[Broker] = []
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running(servers, hub={"fleet": fleet}, **settings))
        broker.append(Broker(hub))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await tasks.start(broker[0].run)
        yield hub


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await tasks.start(lambda task_status: serve_broker(tmp_path / "broker", task_status=task_status))
        yield Replicas(tmp_path, tasks, stack)


def calls_of(hub: Hub) -> Any:
    """The calls in flight, as the hub attributes questions to them."""
    assert isinstance(hub.registry.relay, Broker)
    return hub.registry.relay._calls


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            os.kill(pid, 0)
            found.append(pid)
        except ProcessLookupError:
            continue
    return found


async def holder_and_other(replicas: Replicas, servers: Mapping[str, object], **settings: Any) -> tuple[Hub, Hub]:
    for _ in range(2):
        await replicas.start(servers, **settings)
    name = next(iter(servers))
    for hub in replicas.hubs:
        await came_true(lambda hub=hub: hub.server_health(name).state is State.CONNECTED)  # type: ignore[misc]
    holders = [hub for hub in replicas.hubs if fleet_of(hub).leases.runs(name)]
    assert len(holders) == 1
    return holders[0], next(hub for hub in replicas.hubs if hub is not holders[0])


async def test_forwarded_calls_share_a_connection(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    dialed: list[PeerAddress] = []
    dial = Peers._dial

    async def counted(self: Peers, address: PeerAddress) -> Any:
        dialed.append(address)
        return await dial(self, address)

    with StdioServer({"a": "1"}) as server:
        _, other = await holder_and_other(replicas, {"s": server.definition})
        await other.call_tool("s__a")
        monkeypatch.setattr(Peers, "_dial", counted)
        for _ in range(5):
            await other.call_tool("s__a")
    assert dialed == []


async def test_one_process_serves_all_replicas_under_the_same_names(replicas: Replicas) -> None:
    with StdioServer({"a": "1"}) as server:
        holder, other = await holder_and_other(replicas, {"s": server.definition})
        assert len(server.pids) == 1
        assert (await holder.call_tool("s__a")).text == (await other.call_tool("s__a")).text == "1"
        assert [one.name for one in holder.catalog.tools] == [one.name for one in other.catalog.tools]
        assert fleet_of(other).leases.home_of("s") == fleet_of(holder).leases.home_of("s") == fleet_of(holder).replica
        assert len(alive(server.pids)) == 1


class Client:
    """The caller of a request: answers questions, and notes what it is told."""

    def __init__(self, principal: str = "", answer: Mapping[str, Any] | None = None) -> None:
        self.era = "legacy"
        self.principal = principal
        self.counted_by = None
        self.capabilities: Mapping[str, Any] = {"elicitation": {}, "sampling": {}, "roots": {}}
        self._answer = dict(answer or {"action": "accept", "content": {"colour": "red"}})
        self.questions: list[str] = []
        self.told: list[tuple[str, Any]] = []
        self.progress: list[float] = []

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        self.questions.append(method)
        return self._answer

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.told.append((method, params))

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append(progress)

    async def call(self, hub: Hub, tool: str, **arguments: Any) -> str:
        params = {"name": tool, "arguments": arguments}
        result = await hub.registry.request(
            "e",
            "tools/call",
            params,
            caller=self,  # type: ignore[arg-type] # its era is a text
            on_progress=self.on_progress,
        )
        return str(result["content"][0]["text"])


async def test_progress_questions_logs_and_cancellation_reach_the_client_of_the_other_replica(
    replicas: Replicas,
) -> None:
    holder, other = await holder_and_other(replicas, {"e": EVERYTHING})
    client = Client("alice")
    assert await client.call(other, "count", n=3) == "done"
    assert client.progress == [1, 2, 3]
    assert "red" in await client.call(other, "ask", kind="elicit")
    assert client.questions == ["elicitation/create"]
    await client.call(other, "log", level="error", text="oh")
    assert ("notifications/message", "oh") in [(method, (params or {}).get("data")) for method, params in client.told]
    with anyio.move_on_after(0.3) as scope:
        await client.call(other, "hang")
    assert scope.cancelled_caught
    await came_true(lambda: not calls_of(holder))
    assert await client.call(other, "echo", text="hi") == "hi"
    mallory = Client("mallory")
    assert "refused" in await mallory.call(other, "ask", kind="elicit"), "this connection served two principals"
    assert mallory.questions == []


async def test_a_forwarded_call_is_recorded_once_by_the_replica_of_its_client_with_its_principal(
    replicas: Replicas,
) -> None:
    holder, other = await holder_and_other(replicas, {"e": EVERYTHING})
    told = [records(hub) for hub in (holder, other)]
    await Client("alice").call(other, "echo", text="hi")
    await Client("bob").call(holder, "echo", text="hi")
    seen = [[record.principal for record in one if isinstance(record, CallEnded)] for one in told]
    assert seen == [["bob"], ["alice"]]


async def test_an_error_of_the_server_and_a_held_tool_are_the_same_on_both_replicas(replicas: Replicas) -> None:
    holder, other = await holder_and_other(replicas, {"e": EVERYTHING})
    words = []
    for hub in (holder, other):
        with pytest.raises(HoldfastError) as caught:
            await Client().call(hub, "fail")
        words.append(str(caught.value))
    assert words[0] == words[1]
    assert "it failed" in words[0]


async def test_a_changed_list_and_a_changed_resource_reach_the_other_replica(replicas: Replicas) -> None:
    _, other = await holder_and_other(replicas, {"e": EVERYTHING})
    await Client().call(other, "grow")
    await came_true(lambda: any("grown" in entry.name or "extra" in entry.name for entry in other.catalog.tools))


async def test_a_server_that_is_down_has_the_same_reason_on_both_replicas_and_comes_back_on_both(
    replicas: Replicas,
) -> None:
    with StdioServer({"a": "1"}) as server:
        holder, other = await holder_and_other(replicas, {"s": server.definition})
        server.fail(Fault.REFUSE)
        await came_true(
            lambda: "exited" in other.server_health("s").reason and "exited" in holder.server_health("s").reason
        )
        assert other.server_health("s").state is not State.CONNECTED
        server.heal()
        await holder.reconnect("s")
        await reaches(other, "s")
        assert (await other.call_tool("s__a")).text == "1"
        assert len(alive(server.pids)) == 1


async def test_a_call_in_flight_when_its_replica_ends_is_uncertain_and_runs_once(replicas: Replicas) -> None:
    holder, other = await holder_and_other(replicas, {"e": EVERYTHING})
    pid = await Client().call(other, "pid")
    async with anyio.create_task_group() as tasks:
        failures: list[Exception] = []

        async def call() -> None:
            try:
                await Client().call(other, "hang")
            except (ConnectionClosed, ServerUnavailable) as exc:
                failures.append(exc)

        tasks.start_soon(call)
        await came_true(lambda: calls_of(holder))
        await holder.registry.close()
        assert not alive([int(pid)])
    assert [type(one) for one in failures] == [ConnectionClosed]
    assert "uncertain" in str(failures[0])


async def test_a_replica_that_leaves_hands_its_server_over_without_a_failed_call(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    with StdioServer({"a": "1"}) as server:
        holder, other = await holder_and_other(replicas, {"s": server.definition})
        results: list[str] = []
        most = 0
        over = anyio.Event()

        async def traffic(hub: Hub) -> None:
            nonlocal most
            while not over.is_set():
                results.append((await hub.call_tool("s__a")).text)
                most = max(most, len(alive(server.pids)))

        async with anyio.create_task_group() as tasks:
            for hub in (holder, other, other):
                tasks.start_soon(traffic, hub)
            await came_true(lambda: len(results) > 50)
            await holder.registry.hand_over(5.0)
            await came_true(lambda: fleet_of(other).leases.runs("s"))
            before = len(results)
            await came_true(lambda: len(results) > before + 50)
            over.set()
        assert set(results) == {"1"}
        assert "s: the replica that runs it changed; connecting" in caplog.text
        assert "configuration changed" not in caplog.text
        assert (most, len(server.pids)) == (1, 2)
        assert fleet_of(holder).leases.home_of("s") == fleet_of(other).replica


async def test_a_client_of_its_own_has_a_process_of_its_own_where_the_server_runs(replicas: Replicas) -> None:
    holder, other = await holder_and_other(replicas, {"e": {**EVERYTHING, "sharing": "per-client"}})
    spec = other.registry.slots["e"].spec
    assert isinstance(spec, ServerSpec)
    slot = other.registry.clients.of("client", spec, OneClient)
    with anyio.fail_after(PATIENCE):
        while slot.lease is None:
            await slot.changed()
    params = {"name": "pid", "arguments": {}}
    pids = {
        str((await other.registry.request("e", "tools/call", params, slot=one))["content"][0]["text"])
        for one in (slot, None)
    }
    assert len(pids) == 2
    assert {parent_of(int(pid)) for pid in pids} == {os.getpid()}
    assert len(holder.registry.clients.all()) == 1
    other.registry.clients.release("client")
    await came_true(lambda: not holder.registry.clients.all())


class OneClient(Relay):
    """The relay of a connection that belongs to one client."""

    capabilities: Mapping[str, Any] = {}

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        raise NotImplementedError

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """It listens to nothing."""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_without_the_store_the_server_goes_on_where_it_is(tmp_path: Path) -> None:
    with StdioServer({"a": "1"}) as server:
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            broker = anyio.CancelScope()

            async def serve(task_status: anyio.abc.TaskStatus[None]) -> None:
                with broker:
                    await serve_broker(tmp_path / "broker", task_status=task_status)

            await tasks.start(serve)
            replicas = Replicas(tmp_path, tasks, stack)
            holder, other = await holder_and_other(replicas, {"s": server.definition})
            broker.cancel()
            stops = fleet_of(holder).member.placement.stops_at("s")

            async def extended() -> bool:
                assert (await other.call_tool("s__a")).text == "1"
                return fleet_of(holder).member.placement.stops_at("s") >= stops + 2.0

            await asked(extended)
            assert fleet_of(other).not_shared_since is not None
            assert len(server.pids) == 1


async def test_a_replica_that_loses_the_store_alone_uses_its_server_where_it_moved(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, seconds in ((member, "ALONE_SECONDS", 1.0), (placement, "LOST_SECONDS", 1.0)):
        monkeypatch.setattr(module, name, seconds)
    for module in (member, placement):
        monkeypatch.setattr(module, "LEASE_SECONDS", 4.0)
    with StdioServer({"a": "1"}) as server:
        holder, other = await holder_and_other(replicas, {"s": server.definition})
        monkeypatch.setattr(fleet_of(holder).store, "exchange", unreachable)
        await came_true(lambda: fleet_of(other).leases.runs("s"))
        await reaches(holder, "s")
        assert fleet_of(holder).not_shared_since is not None
        assert (await holder.call_tool("s__a")).text == "1"
        assert fleet_of(holder).leases.home_of("s") == fleet_of(other).replica
        assert len(alive(server.pids)) == 1


async def unreachable(_: object) -> FleetReply:
    raise StoreUnavailable("its packets are dropped")


async def test_no_lease_waits_for_a_listing_that_takes_long_to_pack(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, go_on = threading.Event(), threading.Event()

    def slow(listing: Listing) -> tuple[str, str | None]:
        packs.set()
        go_on.wait(60)
        return packed(listing)

    monkeypatch.setattr("holdfast.hub.fleet.fleet.packed", slow)
    with StdioServer({"a": "1"}) as server:
        hub = await replicas.start({"s": server.definition})
        try:
            await came_true(packs.is_set)
            before = fleet_of(hub).exchanges
            await came_true(lambda: fleet_of(hub).exchanges > before)  # each renews the lease
        finally:
            go_on.set()
        assert (await hub.call_tool("s__a")).text == "1"
        assert len(server.pids) == 1


async def test_children_live_on_while_their_lease_is_prolonged_and_the_store_hangs(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StdioServer({"a": "1"}) as server:
        hub = await replicas.start({"s": server.definition})
        await came_true(lambda: hub.server_health("s").state is State.CONNECTED)
        asked_store, allowed = anyio.Event(), list[float]()

        async def hangs(_: object) -> None:
            asked_store.set()
            await anyio.sleep_forever()

        monkeypatch.setattr(fleet_of(hub).store, "exchange", hangs)
        with anyio.fail_after(PATIENCE):
            await asked_store.wait()
        monkeypatch.setattr(hub.registry._warden, "allow", lambda _, seconds: allowed.append(seconds))
        await came_true(lambda: allowed)
        assert fleet_of(hub).leases.runs("s")


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_of_the_modern_era_answers_clients_of_both_eras_on_the_other_replica(
    replicas: Replicas, era: str
) -> None:
    modern = {**EVERYTHING, "args": ["-m", "tests.peers.peer_server", "modern"]}
    _, other = await holder_and_other(replicas, {"e": modern})
    client = Client("alice")
    client.era = era
    assert await client.call(other, "count", n=2) == "done"
    assert client.progress == [1, 2]
    params = {"name": "ask", "arguments": {"kind": "elicit"}}
    result = await other.registry.request("e", "tools/call", params, caller=client)  # type: ignore[arg-type]
    asked = "inputRequests" in result if era == "modern" else "red" in result["content"][0]["text"]
    assert asked


@pytest.mark.requirement("LOAD-1", "LOAD-2", "LOAD-4")
def test_a_failure_gets_the_same_verdict_on_the_replica_that_it_is_told_to() -> None:
    def judged(seen: Evidence) -> tuple[object, ...]:
        verdict = classify_evidence(seen)
        return seen, verdict.status, verdict.unconfirmed, verdict.answers

    for seen in EVERY_EVIDENCE:
        told = _failure_in(json.loads(json.dumps(_failure_value(seen))))
        assert isinstance(told, ServerFailure)
        assert judged(told.evidence)[1:] == judged(seen)[1:], seen
