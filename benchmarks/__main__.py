"""``python -m benchmarks [NAME…] [--rounds N] [--json]``: measure, and print one table.

Exit code 1: a requirement is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from benchmarks import call_path, dead_server, doctor, drill, gateway, hub_calls, load, serve_load, startup, status_page
from benchmarks.report import Report, as_json, as_table

__all__ = ["BENCHMARKS", "main"]

BENCHMARKS: dict[str, Callable[..., Report]] = {
    "call_path": call_path.measure,
    "call_variants": call_path.measure_variants,
    "load": load.measure,
    "startup": startup.measure,
    "status_page": status_page.measure,
    "hub_calls": hub_calls.measure,
    "dead_server": dead_server.measure,
    "drill": drill.measure,
    "doctor": doctor.measure,
    "serve_load": serve_load.measure,
    "gateway": gateway.measure,
}


def main(argv: Sequence[str]) -> int:
    """Run the named benchmarks, or all. Returns the exit code."""
    options = _options(argv)
    settings = {} if options.rounds is None else {"rounds": options.rounds}
    reports = [BENCHMARKS[name](**settings) for name in options.names or BENCHMARKS]
    print(json.dumps(as_json(reports), indent=2) if options.json else as_table(reports))
    return 0 if all(report.met for report in reports) else 1


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Holdfast and its baselines.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--rounds", type=_rounds, help="how many rounds; default: the number of each benchmark")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark `{unknown[0]}`; known: {', '.join(BENCHMARKS)}")
    return options


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < 1:
        raise argparse.ArgumentTypeError("at least one round")
    return rounds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
