"""Draws the diagrams of the documentation as SVG, from the Mermaid text that the pages hold.

The site loads no script for diagrams. Three kinds are drawn: the packages in their layers, the states of a server, and
the path of a call. The text stays in the pages, because code hosts show it too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import count

__all__ = ["drawn"]

HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}" '
    'class="diagram" style="max-width: {width}px">'
    '<defs><marker id="{arrow}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path d="M0 0 8 4 0 8Z" class="tip"/></marker></defs>'
)
_numbers = count(1)


def drawn(text: str) -> str:
    """The SVG of a Mermaid text."""
    kind = text.split(None, 1)[0]
    return {"flowchart": _layers, "stateDiagram-v2": _states, "sequenceDiagram": _sequence}[kind](text)


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    arrow = f"arrow-{next(_numbers)}"
    body = "".join(parts).replace("url(#arrow)", f"url(#{arrow})")
    head = HEAD.format(width=round(width), height=round(height), title=escape(title), arrow=arrow)
    return f'<figure class="drawing">{head}{body}</svg></figure>'


def _box(x: float, y: float, width: float, height: float, text: str, kind: str = "box") -> str:
    middle = f'x="{x + width / 2:g}" y="{y + height / 2 + 5:g}"'
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7"'
    return (
        f'<rect class="ground" {place}/><rect class="{kind}" {place}/>'
        f'<text {middle} text-anchor="middle">{escape(text)}</text>'
    )


# Packages in rows: a package imports only from rows below it.

ROW, BOX, GAP, HIGH = 74, 116, 22, 36


def _layers(text: str) -> str:
    rows = [re.findall(r"^\s+(\w+)$", block, re.MULTILINE) for block in re.findall(r"(?s)subgraph.*?\bend\b", text)]
    rows = [[name for name in row if name != "end"] for row in rows]
    width = max(len(row) for row in rows) * (BOX + GAP) + 2 * GAP + 160
    places: dict[str, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        left = (width - len(row) * (BOX + GAP) + GAP) / 2
        # Rows are moved sideways in turn, so that a line between distant rows passes beside the boxes.
        shift = (-60, 0, 60)[level % 3] if len(row) < 3 else 0
        for index, name in enumerate(row):
            places[name] = (left + shift + index * (BOX + GAP), 10 + level * ROW)
    parts = []
    for one, other in re.findall(r"(\w+) --> (\w+)", text):
        (x, y), (to_x, to_y) = places[one], places[other]
        start, end = (x + BOX / 2, y + HIGH), (to_x + BOX / 2, to_y)
        bend = (end[1] - start[1]) / 2
        parts.append(
            f'<path class="line" marker-end="url(#arrow)" d="M{start[0]:g} {start[1]:g}'
            f'C{start[0]:g} {start[1] + bend:g} {end[0]:g} {end[1] - bend:g} {end[0]:g} {end[1]:g}"/>'
        )
    parts += [_box(x, y, BOX, HIGH, name) for name, (x, y) in places.items()]
    return _svg(width, len(rows) * ROW, "The packages, and which imports which", parts)


# States of a server: the healthy path from left to right, trouble below it, rest above it.

STATE = (148, 40)
FAR = 300
PLACES: Mapping[str, tuple[float, float]] = {
    "disconnected": (20, 170),
    "connecting": (250, 170),
    "connected": (500, 170),
    "reconnecting": (500, 330),
    "denied": (20, 330),
    "parked": (250, 330),
    "idle": (250, 30),
    "disabling": (500, 30),
    "disabled": (740, 30),
}
KINDS = {
    "connected": "up",
    "denied": "need",
    "parked": "need",
    "reconnecting": "coming",
    "connecting": "coming",
}


def _states(text: str) -> str:
    edges = re.findall(r"^\s+(\w+) --> (\w+): (.+)$", text, re.MULTILINE)
    parts = [_edge(old, new, words, (new, old) in {(a, b) for a, b, _ in edges}) for old, new, words in edges]
    for name, (x, y) in PLACES.items():
        parts.append(_box(x, y, *STATE, name, f"box {KINDS.get(name, 'rest')}"))
    picture = _svg(910, 430, "The states of a server, and which leads to which", parts)
    rows = "\n".join(f"| {_shown(old)} | {_shown(new)} | {words} |" for old, new, words in edges)
    table = f"| from | to | on |\n|---|---|---|\n{rows}"
    return f'{picture}\n\n<details markdown="1"><summary>Every transition</summary>\n\n{table}\n\n</details>'


def _shown(state: str) -> str:
    return f"`{state}`"


def _edge(old: str, new: str, words: str, both: bool) -> str:
    if old == new:
        return ""
    (x, y), (to_x, to_y) = (_middle(old), _middle(new))
    aside = 9 if both else 0
    long = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5 or 1
    off_x, off_y = -(to_y - y) / long * aside, (to_x - x) / long * aside
    start, end = _rim(x, y, to_x, to_y), _rim(to_x, to_y, x, y)
    # A long line bends around the box between its ends.
    bend = 70 if long > FAR else 0
    over_x = (start[0] + end[0]) / 2 - (to_y - y) / long * bend
    over_y = (start[1] + end[1]) / 2 + (to_x - x) / long * bend
    return (
        f'<path class="line" marker-end="url(#arrow)" d="M{start[0] + off_x:.0f} {start[1] + off_y:.0f}'
        f'Q{over_x:.0f} {over_y:.0f} {end[0] + off_x:.0f} {end[1] + off_y:.0f}">'
        f"<title>{escape(f'{old} to {new}: {words}')}</title></path>"
    )


def _middle(name: str) -> tuple[float, float]:
    x, y = PLACES[name]
    return x + STATE[0] / 2, y + STATE[1] / 2


def _rim(x: float, y: float, to_x: float, to_y: float) -> tuple[float, float]:
    """Where the line between two middles leaves the first box."""
    across, down = to_x - x, to_y - y
    share = min((STATE[0] / 2 + 3) / (abs(across) or 1e-9), (STATE[1] / 2 + 3) / (abs(down) or 1e-9))
    return x + across * share, y + down * share


# The path of a call: one column for each part, one line for each message.

COLUMN, STEP = 158, 40
CASES = {"alt": "if ", "else": "else: "}


def _sequence(text: str) -> str:
    people = re.findall(r"participant (\w+) as (.+)", text)
    columns = {name: 80 + index * COLUMN for index, (name, _) in enumerate(people)}
    parts: list[str] = []
    y = 76.0
    for line in text.splitlines():
        if found := re.match(r"\s+(\w+)(-?->>|->>)(\w+): (.+)", line):
            parts.append(_message(columns[found[1]], columns[found[3]], y, found[4], dashed=found[2].startswith("--")))
            y += STEP
        elif found := re.match(r"\s+(alt|else) (.+)", line):
            parts.append(
                f'<rect class="band" x="6" y="{y - 22:g}" width="{len(people) * COLUMN - 12}" height="24" rx="4"/>'
                f'<text class="note" x="16" y="{y - 5:g}">{escape(f"{CASES[found[1]]}{found[2]}")}</text>'
            )
            y += STEP
    lines = [f'<path class="life" d="M{x:g} 44V{y:g}"/>' for x in columns.values()]
    heads = [_box(columns[name] - 68, 8, 136, 34, words) for name, words in people]
    return _svg(len(people) * COLUMN, y + 6, "The path of a call", [*lines, *heads, *parts])


def _message(x: float, to_x: float, y: float, words: str, *, dashed: bool) -> str:
    text = f'y="{y - 6:g}" class="note"'
    kind = "line dashed" if dashed else "line"
    if x == to_x:
        return (
            f'<path class="{kind}" marker-end="url(#arrow)" d="M{x:g} {y - 8:g}h26v16h-22"/>'
            f'<text {text} x="{x + 32:g}">{escape(words)}</text>'
        )
    start = min(x, to_x)
    return (
        f'<path class="{kind}" marker-end="url(#arrow)" d="M{x:g} {y:g}H{to_x + (-4 if to_x > x else 4):g}"/>'
        f'<text {text} x="{start + 8:g}">{escape(words)}</text>'
    )
