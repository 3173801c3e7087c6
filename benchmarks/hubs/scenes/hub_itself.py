"""Scenes about the hub itself: its restart, its death, many sessions, hostile servers, and what a call costs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.calls import Load, Sample, Subject, compare, spread_of
from benchmarks.hubs.adapter import Behind, HubFailed, Setup
from benchmarks.hubs.client import Client
from benchmarks.hubs.rubric import Told, told
from benchmarks.hubs.scenes.outages import back_text
from benchmarks.hubs.scenes.stage import FAULTS, Grade, Outcome, Stage, until_back
from benchmarks.processes import Tree, stdio_server, upstream
from benchmarks.report import ratio

__all__ = ["cost", "hostile", "hub_killed", "restarted", "sessions"]

IN_FLIGHT_SECONDS = 3.0
ORPHAN_SECONDS = 3.0
OPENERS = 20
SESSION_SECONDS = 180.0
ATTACKS = ("garbage", "flood", "ids")
GROWN = 300e6
"""How many bytes more a hub may have after hostile servers."""


async def restarted(stage: Stage) -> Outcome:
    """The hub is stopped as an operator does, and started again with the same settings, under calls."""
    return await _again(stage, kill=False)


async def hub_killed(stage: Stage) -> Outcome:
    """``kill -9`` for the hub under calls; three seconds later it is started again."""
    return await _again(stage, kill=True)


async def _again(stage: Stage, *, kill: bool) -> Outcome:
    client = await stage.play("up")
    assert stage.running is not None
    own = True
    async with stage.calling(client):
        flying = asyncio.create_task(
            stage.call(client, tool="wait", seconds=IN_FLIGHT_SECONDS, within=IN_FLIGHT_SECONDS + stage.scale.answer)
        )
        await asyncio.sleep(0.7)
        broke = time.time()
        if kill:
            await asyncio.to_thread(stage.running.kill)
            await asyncio.sleep(ORPHAN_SECONDS)
        else:
            own = await stage.stop()
        down = time.time()
        left = await _left(stage)
        stage.running.reap()
        running = await stage.hub()
        started = time.time() - down
        back = await until_back(stage, broke=broke, since=down, patience=started + stage.scale.patience)
        flown = await flying
    counts = stage.counts()
    figures = {**counts, "back": back, "ended_by_itself": own, "stop_seconds": down - broke, "left": left,
               "start_seconds": running.start_seconds, "in_flight": flown.kind,
               "in_flight_text": flown.text[:200]}  # fmt: skip
    if counts["wrong"] or counts["doubled"] or left or back["new_session"] is None:
        grade: Grade = "bad"
    else:
        kept = back["same_session"] is not None and (kill or flown.kind != "lost")
        grade = "good" if kept else "part"
    parts = [f"the call in flight: {'answered' if flown.kind == 'result' else flown.kind}"]
    parts += [f"{left} child processes left behind"] if left else []
    parts += [] if own else ["had to be killed"]
    parts += [f"{counts[what]} {what}" for what in ("wrong", "doubled") if counts[what]]
    parts.append(back_text(back))
    return Outcome(grade, "; ".join(parts), figures)


async def _left(stage: Stage) -> int:
    """Children of the hub that outlive it. They have some seconds to see the end of their input."""
    if stage.adapter.behind == "http":
        return 0
    deadline = time.time() + ORPHAN_SECONDS
    while stage.servers.children() and time.time() < deadline:  # noqa: ASYNC110 - a process that ends sets no event
        await asyncio.sleep(0.1)
    return len(stage.servers.children())


async def sessions(stage: Stage) -> Outcome:
    """A thousand clients open a session, and each calls once; then some call again."""
    await stage.play("up")
    before = stage.memory()
    wanted = stage.scale.sessions
    clients: list[Client] = []
    failed: list[str] = []
    began = time.time()
    numbers = iter(range(wanted))
    stopped = ""

    async def opening() -> None:
        nonlocal stopped
        for number in numbers:
            if stopped:
                return
            if number % 50 == 0 and stage.memory() + stage.servers.memory() > stage.scale.memory:
                stopped = f"stopped at {len(clients)}: over {stage.scale.memory / 1e9:g} GB"
            if time.time() - began > SESSION_SECONDS:
                stopped = f"stopped at {len(clients)} after {SESSION_SECONDS:g} s"
            try:
                client = await stage.client()
            except FAULTS as exc:
                failed.append(f"{exc}"[:200] or type(exc).__name__)
                continue
            clients.append(client)
            await stage.call(client)

    await asyncio.gather(*(opening() for _ in range(OPENERS)))
    took = time.time() - began
    grown = stage.memory() - before
    again = [await stage.call(client) for client in clients[:: max(1, len(clients) // 20)]]
    counts = stage.counts()
    each = grown / max(1, len(clients)) / 1000
    children = stage.servers.memory() / 1e6 if stage.adapter.behind == "stdio" else 0.0
    figures = {
        **counts,
        "opened": len(clients),
        "failed": len(failed),
        "first_failure": failed[:1],
        "seconds": took,
        "kb_each": each,
        "children_mb": children,
        "stopped": stopped,
        "again": sum(one.kind == "result" for one in again),
    }
    whole = len(clients) == wanted and counts["answered"] == counts["calls"]
    grade: Grade = "good" if whole else "part" if counts["answered"] >= 0.9 * wanted else "bad"
    if counts["wrong"] or counts["doubled"]:
        grade = "bad"
    seen = f"{len(clients)} of {wanted} sessions, {counts['answered']} of {counts['calls']} calls answered"
    seen += f"; {each:.0f} KB each; {took:.0f} s" + (f"; {stopped}" if stopped else "")
    seen += f"; its child processes: {children:,.0f} MB" if children > 100 else ""
    return Outcome(grade, seen, figures)


async def hostile(stage: Stage) -> Outcome:
    """Servers that break the protocol: endless pages, bytes that are no JSON, floods, answers for other calls."""
    return await (_hostile_beside(stage) if stage.adapter.kind == "hub" else _hostile_alone(stage))


async def _hostile_beside(stage: Stage) -> Outcome:
    kinds = ("pages", *ATTACKS)
    stage.behind("up", *kinds)
    await stage.registered("up", *kinds)
    for kind in kinds:
        stage.servers.orders(kind, hostile=kind)
    await stage.servers.up("up", *kinds)
    try:
        await stage.hub()
        client = await stage.ready("up")
    except HubFailed as exc:
        return Outcome("bad", f"the server beside them is not served: {exc}", {})
    before, said, texts = stage.memory(), [], {}
    async with stage.calling(client):
        for kind in kinds:
            answer = await stage.raw(client, kind, "echo", {"key": f"hostile-{kind}"})
            texts[kind] = f"{answer.kind}: {answer.text[:150]}"
            said += [answer.text] if answer.kind == "error" else []
    return _hostile(stage, before, told(said, "hostile", listed=False), texts)


async def _hostile_alone(stage: Stage) -> Outcome:
    client = await stage.play("up")
    before, said, texts = stage.memory(), [], {}
    for kind in ATTACKS:
        stage.servers.orders("up", hostile=kind)
        answer = await stage.raw(client, "up", "echo", {"key": f"hostile-{kind}"})
        texts[kind] = f"{answer.kind}: {answer.text[:150]}"
        said += [answer.text] if answer.kind == "error" else []
        stage.servers.orders("up")
        for _ in range(5):
            await stage.call(client)
    return _hostile(stage, before, told(said, "hostile"), texts)


def _hostile(stage: Stage, before: int, said: Told, texts: Mapping[str, str]) -> Outcome:
    assert stage.running is not None
    counts = stage.counts()
    grown = stage.memory() - before
    stolen = [kind for kind, text in texts.items() if "another call" in text]
    hurt = counts["lost"] + counts["refused"] + counts["wrong"]
    grade: Grade = "good"
    if stolen or counts["wrong"] or counts["lost"] or not stage.running.alive:
        grade = "bad"
    elif hurt or grown > GROWN or said.verdict == "false":
        grade = "part"
    whose = "calls beside them" if stage.adapter.kind == "hub" else "calls afterwards"
    parts = [f"{counts['answered']} of {counts['calls']} {whose} answered"]
    parts += [f"the answer of another call was passed on ({', '.join(stolen)})"] if stolen else []
    parts += [f"no answer: {', '.join(kind for kind, text in texts.items() if text.startswith('lost'))}"] if any(
        text.startswith("lost") for text in texts.values()
    ) else []  # fmt: skip
    parts.append(f"{max(0.0, grown / 1e6):.0f} MB more memory")
    return Outcome(grade, "; ".join(parts), {**counts, "grown_mb": grown / 1e6, "texts": dict(texts)}, said)


async def cost(stage: Stage) -> Outcome:
    """CPU time of a call, latency beside the bare server, memory, and the time to start."""
    with upstream("--eras", "legacy") as (pid, (port,)):
        server = Behind(f"http://127.0.0.1:{port}/mcp", stdio_server())
        stage.setup = Setup(stage.setup.folder, stage.setup.port, {"up": server}, stage.setup.mark)
        if stage.adapter.transport == "sse":  # its client is older than the one version that the fast server speaks
            stage.behind("up")
            await stage.servers.up("up")
        load = os.getloadavg()[0]
        running = await stage.hub()
        await stage.ready()
        figures: dict[str, Any] = {
            "start_seconds": running.start_seconds,
            "memory_mb": stage.memory() / 1e6,
            "load": load,
        }
        if stage.adapter.transport == "sse":
            figures |= await _cost_by_client(stage)
        else:
            figures |= await asyncio.to_thread(_cost_by_generator, stage, pid, server.url)
        figures["memory_after_mb"] = stage.memory() / 1e6
    seen = f"{figures['cpu_ms_1']:.2f} ms CPU a call; {figures['memory_mb']:.0f} MB"
    return Outcome("good", f"{seen}; starts in {running.start_seconds:.1f} s", figures)


async def _cost_by_client(stage: Stage) -> dict[str, float]:
    """The load generator has no HTTP+SSE; the CPU of a hub does not depend on who calls."""
    assert stage.running is not None
    client, tree = await stage.client(), Tree(stage.running.pid)
    for _ in range(10):
        await stage.raw(client, "up", "echo", {"text": "hello"})
    before = tree.cpu()
    for _ in range(stage.scale.calls):
        await stage.raw(client, "up", "echo", {"text": "hello"})
    return {"cpu_ms_1": 1000 * tree.cpu_since(before) / stage.scale.calls}


def _cost_by_generator(stage: Stage, server: int, direct: str) -> dict[str, float]:
    assert stage.running is not None
    adapter, setup = stage.adapter, stage.setup
    subjects = [
        Subject("direct", direct, server, era="legacy"),
        Subject(
            adapter.name,
            adapter.url(setup, "up"),
            stage.running.pid,
            adapter.tool(setup, "up", "echo"),
            headers=adapter.headers(setup),
            wrap=lambda arguments: adapter.wrap("up", "echo", arguments),
            era="legacy",
        ),
    ]
    figures: dict[str, float] = {}
    for callers in (1, 16):
        load = Load(callers=callers, requests=stage.scale.calls, seconds=4.0, warm=3)
        seen = compare(subjects, load, rounds=stage.scale.rounds)
        mine, base = seen[adapter.name], seen["direct"]
        figures |= {
            f"cpu_ms_{callers}": 1000 * spread_of(mine, "cpu").median,
            f"latency_ratio_{callers}": _ratio(mine, base, "median"),
            f"rate_ratio_{callers}": _ratio(mine, base, "rate"),
        }
    return figures


def _ratio(mine: list[Sample], base: list[Sample], key: str) -> float:
    return ratio([getattr(one, key) for one in mine], [getattr(one, key) for one in base]).median
