"""Thirty servers behind a real proxy whose authorization service is cold and slow (GW-7).

Each way is measured by the servers that it reports as unavailable although they are healthy and authorized, and by
whether it reports a denial as a denial. Times are rough, because proxy, service and servers share the machine.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from benchmarks.report import Check, Report, Row, interleaved, median, ratio
from holdfast.gateway.model import EXT_AUTH_TIMEOUT
from tests.gateway.authorized_servers import ALICE, MALLORY, PROTOCOLS, ROUTES, Protocol, Scene, load, scene

__all__ = ["REQUIREMENTS", "measure"]

REQUIREMENTS = ("GW-7",)

ROUNDS = 2

BEFORE = "one attempt, 200 ms"
TIMEOUT = f"one attempt, {EXT_AUTH_TIMEOUT}"
RETRIES = f"three attempts, {EXT_AUTH_TIMEOUT}"
PLAIN = "SDK client, 200 ms"
PLAIN_LATER = f"SDK client, {EXT_AUTH_TIMEOUT}"
SHIPPED = (TIMEOUT, RETRIES)

Load: TypeAlias = Callable[[str], Awaitable[tuple[int, int]]]
"""Loads every server as a user; returns how many are available, and how many are reported as denied."""


@dataclass(frozen=True)
class Sample:
    """One cold load by a user who may use every server, and one by a user who may use none."""

    seconds: float
    unavailable: int
    let_in: int
    told: int


def measure(*, rounds: int = ROUNDS, routes: int = ROUTES) -> Report:
    """Load in each way and over each protocol, in each round."""
    samples: defaultdict[str, list[Sample]] = defaultdict(list)
    for protocol in PROTOCOLS:
        with TemporaryDirectory() as folder:
            anyio.run(_over, protocol, rounds, routes, Path(folder), samples)
    return Report(
        name="gateway",
        title=f"{routes} routes behind cold external authorization on Envoy, {rounds} rounds",
        requirements=REQUIREMENTS,
        rows=tuple(_row(name, samples, routes) for name in samples),
        checks=_checks(samples, routes),
    )


async def _over(protocol: Protocol, rounds: int, routes: int, folder: Path, samples: dict[str, list[Sample]]) -> None:
    async with scene(folder, protocol, routes=routes) as stage:
        ways = _ways(stage)
        for name in interleaved(list(ways), rounds):
            samples[f"{protocol}: {name}"].append(await _sample(stage, ways[name], routes))


def _ways(stage: Scene) -> dict[str, Load]:
    before, after = stage.urls(stage.as_it_comes), stage.urls(stage.shipped)
    return {
        BEFORE: lambda user: _with_holdfast(before, user, attempts=1),
        TIMEOUT: lambda user: _with_holdfast(after, user, attempts=1),
        RETRIES: lambda user: _with_holdfast(after, user, attempts=3),
        PLAIN: lambda user: _with_sdk(before, user),
        PLAIN_LATER: lambda user: _with_sdk(after, user),
    }


async def _sample(stage: Scene, way: Load, routes: int) -> Sample:
    await stage.look_ups.forget()
    began = time.perf_counter()
    available, _ = await way(ALICE)
    seconds = time.perf_counter() - began
    let_in, told = await way(MALLORY)
    return Sample(seconds, routes - available, let_in, told)


async def _with_holdfast(urls: Sequence[str], user: str, *, attempts: int) -> tuple[int, int]:
    result = await load(urls, user, attempts=attempts)
    return len(result.available), sum(outcome.status == "denied" for outcome in result.outcomes)


async def _with_sdk(urls: Sequence[str], user: str) -> tuple[int, int]:
    """A plain loop over the SDK's client. Its exception is the same for an outage and a denial."""
    listed: list[str] = []

    async def one(url: str) -> None:
        try:
            async with (
                _sdk_http(user) as http,
                Client(streamable_http_client(url, http_client=http), cache=None) as sdk,
            ):
                await sdk.list_tools()
        except Exception:  # noqa: BLE001 - after any error the server is not available
            return
        listed.append(url)

    async with anyio.create_task_group() as tasks:
        for url in urls:
            tasks.start_soon(one, url)
    return len(listed), 0


def _sdk_http(user: str) -> httpx2.AsyncClient:
    """With the default timeouts of the SDK; none of them fails here."""
    return httpx2.AsyncClient(headers={"Authorization": user}, timeout=httpx2.Timeout(30, read=300))


def _row(name: str, samples: dict[str, list[Sample]], routes: int) -> Row:
    mine, base = samples[name], f"{name.partition(': ')[0]}: {BEFORE}"
    worst, best = (pick(sample.unavailable for sample in mine) for pick in (max, min))
    unavailable = f"{best}" if best == worst else f"{best} to {worst}"
    told = min(sample.told for sample in mine)
    return Row(
        label=name,
        time=median(_seconds(mine)),
        ratio=None if name == base else ratio(_seconds(mine), _seconds(samples[base])),
        note=f"{unavailable} of {routes} unavailable; {told} of {routes} denials told",
    )


def _checks(samples: dict[str, list[Sample]], routes: int) -> tuple[Check, ...]:
    def over(*names: str) -> list[Sample]:
        return [one for name in names for protocol in PROTOCOLS for one in samples[f"{protocol}: {name}"]]

    least = min(sample.unavailable for sample in over(BEFORE))
    most = max(sample.unavailable for sample in over(*SHIPPED))
    told = min(sample.told for sample in over(*SHIPPED))
    let_in = max(sample.let_in for found in samples.values() for sample in found)
    return (
        Check(
            demand="GW-7 with the proxy's default and one attempt, servers fail",
            found=f"at least {least} of {routes} in every round",
            met=least > 0,
        ),
        Check(
            demand="GW-7 as shipped, no healthy and authorized server is reported unavailable",
            found=f"at most {most} of {routes} in any round",
            met=most == 0,
        ),
        Check(
            demand="GW-7 a real denial is a denial in every run",
            found=f"{let_in} let in by any way, at least {told} of {routes} told as shipped",
            met=let_in == 0 and told == routes,
        ),
    )


def _seconds(samples: Sequence[Sample]) -> list[float]:
    return [sample.seconds for sample in samples]
