"""``make mutants``: draw mutants of the packages in ``packages.toml``, run them, and list what survived."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

from tests.mutants.change import sites_of
from tests.mutants.run import Group, Mutant, Outcome, Runner, groups_in

ROOT = Path(__file__).parents[2]


def main() -> int:
    """0 unless fewer mutants died than ``--least`` asks for."""
    options = _options()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10_000)
    mutants = drawn(groups_in(ROOT / options.packages), options.count, seed, ROOT, only=options.only)
    print(f"{len(mutants)} mutants, SEED={seed}", flush=True)
    started = time.monotonic()
    outcomes = []
    with Runner(ROOT, jobs=options.jobs) as runner:
        for outcome in runner.run(mutants):
            outcomes.append(outcome)
            print(f"{len(outcomes):4}/{len(mutants)} {outcome}", flush=True)
    print(*report(outcomes), f"{time.monotonic() - started:.0f} s, SEED={seed}", sep="\n")
    return 0 if not outcomes or share(outcomes) >= options.least else 1


def drawn(groups: list[Group], count: int, seed: int, root: Path, *, only: str = "") -> list[Mutant]:
    """So many mutants of the groups with this text in their name; the same ones for the same seed and code.

    A file that two groups name is of the later one: a file may need other tests than the rest of its package.
    """
    owners = {file: group for group in groups for file in group.files(root)}
    wanted = {file: group for file, group in owners.items() if only in group.name}
    every = [Mutant(group, file, site) for file, group in wanted.items() for site in sites_of(file.read_text())]
    chosen = random.Random(seed).sample(every, min(count, len(every)))
    return sorted(chosen, key=lambda mutant: (mutant.group.name, str(mutant.file), mutant.site.start))


def report(outcomes: list[Outcome]) -> list[str]:
    """The share of each group, then of all, then each survivor with its line."""
    lines = [""]
    for name in dict.fromkeys(outcome.mutant.group.name for outcome in outcomes):
        of_it = [outcome for outcome in outcomes if outcome.mutant.group.name == name]
        lines.append(f"{name:24} {_killed(of_it)}")
    lines += [f"{'all':24} {_killed(outcomes)}", ""]
    survivors = [outcome for outcome in outcomes if not outcome.killed]
    return [*lines, *(["survivors:"] if survivors else []), *map(str, survivors)]


def share(outcomes: list[Outcome]) -> float:
    return sum(outcome.killed for outcome in outcomes) / len(outcomes) * 100


def _killed(outcomes: list[Outcome]) -> str:
    late = sum(outcome.result == "timed out" for outcome in outcomes)
    died = sum(outcome.killed for outcome in outcomes)
    return f"{died} of {len(outcomes)} killed ({share(outcomes):.0f} %)" + (
        f", {late} by the time limit" if late else ""
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="how many mutants")
    parser.add_argument("--seed", type=int, help="which ones; without it, others each time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--only", default="", help="only groups with this text in their name")
    parser.add_argument("--least", type=float, default=0.0, help="fail if fewer per cent of them die")
    parser.add_argument("--packages", default="tests/mutants/packages.toml", help="the list of packages and tests")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
