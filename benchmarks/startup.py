"""``holdfast --help``, the installed command, compared with an empty Python program (PERF-5)."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.report import Check, Report, Row, interleaved, median, ratio

__all__ = ["REQUIREMENTS", "measure"]

REQUIREMENTS = ("PERF-5",)

ROUNDS = 40
AT_MOST = 5

EMPTY = "python -c pass"
HELP = "holdfast --help"


def measure(*, rounds: int = ROUNDS) -> Report:
    """Start both in turns, after one warm-up start each."""
    commands = {
        EMPTY: [sys.executable, "-c", "pass"],
        HELP: [str(Path(sysconfig.get_path("scripts")) / "holdfast"), "--help"],
    }
    for command in commands.values():
        _seconds(command)
    samples: defaultdict[str, list[float]] = defaultdict(list)
    for name in interleaved(list(commands), rounds):
        samples[name].append(_seconds(commands[name]))
    times = ratio(samples[HELP], samples[EMPTY])
    return Report(
        name="startup",
        title=f"Start, {rounds} rounds",
        requirements=REQUIREMENTS,
        rows=(
            Row(label=EMPTY, time=median(samples[EMPTY])),
            Row(label=HELP, time=median(samples[HELP]), ratio=times),
        ),
        checks=(
            Check(
                demand=f"PERF-5 takes at most {AT_MOST} times as long as an empty program",
                found=f"{times.median:.2f} times",
                met=times.median <= AT_MOST,
            ),
        ),
    )


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began
