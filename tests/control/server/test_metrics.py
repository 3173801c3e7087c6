"""The metrics, scraped and parsed: what they count is what the servers really saw."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from holdfast._version import __version__
from holdfast.control.server.metrics import METHODS, METRICS, LoopLag, Metrics, metrics_route
from holdfast.core.lifecycle.table import State
from holdfast.errors import HoldfastError
from holdfast.hub.hub import Hub
from holdfast.hub.journal import CallEnded, ConfigRefused, Missed
from holdfast.testing import FakeClock
from tests.harness.open_hubs import config, defined, reaches, records, retries, settled, states, until
from tests.peers.http_fault import respond
from tests.peers.mcp_http import McpPeer, calls_meet
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio
MakePeer = Callable[..., StdioPeer]


class Scrape:
    """What one scrape held, by name and labels."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """All samples of a name that have these labels, added up."""
        wanted = set(labels.items())
        return sum(value for (sample, has), value in self.samples.items() if sample == name and wanted <= has)

    def labels(self, name: str) -> set[str]:
        return {value for (_, labels) in self.samples for key, value in labels if key == name}


async def scraped(metrics: Metrics) -> Scrape:
    return Scrape((await metrics.text()).decode())


@asynccontextmanager
async def counted(servers: dict[str, Any], **options: Any) -> AsyncIterator[tuple[Hub, Metrics]]:
    """A hub and its metrics, which were there first."""
    clock = options.pop("clock", None)
    hub = Hub(config(servers, **options), clock=clock, chance=lambda: 0.0)
    metrics = Metrics(hub)
    async with hub:
        yield hub, metrics


async def call(hub: Hub, tool: str) -> None:
    with suppress(HoldfastError):
        await hub.call_tool(tool)


@pytest.mark.requirement("HUB-5", "OBS-1")
async def test_counts_are_what_the_servers_really_saw(stdio_peer: MakePeer) -> None:
    child = stdio_peer()
    async with McpPeer() as peer, counted({"web": peer, "child": child}, refresh="off") as (hub, metrics):
        await settled(hub, peer)
        for _ in range(5):
            await call(hub, "web__echo")
        for _ in range(2):
            await call(hub, "web__fail")
        for _ in range(3):
            await call(hub, "child__echo")
        peer.script = calls_meet(respond(503, "mending"), peer)
        for _ in range(6):
            await call(hub, "web__echo")
        now = await scraped(metrics)

        seen = peer.methods.count("tools/call")
        calls = {"server": "web", "method": "tools/call"}
        assert now.value("holdfast_calls_total", **calls, outcome="completed") == 5
        assert now.value("holdfast_calls_total", **calls, outcome="tool_error") == 2
        assert now.value("holdfast_calls_total", **calls, outcome="failed") == seen - 7
        assert now.value("holdfast_calls_total", **calls, outcome="refused") == 13 - seen
        assert now.total("holdfast_calls_total", server="child") == child.methods.count("tools/call") == 3
        assert now.value("holdfast_call_seconds_count", server="web") == seen
        assert now.value("holdfast_call_wait_seconds_count", server="web") == 13
        assert now.value("holdfast_breaker_trips_total", server="web") == 1
        assert now.value("holdfast_breaker_open", server="web") == 1
        assert now.value("holdfast_breaker_open", server="child") == 0
        assert now.value("holdfast_catalog_tools", server="child") == len(hub.catalog.servers["child"].entries)
        assert now.value("holdfast_catalog_version") == hub.catalog.version


@pytest.mark.requirement("HUB-5")
async def test_a_histogram_adds_up() -> None:
    async with counted({"a": {"command": "nowhere", "enabled": False}}, clock=FakeClock()) as (hub, metrics):
        for seconds in (0.004, 0.005, 0.2, 40.0, 900.0):
            ended = CallEnded(server="a", method="tools/call", outcome="completed", waited=0.0, seconds=seconds, at=0.0)
            hub.registry.journal.write_call(ended)
        now = await scraped(metrics)
        buckets = {le: now.value("holdfast_call_seconds_bucket", server="a", le=le) for le in ("0.005", "0.25", "60.0")}
        assert buckets == {"0.005": 2, "0.25": 3, "60.0": 4}
        assert now.value("holdfast_call_seconds_bucket", server="a", le="+Inf") == 5
        assert now.value("holdfast_call_seconds_count", server="a") == 5
        assert now.value("holdfast_call_seconds_sum", server="a") == pytest.approx(940.209)


@pytest.mark.requirement("HUB-5", "LIFE-5")
async def test_states_retries_and_transitions_follow_a_server_through_an_outage() -> None:
    async with McpPeer(get_stream=True) as peer, counted({"a": peer}, clock=FakeClock()) as (hub, metrics):
        told = records(hub)
        await settled(hub, peer)
        assert (await scraped(metrics)).value("holdfast_server_state", server="a", state="connected") == 1
        await peer.stop()
        await until(hub, "a", lambda: retries(told))
        now = await scraped(metrics)
        assert now.value("holdfast_server_state", server="a", state="connected") == 0
        assert now.value("holdfast_server_state", server="a", state=hub.server_health("a").shown_state) == 1
        assert now.total("holdfast_server_state", server="a") == 1
        assert now.value("holdfast_retries_total", server="a") == len(retries(told))
        await peer.start()
        await hub.reconnect("a")
        now = await scraped(metrics)
        assert now.value("holdfast_transitions_total", server="a", state="reconnecting") == states(told).count(
            State.RECONNECTING
        )
        assert now.value("holdfast_transitions_total", server="a", state="connected") == 2


@pytest.mark.requirement("HUB-5", "HUB-12")
async def test_calls_in_flight_and_those_that_wait_are_seen_while_they_last() -> None:
    limits = {"concurrency": 1, "queue": 5}
    async with McpPeer() as peer, counted({"a": peer}, clock=FakeClock(), call=limits) as (hub, metrics):
        await settled(hub, peer)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(call, hub, "a__slow")
                await peer.slow_started.wait()
                now = await scraped(metrics)
                peer.release.set()
        assert now.value("holdfast_calls_in_flight", server="a") == 3
        assert now.value("holdfast_calls_waiting", server="a") == 2
        assert (await scraped(metrics)).value("holdfast_calls_in_flight", server="a") == 0


@pytest.mark.requirement("HUB-5")
async def test_labels_are_bounded_and_a_removed_server_takes_its_series_with_it() -> None:
    entry = {"command": "nowhere", "enabled": False}
    async with counted({"a": entry, "b": entry}, clock=FakeClock()) as (hub, metrics):
        for number in range(50):
            with suppress(HoldfastError):
                await hub.registry.request("a", f"made/up/{number}", {"name": f"tool {number}"})
        for _ in range(2):
            with suppress(HoldfastError):
                await hub.registry.request("b", "tools/call", {"name": "x"})
        now = await scraped(metrics)
        assert now.labels("method") == {"other", "tools/call"} <= {*METHODS, "other"}
        assert now.value("holdfast_calls_total", server="a", method="other", outcome="refused") == 50
        assert now.labels("server") == {"a", "b"}
        assert now.labels("state") == {state.shown for state in State}

        await hub.apply(config({"b": entry}))
        assert metrics._servers.keys() == {"b"}
        late = CallEnded(server="a", method="tools/call", outcome="cancelled", waited=0.0, seconds=1.0, at=0.0)
        hub.registry.journal.write_call(late)
        assert (await scraped(metrics)).labels("server") == {"b"}


@pytest.mark.requirement("HUB-5", "OBS-1")
async def test_lost_records_and_configurations_are_counted() -> None:
    async with counted({}, clock=FakeClock()) as (hub, metrics):
        hub.registry.journal.write(Missed(count=7))
        hub.registry.journal.write(ConfigRefused(at=0.0))
        await hub.apply(config({}))
        now = await scraped(metrics)
        assert now.value("holdfast_events_missed_total") == 7
        assert now.value("holdfast_config_changes_total", result="refused") == 1
        assert now.value("holdfast_config_changes_total", result="applied") == 1


@pytest.mark.requirement("HUB-5", "HUB-10")
async def test_connections_of_one_clients_own_are_counted_apart(stdio_peer: MakePeer) -> None:
    async with counted({"a": defined(stdio_peer(), sharing="per-client")}) as (hub, metrics):
        await reaches(hub, "a")
        spec = hub.config.servers["a"]
        assert not spec.problems
        own = hub.registry.clients.of("somebody", spec, lambda: None)
        with anyio.fail_after(15):
            while own.state is not State.CONNECTED:
                await own.changed()
        now = await scraped(metrics)
        assert now.value("holdfast_client_connections", server="a") == 1
        assert now.value("holdfast_client_transitions_total", server="a", state="connected") == 1
        assert now.value("holdfast_transitions_total", server="a", state="connected") == 1


@pytest.mark.requirement("HUB-5")
async def test_every_metric_of_the_table_is_shown_and_none_that_is_not_in_it() -> None:
    async with counted({"a": {"command": "nowhere"}}, clock=FakeClock()) as (hub, metrics):
        await hub.ready()
        await call(hub, "a__echo")
        now = await scraped(metrics)
        ours = {name: family for name, family in now.families.items() if name.startswith("holdfast_")}
        assert ours.keys() == METRICS.keys()
        assert {name: family.type for name, family in ours.items()} == {
            name: metric.kind for name, metric in METRICS.items()
        }
        for name, family in ours.items():
            for sample in family.samples:
                assert {*sample.labels} - {"le"} == {*METRICS[name].labels}
        assert __version__ in now.labels("version")
        assert {name for name in now.families if not name.startswith("holdfast_")} <= {
            "process_virtual_memory_bytes",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_cpu_seconds",
            "process_open_fds",
            "process_max_fds",
        }


@pytest.mark.requirement("HUB-5", "SEC-2")
@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"authorization": "Bearer wrong"}, 401), ({"authorization": "Bearer right"}, 200)],
)
async def test_beyond_loopback_they_are_read_with_a_token_alone(headers: dict[str, str], status: int) -> None:
    async def read_by(token: str) -> bool:
        return token == "right"

    async with counted({}, clock=FakeClock()) as (_, metrics):
        answer = await _get(metrics_route(metrics, None, read_by=read_by), headers)
        assert answer.status_code == status
        assert ("holdfast_build_info" in answer.text) == (status == 200)


@pytest.mark.requirement("HUB-5")
async def test_they_are_open_where_no_token_is_asked_for_and_say_what_they_are() -> None:
    async with counted({}, clock=FakeClock()) as (_, metrics):
        answer = await _get(metrics_route(metrics, None), {"accept": "application/openmetrics-text;version=nonsense"})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


async def _get(route: Any, headers: dict[str, str]) -> httpx2.Response:
    transport = httpx2.ASGITransport(app=Starlette(routes=[route]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get("/metrics", headers=headers)


async def test_what_is_kept_of_a_server_does_not_grow_with_its_calls() -> None:
    async with counted({"a": {"command": "nowhere", "enabled": False}}, clock=FakeClock()) as (hub, metrics):
        for number in range(2_000):
            ended = CallEnded(server="a", method=f"m{number}", outcome="failed", waited=0.0, seconds=number, at=0.0)
            hub.registry.journal.write_call(ended)
        assert len(metrics._servers["a"].calls) == 1


@pytest.mark.requirement("DX-7")
def test_loop_lag_is_the_largest_of_the_last_minute() -> None:
    assert LoopLag().largest is None
    lag = LoopLag()
    for at, seconds in ((1.0, 0.4), (2.0, 0.1), (31.0, 0.2)):
        lag.add(at, seconds)
    assert lag.largest == 0.4
    lag.add(61.0, 0.01)
    assert lag.largest == 0.2
