"""``python -m tests.simulation``: search seeds, or play one again; ``--capacity`` measures a large fleet."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.capacity import measure
from tests.simulation.run import Failure, make_plan, play, search, shrunk
from tests.simulation.world import Broken


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed, and shrink it if it fails")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to search")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--capacity", metavar="RxS", help="measure R replicas and S servers, for example 100x10000")
    options = parser.parse_args()
    if options.capacity:
        replicas, servers = map(int, options.capacity.split("x"))
        say(measure(replicas, servers))
        return 0
    if options.seed is not None:
        plan = make_plan(options.seed)
        try:
            say(play(plan))
        except Broken as exc:
            return report(Failure(plan, str(exc)))
        return 0
    begun = time.process_time()
    failure = search(range(options.first, options.first + options.seeds))
    if failure is not None:
        return report(failure)
    say(f"{options.seeds} seeds hold, {time.process_time() - begun:.0f} s of CPU")
    return 0


def report(failure: Failure) -> int:
    say(f"seed {failure.plan.seed} breaks: {failure.message}")
    short = shrunk(failure.plan)
    say(f"{len(short.actions)} of {len(failure.plan.actions)} actions are enough:")
    for action in short.actions:
        say(f"  {action}")
    say(f"play it again: python -m tests.simulation --seed {failure.plan.seed}")
    return 1


sys.exit(main())
