"""The benchmark of hubs: its rubric, its runs and its page. Each scene is played with Holdfast on a small scale."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hubs import page, run
from benchmarks.hubs.adapter import HOME, marked
from benchmarks.hubs.adapters import ADAPTERS, NOT_HERE
from benchmarks.hubs.rubric import FACTS, judge, told
from benchmarks.hubs.scenes import SCENES
from benchmarks.hubs.scenes.stage import SMALL, Outcome, Stage, stage
from benchmarks.processes import ROOT
from tests.benchmarks.broken_hub import BrokenHub

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DX-15")]

TEXTS = [
    ("down", "connection refused by 127.0.0.1:80", "true"),
    ("down", "All connection attempts failed", "true"),
    ("down", "Internal error", "vague"),
    ("down", "Error calling tool 'echo'", "vague"),
    ("down", "Unknown tool: 'echo'", "false"),
    ("down", "HTTP 404: Session not found", "false"),
    ("down", "Unauthorized: the server is unavailable", "false"),
    ("down", "", "nothing"),
    ("starting", "the server is starting up; try again in 2 s", "true"),
    ("unavailable", "the server answered 503 Service Unavailable", "true"),
    ("hung", "the tool did not answer within 60 s", "true"),
    ("hung", "Request timed out", "true"),
    ("hung", "connection refused", "false"),
    ("denied", "403: this account may not use this server", "true"),
    ("denied", "the server is starting up", "false"),
    ("denied", "something went wrong", "vague"),
    ("expired", "401 Unauthorized", "true"),
    ("expired", "the token expired; log in again", "true"),
    ("expired", "timed out", "false"),
    ("hostile", "its answer is not valid JSON", "true"),
]


@pytest.mark.parametrize(("fact", "text", "verdict"), TEXTS)
def test_the_rubric_judges_a_text_as_it_is_written(fact: str, text: str, verdict: str) -> None:
    assert judge(text, fact) == verdict


def test_an_unknown_tool_is_vague_where_the_hub_never_saw_a_list() -> None:
    assert judge("Unknown tool: echo", "down", listed=True) == "false"
    assert judge("Unknown tool: echo", "down", listed=False) == "vague"


def test_one_false_text_makes_the_whole_fault_falsely_told() -> None:
    assert told(["connection refused"] * 9 + ["Unknown tool"], "down").verdict == "false"
    assert told(["connection refused", "oops"], "down").verdict == "true"
    assert told(["connection refused", "oops", "oops"], "down").verdict == "vague"
    assert told([""], "down").verdict == told([], "down").verdict == "nothing"


def test_no_hub_is_named_in_the_rubric() -> None:
    patterns = " ".join(pattern for fact in FACTS.values() for pattern in (*fact.true, *fact.false)).lower()
    assert not [adapter.name for adapter in ADAPTERS.values() if adapter.name.lower() in patterns]


def test_every_adapter_is_pinned_and_names_the_documentation_that_it_was_checked_against() -> None:
    for adapter in ADAPTERS.values():
        assert re.match(r"\d+\.\d+|this tree", adapter.version), adapter.name
        assert all(address.startswith("https://") for address in adapter.documentation), adapter.name
        assert all(one.what and one.why and one.address.startswith("https://") for one in adapter.settings)
        assert adapter.missing.keys() <= SCENES.keys()


@pytest.mark.parametrize("scene", SCENES)
async def test_each_scene_is_played_with_holdfast(scene: str) -> None:
    outcome = await run.play(ADAPTERS["holdfast"], scene, SCENES[scene], SMALL)
    assert outcome.grade in {"good", "part"}, outcome
    assert json.loads(json.dumps(run.cleaned(outcome.as_json())))["seen"] == run.cleaned(outcome.seen)


async def test_a_child_of_the_hub_is_killed_and_started_again() -> None:
    outcome = await run.play(ADAPTERS["holdfast-stdio"], "killed", SCENES["killed"], SMALL)
    assert outcome.grade in {"good", "part"}, outcome
    assert outcome.figures["starts"] > 1


async def test_a_call_that_runs_twice_or_gets_a_foreign_answer_is_counted() -> None:
    async with stage(ADAPTERS["holdfast-stdio"], SMALL) as made:
        client = await made.play("up")
        first = await made.call(client)
        await made.raw(client, "up", "echo", {"key": first.text})
        key = made.tally.key()
        made.tally.add(key, 0.0, replace(first, text="the answer of another call"))
        counts = made.counts()
    assert (counts["doubled"], counts["wrong"], counts["lost"]) == (1, 1, 0)


async def test_a_hub_that_cannot_start_is_reported_and_does_not_end_the_run(tmp_path: Path) -> None:
    said: list[str] = []

    async def cell(hub: str, scene: str) -> dict[str, Any]:
        adapter = BrokenHub() if hub == "fastmcp" else ADAPTERS[hub]
        return {**(await run.play(adapter, scene, SCENES[scene], SMALL)).as_json(), "seconds": 0.0, "load": 0.0}

    results = run.Results(tmp_path / "run-1.json")
    await run.Run(results, rounds=1, jobs=1, cell=cell, say=said.append).play(["fastmcp", "holdfast"], ["progress"])
    kept = run.Results(tmp_path / "run-1.json")
    (broken,), (ours,) = kept.of("fastmcp", "progress"), kept.of("holdfast", "progress")
    assert broken["grade"] == "failed"
    assert "it needs a licence" in broken["seen"]
    assert ours["grade"] == "good"
    assert "failed" in page.summary(kept)


async def test_a_run_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    played: list[str] = []

    async def cell(hub: str, scene: str) -> dict[str, Any]:
        played.append(f"{hub}/{scene}")
        return {**Outcome("good", "fine").as_json(), "seconds": 0.0, "load": 0.0}

    first = run.Results(tmp_path / "run-1.json")
    await run.Run(first, rounds=1, jobs=2, cell=cell, say=_quiet).play(["nginx"], ["killed", "hung"])
    again = run.Results(tmp_path / "run-1.json")
    await run.Run(again, rounds=2, jobs=2, cell=cell, say=_quiet).play(["nginx"], ["killed", "hung", "cost"])
    assert sorted(played[:2]) == ["nginx/hung", "nginx/killed"]
    assert sorted(played[2:]) == ["nginx/cost", "nginx/cost", "nginx/hung", "nginx/killed"]
    assert played[-1] == "nginx/cost", "what measures speed comes last"


async def test_a_scene_that_does_not_end_is_a_result_and_leaves_no_process() -> None:
    marks: list[str] = []

    async def endless(made: Stage) -> Outcome:
        marks.append(made.setup.mark)
        client = await made.play("up")
        assert marked(made.setup.mark)
        await made.raw(client, "up", "wait", {"seconds": 600}, within=600)
        raise AssertionError("it waits for longer than the scene has")

    scene = replace(SCENES["hung"], play=endless, minutes=0.2)
    outcome = await run.play(ADAPTERS["holdfast-stdio"], "hung", scene, SMALL)
    assert (outcome.grade, outcome.seen) == ("bad", "the scene did not end within 0.2 minutes")
    assert not marked(marks[0])


async def test_a_run_that_is_ended_leaves_no_process() -> None:
    mark = uuid.uuid4().hex
    cell = asyncio.create_task(run.in_process("holdfast-stdio", "hung", small=True, mark=mark))
    async with asyncio.timeout(60):
        while len(marked(mark)) < 2:  # noqa: ASYNC110 - the cell and its hub set no event
            await asyncio.sleep(0.05)
    cell.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cell
    assert not marked(mark)


def test_the_page_in_the_repository_is_made_of_its_raw_results() -> None:
    assert page.made_files() == page.kept_files(), "run `python -m benchmarks hubs --page`"


def test_raw_results_name_no_machine_and_no_folder() -> None:
    for file in page.RAW.glob("run-*.json"):
        text = file.read_text()
        assert not re.search(r"/(home|root|Users|work)/", text), file
        for private in (socket.gethostname(), str(ROOT), str(HOME)):
            assert private not in text, (file, private)


def test_a_page_shows_marks_counts_words_differences_and_what_is_missing() -> None:
    first, second = _results("good", 0.5), _results("bad", 1.5)
    text = page.files([first, second])[page.PAGE]
    assert all(f"**{name}**" in text for name in NOT_HERE)
    assert "| [Server killed and back](#server-killed-and-back) | good |" in text
    assert "| Holdfast | good | a \\| b | 5 / 1 / 0 / 0 / 0 | true (1 of 1): “connection refused” |" in text
    assert "0 of 1 marks are the same in both runs" in text
    assert "![Server killed: seconds until a call is answered again](hubs/back.svg)" in text


def _results(grade: str, back: float) -> Mapping[str, Any]:
    counts = {"answered": 5, "refused": 1, "lost": 0, "wrong": 0, "doubled": 0, "calls": 6}
    said = told(["connection refused"], "down").as_json()
    cell = {"grade": grade, "seen": "a | b", "figures": {**counts, "back": {"same_session": back}}, "told": said}
    machine = {"began": "now", "cores": 2, "memory_gb": 8, "kernel": "Linux 6", "python": "3.11", "commit": "abc"}
    return {"machine": machine, "cells": {"holdfast/killed": [{**cell, "seconds": 1.0, "load": 1.0}]}}


def _quiet(text: str) -> None:
    del text
