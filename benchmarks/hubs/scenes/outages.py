"""Scenes in which a server is not well: what becomes of calls, what callers are told, and when it is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.hubs.adapter import HubFailed
from benchmarks.hubs.client import Client
from benchmarks.hubs.rubric import Told, told
from benchmarks.hubs.scenes.stage import FAULTS, Grade, Outcome, Spans, Stage, listed, names, until_back

__all__ = ["denied", "expired", "flapping", "hung", "killed", "one_dead", "slow_start", "unavailable"]

FORBIDDEN = '{"error": "forbidden", "message": "this account may not use this server"}'
EXPIRED = {"www-authenticate": 'Bearer error="invalid_token", error_description="The access token expired"'}
ALL_WELL_SECONDS = 120.0
SOON = 5.0
"""Seconds after a slow server is ready, within which a call is answered."""


async def killed(stage: Stage) -> Outcome:
    """``kill -9`` for the server; some seconds later it runs again. A child is the hub's to start."""
    client = await stage.play("up")
    before = await listed(stage, client)
    async with stage.calling(client):
        await asyncio.sleep(0.5)
        broke = time.time()
        stage.servers.kill("up")
        # A child is the hub's to start, at once.
        child = stage.adapter.behind == "stdio"
        whole = stage.scale.down + stage.scale.patience
        coming = asyncio.create_task(until_back(stage, broke=broke, since=broke, patience=whole)) if child else None
        meanwhile, mended = await _wait_out(stage, client, stage.scale.down)
        await stage.servers.up("up")
        back = await (until_back(stage, broke=broke, since=mended) if coming is None else coming)
    starts = stage.servers.count("up", "start")
    if child and starts < 2 and stage.tally.first(mended, mended) is not None:
        raise RuntimeError("the child was not killed: there is nothing to judge")
    return _outage(stage, "down", [(broke, mended)], back, before, meanwhile, {"starts": starts})


async def unavailable(stage: Stage) -> Outcome:
    """The server answers 503 to everything for a minute."""
    client = await stage.play("up")
    before = await listed(stage, client)
    async with stage.calling(client):
        await asyncio.sleep(0.5)
        broke = time.time()
        stage.servers.orders("up", status=503, body="Service Unavailable")
        meanwhile, mended = await _wait_out(stage, client, stage.scale.unavailable)
        stage.servers.orders("up")
        back = await until_back(stage, broke=broke, since=mended)
    asked = stage.servers.count("up", "refused")
    return _outage(stage, "unavailable", [(broke, mended)], back, before, meanwhile, {"requests_refused": asked})


async def expired(stage: Stage) -> Outcome:
    """The token that the hub sends expires; later the server takes it again."""
    client = await stage.play("up", token="benchmark-token")
    before = await listed(stage, client)
    async with stage.calling(client):
        await asyncio.sleep(0.5)
        broke = time.time()
        stage.servers.orders("up", status=401, body='{"error": "invalid_token"}', headers=EXPIRED)
        meanwhile, mended = await _wait_out(stage, client, 2 * stage.scale.down)
        stage.servers.orders("up")
        back = await until_back(stage, broke=broke, since=mended)
    return _outage(stage, "expired", [(broke, mended)], back, before, meanwhile)


async def flapping(stage: Stage) -> Outcome:
    """The server is killed every few seconds and comes back, again and again."""
    client = await stage.play("up")
    before = await listed(stage, client)
    async with stage.calling(client):
        await asyncio.sleep(0.5)
        spans = []
        for _ in range(stage.scale.flaps):
            down = time.time()
            stage.servers.kill("up")
            await asyncio.sleep(stage.scale.flap)
            spans.append((down, time.time()))
            await stage.servers.up("up")
            await asyncio.sleep(stage.scale.flap)
        down = time.time()
        stage.servers.kill("up")
        meanwhile, mended = await _wait_out(stage, client, stage.scale.flap)
        spans.append((down, mended))
        await stage.servers.up("up")
        back = await until_back(stage, broke=down, since=mended)
    return _outage(stage, "down", spans, back, before, meanwhile)


async def _wait_out(stage: Stage, client: Client, seconds: float) -> tuple[list[str] | str, float]:
    """Wait until the fault is over; what the hub lists meanwhile, and when it was over."""
    ends = time.time() + seconds
    await asyncio.sleep(seconds / 2)
    meanwhile = await listed(stage, client)
    await asyncio.sleep(max(0.0, ends - time.time()))
    return meanwhile, time.time()


def _outage(
    stage: Stage,
    fact: str,
    spans: Spans,
    back: Mapping[str, float | None],
    before: list[str] | str,
    meanwhile: list[str] | str,
    more: Mapping[str, Any] | None = None,
) -> Outcome:
    counts = stage.counts()
    said = stage.told(fact, spans)
    kept = "kept" if meanwhile == before else f"{len(meanwhile)} tools" if isinstance(meanwhile, list) else "an error"
    after = stage.tally.last_refusal(spans[-1][1])[:200]
    figures = {
        **counts,
        "back": back,
        "listed": kept,
        "list_said": _text(meanwhile),
        "said_after": after,
        **(more or {}),
    }
    return Outcome(_grade(counts, said, back, kept), _sentence(counts, said, back, kept), figures, said)


