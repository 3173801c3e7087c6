"""``python -m benchmarks hubs``: play scenes with hubs, keep the raw results, and write the page.

Every part can run alone (``--hub``, ``--scene``); what is there already is not played again unless ``--again`` says so.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.hubs import page
from benchmarks.hubs.adapter import HOME
from benchmarks.hubs.adapters import ADAPTERS
from benchmarks.hubs.run import Results, Run, in_process, machine
from benchmarks.hubs.scenes import SCENES

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run it. Returns the exit code: 0, also where a hub does badly."""
    options = _options(argv)
    if not options.page:
        folder = page.RAW if options.docs else HOME / "results"
        results = Results(folder / f"run-{options.run}.json")
        hubs, scenes = options.hub or list(ADAPTERS), options.scene or list(SCENES)
        if options.again:
            for hub in hubs:
                for scene in scenes:
                    results.forget(hub, scene)
        if not results.machine:
            results.machine = machine()
        _say(f"results: {results.file}")
        run = Run(
            results, rounds=options.rounds, jobs=options.jobs, cell=partial(in_process, small=options.quick), say=_say
        )
        asyncio.run(run.play(hubs, scenes))
        print(page.summary(results))
    if options.docs or options.page:
        page.write()
        _say(f"written: {page.FOLDER / page.PAGE}")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks hubs",
        description="Hubs for MCP under faults, by the rules of docs/benchmarks/hubs-rules.md.",
    )
    parser.add_argument("--hub", action="append", choices=list(ADAPTERS), help="this hub alone; may be repeated")
    parser.add_argument("--scene", action="append", choices=list(SCENES), help="this scene alone; may be repeated")
    parser.add_argument("--rounds", type=int, default=1, help="how often each cell is played; default: 1")
    parser.add_argument(
        "--jobs", type=int, default=1, help="how many cells at a time; those that measure speed are alone"
    )
    parser.add_argument("--run", type=int, default=1, help="the number of the run, for its file; default: 1")
    parser.add_argument("--again", action="store_true", help="play also what has results")
    parser.add_argument("--quick", action="store_true", help="on a tiny scale: a check that it works")
    parser.add_argument(
        "--docs", action="store_true", help="keep the results in docs/benchmarks/hubs and write the page"
    )
    parser.add_argument("--page", action="store_true", help="write the page of the kept results, and play nothing")
    options = parser.parse_args(argv)
    if options.quick and options.docs:
        parser.error("--quick measures nothing that belongs into the documentation: leave out --docs")
    return options
