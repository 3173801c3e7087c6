"""Runs hubs through scenes and keeps the raw results, one file for a run.

A cell is one hub in one scene. Each cell is a process of its own with a deadline, so that nothing of one reaches the
next; all that it starts carries its mark and is ended with it. It is a session of its own too: Linux shares a core
between sessions (autogroup), so the share of a hub does not depend on how many others are played. Results are written
after each cell: a run that is ended goes on where it was. Cells that measure speed run alone, at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.hubs.adapter import MARK, Adapter, HubFailed, end_marked
from benchmarks.hubs.adapters import ADAPTERS
from benchmarks.hubs.scenes import SCENES, Scene
from benchmarks.hubs.scenes.stage import FAULTS, FULL, SMALL, Outcome, Scale, stage
from benchmarks.processes import ROOT

__all__ = ["Results", "Run", "machine", "play"]

END_SECONDS = 40.0
"""How long a cell that is over its time may take to end what it started."""

Report = Callable[[str], None]
PlayCell = Callable[[str, str], Awaitable[dict[str, Any]]]


async def play(adapter: Adapter, name: str, scene: Scene, scale: Scale) -> Outcome:
    """One scene with one hub. A hub that fails, or a scene that takes too long, is a result."""
    if (reason := scene.missing(adapter, name)) is not None:
        return Outcome("n/a", reason)
    try:
        async with asyncio.timeout(scene.minutes * 60), stage(adapter, scale) as made:
            return await scene.play(made)
    except TimeoutError:
        return Outcome("bad", f"the scene did not end within {scene.minutes:g} minutes")
    except HubFailed as exc:
        return Outcome("failed", f"{exc}")
    except (*FAULTS, RuntimeError, AssertionError) as exc:
        return Outcome("failed", f"{type(exc).__name__}: {exc}"[:400])


class Results:
    """The raw results of a run, in a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        data = json.loads(file.read_text()) if file.exists() else {}
        self.machine: dict[str, Any] = data.get("machine", {})
        self.cells: dict[str, list[dict[str, Any]]] = data.get("cells", {})

    def of(self, hub: str, scene: str) -> list[dict[str, Any]]:
        """The rounds of a cell so far."""
        return self.cells.get(f"{hub}/{scene}", [])

    def forget(self, hub: str, scene: str) -> None:
        """Play it again."""
        self.cells.pop(f"{hub}/{scene}", None)

    def add(self, hub: str, scene: str, outcome: Mapping[str, Any]) -> None:
        """Keep a round, in the order of the tables, at once."""
        self.cells.setdefault(f"{hub}/{scene}", []).append(dict(outcome))
        order = [f"{one}/{other}" for one in ADAPTERS for other in SCENES]
        self.cells = {key: self.cells[key] for key in order if key in self.cells}
        self.write()

    def write(self) -> None:
        """The file is whole at each moment."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        new = self.file.with_suffix(".new")
        data = {"version": 1, "machine": self.machine, "cells": self.cells}
        new.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
        new.rename(self.file)


class Run:
    """Plays what is missing in the results."""

    def __init__(self, results: Results, *, rounds: int, jobs: int, cell: PlayCell, say: Report) -> None:
        self._results = results
        self._rounds = rounds
        self._jobs = jobs
        self._cell = cell
        self._say = say
        self._done = 0

    async def play(self, hubs: Sequence[str], scenes: Sequence[str]) -> None:
        """All cells: those that bear company first, some at a time, then those that must be alone."""
        todo = [
            (hub, scene)
            for number in range(self._rounds)
            for scene in scenes
            for hub in hubs
            if len(self._results.of(hub, scene)) <= number
        ]
        beside = [cell for cell in todo if not SCENES[cell[1]].alone]
        alone = [cell for cell in todo if SCENES[cell[1]].alone]
        self._say(f"{len(todo)} cells to play, {len(hubs) * len(scenes) * self._rounds - len(todo)} are there")
        await self._some(beside, self._jobs, len(todo))
        await self._some(alone, 1, len(todo))

    async def _some(self, cells: Iterable[tuple[str, str]], jobs: int, total: int) -> None:
        queue = iter(cells)

        async def work() -> None:
            for hub, scene in queue:
                outcome = await self._cell(hub, scene)
                self._results.add(hub, scene, outcome)
                self._done += 1
                said = f"{outcome['grade']:<6} {outcome['seen']}"
                self._say(f"[{self._done}/{total}] {hub:<14} {scene:<12} {outcome['seconds']:5.1f} s  {said}")

        async with asyncio.TaskGroup() as tasks:
            for _ in range(jobs):
                tasks.create_task(work())


async def in_process(hub: str, scene: str, *, small: bool = False, mark: str | None = None) -> dict[str, Any]:
    """One cell as a process of its own. It is ended with all that it started, also where this is cancelled."""
    if (reason := SCENES[scene].missing(ADAPTERS[hub], scene)) is not None:
        return {**Outcome("n/a", reason).as_json(), "seconds": 0.0, "load": round(os.getloadavg()[0], 1)}
    mark = mark or uuid.uuid4().hex
    began, load = time.monotonic(), os.getloadavg()[0]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.hubs.run", hub, scene, *(["small"] if small else []),
        cwd=ROOT, env={**os.environ, MARK: mark, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SCENES[scene].minutes * 60 + END_SECONDS):
            printed, errors = await process.communicate()
        outcome = json.loads(printed or b"null") or {
            "grade": "failed",
            "seen": _last(errors),
            "figures": {},
            "told": None,
        }
    except TimeoutError:
        outcome = Outcome("bad", f"the scene did not end within {SCENES[scene].minutes:g} minutes").as_json()
    finally:
        await _end(process)
        await asyncio.to_thread(end_marked, mark)
    return {**outcome, "seconds": round(time.monotonic() - began, 1), "load": round(load, 1)}


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let it end what it started: a program that hides its environment is known to its parent alone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                if process.returncode is None:
                    process.send_signal(number)
                    await process.wait()


def _last(errors: bytes) -> str:
    lines = errors.decode(errors="replace").strip().splitlines()
    return f"the scene failed: {lines[-1][:300] if lines else 'it printed nothing'}"


def machine() -> dict[str, Any]:
    """Where and when, without a name that leads to somebody."""
    return {
        "began": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "kernel": f"Linux {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "commit": _commit(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "versions": {adapter.name: adapter.version for adapter in ADAPTERS.values()},
    }


def _commit() -> str:
    """The checkout that was played."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def cleaned(value: Any) -> Any:
    """The same without folders and names of this machine."""
    if isinstance(value, str):
        text = value.replace(str(ROOT), ".").replace(str(Path.home()), "~").replace(socket.gethostname(), "HOST")
        return re.sub(r"/tmp/hubs-\w+", "TMP", text)
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: cleaned(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(one) for one in value]
    return value


async def _cell(hub: str, scene: str, scale: Scale) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    outcome = await play(ADAPTERS[hub], scene, SCENES[scene], scale)
    print(json.dumps(cleaned(outcome.as_json())))


if __name__ == "__main__":
    asyncio.run(_cell(sys.argv[1], sys.argv[2], SMALL if "small" in sys.argv[3:] else FULL))
