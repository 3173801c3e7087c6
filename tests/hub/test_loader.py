"""Loading: what it costs, how it tries again, and that no server is another's burden."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import holdfast.hub.loader as loader_room
from holdfast import (
    LoadResult,
    MCPServerLoadOutcome,
    ServerFailure,
    Tool,
    UnknownServer,
    get_tools_with_resilience,
    load,
)
from holdfast.config.spec import ServerSpec
from holdfast.core.evidence import Unexpected
from holdfast.hub.lease import ServerCache
from holdfast.hub.limits import DialLimit
from holdfast.testing import FakeClock
from holdfast.wire.dial import Dialer
from tests.hub.loaders import Naps, http, loader
from tests.peers.http_fault import (
    Behaviour,
    Exchange,
    FaultServer,
    accept_and_ignore,
    closed_port,
    never_answer,
    reset_before_answer,
    respond,
)
from tests.peers.leaks import no_leaks
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio

LEGACY = ["server/discover", "initialize", "notifications/initialized", "tools/list", "DELETE"]
MODERN = ["server/discover", "tools/list"]
BUSY = respond(503, "not yet")


def stdio(peer: StdioPeer, **more: object) -> dict[str, object]:
    return {"transport": "stdio", "command": peer.command, "args": list(peer.args), **more}


@pytest.mark.requirement("LOAD-6", "LOAD-7", "LOAD-11")
async def test_every_server_gets_its_own_outcome_and_the_triple_holds_them_all(
    stdio_peer: Callable[..., StdioPeer],
) -> None:
    async with McpPeer() as healthy, McpPeer(auth="Bearer x") as denying, FaultServer(BUSY) as busy:
        with closed_port() as port:
            result = await get_tools_with_resilience(
                {
                    "http": http(healthy.url),
                    "pipe": stdio(stdio_peer()),
                    "denied": http(denying.url),
                    "busy": http(busy.origin),
                    "down": http(f"http://127.0.0.1:{port}/mcp"),
                    "bad": {"transport": "carrier pigeon"},
                },
                base_backoff_s=0.001,
            )
    tools, failed, errors = result
    assert isinstance(result, LoadResult)
    assert {tool.server_id for tool in tools} == {"http", "pipe"}
    assert all(isinstance(tool, Tool) for tool in tools)
    assert set(failed) == set(errors) == {"denied", "busy", "down", "bad"}
    assert (result.available, result.transient, result.denied) == (["http", "pipe"], ["busy"], ["denied"])
    assert result.permanent == ["down", "bad"]
    assert {outcome.server_id: outcome.attempts for outcome in result.outcomes} == {
        "http": 1, "pipe": 1, "denied": 1, "busy": 3, "down": 1, "bad": 1,
    }  # fmt: skip
    assert all((outcome.error is None) == (outcome.status == "available") for outcome in result.outcomes)


@pytest.mark.parametrize(("attempts", "backoff"), [(0, 0.25), (-1, 0.25), (3, -0.1)])
async def test_a_policy_that_makes_no_sense_is_refused(attempts: int, backoff: float) -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        await get_tools_with_resilience({}, max_attempts=attempts, base_backoff_s=backoff)


async def test_no_servers_are_no_tools() -> None:
    assert tuple(await get_tools_with_resilience({})) == ([], [], {})


# What a load costs


@pytest.mark.requirement("LOAD-8")
async def test_a_legacy_server_costs_a_probe_the_first_time_and_none_the_second() -> None:
    memory, naps = ServerCache(), Naps()
    async with McpPeer() as peer:
        for expected in (LEGACY, LEGACY[1:]):
            peer.requests.clear()
            (outcome,) = (await loader({"a": http(peer.url)}, memory=memory, naps=naps).load()).outcomes
            assert (outcome.status, outcome.attempts) == ("available", 1)
            assert peer.methods == expected
        await peer.all_closed()
    assert naps.taken == []


@pytest.mark.requirement("LOAD-8")
@pytest.mark.parametrize("era", ["modern", "both"])
async def test_a_modern_server_costs_a_probe_and_a_listing(era: Any) -> None:
    memory = ServerCache()
    async with McpPeer(era=era) as peer:
        for _ in range(2):
            peer.requests.clear()
            assert (await loader({"a": http(peer.url)}, memory=memory).load()).available == ["a"]
            assert peer.methods == MODERN


async def test_what_is_remembered_belongs_to_the_server_whatever_it_is_called() -> None:
    memory = ServerCache()
    async with McpPeer() as peer, McpPeer() as other:
        await loader({"a": http(peer.url)}, memory=memory).load()
        peer.requests.clear()
        await loader({"renamed": http(peer.url), "a": http(other.url)}, memory=memory).load()
    assert peer.methods == LEGACY[1:]
    assert other.methods == LEGACY


async def test_a_server_that_turned_permanent_is_probed_anew() -> None:
    memory = ServerCache()
    async with McpPeer() as old:
        connection = {"a": http(old.url)}
        await loader(connection, memory=memory).load()
    async with FaultServer(respond(400, "who are you"), port=old.port):
        assert (await loader(connection, memory=memory).load()).permanent == ["a"]
    async with McpPeer(era="modern", port=old.port) as new:
        assert (await loader(connection, memory=memory).load()).available == ["a"]
    assert new.methods == MODERN


# Trying again


@pytest.mark.requirement("LOAD-9")
async def test_transient_failures_are_retried_after_doubling_jittered_pauses() -> None:
    naps = Naps()
    async with McpPeer(faults=[BUSY, reset_before_answer]) as peer:
        (outcome,) = (await loader({"a": http(peer.url)}, naps=naps, chance=0.5).load()).outcomes
    assert (outcome.status, outcome.attempts) == ("available", 3)
    assert naps.taken == [0.25 * 1.25, 0.5 * 1.25]


@pytest.mark.requirement("LOAD-9")
@pytest.mark.parametrize("attempts", [1, 2, 5])
async def test_no_more_attempts_are_made_than_allowed(attempts: int) -> None:
    naps = Naps()
    async with FaultServer(BUSY) as peer:
        (outcome,) = (await loader({"a": http(peer.origin)}, naps=naps, attempts=attempts).load()).outcomes
    assert (outcome.status, outcome.attempts) == ("transient", attempts)
    assert len(peer.requests) == attempts
    assert len(naps.taken) == attempts - 1


@pytest.mark.requirement("LOAD-9")
@pytest.mark.parametrize(("asked", "slept"), [("2", 2.0), ("60", 5.0), ("0", 0.25), ("soon", 0.25)])
async def test_a_server_gets_the_time_it_asks_for_up_to_five_seconds(asked: str, slept: float) -> None:
    naps = Naps()
    async with McpPeer(faults=[respond(429, headers={"Retry-After": asked})]) as peer:
        (outcome,) = (await loader({"a": http(peer.url)}, naps=naps).load()).outcomes
    assert outcome.status == "available"
    assert naps.taken == [slept]


@pytest.mark.requirement("LOAD-9")
async def test_a_pause_that_would_end_after_the_deadline_of_the_load_is_not_begun() -> None:
    naps = Naps()
    async with FaultServer(respond(503, headers={"Retry-After": "5"})) as peer:
        (outcome,) = (await loader({"a": http(peer.origin)}, naps=naps, total_timeout=4.0).load()).outcomes
    assert (outcome.status, outcome.attempts, naps.taken) == ("transient", 1, [])


@pytest.mark.requirement("LOAD-9")
@pytest.mark.parametrize("hole", [never_answer, accept_and_ignore])
async def test_a_black_hole_cannot_hold_a_load_past_its_deadlines(hole: Behaviour) -> None:
    with anyio.fail_after(20):
        async with FaultServer(hole) as peer:
            connections = {"a": http(peer.origin)}
            each = await loader(connections, attempt_timeout=0.05).load()
            whole = await loader(connections, attempts=10**6, backoff=0, attempt_timeout=0.05, total_timeout=0.3).load()
    assert (each.transient, each.outcomes[0].attempts) == (["a"], 3)
    assert whole.transient == ["a"]
    assert whole.outcomes[0].attempts < 20


@pytest.mark.requirement("LOAD-9")
async def test_a_server_whose_turn_comes_after_the_deadline_is_not_dialed_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader_room, "DialLimit", functools.partial(DialLimit, clock=FakeClock()))
    with anyio.fail_after(20):
        async with FaultServer(never_answer) as hole, McpPeer() as late:
            connections = {"hole": http(hole.origin), "late": http(late.url)}
            result = await loader(connections, concurrency=1, attempt_timeout=0.2, total_timeout=0.2).load()
    assert result.transient == ["hole", "late"]
    assert "waiting for its turn" in result[2]["late"]
    assert late.requests == []


@pytest.mark.requirement("LOAD-9")
async def test_servers_that_all_were_starting_up_are_found_by_a_later_load() -> None:
    async with McpPeer(faults=[BUSY] * 3) as one, McpPeer(faults=[reset_before_answer] * 3) as two:
        connections = {"one": http(one.url), "two": http(two.url)}
        cold = await loader(connections).load()
        assert cold.transient == ["one", "two"]
        assert cold.model_message.endswith(":** one, two")
        assert (await loader(connections).load()).available == ["one", "two"]


@pytest.mark.requirement("LOAD-10")
@pytest.mark.parametrize("answer", [respond(401), respond(403), respond(404), respond(200, "<html>")])
async def test_what_cannot_heal_fails_at_once_without_a_pause(answer: Behaviour) -> None:
    naps = Naps()
    async with FaultServer(answer) as peer:
        (outcome,) = (await loader({"a": http(peer.origin)}, naps=naps).load()).outcomes
    assert outcome.status in ("permanent", "denied")
    assert (outcome.attempts, naps.taken) == (1, [])


@pytest.mark.requirement("LOAD-2", "LOAD-3")
async def test_a_server_that_was_up_in_this_run_and_refuses_now_is_starting_up() -> None:
    memory, naps = ServerCache(), Naps()
    async with McpPeer() as peer:
        await loader({"a": http(peer.url)}, memory=memory).load()
    (down,) = (await loader({"a": http(peer.url)}, memory=memory, naps=naps).load()).outcomes
    assert (down.status, down.attempts, len(naps.taken)) == ("transient", 3, 2)
    assert (await loader({"a": http(peer.url)}).load()).permanent == ["a"]


# Side by side


@pytest.mark.requirement("LOAD-11")
async def test_no_more_dials_are_young_at_once_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_room, "DialLimit", functools.partial(DialLimit, clock=FakeClock()))
    now, most, full = 0, 0, anyio.Event()

    async def note(exchange: Exchange) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 3:
            full.set()
        await full.wait()
        now -= 1
        await exchange.respond(401)

    with anyio.fail_after(20):
        async with FaultServer(Behaviour("note", note)) as peer:
            connections = {f"s{n}": http(f"{peer.origin}/{n}") for n in range(12)}
            result = await loader(connections, concurrency=3).load()
    assert len(result.denied) == 12
    assert most == 3


class Enough(Exception):
    """Ends a load from inside its callback."""


@pytest.mark.requirement("LOAD-11", "LOAD-15")
async def test_160_silent_servers_and_commands_delay_no_healthy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    limits: list[DialLimit] = []
    told: list[str] = []

    def made(*args: Any) -> DialLimit:
        limits.append(DialLimit(*args, clock=clock))
        return limits[0]

    def on_outcome(outcome: MCPServerLoadOutcome) -> None:
        told.append(outcome.server_id)
        raise Enough

    async def half_a_second() -> None:
        while not limits or len(limits[0]._waiting) < 161 - 16:
            await anyio.wait_all_tasks_blocked()
        await clock.advance(0.5)

    monkeypatch.setattr(loader_room, "DialLimit", made)
    with anyio.fail_after(60):
        async with FaultServer(never_answer) as hole, McpPeer() as healthy:
            connections: dict[str, dict[str, object]] = {f"hole{n}": http(f"{hole.origin}/{n}") for n in range(156)}
            connections |= {
                f"sleeping{n}": {"transport": "stdio", "command": "sleep", "args": ["60"]} for n in range(4)
            }
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(half_a_second)
                with pytest.raises(Enough):
                    await loader({**connections, "healthy": http(healthy.url)}).load(on_outcome=on_outcome)
    assert told == ["healthy"]


@pytest.mark.requirement("LOAD-11")
async def test_a_fault_of_ours_with_one_server_is_that_servers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Dialer._dial

    async def trip(self: Dialer, spec: ServerSpec, *rest: Any) -> Any:
        if spec.id == "odd":
            raise ExceptionGroup("wrapped", [ExceptionGroup("twice", [KeyError("a bug")])])
        if spec.id == "hidden":
            raise ExceptionGroup("wrapped", [ServerFailure(Unexpected(type="Seen"))])
        return await real(self, spec, *rest)

    monkeypatch.setattr(Dialer, "_dial", trip)
    async with McpPeer() as peer:
        result = await loader({name: http(peer.url) for name in ("odd", "hidden", "fine")}).load()
    assert result.available == ["fine"]
    assert "(KeyError)" in result[2]["odd"]
    assert "(Seen)" in result[2]["hidden"]


async def test_outcomes_are_told_as_they_come_and_a_callback_that_raises_ends_the_load_with_its_own_error() -> None:
    told: list[str] = []
    async with McpPeer() as peer, no_leaks():
        connections = {"a": http(peer.url), "b": http(peer.url)}
        await loader(connections).load(on_outcome=lambda outcome: told.append(outcome.server_id))
        assert sorted(told) == ["a", "b"]
        with pytest.raises(ZeroDivisionError):
            await loader(connections).load(on_outcome=lambda outcome: told.append(str(1 // 0)))
        await peer.all_closed()


# Which servers


async def test_only_the_servers_that_are_named_are_loaded_and_disabled_ones_only_then() -> None:
    async with McpPeer() as peer:
        mapping = {"mcpServers": {name: {"url": peer.url, "enabled": name != "off"} for name in ("a", "b", "off")}}
        assert (await load(mapping)).available == ["a", "b"]
        assert (await load(mapping, servers=["off", "a", "off"])).available == ["off", "a"]
        with pytest.raises(UnknownServer) as unknown:
            await load(mapping, servers=["a", "nope"])
        assert unknown.value.hint == "known: a, b, off"


async def test_tools_that_the_definition_filters_out_are_not_shown() -> None:
    async with McpPeer() as peer:
        filters = {"include": ["e*", "add", "s*"], "exclude": ["slow"]}
        result = await load({"mcpServers": {"a": {"url": peer.url, "tools": filters}}})
    assert [tool.name for tool in result.tools] == ["echo", "add"]
