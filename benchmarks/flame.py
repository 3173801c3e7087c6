"""Where the CPU time of a call goes: flame graphs of two versions of the hub, in docs/benchmarks/flame.

``python -m benchmarks.flame [BEFORE]`` profiles ``holdfast serve`` under 16 callers, once at the commit BEFORE and once
as it is. py-spy samples the stacks; it is installed under ``.tools``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.calls import Load, Subject, generator
from benchmarks.page import FOLDER, surroundings
from benchmarks.processes import ROOT, hub, upstream

__all__ = ["Stacks", "drawn", "main", "page", "read", "shares"]

BEFORE = "0be7163^"
"""The last commit with the SDK's server in front and httpx2 behind."""

SECONDS, SAMPLES = 12, 400
CALLERS = 16
WIDTH, LINE = 1200, 17
LEAST = 0.004
"""Frames with a smaller share are not drawn."""

Stacks = Counter[tuple[str, ...]]

GROUPS = (
    ("holdfast/front", "Holdfast: HTTP, sessions and MCP towards clients"),
    ("holdfast/hub", "Holdfast: admission, breaker, limits, settlement"),
    ("holdfast/wire", "Holdfast: connections to servers"),
    ("holdfast/", "Holdfast: the rest"),
    ("sse_starlette", "sse_starlette: every answer as an event stream"),
    ("mcp/", "the MCP SDK: typed messages, sessions, task groups"),
    ("pydantic", "pydantic: models of the messages"),
    ("httpx2", "httpx2 and httpcore2: the HTTP client"),
    ("httpcore2", "httpx2 and httpcore2: the HTTP client"),
    ("h11", "h11: HTTP parsed in Python"),
    ("uvicorn", "uvicorn and starlette: the HTTP server"),
    ("starlette", "uvicorn and starlette: the HTTP server"),
    ("anyio", "anyio: task groups and memory streams"),
    ("opentelemetry", "OpenTelemetry"),
    ("prometheus_client", "Prometheus metrics"),
    ("json/", "json"),
    ("asyncio", "asyncio and the event loop: reading and writing sockets, timers, callbacks"),
)
OTHER = "Python itself and the rest"


def read(folded: str) -> Stacks:
    """py-spy's raw output: one line for each stack, with its number of samples. The event loop's thread alone: py-spy
    takes a worker thread that waits for one that works.
    """
    stacks: Stacks = Counter()
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        if "_bootstrap (" not in stack:
            stacks[tuple(_frame(frame) for frame in stack.split(";"))] += int(count)
    return stacks


def _frame(frame: str) -> str:
    """`function (path/file.py)`, without a line number and without the folder of the environment."""
    return re.sub(r"\((?:.*(?:site-packages|src|lib/python3\.\d+)/)?([^():]*)(?::\d+)?\)", r"(\1)", frame)


def shares(stacks: Stacks) -> dict[str, float]:
    """The share of each group: where the stack ends, counted for the innermost frame that belongs to a group."""
    found: Counter[str] = Counter()
    for stack, count in stacks.items():
        found[next((name for frame in reversed(stack) if (name := _group(frame))), OTHER)] += count
    total = sum(found.values()) or 1
    return {name: count / total for name, count in found.most_common()}


def _group(frame: str) -> str | None:
    path = frame.rpartition("(")[2]
    return next((name for start, name in GROUPS if path.startswith(start)), None)