def _grade(counts: Mapping[str, int], said: Told, back: Mapping[str, float | None], kept: str) -> Grade:
    if counts["wrong"] or counts["doubled"] or back["new_session"] is None:
        return "bad"
    quiet = said.verdict == "true" or not counts["refused"]
    return "good" if not counts["lost"] and quiet and kept == "kept" and back["same_session"] is not None else "part"


def _sentence(counts: Mapping[str, int], said: Told, back: Mapping[str, float | None], kept: str) -> str:
    parts = [f"{counts['lost']} of {counts['calls']} calls lost"] if counts["lost"] else []
    parts += [f"{counts[what]} {what}" for what in ("wrong", "doubled") if counts[what]]
    if counts["refused"]:
        parts.append(f"told {said.verdict}")
    parts.append({"kept": "tools stay listed"}.get(kept, f"list: {kept}"))
    parts.append(back_text(back))
    return "; ".join(parts)


def back_text(back: Mapping[str, float | None]) -> str:
    """When calls were answered again."""
    if back["same_session"] is not None:
        return f"back after {back['same_session']:.1f} s"
    if back["new_session"] is not None:
        return f"back after {back['new_session']:.1f} s, in a new session only"
    return "not back"


def _text(listed: list[str] | str) -> str:
    return listed if isinstance(listed, str) else ", ".join(listed)


async def slow_start(stage: Stage) -> Outcome:
    """Hub and server are started together; the server needs 20 s until it listens."""
    slow, patience = stage.scale.slow, stage.scale.patience
    stage.behind("up", delay=slow)
    await stage.registered("up")
    earlier = stage.servers.count("up", "start")
    began = time.time()
    await stage.servers.up("up", delay=slow, wait=False)
    try:
        await stage.hub()
    except HubFailed as exc:
        return Outcome("bad", f"the hub did not start: {exc}", {})
    listening = time.time() - began
    # A busy machine may start a hub later than the server: its patience begins then.
    deadline = max(slow, listening) + patience
    client = await _first_client(stage, began + deadline)
    if client is None:
        return Outcome("bad", f"no session within {deadline:.0f} s", {"listening": listening})
    opened = time.time() - began
    async with stage.calling(client):
        back = await until_back(stage, broke=began, since=began, patience=deadline)
    starts = [when for when, event, _ in stage.servers.log("up") if event == "start"][earlier:]
    ready = starts[0] - began if starts else None
    counts = stage.counts()
    said = stage.told("starting", [(began, began + (ready or slow))], listed=False)
    figures = {**counts, "listening": listening, "opened": opened, "ready": ready, "starts": len(starts), "back": back}
    early = opened < (ready or slow)
    late = None if ready is None or back["same_session"] is None else back["same_session"] - max(ready, opened)
    if back["new_session"] is None:
        grade: Grade = "bad"
    else:
        fine = early and not counts["lost"] and said.verdict != "false" and late is not None and late < SOON
        grade = "good" if fine else "part"
    parts = ["clients connect meanwhile" if early else f"no client connects for {opened:.0f} s"]
    parts += [f"{counts['lost']} of {counts['calls']} calls lost"] if counts["lost"] else []
    parts += [f"told {said.verdict}"] if said.counts else []
    if late is not None:
        parts.append(f"first result {max(0.0, late):.1f} s after the server was ready")
    else:
        parts.append("a result in a new session only" if back["new_session"] is not None else "no result")
    return Outcome(grade, "; ".join(parts), figures, said)


async def _first_client(stage: Stage, deadline: float) -> Client | None:
    while time.time() < deadline:
        try:
            client = await stage.client(within=max(1.0, deadline - time.time()))
        except FAULTS:
            await asyncio.sleep(0.2)
        else:
            await client.listen()
            return client
    return None


async def hung(stage: Stage) -> Outcome:
    """A tool never answers; other calls of the same session go on."""
    client = await stage.play("up")
    async with stage.calling(client):
        answer = await stage.raw(
            client, "up", "wait", {"key": "hung", "seconds": 10 * stage.scale.hung}, within=stage.scale.hung
        )
    counts = stage.counts()
    said = told([answer.text] if answer.kind == "error" else [], "hung")
    ran = stage.servers.ran().get("hung", 0)
    hurt = counts["lost"] + counts["refused"] + counts["wrong"]
    if answer.kind == "lost":
        seen = f"no answer within {stage.scale.hung:g} s"
    else:
        seen = f"answered after {answer.seconds:.0f} s, told {said.verdict}"
    if ran > 1:
        seen += f"; the call ran {ran} times"
    seen += f"; {hurt} of {counts['calls']} other calls failed" if hurt else "; other calls went on"
    grade: Grade = "bad" if hurt or ran > 1 else "good" if said.verdict == "true" else "part"
    return Outcome(grade, seen, {**counts, "answered_after": answer.seconds, "kind": answer.kind, "ran": ran}, said)


