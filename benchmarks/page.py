"""docs/benchmarks: the last results as data, the page made of them, and its plots.

``record`` keeps the results of a run in ``results.json``, beside those of benchmarks that did not run. The page and the
plots are made of that file alone, so a test can make them again and compare.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.plots import drawn
from benchmarks.processes import ROOT, node
from benchmarks.report import Report, as_json, cells, from_json, headings

__all__ = ["FOLDER", "files", "record", "surroundings", "write"]

FOLDER = ROOT / "docs" / "benchmarks"
RESULTS = "results.json"
PACKAGES = ("mcp", "uvicorn", "uvloop", "httptools", "aiohttp", "msgspec", "anyio")

HEAD = """\
# Benchmarks

`make bench-docs` writes this page: it runs the benchmarks and keeps their results in [results.json](results.json).
`make bench` prints the same tables, and more. Both end with exit code 1 if a limit is missed. One benchmark runs with
`python -m benchmarks NAME`, quickly with `--quick`; `calls` is the name of all that measure a call through the hub.

How it is measured:

- All sides of a comparison run in the same rounds, in turns and in turning order. A ratio is the median of
  the ratios of single rounds; the interval after it holds it with 95 % confidence (bootstrap over the rounds).
- CPU is the CPU time of the measured program and its children per call, from the scheduler's account. The MCP server
  behind it is not counted. On a shared machine this figure is steadier than latency and calls per second.
- The load generator is a Node program on plain sockets (`benchmarks/generator.mjs`), the server behind is one
  `asyncio.Protocol` (`benchmarks/upstream.py`). Directly connected they exchange many times the calls of any gateway.
- Memory is the proportional set size of the measured process tree after the calls.

How hubs treat servers that fail is a benchmark of its own: [hubs under faults](hubs.md), `python -m benchmarks hubs`.

[Where the time of a call goes](profile.md) explains the path of a call, with [flame graphs](flame/README.md).
"""

BUSY_LOAD = 2.0
BUSY = """\
The machine of these results was busy with other work, as the load averages under the tables say. Rates are lower and
latencies longer than on an idle machine. Ratios compare rounds that ran side by side, so they hold.
"""


def surroundings() -> dict[str, str]:
    """When, on what, and with which versions."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _said("git", "rev-parse", "--short", "HEAD"),
        "machine": f"{_cpu()}, {os.cpu_count()} cores, {_memory():.0f} GB, Linux {platform.release().split('-')[0]}",
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "versions": ", ".join(
            [f"Python {platform.python_version()}", f"Node {_said(node(), '--version').removeprefix('v')}"]
            + [f"{name} {found}" for name in PACKAGES if (found := _version(name))]
        ),
    }


def record(
    reports: Sequence[Report], where: Mapping[str, str], *, order: Sequence[str] = (), folder: Path = FOLDER
) -> None:
    """Keep these results, beside those of the benchmarks that did not run, in the order of the benchmarks."""
    file = folder / RESULTS
    old = json.loads(file.read_text()) if file.exists() else {"benchmarks": []}
    found = {one["name"]: one for one in old["benchmarks"]}
    for data in as_json(reports)["benchmarks"]:
        found[data["name"]] = {**data, "where": dict(where)}
    kept = sorted(found.values(), key=lambda one: order.index(one["name"]) if one["name"] in order else len(order))
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"benchmarks": kept}, indent=1, ensure_ascii=False) + "\n")


def write(*, folder: Path = FOLDER) -> None:
    """Make the page and the plots of the kept results."""
    made = files(json.loads((folder / RESULTS).read_text()))
    for old in folder.glob("*.svg"):
        old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text)


def files(results: Mapping[str, Any]) -> dict[str, str]:
    """The page and its plots, by file name."""
    found = [(from_json(data), data["where"]) for data in results["benchmarks"]]
    plots = {
        f"{report.name}-{number}.svg": drawn(plot) for report, _ in found for number, plot in enumerate(report.plots, 1)
    }
    busy = [where["load"] for _, where in found if float(where["load"].split()[0]) > BUSY_LOAD]
    page = [HEAD, *([BUSY] if busy else []), "## Verdicts\n", _verdicts([report for report, _ in found])]
    page += [_section(report, where) for report, where in found]
    return {"README.md": "\n".join(page), **plots}


def _verdicts(reports: Sequence[Report]) -> str:
    lines = ["| demand | found | |", "|---|---|---|"]
    lines += [
        f"| {_plain(check.demand)} | {_plain(check.found)} | {'met' if check.met else '**missed**'} |"
        for report in reports
        for check in report.checks
    ]
    return "\n".join([*lines, ""])


def _section(report: Report, where: Mapping[str, str]) -> str:
    used = headings(report)
    lines = [f"## {report.title}\n", report.about or f"`python -m benchmarks {report.name}`.", ""]
    lines += [f"| {' | '.join(used)} |", f"|{'---|' * len(used)}"]
    lines += [f"| {' | '.join(_plain(cell) for cell in cells(report, row))} |" for row in report.rows]
    lines += [f"\nNot measured: {_plain(reason)}" for reason in report.missing]
    lines += [f"\n![{plot.title}]({report.name}-{n}.svg)" for n, plot in enumerate(report.plots, 1)]
    measured = (
        f"Measured {where['date']} at {where['commit']} on {where['machine']}, load average before {where['load']}"
    )
    lines += ["", f"{measured}. {where['versions']}. Command: `python -m benchmarks {report.name}`.", ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _said(*command: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=20).stdout.strip()
    return "unknown"


def _version(name: str) -> str | None:
    with contextlib.suppress(PackageNotFoundError):
        return version(name)
    return None


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine() or sys.platform


def _memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
