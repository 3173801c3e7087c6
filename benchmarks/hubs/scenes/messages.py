"""Scenes about what passes through a hub: changed lists, large results, progress, questions, and both eras."""

from __future__ import annotations

import asyncio
import time

from benchmarks.hubs.client import Era
from benchmarks.hubs.scenes.stage import FAULTS, Grade, Outcome, Stage, listed

__all__ = ["big_result", "changed_list", "eras", "progress", "questions"]

ERAS: tuple[Era, ...] = ("legacy", "modern")
BIG_SECONDS = 60.0
QUESTION_SECONDS = 20.0


async def changed_list(stage: Stage) -> Outcome:
    """The server has another list of tools and says so."""
    client = await stage.play("up")
    await asyncio.sleep(1.0)
    client.notified.clear()
    changed = time.time()
    stage.servers.orders("up", tools="second")
    noticed: float | None = None
    shown: float | None = None
    deadline = changed + stage.scale.patience + stage.scale.unavailable
    while time.time() < deadline and shown is None:
        if noticed is None and "notifications/tools/list_changed" in client.notified:
            noticed = time.time() - changed
        now = await listed(stage, client)
        if isinstance(now, list) and "extra" in now and "wait" not in now:
            shown = time.time() - changed
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)
    if noticed is None and "notifications/tools/list_changed" in client.notified:
        noticed = time.time() - changed
    answer = await stage.call(client, tool="extra")
    called = answer.kind == "result"
    grade: Grade = "bad" if shown is None and not called else "good" if shown and noticed and called else "part"
    parts = [
        "clients are notified" if noticed is not None else "no notice",
        f"new list after {shown:.1f} s" if shown is not None else f"old list after {deadline - changed:.0f} s",
        "the new tool works" if called else f"the new tool: {answer.text[:80]}",
    ]
    return Outcome(grade, "; ".join(parts), {"noticed": noticed, "listed": shown, "called": called})


async def big_result(stage: Stage) -> Outcome:
    """A result of 10 MB."""
    client = await stage.play("up")
    before = stage.memory()
    size = int(stage.scale.megabytes * 1_000_000)
    answer = await stage.raw(client, "up", "big", {"size": size}, within=BIG_SECONDS)
    whole = answer.kind == "result" and answer.size >= size
    alive = (await stage.call(client)).kind == "result"
    grown = (stage.memory() - before) / 1e6
    figures = {"seconds": answer.seconds, "whole": whole, "grown_mb": grown, "size": answer.size, "alive": alive}
    if whole:
        seen = f"whole, after {answer.seconds:.1f} s; {max(0.0, grown):.0f} MB more memory afterwards"
    else:
        seen = f"{answer.kind}: {answer.text[:120]} ({answer.size:,} bytes)"
    return Outcome("good" if whole and alive else "bad", seen, figures)


async def progress(stage: Stage) -> Outcome:
    """A call that reports its progress a hundred times."""
    client = await stage.play("up")
    wanted = stage.scale.notices
    answer = await stage.raw(client, "up", "steps", {"count": wanted, "key": "steps"}, within=30.0, progress=True)
    await asyncio.sleep(0.2)
    came = list(answer.notices)
    ordered = came == sorted(came)
    grade: Grade = "part"
    if answer.kind == "result" and len(came) == wanted and ordered:
        grade = "good"
    elif answer.kind != "result" or not came:
        grade = "bad"
    seen = f"{len(came)} of {wanted} notices before the result" + ("" if ordered else ", out of order")
    if answer.kind != "result":
        seen += f"; {answer.kind}: {answer.text[:100]}"
    return Outcome(grade, seen, {"notices": len(came), "ordered": ordered, "kind": answer.kind})


async def questions(stage: Stage) -> Outcome:
    """A tool asks the user (elicitation) and the model (sampling)."""
    client = await stage.play("up")
    works = {}
    texts = {}
    for tool, wanted in (("ask", "green"), ("sample", "yes")):
        answer = await stage.raw(client, "up", tool, {"key": tool}, within=QUESTION_SECONDS)
        works[tool] = answer.kind == "result" and wanted in answer.text
        texts[tool] = f"{answer.kind}: {answer.text[:200]}"
    grade: Grade = "good" if all(works.values()) else "part" if any(works.values()) else "bad"
    words = {True: "works", False: "does not work"}
    seen = f"elicitation {words[works['ask']]}, sampling {words[works['sample']]}"
    return Outcome(grade, seen, {"elicitation": works["ask"], "sampling": works["sample"], "texts": texts})


async def eras(stage: Stage) -> Outcome:
    """A client of each protocol era with a server of each era."""
    stage.behind("up")
    await stage.registered("up")
    works: dict[str, bool] = {}
    texts: dict[str, str] = {}
    for server in ERAS:
        stage.servers.orders("up", eras=server)
        await stage.servers.up("up")
        try:
            await stage.hub()
            await asyncio.sleep(1.0)
            for client in ERAS:
                pair = f"{client} client, {server} server"
                texts[pair] = await _tried(stage, client)
                works[pair] = texts[pair] == "works"
            await stage.stop()
        except FAULTS as exc:
            texts[f"{server} server"] = f"{exc}"[:200]
        except RuntimeError as exc:
            texts[f"{server} server"] = f"the hub did not start: {exc}"[:200]
        if stage.adapter.behind == "http":
            stage.servers.kill("up")
    count = sum(works.values())
    grade: Grade = "good" if count == len(ERAS) ** 2 else "part" if count else "bad"
    failed = [pair for pair, fine in works.items() if not fine]
    seen = f"{count} of 4 pairs work" + (f"; not: {', '.join(failed)}" if failed else "")
    return Outcome(grade, seen, {"works": works, "texts": texts})


async def _tried(stage: Stage, era: Era) -> str:
    """`works`, or what came instead, after some tries: a hub may still connect to its server."""
    last = ""
    if era == "modern" and stage.adapter.transport == "sse":
        return "HTTP+SSE has no modern era"
    for _ in range(8):
        try:
            client = await stage.client(era=era)
        except FAULTS as exc:
            last = f"no session: {exc}"[:200]
        else:
            answer = await stage.call(client)
            await client.close()
            if answer.kind == "result":
                return "works"
            last = f"{answer.kind}: {answer.text}"[:200]
        await asyncio.sleep(0.5)
    return last