async def one_dead(stage: Stage) -> Outcome:
    """Twenty servers, one of them dead when the hub starts; later it comes to life."""
    all_names = names(stage.scale.servers)
    dead = all_names[stage.scale.servers // 3]
    well = [name for name in all_names if name != dead]
    stage.behind(*all_names)
    await stage.registered(*all_names)
    stage.servers.orders(dead, die=True)
    await stage.servers.up(*well)
    began = time.time()
    try:
        await stage.hub()
    except HubFailed as exc:
        return Outcome("bad", f"the hub did not start: {exc}", {"answered_servers": 0})
    clients: dict[str, Client] = {}
    answered = await _all_answered(stage, well, clients, began + ALL_WELL_SECONDS)
    took = time.time() - began
    said, back = await _dead_one(stage, dead, clients, well)
    figures = {"answered_servers": answered, "servers": len(well), "seconds": took, "back": back, **stage.counts()}
    grade: Grade = "bad" if answered < len(well) else "part"
    if grade == "part" and said.verdict == "true" and back["same_session"] is not None:
        grade = "good"
    seen = f"{answered} of {len(well)} well servers answer after {took:.1f} s; the dead one: told {said.verdict}"
    return Outcome(grade, f"{seen}, {back_text(back)}", figures, said)


async def _all_answered(stage: Stage, well: list[str], clients: dict[str, Client], deadline: float) -> int:
    """How many servers answer a call before the deadline."""
    missing = list(well)
    while missing and time.time() < deadline:
        for name in list(missing):
            if time.time() >= deadline:
                break
            if (client := await _client_of(stage, name, clients)) is None:
                continue
            if (await stage.raw(client, name, "echo", {"key": "first"})).kind == "result":
                missing.remove(name)
        await asyncio.sleep(0.2)
    return len(well) - len(missing)


async def _client_of(stage: Stage, server: str, clients: dict[str, Client]) -> Client | None:
    """One client for each address."""
    address = stage.adapter.url(stage.setup, server)
    if address not in clients:
        try:
            clients[address] = await stage.client(server)
        except FAULTS:
            return None
    return clients[address]


async def _dead_one(
    stage: Stage, dead: str, clients: dict[str, Client], well: list[str]
) -> tuple[Told, Mapping[str, float | None]]:
    client = await _client_of(stage, dead, clients) or await _client_of(stage, well[0], clients)
    if client is None:
        return told([], "down"), {"same_session": None, "new_session": None}
    began = time.time()
    async with stage.calling(client, dead):
        await asyncio.sleep(stage.scale.down)
        revived = time.time()
        stage.servers.orders(dead)
        await stage.servers.up(dead)
        back = await until_back(stage, dead, broke=began, since=revived)
    listed = stage.adapter.registers
    return stage.told("down", [(began, revived)], listed=listed), back


async def denied(stage: Stage) -> Outcome:
    """One server refuses this account from the start, with 403 and its reason; another one is well."""
    beside = stage.adapter.kind == "hub"
    stage.behind(*(("secret", "up") if beside else ("secret",)))
    await stage.registered("secret", *(["up"] if beside else []))
    stage.servers.orders("secret", status=403, body=FORBIDDEN, headers={"content-type": "application/json"})
    await stage.servers.up("secret", *(["up"] if beside else []))
    try:
        await stage.hub()
        client = await (stage.ready("up") if beside else _any_client(stage))
    except HubFailed as exc:
        return Outcome("bad", f"the hub did not start: {exc}", {})
    except FAULTS as exc:
        said = told([str(exc)], "denied", listed=False)
        return Outcome("good" if said.verdict == "true" else "part", f"no session: told {said.verdict}", {}, said)
    began = time.time()
    asked = stage.servers.count("secret", "refused")
    async with stage.calling(client, "secret"):
        await asyncio.sleep(2 * stage.scale.down)
    said = stage.told("denied", [(began, time.time())], listed=stage.adapter.registers)
    counts = stage.counts()
    beside_ok = not beside or (await stage.call(client, "up")).kind == "result"
    asked = stage.servers.count("secret", "refused") - asked
    grade: Grade = "good" if said.verdict == "true" and not counts["lost"] else "part"
    if said.verdict in {"false", "nothing"} or not beside_ok:
        grade = "bad"
    seen = f"told {said.verdict}; {counts['calls']} calls became {asked} requests to the server"
    seen += "" if beside_ok else "; the server beside it does not answer"
    return Outcome(grade, seen, {**counts, "requests_refused": asked, "beside": beside_ok}, said)


async def _any_client(stage: Stage) -> Client:
    return await stage.client("secret")
