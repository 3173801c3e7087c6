"""The cost of a call through the hub, compared with a bare connection: time, CPU and memory.

Both use our transport and one server in a separate process, so that the difference is the work of the hub: resolve
the name, admit the call, apply the limits and settle the outcome.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio

from benchmarks.report import Check, Report, Row, at_most, interleaved, median, ratio
from benchmarks.servers import fleet
from holdfast.config.read import config_from_mapping
from holdfast.config.spec import ServerSpec
from holdfast.core.breaker import Outcome, Permit
from holdfast.core.redact import Redactor
from holdfast.hub.hub import Hub
from holdfast.testing import StdioServer
from holdfast.wire.dial import Dialer
from holdfast.wire.session import Connection
from holdfast.wire.warden import Warden

__all__ = ["REQUIREMENTS", "measure"]

REQUIREMENTS = ("PERF-7", "LIFE-9")

ROUNDS = 61
CALLS = 50
"""In each round, one after the other."""

AT_MOST = 1.25
"""How much more CPU a call through the hub may take than the bare one. Wall time shows the same with more noise."""

ADMISSION_MICROSECONDS = 10.0

PATHS = ("stdio", "http")
BARE, HUB = "a bare connection", "through the hub"
ADMISSION = "admission and settlement alone"

Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Sample:
    """The mean of one round, for one call."""

    seconds: float
    cpu: float


def measure(*, rounds: int = ROUNDS, calls: int = CALLS) -> Report:
    """Call in each way, in turns, after one warm-up round."""
    with fleet(2) as running, StdioServer({"echo": "done"}) as child:
        http: Mapping[str, object] = {"type": "http", "url": running.urls[0]}
        samples, peaks = anyio.run(_measured, {"http": http, "stdio": child.definition}, rounds, calls)
    return Report(
        name="hub_calls",
        title=f"One call at a time, {rounds} rounds of {calls}",
        requirements=REQUIREMENTS,
        rows=tuple(_row(name, samples) for name in samples),
        checks=(*(_check(path, samples, peaks) for path in PATHS), _admission_check(samples)),
        about=(
            "In one process: `Hub.call_tool` beside the same request on a bare connection of the same transport. "
            "Ratios are to the bare connection."
        ),
    )


async def _measured(
    definitions: Mapping[str, object], rounds: int, calls: int
) -> tuple[Mapping[str, list[Sample]], Mapping[str, int]]:
    config = config_from_mapping({"mcpServers": definitions})
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(Hub(config))
        await hub.ready(10)
        dialer = Dialer(warden=await stack.enter_async_context(Warden()), limits=config.settings.limits)
        ways: dict[str, Call] = {}
        for path in PATHS:
            spec = config.servers[path]
            assert isinstance(spec, ServerSpec)
            connection = await stack.enter_async_context(dialer.connect(spec, within=10, redactor=Redactor()))
            ways[f"{path}, {BARE}"] = _bare(connection)
            ways[f"{path}, {HUB}"] = _through(hub, f"{path}__echo")
        ways[ADMISSION] = _admission(hub)
        for call in ways.values():
            await _sample(call, calls)
        samples: defaultdict[str, list[Sample]] = defaultdict(list)
        gc.collect()
        gc.freeze()  # a collection within a sample would look at what the set-up left behind
        try:
            for name in interleaved(list(ways), rounds):
                samples[name].append(await _sample(ways[name], calls))
        finally:
            gc.unfreeze()
        return {name: samples[name] for name in ways}, {name: await _peak(call) for name, call in ways.items()}


def _bare(connection: Connection) -> Call:
    return lambda: connection.call_tool("echo", {"text": "x"}, idle=60.0, within=600.0)


def _through(hub: Hub, name: str) -> Call:
    return lambda: hub.call_tool(name, {"text": "x"})


def _admission(hub: Hub) -> Call:
    slot = hub.registry.slots["http"]

    async def admit() -> None:
        permit = slot.admit()
        assert isinstance(permit, Permit)
        slot.settle(permit, Outcome.COMPLETED)

    return admit


async def _sample(call: Call, calls: int) -> Sample:
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        await call()
    return Sample((time.perf_counter() - began) / calls, (time.process_time() - cpu) / calls)


async def _peak(call: Call) -> int:
    """The most bytes that one call held at any moment."""
    tracemalloc.start()
    try:
        await call()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        await call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def _row(name: str, samples: Mapping[str, list[Sample]]) -> Row:
    mine = samples[name]
    path = name.partition(",")[0]
    base = samples[f"{path}, {BARE}"] if name.endswith(HUB) else None
    return Row(
        label=name,
        time=median(_seconds(mine)),
        ratio=ratio(_seconds(mine), _seconds(base)) if base is not None else None,
        cpu_ratio=ratio([one.cpu for one in mine], [one.cpu for one in base]) if base is not None else None,
        cpu=median([sample.cpu for sample in mine]).median,
    )


def _check(path: str, samples: Mapping[str, list[Sample]], peaks: Mapping[str, int]) -> Check:
    ours, bare = samples[f"{path}, {HUB}"], samples[f"{path}, {BARE}"]
    times = ratio(_seconds(ours), _seconds(bare))
    cpu = ratio([s.cpu for s in ours], [s.cpu for s in bare])
    more = peaks[f"{path}, {HUB}"] - peaks[f"{path}, {BARE}"]
    return Check(
        demand=f"PERF-7 a call over {path} takes at most {AT_MOST} times the CPU through the hub",
        found=(
            f"{cpu.median:.2f} times ({cpu.low:.2f} … {cpu.high:.2f}), "
            f"{times.median:.2f} times as long, {more / 1024:+.1f} KiB at its peak"
        ),
        met=cpu.median <= AT_MOST,
    )


def _admission_check(samples: Mapping[str, list[Sample]]) -> Check:
    found = median([sample.cpu for sample in samples[ADMISSION]])
    return at_most(f"PERF-7 admission and settlement take under {ADMISSION_MICROSECONDS:g} µs", ADMISSION_MICROSECONDS,
                   found.scaled(1e6), " µs")  # fmt: skip


def _seconds(samples: list[Sample]) -> list[float]:
    return [sample.seconds for sample in samples]