def drawn(title: str, stacks: Stacks) -> str:
    """An icicle: callers above, what they call below, as wide as its share."""
    total = sum(stacks.values()) or 1
    boxes: list[tuple[int, float, float, str]] = []
    _place(stacks, 0, 0.0, total, boxes)
    depth = max((level for level, *_ in boxes), default=0)
    height = 40 + LINE * (depth + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        "<style>text { font: 11px system-ui, sans-serif; fill: #1f2328 } rect { stroke: #ffffff }</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="22" style="font-size: 15px; font-weight: 600">{escape(title)}</text>',
    ]
    for level, start, width, name in boxes:
        x, y, wide = start * WIDTH, 36 + level * LINE, width * WIDTH
        fill = "#7ee787" if "(holdfast/" in name else "#ffd8a8"
        label = escape(name.partition(" (")[0][: int(wide / 6.2)]) if wide > 20 else ""
        parts.append(
            f'<g><title>{escape(name)} {width:.1%}</title><rect x="{x:.1f}" y="{y}" width="{wide:.1f}" '
            f'height="{LINE}" fill="{fill}"/><text x="{x + 3:.1f}" y="{y + 12}">{label}</text></g>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _place(stacks: Stacks, level: int, start: float, total: int, boxes: list[tuple[int, float, float, str]]) -> None:
    by_head: dict[str, Stacks] = {}
    for stack, count in stacks.items():
        if stack:
            by_head.setdefault(stack[0], Counter())[stack[1:]] += count
    for name, below in sorted(by_head.items()):
        width = sum(below.values()) / total
        if width >= LEAST:
            boxes.append((level, start, width, name))
            _place(below, level + 1, start, total, boxes)
        start += width


def page(before: Stacks, after: Stacks, where: Mapping[str, str], ref: str) -> str:
    """The page beside the two pictures."""
    old, new = shares(before), shares(after)
    names = sorted({*old, *new}, key=lambda name: -max(old.get(name, 0), new.get(name, 0)))
    lines = [f"| {name} | {old.get(name, 0):.1%} | {new.get(name, 0):.1%} |" for name in names]
    return PAGE.format(ref=ref, table="\n".join(lines), **where)


PAGE = """\
# Where the time of a call goes

`python -m benchmarks.flame` writes this page. py-spy samples the event loop of `holdfast serve` while 16 callers call
an echo tool, HTTP in and out. A frame is as wide as its share of the CPU time; frames of Holdfast are green. Point at a
frame to read its file and share.

Before: `{ref}`, with the SDK's server in front and httpx2 behind. After: `{commit}`. A share is of that version's own
time with the interpreter's lock; the CPU time per call itself is in [the benchmarks](../README.md).

| where the stack ends | before | after |
|---|---|---|
{table}

## Before

![Flame graph before](before.svg)

## After

![Flame graph after](after.svg)

Sampled {date} on {machine}. {versions}.
"""


def _profiled(source: Path) -> Stacks:
    with tempfile.TemporaryDirectory() as folder, upstream("--eras", "legacy") as (_, (port,)):
        servers = {"up": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}
        with hub(servers, source=source) as (pid, base):
            raw = Path(folder) / "stacks"
            subject = Subject("Holdfast", f"{base}/mcp", pid, "up__echo")
            done = threading.Event()
            calling = threading.Thread(target=_call_until, args=(subject, done))
            calling.start()
            try:
                subprocess.run(
                    [_py_spy(), "record", "--gil", "--pid", str(pid), "--duration", str(SECONDS),
                     "--rate", str(SAMPLES), "--format", "raw", "--output", str(raw)],
                    check=True, capture_output=True, timeout=SECONDS + 60,
                )  # fmt: skip
            finally:
                done.set()
                calling.join()
            return read(raw.read_text())


def _call_until(subject: Subject, done: threading.Event) -> None:
    with generator(subject, Load(callers=CALLERS, requests=320)) as calls:
        while not done.is_set():
            calls.run()


def _py_spy() -> str:
    home, uv = ROOT / ".tools" / "py-spy", str(Path(sys.executable).parent / "uv")
    if not (home / "bin" / "py-spy").exists():
        subprocess.run([uv, "venv", "--quiet", "--allow-existing", str(home)], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", str(home / "bin/python"), "py-spy"], check=True)
    return str(home / "bin" / "py-spy")


def main(argv: Sequence[str]) -> None:
    """Profile both and write the page."""
    ref = argv[0] if argv else BEFORE
    folder = FOLDER / "flame"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as parent:
        old = Path(parent) / "before"
        subprocess.run(["git", "worktree", "add", "--detach", str(old), ref], cwd=ROOT, check=True, capture_output=True)
        try:
            before = _profiled(old)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(old)], cwd=ROOT, check=True)
    after = _profiled(ROOT)
    (folder / "before.svg").write_text(drawn("Before: the SDK's server in front, httpx2 behind", before))
    (folder / "after.svg").write_text(drawn("After: one path of our own", after))
    (folder / "README.md").write_text(page(before, after, surroundings(), ref))


if __name__ == "__main__":
    main(sys.argv[1:])
