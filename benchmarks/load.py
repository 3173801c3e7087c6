"""Loading many healthy servers, compared with a plain concurrent loop over the SDK's client (PERF-3).

Every round is cold: new connections, and no memory of earlier rounds unless a row says so. The SDK's client builds a
TLS context for each server. One row shows the same loop with a shared context, because that alone saves time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ssl import SSLContext

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from benchmarks.report import Check, Report, Row, interleaved, median, ratio
from benchmarks.servers import TOOLS, Fleet, fleet
from holdfast.config.spec import Config, ServerSpec
from holdfast.hub.lease import ServerCache
from holdfast.hub.loader import Loader

__all__ = ["REQUIREMENTS", "measure"]

REQUIREMENTS = ("PERF-3",)

ROUNDS = 9
SERVERS = 50
AT_MOST = 1.1

PLAIN = "SDK client, plain loop"
SHARED = "SDK client, one TLS context"
OURS = "Holdfast"
REMEMBERED = "Holdfast, eras remembered"


@dataclass(frozen=True)
class Sample:
    """One load of all servers: how long, how much of our own CPU, and what the servers saw."""

    seconds: float
    cpu: float
    requests: int


def measure(*, rounds: int = ROUNDS, servers: int = SERVERS) -> Report:
    """Load the servers in each way, in turns, after one warm-up round."""
    with fleet(servers) as running:
        loads = _loads(running.urls)
        for name in loads:
            _sample(running, loads[name])
        samples: defaultdict[str, list[Sample]] = defaultdict(list)
        for name in interleaved(list(loads), rounds):
            samples[name].append(_sample(running, loads[name]))
    title = f"Load {servers} HTTP servers, half of each era, {rounds} rounds"
    return Report(
        name="load",
        title=title,
        requirements=REQUIREMENTS,
        rows=tuple(_row(name, samples) for name in loads),
        checks=_checks(samples),
    )


def _loads(urls: Sequence[str]) -> dict[str, Callable[[], Awaitable[int]]]:
    """Each way to load; each returns the number of tools."""
    known = ServerCache()
    context = httpx2.create_ssl_context()
    return {
        PLAIN: lambda: _with_sdk(urls),
        SHARED: lambda: _with_sdk(urls, context),
        OURS: lambda: _with_holdfast(urls, ServerCache()),
        REMEMBERED: lambda: _with_holdfast(urls, known),
    }


async def _with_sdk(urls: Sequence[str], context: SSLContext | None = None) -> int:
    found: list[int] = []

    async def load(url: str) -> None:
        found.append(await (_list(Client(url, cache=None)) if context is None else _list_over(url, context)))

    async with anyio.create_task_group() as tasks:
        for url in urls:
            tasks.start_soon(load, url)
    return sum(found)


async def _list_over(url: str, context: SSLContext) -> int:
    async with httpx2.AsyncClient(verify=context) as http:
        return await _list(Client(streamable_http_client(url, http_client=http), cache=None))


async def _list(unopened: Client) -> int:
    async with unopened as client:
        page = await client.list_tools()
        count = len(page.tools)
        while page.next_cursor:
            page = await client.list_tools(cursor=page.next_cursor)
            count += len(page.tools)
        return count


async def _with_holdfast(urls: Sequence[str], memory: ServerCache) -> int:
    specs = [ServerSpec(id=f"s{number}", transport="http", url=url) for number, url in enumerate(urls)]
    result = await Loader(Config(servers={spec.id: spec for spec in specs}), memory=memory).load()
    return len(result.tools)


def _sample(running: Fleet, load: Callable[[], Awaitable[int]]) -> Sample:
    async def timed() -> tuple[float, float, int]:
        began, cpu = time.perf_counter(), time.process_time()
        found = await load()
        return time.perf_counter() - began, time.process_time() - cpu, found

    seconds, cpu, found = anyio.run(timed)
    expected = TOOLS * len(running.urls)
    if found != expected:
        raise RuntimeError(f"{found} tools were found instead of {expected}: there is nothing to compare")
    return Sample(seconds, cpu, sum(running.requests().values()))


def _row(name: str, samples: dict[str, list[Sample]]) -> Row:
    mine, base = samples[name], samples[PLAIN]
    return Row(
        label=name,
        time=median(_seconds(mine)),
        ratio=None if name == PLAIN else ratio(_seconds(mine), _seconds(base)),
        cpu=median([sample.cpu for sample in mine]).median,
        requests=max(sample.requests for sample in mine),
    )


def _checks(samples: dict[str, list[Sample]]) -> tuple[Check, ...]:
    most, least = max(s.requests for s in samples[OURS]), min(s.requests for s in samples[PLAIN])
    times, of_shared = (ratio(_seconds(samples[OURS]), _seconds(samples[base])).median for base in (PLAIN, SHARED))
    return (
        Check(
            demand="PERF-3 sends no more requests than the plain loop",
            found=f"{most} at most, beside {least} at least",
            met=most <= least,
        ),
        Check(
            demand=f"PERF-3 takes at most {AT_MOST} times as long as the plain loop",
            found=f"{times:.2f} times; {of_shared:.2f} times the loop with one TLS context",
            met=times <= AT_MOST,
        ),
    )


def _seconds(samples: Sequence[Sample]) -> list[float]:
    return [sample.seconds for sample in samples]
